# SPDX-License-Identifier: Apache-2.0
"""The cases in which shares once fell off a cliff, each with ten seeds: ``python -m benchmarks.cliffs``.

Problem. In November 2026 scenarios that the project had never seen were 14 to 28 points off, in some seeds and not in
others. A figure of one seed says nothing about such a cliff.

Approach. ``scenarios/cliffs/`` has each of those cases; they are played under fairsched by the stage, and judged by the
measures, of every other scenario. The daemon is told nothing of the GPU. Of each case it is said how large the largest
share error is: in the median of the seeds, in the worst one, and what the bar is; with turns replayed and, by
``--trace``, with the GPU's own trace.

Examples:
  python -m benchmarks.cliffs                          all, ten seeds each; goes on where it was stopped
  python -m benchmarks.cliffs --only seven --seeds 3   one of them
  python -m benchmarks.cliffs --trace --seeds 4        with the GPU's own trace
  python -m benchmarks.cliffs --write                  docs/robustness.md from the committed summaries
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
from benchmarks.fair.rungs import TRACED
from benchmarks.fair.scenario import DIRECTORY, load
from fairsched.errors import ConfigError, FairschedError

CASES = DIRECTORY / "cliffs"
ROOT = results.ROOT / "cliffs"
SUMMARIES = {False: results.ROOT / "cliffs.json", True: results.ROOT / "traced-cliffs.json"}
"""By whether fairsched has the trace."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "robustness.md"
MARK = "cliffs"
POLICIES = {False: "fairsched", True: TRACED}
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


def rows(summary: Mapping[str, Any], traced: Mapping[str, Any]) -> list[list[str]]:
    """One for each case: what it is, its bar, and the figures without the trace and with it."""
    return [
        [
            f"`{name}`: {one['description']}",
            f"<= {_bar(name):g}",
            *_figures(name, summary),
            *_figures(name, traced),
        ]
        for name, one in sorted({**traced, **summary}.items())
    ]


def _bar(name: str) -> float:
    return BARS_POINTS.get(name, BAR_POINTS)


def _figures(name: str, summary: Mapping[str, Any]) -> list[str]:
    """The median, the worst seed, how many are within the bar, and the worst account in percent."""
    if name not in summary:
        return ["-"] * 4
    seeds = summary[name]["seeds"].values()
    points = sorted(seed[_POINTS] for seed in seeds)
    errors = [seed[_ERROR] for seed in seeds if seed[_ERROR] is not None]
    within = sum(value <= _bar(name) for value in points)
    return [
        f"{statistics.median(points):.2f}",
        f"{points[-1]:.2f}",
        f"{within} of {len(points)}" if within == len(points) else f"**{within} of {len(points)}**",
        f"{100 * max(errors):.1f}" if errors else "-",
    ]


def page_section(summary: Mapping[str, Any], traced: Mapping[str, Any]) -> str:
    """Markdown of docs/robustness.md."""
    figures = ["median", "worst seed", "seeds within", "account, worst, %"]
    head = ["case", "bar", *(f"{one}: replayed" for one in figures), *(f"{one}: trace" for one in figures)]
    made = sorted({line for one in (*summary.values(), *traced.values()) for line in one["made"]})
    return "\n".join([marked.table(head, rows(summary, traced)), "", *(f"- {line}" for line in made)])


def write_page(page: Path) -> list[Path]:
    """Fills the page from the committed summaries; returns it if it changed."""
    sections = {"table": lambda: page_section(committed(), committed(is_traced=True))}
    return marked.written([page], lambda path, text: marked.filled(text, MARK, sections, path.name))


def committed(*, is_traced: bool = False) -> dict[str, Any]:
    """The summary in the repository; empty where there is none."""
    path = SUMMARIES[is_traced]
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


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
    add("--trace", action="store_true", help="fairsched has the GPU's trace of context switches")
    add("--list", action="store_true", help="the cases; plays nothing")
    add("--write", action="store_true", help="write the table of docs/robustness.md; plays nothing")
    return parser.parse_args(argv)


def _play(options: argparse.Namespace) -> int:
    found = chosen(options.only)
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: at least 1", remedy="give a number of seeds")
    policy = POLICIES[options.trace]
    jobs = fairness.jobs_of(list(found.values()), [policy], range(1, options.seeds + 1), None)
    performance = fairness.Performance(jobs, options.results)
    with stop_signals():
        performance.run()
    documents = {
        name: [one for one in results.load(name, options.results) if one["policy"] == policy]
        for name in found
    }
    now = summary_of(documents)
    before = committed(is_traced=options.trace)
    results.write_json(SUMMARIES[options.trace], dict(sorted(kept(before, now).items())))
    for name in now:
        print(" | ".join([name, f"<= {_bar(name):g}", *_figures(name, now)]))
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
            for path in write_page(PAGE):
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
