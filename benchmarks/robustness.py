# SPDX-License-Identifier: Apache-2.0
"""Fair on a GPU and with tenants that nobody chose: ``python -m benchmarks.robustness`` (root), ``make bench-robust``.

Plays draws (robust_draws.py: a GPU from the documented prior times a random mix) under ``none`` and ``fairsched`` and
reports the distribution of what is measured (robust_figures.py). The daemon is never told what the GPU is.
docs/robustness.md says what is drawn and why.

A draw is a function of the seed and its number. Its scenario file and its results lie in benchmarks/results/robustness
(git ignores them); a command that was interrupted goes on when it is given again. What is kept is the summary,
benchmarks/results/robustness-SEED.json.

Examples:
  python -m benchmarks.robustness                        60 draws of seed 1, an hour
  python -m benchmarks.robustness --draws 6 --seed 3     others, and fewer
  python -m benchmarks.robustness --seed 3 --only 17     one draw again, with its tenants; writes no summary
  python -m benchmarks.robustness --seed 3 --list        what is drawn, without playing
  python -m benchmarks.robustness --trace                the same draws, and fairsched has the GPU's own trace
  python -m benchmarks.robustness --write                docs/robustness.md from the committed summaries
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import fairness, robust_figures
from benchmarks.bars import WIDTH
from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.fair import origin, results, table
from benchmarks.fair.results import Document
from benchmarks.fair.rungs import TRACED
from benchmarks.machine import ROOT, describe
from benchmarks.robust_draws import SECONDS, SETTLE_S, Draw, draw
from fairsched.base.files import replace_file
from fairsched.errors import FairschedError

DRAWS = 60
RAW = results.ROOT / "robustness"
PAGE = ROOT / "docs/robustness.md"
TUNING_SEEDS = (1, 2, 53, 61, 71)
"""Seeds whose results were looked at while the code was changed. Add yours: the summary of any other counts as one that
nothing was tuned on."""


# ---- what is played ----


def drawn(options: argparse.Namespace) -> list[Draw]:
    """What the options ask for."""
    numbers = options.only or range(1, options.draws + 1)
    return [draw(options.seed, n, seconds=options.seconds, settle_s=options.settle) for n in numbers]


def scenario_file(one: Draw, root: Path) -> Path:
    """The draw's, written where it is not there yet. Raises ResultError."""
    path = root / f"{one.name}.yaml"
    text = yaml.safe_dump(one.document, sort_keys=False, width=110)
    try:
        root.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), mode=0o644)
    except OSError as error:
        raise results.ResultError(f"{path}: {error.strerror}", remedy="name another --results") from error
    return path


def jobs_of(one: Draw, root: Path, *, is_traced: bool = False) -> list[fairness.Job]:
    """Both policies, in turns the first; its processes' random numbers come from its number. ``is_traced``: fairsched
    with the GPU's trace of context switches. What is played under none serves both."""
    policies = ("none", TRACED) if is_traced else fairness.OURS
    return fairness.jobs_of([scenario_file(one, root)], policies, [one.number], None)


def in_pairs(jobs: Sequence[fairness.Job]) -> list[tuple[fairness.Job, ...]]:
    """Two draws at a time, under the same policy: who plays beside a daemon should have one, too."""
    batches: list[tuple[fairness.Job, ...]] = []
    waiting: dict[str, fairness.Job] = {}
    for job in jobs:
        if (beside := waiting.pop(job.policy, None)) is None:
            waiting[job.policy] = job
        else:
            batches.append((beside, job))
    return [*batches, *((job,) for job in waiting.values())]


def one_by_one(jobs: Sequence[fairness.Job]) -> list[tuple[fairness.Job, ...]]:
    """Each has the machine to itself."""
    return [(job,) for job in jobs]


# ---- what is kept ----


def documents_of(jobs: Sequence[fairness.Job], root: Path) -> dict[str, Document]:
    """By policy, of those that were played as they would be now; with the trace or without, fairsched is fairsched."""
    found = {
        "fairsched" if job.policy == TRACED else job.policy: results.find(
            job.play.name, job.policy, job.seed, job.settings_hash, root
        )
        for job in jobs
    }
    return {policy: document for policy, document in found.items() if document is not None}


def summary_of(
    options: argparse.Namespace, played: Sequence[tuple[Draw, Mapping[str, Document]]]
) -> dict[str, Any]:
    """The file that is committed."""
    about, made = describe(), origin.of_this_run()
    hashes = sorted({str(document["code_hash"]) for _, of in played for document in of.values()})
    return {
        "seed": options.seed,
        "draws_asked": options.draws,
        "seconds": options.seconds,
        "settle_s": options.settle,
        "jobs": options.jobs,
        "trace": options.trace,
        "tuning_seeds": list(TUNING_SEEDS),
        "is_tuned_on": options.seed in TUNING_SEEDS,
        **made,
        "code_hashes": hashes,
        **{key: about[key] for key in ("cpus", "commit", "started", "load_average")},
        **robust_figures.summed_up(played),
    }


def summary_path(seed: int, root: Path = results.ROOT, *, is_traced: bool = False) -> Path:
    """Where the summary of a seed is committed."""
    return root / f"{'traced-' * is_traced}robustness-{seed}.json"


def committed(root: Path = results.ROOT) -> list[dict[str, Any]]:
    """Every summary, by seed, the one with the trace first. Raises ResultError."""
    found = []
    for path in root.glob("*robustness-*.json"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise results.ResultError(
                f"{path}: cannot be read: {error}", remedy="take the file from git again"
            ) from error
    return sorted(found, key=lambda summary: (int(summary["seed"]), not summary.get("trace")))


# ---- the command ----


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text}: 1 to 100000")
    return value


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    options = parser.parse_args(argv)
    if not 0 < options.seconds <= fairness.MAX_S or not 0 <= options.settle <= 60:
        parser.error("--seconds is more than 0 and at most an hour, --settle 0 to 60")
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--draws", type=_positive, default=DRAWS, metavar="N", help=f"numbers 1 to N; default {DRAWS}")
    add("--seed", type=_positive, default=1, metavar="S", help="of the draws; default 1")
    add(
        "--only",
        type=_positive,
        action="append",
        metavar="NUMBER",
        help="this draw; may be given more than once",
    )
    add(
        "--jobs",
        type=int,
        choices=(1, 2),
        default=1,
        help="plays at a time; default 1, see docs/robustness.md",
    )
    add("--seconds", type=float, default=SECONDS, metavar="S", help=f"measured part; default {SECONDS:g}")
    add("--settle", type=float, default=SETTLE_S, metavar="S", help=f"before it; default {SETTLE_S:g}")
    add(
        "--trace",
        action="store_true",
        help="fairsched has the GPU's trace of context switches, where turns are taken",
    )
    add("--results", type=Path, default=RAW, metavar="DIR", help="of the single plays")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="the summary; default benchmarks/results/robustness-SEED.json, with --trace traced-robustness-SEED.json",
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--fresh", action="store_true", help="play again what has been played")
    kept.add_argument(
        "--resume-any", action="store_true", help="keep what another machine or program has played"
    )
    add("--list", action="store_true", help="what is drawn; plays nothing")
    add("--write", action="store_true", help="write the tables of docs/robustness.md; plays nothing")
    add("--strict", action="store_true", help="exit with 1 when a bar is missed")


def _list(draws: Sequence[Draw]) -> None:
    for one in draws:
        text = f"{one.number:>3}  {one.description}"
        print("\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=" " * 5)))


def _write() -> int:
    for path in robust_figures.write_page(PAGE, committed()):
        print(f"written: {path.relative_to(ROOT)}")
    return 0


def _play(
    options: argparse.Namespace, draws: Sequence[Draw]
) -> tuple[fairness.Performance, list[list[fairness.Job]]]:
    """Everything that is not there yet."""
    jobs = [jobs_of(one, options.results, is_traced=options.trace) for one in draws]
    reuse = fairness.Reuse.NONE if options.fresh or options.only else fairness.Reuse.SAME
    performance = fairness.Performance(
        [job for both in jobs for job in both],
        options.results,
        reuse=fairness.Reuse.ANY if options.resume_any else reuse,
        batching=in_pairs if options.jobs == 2 else one_by_one,
    )
    with stop_signals():
        performance.run()
    return performance, jobs


def _show(options: argparse.Namespace, draws: Sequence[Draw], jobs: Sequence[Sequence[fairness.Job]]) -> bool:
    """Whether a bar was missed."""
    played = [(one, documents_of(both, options.results)) for one, both in zip(draws, jobs, strict=True)]
    if options.only:
        for one, of in played:
            print("\n".join(textwrap.wrap(f"{one.number}: {one.description}", WIDTH)))
            for document in of.values():
                print("\n".join(["", *table.one_run(document)]))
        return False
    summary = summary_of(options, played)
    print("\n".join(robust_figures.told(summary)))
    is_short = (options.seconds, options.settle) != (SECONDS, SETTLE_S)
    if options.output or not is_short:
        path = options.output or summary_path(options.seed, is_traced=options.trace)
        results.write_json(path, summary)
        print(f"\nwritten: {path}")
    else:
        print("\nnot written: of another length than what is committed; --output FILE keeps it")
    return bool(robust_figures.missed_bars(summary) or summary["not_played"])


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    try:
        if options.write:
            return _write()
        draws = drawn(options)
        if options.list:
            _list(draws)
            return 0
        performance, jobs = _play(options, draws)
        is_missed = _show(options, draws, jobs)
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; everything is cleaned up, the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    for line in performance.failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if performance.failed or (options.strict and is_missed) else 0


if __name__ == "__main__":
    sys.exit(main())
