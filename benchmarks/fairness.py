# SPDX-License-Identifier: Apache-2.0
"""Fairness, measured: plays scenarios under scheduling policies and compares them. See benchmarks/README.md.

Examples:
  benchmarks/fairness.py --suite quick                    two scenarios, without and with fairsched
  benchmarks/fairness.py --suite bench                    everything, two seeds; goes on where it was stopped
  benchmarks/fairness.py --scenario seed-4 --policy none --policy fairsched --seed 1 --seed 2
  benchmarks/fairness.py --scenario FILE --policy token --seconds 20 --seed 3 --json out.json
  benchmarks/fairness.py --list
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.fair import bars, overview_plot, plots, results, stage, table
from benchmarks.fair.controllers import POLICIES, RIVALS
from benchmarks.fair.measures import measure
from benchmarks.fair.scenario import Play, find, load, shipped
from benchmarks.machine import describe
from fairsched.errors import ConfigError, FairschedError

OURS = ("none", "fairsched")
_AT_ONCE = 2
QUICK_SCENARIOS = ("seed-4", "weights-4211")
QUICK_S = 15.0
QUICK_RESULTS = results.ROOT / "quick"
_AROUND_S = {"none": 3.0, "fairsched": 7.0}
_RIVAL_AROUND_S = 4.0


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
        return self.play.scenario.settle_s + self.seconds + _AROUND_S.get(self.policy, _RIVAL_AROUND_S)


def jobs_of(
    files: Sequence[Path],
    policies: Sequence[str],
    seeds: Sequence[int],
    seconds: float | None,
    *,
    rivals_on_headlines: bool = False,
) -> list[Job]:
    """In the order in which they are played: the policies of one scenario and seed right after each other,
    because the machine is another one an hour later."""
    jobs = []
    for file in map(find, files):
        play = load(file)
        names = list(policies)
        if rivals_on_headlines and play.scenario.headline:
            names += [name for name in RIVALS if name not in names]
        for seed in seeds:
            # Turned around every other seed, so that whoever comes second is not always the same.
            order = names if seed % 2 else names[::-1]
            jobs += [Job(file, play, name, seed, seconds or play.scenario.seconds) for name in order]
    return jobs


def perform(job: Job, build_dir: Path, on_progress: stage.Progress) -> dict[str, Any]:
    """Play it and measure: the result document."""
    about, started_s = describe(), time.monotonic()
    recording = stage.play(
        job.play, job.policy, job.seed, job.seconds, build_dir=build_dir, on_progress=on_progress
    )
    figures = measure(recording, equal_groups=equal_groups(job.play)).to_dict()
    return {
        "scenario": job.play.name,
        "policy": job.policy,
        "seed": job.seed,
        "seconds": job.seconds,
        **{key: about[key] for key in ("machine", "kernel", "cpus", "commit", "started")},
        "took_s": round(time.monotonic() - started_s, 1),
        "settings_hash": job.settings_hash,
        "measures": {key: figures[key] for key in ("whole", "leaves", "gpus")},
        "misbehaviour": figures["misbehaviour"],
        "series": figures["series"],
        "notes": list(recording.notes),
    }


def equal_groups(play: Play) -> list[list[str]]:
    """Leaves that were promised the same and make tokens of the same cost: their token/s may be compared."""
    groups: dict[Any, list[str]] = {}
    for leaf, tenant in play.leaves().items():
        costs = {(load.kernels * load.kernel_us, load.gpu) for load in tenant.loads}
        parent = leaf.rpartition("/")[0]
        promised = (parent, tenant.weight, tenant.quota, tenant.min)
        groups.setdefault((promised, tuple(sorted(costs))), []).append(leaf)
    return [group for group in groups.values() if len(group) > 1]


# ---- running many ----


class Performance:
    """A list of jobs, done one after the other; what is done already is left out."""

    def __init__(self, jobs: Sequence[Job], root: Path, *, is_fresh: bool) -> None:
        self.jobs, self._root, self._is_fresh = jobs, root, is_fresh
        self.failed: list[str] = []
        self._children: set[subprocess.Popen[str]] = set()
        self._is_ending = False
        self._lock = threading.Lock()
        """Of the two above."""

    def run(self) -> None:
        todo = [job for job in self.jobs if not self._is_done(job)]
        if len(todo) < len(self.jobs):
            print(f"{len(self.jobs) - len(todo)} of {len(self.jobs)} are done already", file=sys.stderr)
        alone = [job for job in todo if not job.play.scenario.beside_others]
        paired = [job for job in todo if job.play.scenario.beside_others]
        with tempfile.TemporaryDirectory(prefix="fairsched-bench-build-") as scratch:
            with _Bar(alone) as bar:
                for job in alone:
                    bar.begin(job)
                    self._one(job, Path(scratch), bar)
            with _Bar(paired, at_once=_AT_ONCE) as bar, ThreadPoolExecutor(_AT_ONCE) as pool:
                slots: Queue[Path] = Queue()
                for number in range(_AT_ONCE):
                    slots.put(Path(scratch) / f"slot{number}")
                try:
                    for done in [pool.submit(self._beside_others, job, slots, bar) for job in paired]:
                        done.result()
                except BaseException:
                    self._end_children()
                    pool.shutdown(cancel_futures=True)
                    raise

    def _beside_others(self, job: Job, slots: Queue[Path], bar: _Bar) -> None:
        """In a process of its own with libraries of its own: probes belong to an inode."""
        slot = slots.get()
        output = slot.with_suffix(".json")
        command = [sys.executable, __file__, "--scenario", str(job.file), "--policy", job.policy]
        command += ["--seed", str(job.seed), "--seconds", str(job.seconds)]
        command += ["--json", str(output), "--build", str(slot)]
        try:
            status, errors = self._run_child(command, lambda: bar.begin(job))
            if self._is_ending:
                return
            if status:
                self.failed.append(f"{job.title}: {errors.strip()[-300:]}")
                bar.say(f"failed: {self.failed[-1]}")
                return
            document = json.loads(output.read_text())
            results.write(document, self._root)
            for note in document["notes"]:
                bar.say(f"{job.title}: {note}")
        finally:
            slots.put(slot)

    def _run_child(self, command: list[str], on_start: Callable[[], None]) -> tuple[int, str]:
        """Exit status and stderr. In a session of its own, so that it is we who end it, by a signal or not."""
        with self._lock:
            if self._is_ending:
                return INTERRUPTED, ""
            on_start()
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
        if self._is_fresh:
            return False
        return results.find(job.play.name, job.policy, job.seed, job.settings_hash, self._root) is not None

    def _one(self, job: Job, build_dir: Path, bar: _Bar) -> None:
        try:
            document = perform(job, build_dir, bar.progress)
        except FairschedError as error:
            if error.exit_status != 1:  # a host or a file that cannot do: no other run will
                raise
            self.failed.append(f"{job.title}: {error}")
            bar.say(f"failed: {self.failed[-1]}")
            return
        results.write(document, self._root)
        for note in document["notes"]:
            bar.say(f"{job.title}: {note}")


class _Bar:
    """Progress over all jobs by their estimated time; plain lines where stderr is no terminal."""

    def __init__(self, jobs: Sequence[Job], at_once: int = 1) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._count, self._number, self._at_once = len(jobs), 0, at_once
        self._task = self._progress.add_task("", total=sum(job.estimate_s for job in jobs) / at_once)
        self._done_s, self._job_s = 0.0, 0.0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.update(self._task, completed=self._done_s + self._job_s)
        self._progress.stop()

    def begin(self, job: Job) -> None:
        self._done_s += self._job_s
        self._job_s, self._number = job.estimate_s / self._at_once, self._number + 1
        what = f"{self._number}/{self._count} {job.title}"
        self._progress.update(self._task, description=what, completed=self._done_s)
        if not self._console.is_terminal:
            print(what, file=sys.stderr, flush=True)

    def progress(self, done: float) -> None:
        self._progress.update(self._task, completed=self._done_s + done * self._job_s)

    def say(self, line: str) -> None:
        self._progress.print(line, markup=False, highlight=False) if self._console.is_terminal else print(
            line, file=sys.stderr, flush=True
        )


def show(names: Sequence[str], root: Path, *, pictures: bool) -> None:
    """Tables on stdout, pictures and summaries beside the results."""
    for name in names:
        documents = results.load(name, root)
        if not documents:
            continue
        results.write_summary(name, root)
        print("\n".join(table.side_by_side(documents)) + "\n")
        if pictures:
            plots.draw_scenario(documents, root / name / f"{name}.png")


# ---- the command ----


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/fairness.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--suite", choices=("quick", "bench", "full"), help="a ready-made choice of all below")
    add("--scenario", action="append", default=[], type=Path, metavar="FILE", help="a file or a shipped name")
    add("--policy", action="append", default=[], choices=POLICIES, metavar="NAME", help=", ".join(POLICIES))
    add("--seconds", type=float, help="measured part; the scenario's own otherwise")
    add("--seed", action="append", default=[], type=int, metavar="S", help="may be given more than once")
    add("--json", type=Path, metavar="OUT", help="write the one result there and nothing else")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        help="default: benchmarks/results",
    )
    add("--build", type=Path, metavar="DIR", help="where the simulated libraries are built; for --json")
    add("--fresh", action="store_true", help="measure again what has been measured")
    add("--no-plots", action="store_true", help="tables only")
    add("--strict", action="store_true", help="exit with 1 when a bar is missed")
    add("--list", action="store_true", help="the shipped scenarios")
    return parser.parse_args(argv)


def chosen_jobs(options: argparse.Namespace) -> list[Job]:
    """What the options ask for. Raises ConfigError."""
    if options.suite == "quick":
        files = options.scenario or [Path(name) for name in QUICK_SCENARIOS]
        return jobs_of(files, options.policy or OURS, options.seed or [1], options.seconds or QUICK_S)
    if options.suite:
        seeds = options.seed or list(range(1, 3 if options.suite == "bench" else 6))
        return jobs_of(
            options.scenario or shipped(),
            options.policy or OURS,
            seeds,
            options.seconds,
            rivals_on_headlines=not options.policy,
        )
    if not options.scenario:
        raise ConfigError("nothing to play", remedy="--scenario FILE, --suite NAME, or --list")
    return jobs_of(options.scenario, options.policy or OURS, options.seed or [1], options.seconds)


def _list_scenarios() -> int:
    for file in shipped():
        play = load(file)
        print(f"{play.name:<24}{play.scenario.description}")
    return 0


def _single(job: Job, output: Path, build_dir: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="fairsched-bench-build-") as scratch, _Bar([job]) as bar:
        bar.begin(job)
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
            performance = Performance(jobs, root, is_fresh=options.fresh)
            performance.run()
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; everything is cleaned up, the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    names = list(dict.fromkeys(job.play.name for job in jobs))
    show(names, root, pictures=not options.no_plots)
    documents = [document for name in names for document in results.load(name, root)]
    if not options.no_plots and len(names) > 1:
        overview_plot.draw_overview(documents, root / "overview.png")
    print("\n".join(table.overview(documents)))
    for line in performance.failed:
        print(f"failed: {line}", file=sys.stderr)
    missed = [v for v in bars.judge(documents) if v.is_missed]
    return 1 if performance.failed or (options.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
