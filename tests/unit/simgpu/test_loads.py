# SPDX-License-Identifier: Apache-2.0
"""The general load does what its fields say, measured by the engine's truth, not by its own log alone."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fair.scenario import Load
from fairsched.bpf.elf import read_exports
from fairsched.bpf.exports import choose_probe
from fairsched.simgpu import SimHost, Step, Worker, Workload, build
from fairsched.simgpu.workload import STEP_KINDS
from tests.support import let_run, wait_until

STEP = Workload("step", kernels=8, kernel_us=100, depth=1)
STEP_NS = 800_000
RING = 1024
"""Commands a stream's queue holds."""
BREAKPOINT = b"\xcc"


def play(host: SimHost, workload: Workload) -> Worker:
    """To its end."""
    worker = host.spawn(replace(workload, seconds=0.15))
    assert worker.process.wait(30) == 0
    assert worker.step_count() > 0
    return worker


def begun_ns(steps: list[Step]) -> list[int]:
    return [step.end_ns - step.latency_ns for step in steps]


def executed(host: SimHost, worker: Worker) -> tuple[int, int]:
    """Kernels and their time."""
    contexts = host.truth_of(worker)
    return sum(c.kernels for c in contexts), sum(c.exec_ns for c in contexts)


@pytest.mark.parametrize("kind", STEP_KINDS)
@pytest.mark.parametrize("submit", ["launch", "graph"])
@pytest.mark.parametrize("wait", ["sync", "query", "pinned"])
@pytest.mark.parametrize("depth", [1, 4])
def test_every_step_is_executed_and_noticed_after_its_end(
    host: SimHost, kind: str, submit: str, wait: str, depth: int
) -> None:
    worker = play(host, replace(STEP, kind=kind, submit=submit, wait=wait, depth=depth))
    count = worker.step_count()
    assert executed(host, worker) == (count * STEP.kernels, count * STEP_NS)
    assert all(step.latency_ns >= STEP_NS for step in worker.steps())


@pytest.mark.parametrize("wait", ["sync", "query", "pinned"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_step_on_several_streams_ends_when_all_of_them_have(host: SimHost, wait: str, depth: int) -> None:
    worker = play(host, replace(STEP, streams=3, wait=wait, depth=depth))
    count = worker.step_count()
    assert executed(host, worker) == (count * STEP.kernels, count * STEP_NS)
    assert all(step.latency_ns >= STEP_NS for step in worker.steps())


def test_every_context_makes_steps_and_copies(host: SimHost) -> None:
    worker = play(host, replace(STEP, contexts=3, copy_bytes=1000, alloc_bytes=1000))
    contexts = host.truth_of(worker)
    assert len(contexts) == 3
    assert all(context.kernels > 0 and context.copy_ns > 0 for context in contexts)
    assert executed(host, worker)[0] == worker.step_count() * STEP.kernels


def test_several_steps_are_in_flight(host: SimHost) -> None:
    steps = play(host, replace(STEP, depth=4)).steps()
    begun = begun_ns(steps)
    assert all(begun[n] < steps[n - 3].end_ns for n in range(4, len(steps)))
    assert all(begun[n] >= steps[n - 4].end_ns for n in range(4, len(steps)))


def test_who_never_waits_is_only_stopped_by_a_full_queue(host: SimHost) -> None:
    worker = host.spawn(replace(STEP, wait="none"))
    wait_until(lambda: worker.step_count() * STEP.kernels > 2 * RING, 30, "more than a queue was submitted")
    done = executed(host, worker)[0]
    submitted = worker.step_count() * STEP.kernels
    assert submitted > done, "its end is not waited for"
    worker.stop()
    assert worker.step_count() * STEP.kernels - executed(host, worker)[0] <= RING + STEP.kernels


def test_a_graph_of_twenty_thousand_nodes_is_one_launch(host: SimHost) -> None:
    worker = host.spawn(replace(STEP, submit="graph", kernels=20_000, kernel_us=1))
    wait_until(lambda: worker.step_count() >= 2, 30, "two steps")
    assert worker.stop() == 0
    count = worker.step_count()
    assert executed(host, worker) == (count * 20_000, count * 20_000_000)


def test_a_gap_lies_between_steps(host: SimHost) -> None:
    steps = play(host, replace(STEP, gap_us=5000)).steps()
    assert all(begun_ns([b])[0] - a.end_ns >= 5_000_000 for a, b in itertools.pairwise(steps))


def test_a_launch_gap_lies_between_the_launches_of_a_step(host: SimHost) -> None:
    worker = play(host, replace(STEP, launch_gap_us=1000))
    count = worker.step_count()
    assert executed(host, worker) == (count * STEP.kernels, count * STEP_NS), "the work stays the same"
    assert all(step.latency_ns >= 7_000_000 + STEP_NS / STEP.kernels for step in worker.steps())


@pytest.mark.parametrize("submit", ["launch", "graph"])
@pytest.mark.parametrize("distribution", ["lognormal", "uniform"])
def test_without_a_spread_every_kernel_takes_what_was_said(
    host: SimHost, submit: str, distribution: str
) -> None:
    load = Load(kernels=1, kernel_us=473, spread_ratio=0.0, distribution=distribution, submit=submit)
    worker = play(host, load.workload("libcuda.so.1", seed=3))
    count = worker.step_count()
    assert executed(host, worker) == (count, count * 473_000)
    spread = load.model_copy(update={"spread_ratio": 0.1, "submit": "launch"})
    worker = play(host, spread.workload("libcuda.so.1", seed=3))
    assert executed(host, worker)[1] != worker.step_count() * 473_000, "and with one they do not"


# ---- arrivals ----

POISSON = replace(STEP, kernels=1, kernel_us=20, arrival="poisson", rate_per_s=2000)


def arrivals_ns(host: SimHost, workload: Workload, count: int) -> list[int]:
    """Since the first one."""
    worker = host.spawn(workload)
    wait_until(lambda: worker.step_count() >= count, 30, f"{count} steps")
    worker.stop()
    steps = worker.steps()
    begun = begun_ns(steps)
    assert executed(host, worker)[0] == len(steps) * workload.kernels
    return [at - begun[0] for at in begun[:count]]


@pytest.mark.parametrize("depth", [1, 4])
def test_poisson_arrivals_are_at_random_with_the_rate_asked_for(host: SimHost, depth: int) -> None:
    count = 1000
    arrivals = arrivals_ns(host, replace(POISSON, depth=depth), count)
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    mean_ns = 1e9 / POISSON.rate_per_s
    assert statistics.mean(gaps) == pytest.approx(mean_ns, rel=5 / count**0.5)
    assert statistics.stdev(gaps) == pytest.approx(mean_ns, rel=0.2), (
        "exponential: spread as large as the mean"
    )


def test_arrivals_depend_on_the_seed_and_on_nothing_else(host: SimHost) -> None:
    quick = arrivals_ns(host, POISSON, 50)
    slow = arrivals_ns(host, replace(POISSON, kernels=3, kernel_us=500, jitter_ratio=0.5, depth=3), 50)
    assert quick == slow
    assert quick != arrivals_ns(host, replace(POISSON, seed=2), 50)


@pytest.mark.parametrize("depth", [1, 4])
def test_an_arrival_that_must_queue_is_late_from_its_arrival_on(host: SimHost, depth: int) -> None:
    worker = host.spawn(
        replace(STEP, kernels=1, kernel_us=5000, arrival="poisson", rate_per_s=1000, depth=depth)
    )
    wait_until(lambda: worker.step_count() >= 40, 30, "forty steps")
    steps = worker.steps()[:40]
    waited_ns = steps[-1].latency_ns
    assert waited_ns > 40 * 5_000_000 - 100_000_000, "forty steps of 5 ms came within some 40 ms"
    worker.kill()


ON_US, OFF_US = 30_000, 50_000
PERIOD_NS = (ON_US + OFF_US) * 1000
ONOFF = replace(STEP, arrival="onoff", on_us=ON_US, off_us=OFF_US)


START_NS = 20_000_000
"""The grid begins when the load does, and its first step a little later."""


def check_phases(steps: list[Step]) -> None:
    """Against the first step. A process may lose its processor between its look at the clock and the step."""
    begun = begun_ns(steps)
    phases = [(at - begun[0]) % PERIOD_NS for at in begun]
    late = [phase for phase in phases if ON_US * 1000 < phase < PERIOD_NS - START_NS]
    assert len(late) <= 0.03 * len(steps), late


@pytest.mark.parametrize("depth", [1, 3])
def test_nothing_runs_in_the_off_part_of_an_onoff_load(host: SimHost, depth: int) -> None:
    worker = host.spawn(replace(ONOFF, depth=depth))
    wait_until(lambda: worker.step_count() >= 100, 30, "a hundred steps")
    worker.stop()
    steps = worker.steps()
    check_phases(steps)
    begun = begun_ns(steps)
    assert len({(at - begun[0]) // PERIOD_NS for at in begun}) >= 3
    stays = [stay for stay in host.residencies() if stay.start_ns >= begun[0]]
    between = [(a.end_ns, begun_ns([b])[0]) for a, b in itertools.pairwise(steps)]
    pauses = [(start_ns, end_ns) for start_ns, end_ns in between if end_ns - start_ns > OFF_US * 500]
    assert len(pauses) >= 2
    for start_ns, end_ns in pauses:
        assert not [stay for stay in stays if stay.start_ns < end_ns and stay.end_ns > start_ns]


@pytest.mark.parametrize("pause_ns", [0, 15_000_000], ids=["busy", "pausing"])
def test_a_program_that_was_held_goes_on_by_the_clock(host: SimHost, pause_ns: int) -> None:
    worker = host.spawn(ONOFF)

    def is_there() -> bool:
        steps = worker.steps()
        return len(steps) >= 5 and time.monotonic_ns() - steps[-1].end_ns >= pause_ns

    wait_until(is_there, 30, "it works, or pauses")
    os.kill(worker.pid, signal.SIGSTOP)
    let_run(1.65 * PERIOD_NS / 1e9)
    os.kill(worker.pid, signal.SIGCONT)
    count = worker.step_count()
    wait_until(lambda: worker.step_count() > count + 60, 30, "it works on")
    worker.stop()
    first, *others = worker.steps()
    check_phases([first, *others[count:]])


# ---- past the exports ----


def with_breakpoints(library: Path, directory: Path) -> Path:
    """A copy that ends whoever executes a probed export: a uprobe is such a breakpoint at this place."""
    copy = Path(shutil.copy(library, directory / "libcuda.so.1"))
    with open(copy, "r+b") as file:
        for export in read_exports(str(library)):
            if choose_probe(export.name) is not None:
                file.seek(export.offset + export.skip)
                file.write(BREAKPOINT)
    return copy


@pytest.mark.parametrize("submit", ["launch", "graph"])
@pytest.mark.parametrize("wait", ["sync", "query", "pinned"])
def test_a_static_submitter_passes_no_probed_export(
    host: SimHost, tmp_path: Path, submit: str, wait: str
) -> None:
    library = with_breakpoints(host.library_dir / "libcuda.so.1", tmp_path)
    static = Workload("static", streams=1, contexts=2, submit=submit, wait=wait, libcuda=str(library))
    worker = play(host, static)
    assert executed(host, worker)[0] == worker.step_count() * static.kernels


def test_one_that_calls_the_exports_meets_the_breakpoints(host: SimHost, tmp_path: Path) -> None:
    """Or the test above would show nothing."""
    library = with_breakpoints(host.library_dir / "libcuda.so.1", tmp_path)
    worker = host.spawn(replace(STEP, libcuda=str(library)), wait=False)
    assert worker.process.wait(30) == -signal.SIGTRAP


# ---- what is refused ----


@pytest.mark.parametrize(
    "wrong",
    [
        {"submit": "pigeon"},
        {"wait": "never"},
        {"arrival": "sometimes"},
        {"jitter_kind": "cauchy"},
        {"depth": 0},
        {"depth": 257},
        {"arrival": "poisson"},
        {"arrival": "onoff", "on_us": 10.0},
        {"arrival": "onoff", "off_us": 10.0},
    ],
)
def test_a_load_that_makes_no_sense_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(STEP, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--submit", "pigeon"],
        ["--wait", "never"],
        ["--arrival", "sometimes"],
        ["--depth", "257"],
        ["--arrival", "poisson"],
        ["--arrival", "onoff", "--on-us", "10"],
        ["--streams", "0"],
        ["--colour", "red"],
    ],
)
def test_the_program_refuses_it_too(host: SimHost, wrong: list[str]) -> None:
    argv = [str(build().load), "--kind", "step", "--seconds", "0.1", *wrong]
    done = subprocess.run(argv, env={**os.environ, **host.env()}, capture_output=True, timeout=30)
    assert done.returncode == 2
    assert b"simload" in done.stderr
