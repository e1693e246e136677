# SPDX-License-Identifier: Apache-2.0
"""The cases in which shares once fell off a cliff, each with ten seeds: ``python -m benchmarks.cliffs``.

Problem. In November 2026 scenarios that the project had never seen were 14 to 28 points off, in some seeds and not in
others. A figure of one seed says nothing about such a cliff.

Approach. ``scenarios/cliffs/`` has each of those cases; they are played under fairsched by the stage, and judged by the
measures, of every other scenario. The daemon is told nothing of the GPU. Of each case it is said how large the largest
share error is: in the median of the seeds, in the worst one, and what the bar is.

Examples:
  python -m benchmarks.cliffs                          all, ten seeds each; goes on where it was stopped
  python -m benchmarks.cliffs --only seven --seeds 3   one of them
  python -m benchmarks.cliffs --write                  docs/robustness.md from the committed summary
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import fairness
from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.fair import marked, results
from benchmarks.fair.scenario import DIRECTORY, load
from fairsched.errors import ConfigError, FairschedError

CASES = DIRECTORY / "cliffs"
ROOT = results.ROOT / "cliffs"
SUMMARY = results.ROOT / "cliffs.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "robustness.md"
MARK = "cliffs"
POLICY = "fairsched"
SEEDS = 10
BAR_POINTS, BARS_POINTS = 1.5, {"unequal-30": 5.0}
"""Of the worst seed."""
_POINTS, _ERROR = "share_error_max_points", "account_error_max_ratio"


def cases() -> dict[str, Path]:
    """The scenario files, by name."""
    return {path.stem: path for path in sorted(CASES.glob("*.yaml"))}


def chosen(only: Sequence[str]) -> dict[str, Path]:
    """Those that were asked for. Raises ConfigError for a name that is none."""
    known = cases()
    for name in only:
        if name not in known:
            raise ConfigError(f"no case {name!r}", remedy=f"one of: {', '.join(known)}")
    return {name: path for name, path in known.items() if not only or name in only}


def summary_of(documents: Mapping[str, Sequence[results.Document]]) -> dict[str, Any]:
    """What the repository keeps: of each case its figures by seed, and what made them."""
    return {
        name: {
            "description": load(CASES / f"{name}.yaml").scenario.description,
            "made": sorted(
                {f"{one['machine']}, Linux {one['kernel']}; commit {one['commit']}" for one in found}
            ),
            "seconds": sorted({one["seconds"] for one in found}),
            "seeds": {
                str(one["seed"]): {key: one["measures"]["whole"].get(key) for key in (_POINTS, _ERROR)}
                for one in found
            },
        }
        for name, found in documents.items()
        if found
    }


def rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One for each case."""
    found = []
    for name, one in summary.items():
        points = sorted(seed[_POINTS] for seed in one["seeds"].values())
        errors = [seed[_ERROR] for seed in one["seeds"].values() if seed[_ERROR] is not None]
        bar = BARS_POINTS.get(name, BAR_POINTS)
        within = sum(value <= bar for value in points)
        found.append(
            [
                f"`{name}`: {one['description']}",
                f"{statistics.median(points):.2f}",
                f"{points[-1]:.2f}",
                f"<= {bar:g}",
                f"{within} of {len(points)}" if within == len(points) else f"**{within} of {len(points)}**",
                f"{100 * max(errors):.1f}" if errors else "-",
            ]
        )
    return found


def page_section(summary: Mapping[str, Any]) -> str:
    """Markdown of docs/robustness.md."""
    head = ["case", "median", "worst seed", "bar", "seeds within it", "account, worst, %"]
    made = sorted({line for one in summary.values() for line in one["made"]})
    return "\n".join([marked.table(head, rows(summary)), "", *(f"- {line}" for line in made)])


def write_page(page: Path, summary: Mapping[str, Any]) -> list[Path]:
    """Returns the page if it changed."""
    sections = {"table": lambda: page_section(summary)}
    return marked.written([page], lambda path, text: marked.filled(text, MARK, sections, path.name))


def committed() -> dict[str, Any]:
    """The summary in the repository; empty where there is none."""
    return dict(json.loads(SUMMARY.read_text(encoding="utf-8"))) if SUMMARY.exists() else {}


def kept(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The summary: a case that was played with fewer seeds than before stays as it is, for those were a trial."""
    less = {name for name in now if len(now[name]["seeds"]) < len(before.get(name, {"seeds": ()})["seeds"])}
    return {**before, **{name: one for name, one in now.items() if name not in less}}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cliffs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="CASE", help="may be given more than once")
    add("--seeds", type=int, default=SEEDS, metavar="N", help="1 to N are played; ten otherwise")
    add("--results", type=Path, default=ROOT, metavar="DIR", help="where the documents lie")
    add("--list", action="store_true", help="the cases; plays nothing")
    add("--write", action="store_true", help="write the table of docs/robustness.md; plays nothing")
    return parser.parse_args(argv)


def _play(options: argparse.Namespace) -> int:
    found = chosen(options.only)
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: at least 1", remedy="give a number of seeds")
    jobs = fairness.jobs_of(list(found.values()), [POLICY], range(1, options.seeds + 1), None)
    performance = fairness.Performance(jobs, options.results)
    with stop_signals():
        performance.run()
    documents = {
        name: [one for one in results.load(name, options.results) if one["policy"] == POLICY]
        for name in found
    }
    now = summary_of(documents)
    results.write_json(SUMMARY, dict(sorted(kept(committed(), now).items())))
    print("\n".join(" | ".join(row) for row in rows(now)))
    for line in performance.failed:
        print(f"failed: {line}", file=sys.stderr)
    return int(bool(performance.failed))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status."""
    options = _parse(argv)
    try:
        if options.list:
            for name, path in cases().items():
                print(f"{name:<20}{load(path).scenario.description}")
            return 0
        if options.write:
            for path in write_page(PAGE, committed()):
                print(f"written: {path.name}")
            return 0
        return _play(options)
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; everything is cleaned up, the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
