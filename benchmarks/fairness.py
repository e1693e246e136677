#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fairness, measured: plays scenarios under scheduling policies and compares them. See benchmarks/README.md.

Examples:
  benchmarks/fairness.py --suite quick                    two scenarios, without and with fairsched
  benchmarks/fairness.py --suite bench                    everything, two seeds; goes on where it was stopped
  benchmarks/fairness.py --scenario seed-4 --policy none --policy fairsched --seed 1 --seed 2
  benchmarks/fairness.py --scenario FILE --policy token --seconds 20 --seed 3 --json out.json
  benchmarks/fairness.py --scenario seed-4 --policy fairsched --policy fairsched-traced
                                                          without and with the GPU's trace of context switches
  benchmarks/fairness.py --suite rungs                    every scenario with other accounts and other brakes
  benchmarks/fairness.py --scenario seed-4 --source nvml --brake sigstop
  benchmarks/fairness.py --list
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    _ROOT = Path(__file__).resolve().parent.parent
    _PYTHON = _ROOT / ".venv" / "bin" / "python"
    if sys.prefix == sys.base_prefix and _PYTHON.exists():  # started as a program: what it needs is in there
        os.execv(_PYTHON, [str(_PYTHON), __file__, *sys.argv[1:]])
    sys.path.insert(0, str(_ROOT))

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.fair import (
    bars,
    origin,
    overview_plot,
    plots,
    results,
    rows,
    rungs,
    solo,
    stage,
    summary,
    table,
)
from benchmarks.fair.against import beside_solo
from benchmarks.fair.controllers import POLICIES, RIVALS
from benchmarks.fair.measures import measure
from benchmarks.fair.progress import Bar
from benchmarks.fair.scenario import Play, find, load, shipped
from benchmarks.machine import describe
from fairsched.errors import ConfigError, FairschedError

OURS = ("none", "fairsched")
_AT_ONCE = 2
_AT_ONCE_RUNGS = 3
"""As many as there are rungs on samples."""
QUICK_SCENARIOS = ("seed-4", "weights-4211")
QUICK_S = 15.0
QUICK_RESULTS = results.ROOT / "quick"
_AROUND_S = {
    "none": 0.5,
    **dict.fromkeys((*rungs.ALL, rungs.TRACED), 8.5),
}
"""What a performance takes besides being played, on two cores: starting and stopping the daemon, judging."""
_RIVAL_AROUND_S = 1.5
_SOLO_S = solo.SETTLE_S + solo.SECONDS + _AROUND_S["none"]
MAX_S = 3600.0
_CHILD_S = 0.5
"""More for one that is played beside another: it has a process of its own."""


@dataclass(frozen=True)
class Job:
    """One performance."""

    file: Path
    play: Play
    policy: str
    seed: int
    seconds: float

    @property
    def title(self) -> str:
        return f"{self.play.name} {self.policy} seed {self.seed}"

    @property
    def settings_hash(self) -> str:
        return results.settings_hash(self.file, self.policy, self.seed, self.seconds)

    @property
    def estimate_s(self) -> float:
        around_s = _AROUND_S.get(self.policy, _RIVAL_AROUND_S)
        return self.play.settle_s(self.policy) + self.seconds + around_s


def jobs_of(
    files: Sequence[Path],
    policies: Sequence[str],
    seeds: Sequence[int],
    seconds: float | None,
    *,
    rival_seeds: Sequence[int] = (),
) -> list[Job]:
    """In the order in which they are played: the policies of one scenario and seed right after each other,
    because the machine is another one an hour later. ``rival_seeds``: with which of them rivals play the headlines."""
    jobs = []
    for file in map(find, files):
        play = load(file)
        for seed in seeds:
            names = list(policies)
            if play.scenario.headline and seed in rival_seeds:
                names += [name for name in RIVALS if name not in names]
            # Turned around every other seed, so that whoever comes second is not always the same.
            order = names if seed % 2 else names[::-1]
            jobs += [Job(file, play, name, seed, seconds or play.scenario.seconds) for name in order]
    return jobs


def perform(
    job: Job, build_dir: Path, on_progress: stage.Progress, solos: solo.Solos | None = None
) -> dict[str, Any]:
    """Play it and measure: the result document. ``solos``: what has been played alone before."""
    about, started_s = describe(), time.monotonic()
    recording = stage.play(
        job.play, job.policy, job.seed, job.seconds, build_dir=build_dir, on_progress=on_progress
    )
    figures = measure(recording, equal_groups=job.play.equal_groups()).to_dict()
    for leaf, steps in (solos or solo.Solos()).of(job.play, job.seed, build_dir).items():
        figures["leaves"][leaf] |= beside_solo(figures["leaves"][leaf], steps)
    return {
        "scenario": job.play.name,
        "policy": job.policy,
        "seed": job.seed,
        "seconds": job.seconds,
        **origin.of_this_run(),
        **{key: about[key] for key in ("cpus", "commit", "started")},
        "took_s": round(time.monotonic() - started_s, 1),
        "settings_hash": job.settings_hash,
        "measures": {key: figures[key] for key in ("whole", "leaves", "gpus")},
        "misbehaviour": figures["misbehaviour"],
        "series": figures["series"],
        "notes": list(recording.notes),
    }


# ---- running many ----


def batches_of(jobs: Sequence[Job]) -> list[tuple[Job, ...]]:
    """What is played at the same time, in order: a job by itself, or seeds of one scenario under one policy where the
    scenario may be played so. Never two scenarios: a figure must not depend on who happened to play beside it."""
    batches: dict[tuple[Any, ...], tuple[Job, ...]] = {}
    counts: dict[tuple[Path, str], int] = {}
    for number, job in enumerate(jobs):
        same = job.file, job.policy
        if job.play.scenario.beside_others:
            key: tuple[Any, ...] = (*same, counts.get(same, 0) // _AT_ONCE)
            counts[same] = counts.get(same, 0) + 1
        else:
            key = (number,)
        batches[key] = (*batches.get(key, ()), job)
    return list(batches.values())


Batching = Callable[[Sequence[Job]], Sequence[tuple[Job, ...]]]


def estimate_s(jobs: Sequence[Job], batching: Batching = batches_of) -> float:
    """How long they take, without tables and pictures."""
    solos_s = len(solo.keys((job.play, job.seed) for job in jobs)) * _SOLO_S
    return solos_s + sum(_batch_s(batch) for batch in batching(jobs))


def _batch_s(batch: Sequence[Job]) -> float:
    return max(job.estimate_s for job in batch) + (_CHILD_S if len(batch) > 1 else 0.0)


def bar_of(jobs: Sequence[Job], batching: Batching = batches_of) -> Bar:
    batches_s = sum(_batch_s(batch) for batch in batching(jobs))
    return Bar(len(jobs), batches_s, estimate_s(jobs, batching))


class Reuse(Enum):
    """Which results that lie there already are taken for a job's."""

    SAME = "made by the same"
    ANY = "whoever made them"
    NONE = "none"


class Performance:
    """A list of jobs, done batch by batch, at most two at a time; what is done already is left out."""

    def __init__(
        self, jobs: Sequence[Job], root: Path, *, reuse: Reuse = Reuse.SAME, batching: Batching = batches_of
    ) -> None:
        self.jobs, self._root, self._reuse, self._batching = jobs, root, reuse, batching
        self.failed: list[str] = []
        self._others = 0
        """Results that lie there and do not count."""
        self._children: set[subprocess.Popen[str]] = set()
        self._solos = solo.Solos()
        self._is_ending = False
        self._lock = threading.Lock()
        """Of the two above."""

    def run(self) -> None:
        todo = [job for job in self.jobs if not self._is_done(job)]
        if len(todo) < len(self.jobs):
            print(f"{len(self.jobs) - len(todo)} of {len(self.jobs)} are done already", file=sys.stderr)
        if self._others:
            print(
                f"{self._others} more lie here from another machine, kernel or program and are measured again; "
                "--resume-any keeps them",
                file=sys.stderr,
            )
        with (
            tempfile.TemporaryDirectory(prefix="fairsched-bench-build-") as scratch,
            bar_of(todo, self._batching) as bar,
            ThreadPoolExecutor(_AT_ONCE_RUNGS) as pool,
        ):
            for batch in self._batching(todo):
                bar.begin([job.title for job in batch], _batch_s(batch))
                if len(batch) == 1:
                    self._one(batch[0], Path(scratch), bar)
                else:
                    self._together(batch, Path(scratch), pool, bar)

    def _together(self, batch: Sequence[Job], scratch: Path, pool: ThreadPoolExecutor, bar: Bar) -> None:
        try:
            played = [
                pool.submit(self._beside_another, job, scratch / f"slot{number}", bar)
                for number, job in enumerate(batch)
            ]
            for done in played:
                done.result()
        except BaseException:
            self._end_children()
            raise

    def _beside_another(self, job: Job, slot: Path, bar: Bar) -> None:
        """In a process of its own with libraries of its own: probes belong to an inode."""
        output = slot.with_suffix(".json")
        command = [sys.executable, __file__, "--scenario", str(job.file), "--policy", job.policy]
        command += ["--seed", str(job.seed), "--seconds", str(job.seconds)]
        command += ["--json", str(output), "--build", str(slot)]
        status, errors = self._run_child(command)
        if self._is_ending:
            return
        if status:
            self._fail(job, errors.strip()[-300:], bar)
        else:
            self._keep(job, json.loads(output.read_text()), bar)

    def _run_child(self, command: list[str]) -> tuple[int, str]:
        """Exit status and stderr. In a session of its own, so that it is we who end it, by a signal or not."""
        with self._lock:
            if self._is_ending:
                return INTERRUPTED, ""
            child = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            self._children.add(child)
        try:
            _, errors = child.communicate()
        finally:
            with self._lock:
                self._children.discard(child)
        return child.returncode, errors

    def _end_children(self) -> None:
        """They clean up after themselves; no other is started."""
        with self._lock:
            self._is_ending = True
            for child in self._children:
                child.terminate()

    def _is_done(self, job: Job) -> bool:
        if self._reuse is Reuse.NONE:
            return False
        found = results.find(job.play.name, job.policy, job.seed, job.settings_hash, self._root)
        if found is None or self._reuse is Reuse.ANY or origin.is_same(found, origin.of_this_run()):
            return found is not None
        self._others += 1
        return False

    def _one(self, job: Job, build_dir: Path, bar: Bar) -> None:
        try:
            document = perform(job, build_dir, bar.progress, self._solos)
        except FairschedError as error:
            if error.exit_status != 1:  # a host or a file that cannot do: no other run will
                raise
            self._fail(job, str(error), bar)
        else:
            self._keep(job, document, bar)

    def _keep(self, job: Job, document: results.Document, bar: Bar) -> None:
        results.write(document, self._root)
        for note in document["notes"]:
            bar.say(f"{job.title}: {note}")

    def _fail(self, job: Job, why: str, bar: Bar) -> None:
        self.failed.append(f"{job.title}: {why}")
        bar.say(f"failed: {self.failed[-1]}")


def show(names: Sequence[str], root: Path, *, pictures: bool) -> list[results.Document]:
    """Tables on stdout, pictures and the summary beside the results; returns the runs of these scenarios."""
    runs = rows.scenarios_of(summary.update(names, root))
    for name in names:
        if name not in runs:
            continue
        print("\n".join(table.side_by_side(runs[name])) + "\n")
        documents = results.load(name, root)
        if pictures and documents:
            plots.draw_scenario(documents, root / name / f"{name}.png")
    return [run for name in names for run in runs.get(name, [])]


# ---- the command ----


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= MAX_S:
        raise argparse.ArgumentTypeError(f"{text}: more than 0 and at most {MAX_S:g}")
    return value


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/fairness.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--suite", choices=("quick", "bench", "full", "rungs"), help="a ready-made choice of all below")
    add("--scenario", action="append", default=[], type=Path, metavar="FILE", help="a file or a shipped name")
    add("--policy", action="append", default=[], choices=POLICIES, metavar="NAME", help=", ".join(POLICIES))
    add("--source", choices=rungs.SOURCES, help="fairsched with this account, beside --policy")
    add("--brake", choices=rungs.BRAKES, help="fairsched with this brake, beside --policy")
    add("--seconds", type=_seconds, help="measured part; the scenario's own otherwise")
    add("--seed", action="append", default=[], type=int, metavar="S", help="may be given more than once")
    add("--json", type=Path, metavar="OUT", help="write the one result there and nothing else")
    add("--results", type=Path, metavar="DIR", help="default: benchmarks/results")
    add("--build", type=Path, metavar="DIR", help="where the simulated libraries are built; for --json")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--fresh", action="store_true", help="measure again what has been measured")
    kept.add_argument(
        "--resume-any", action="store_true", help="keep what another machine, kernel or program has measured"
    )
    add("--no-plots", action="store_true", help="tables only")
    add("--strict", action="store_true", help="exit with 1 when a bar is missed, or not known in every seed")
    add("--list", action="store_true", help="the shipped scenarios")
    options = parser.parse_args(argv)
    if options.source or options.brake:
        options.policy.append(rungs.Rung(options.source or "ebpf", options.brake or "freezer").policy)
    return options


def chosen_jobs(options: argparse.Namespace) -> list[Job]:
    """What the options ask for. Raises ConfigError."""
    if options.suite == "quick":
        files = options.scenario or [Path(name) for name in QUICK_SCENARIOS]
        return jobs_of(files, options.policy or OURS, options.seed or [1], options.seconds or QUICK_S)
    if options.suite == "rungs":
        return rung_jobs(options)
    if options.suite:
        seeds = options.seed or list(range(1, 3 if options.suite == "bench" else 6))
        rival_seeds = [] if options.policy else seeds[:1] if options.suite == "bench" else seeds
        return jobs_of(
            options.scenario or shipped(),
            options.policy or OURS,
            seeds,
            options.seconds,
            rival_seeds=rival_seeds,
        )
    if not options.scenario:
        raise ConfigError("nothing to play", remedy="--scenario FILE, --suite NAME, or --list")
    return jobs_of(options.scenario, options.policy or OURS, options.seed or [1], options.seconds)


def rung_jobs(options: argparse.Namespace) -> list[Job]:
    """Every scenario on every rung, for long enough that a lock-out would show, one seed."""
    policies = options.policy or [rung.policy for rung in rungs.SUITE]
    jobs = jobs_of(options.scenario or shipped(), policies, options.seed or [1], options.seconds)
    return [
        replace(job, seconds=options.seconds or max(job.seconds, rungs.least_s(job.policy))) for job in jobs
    ]


def _list_scenarios() -> int:
    for file in shipped():
        play = load(file)
        print(f"{play.name:<24}{play.scenario.description}")
    return 0


def _single(job: Job, output: Path, build_dir: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="fairsched-bench-build-") as scratch, bar_of([job]) as bar:
        bar.begin([job.title], _batch_s([job]))
        document = perform(job, build_dir or Path(scratch), bar.progress)
    results.write_json(output, document)
    print("\n".join(table.one_run(document)))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    try:
        if options.list:
            return _list_scenarios()
        jobs = chosen_jobs(options)
        if options.json is not None and len(jobs) != 1:
            raise ConfigError("--json is for one run", remedy="give one --scenario, --policy and --seed")
        with stop_signals():
            if options.json is not None:
                return _single(jobs[0], options.json, options.build)
            root = options.results or (QUICK_RESULTS if options.suite == "quick" else results.ROOT)
            reuse = Reuse.NONE if options.fresh else Reuse.ANY if options.resume_any else Reuse.SAME
            batching = rungs.batches if options.suite == "rungs" else batches_of
            performance = Performance(jobs, root, reuse=reuse, batching=batching)
            performance.run()
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; everything is cleaned up, the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    names = list(dict.fromkeys(job.play.name for job in jobs))
    documents = show(names, root, pictures=not options.no_plots)
    if not options.no_plots and len(names) > 1:
        overview_plot.draw_overview(documents, root / "overview.png")
    print("\n".join(table.overview(documents)))
    for line in performance.failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if performance.failed or (options.strict and bars.missed(bars.judge(documents))) else 0


if __name__ == "__main__":
    sys.exit(main())
