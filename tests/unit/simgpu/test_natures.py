# SPDX-License-Identifier: Apache-2.0
"""Other natures of GPU: unequal and jittering slices, no preemption, overlap. Truth stays exact in all of them."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean, median

import pytest

from fairsched.simgpu import GpuSpec, SimHost, Workload
from fairsched.simgpu.workload import Worker
from tests.support import wait_until
from tests.unit.simgpu.mixes import (
    MS_NS,
    SECOND_NS,
    SLICE_NS,
    SWITCH_NS,
    TRAINER,
    check_accounts,
    fill,
    most_at_once,
    run_for,
)

NATURES = {
    "short-slices": GpuSpec(slice_us=500),
    "free-switches": GpuSpec(switch_us=0),
    "dear-switches": GpuSpec(slice_us=6000, switch_us=500),
    "unequal": GpuSpec(slice_spread_ratio=0.5),
    "jitter": GpuSpec(slice_us=1000, slice_jitter_ratio=0.5),
    "to-completion": GpuSpec(run_to_completion=True),
    "overlap": GpuSpec(overlap=2),
    "wide-overlap": GpuSpec(overlap=7, slice_jitter_ratio=0.2),
    "all": GpuSpec(slice_spread_ratio=0.3, slice_jitter_ratio=0.3, run_to_completion=True, overlap=3),
}
GRAPH = Workload("graph", kernels=10, kernel_us=1500)
LONG = Workload("longkernel", kernels=1, kernel_us=50_000)


@pytest.fixture(params=NATURES)
def nature(request: pytest.FixtureRequest) -> Iterator[SimHost]:
    with SimHost([replace(NATURES[request.param], copy_bytes_per_s=1_000_000_000)]) as host:
        yield host


@contextmanager
def two_trainers(*specs: GpuSpec) -> Iterator[SimHost]:
    """On each of the GPUs, with full queues."""
    with SimHost(specs) as host:
        fill(*(host.spawn(replace(TRAINER, device=gpu)) for gpu in range(len(specs)) for _ in range(2)))
        yield host


def exec_ns(host: SimHost, *workers: Worker) -> list[int]:
    """Of each of the workers, as of one moment."""
    _, contexts = host.snapshot()
    return [sum(c.exec_ns for c in contexts if c.pid == worker.pid) for worker in workers]


def growth_ns(host: SimHost, duration_ns: int, *workers: Worker) -> list[int]:
    """What each executes while the GPU is busy for that long."""
    before = exec_ns(host, *workers)
    run_for(host, duration_ns)
    return [b - a for a, b in zip(before, exec_ns(host, *workers), strict=True)]


def stays_of(host: SimHost, worker: Worker, seen: int = 0) -> list[int]:
    """Lengths of the completed stays of a worker with one context."""
    (truth,) = host.truth_of(worker)
    stays = host.residencies_since(0, seen).stays
    return [r.end_ns - r.start_ns for r in stays if r.context_id == truth.id]


def test_nothing_is_lost_or_counted_twice_in_every_nature(nature: SimHost):
    nature.spawn(TRAINER)
    nature.spawn(Workload("decode", kernels=10, kernel_us=200, gap_us=3000, jitter_ratio=0.3))
    nature.spawn(Workload("decode", kernels=4, kernel_us=700, streams=2, jitter_ratio=0.3))
    nature.spawn(GRAPH)
    for _ in range(10):
        run_for(nature, SECOND_NS // 20)
        check_accounts(nature)
        check_accounts(nature, sync=False)
    known = sum(t.exec_ns for t in nature.truth())
    stays = nature.residencies()
    told = sum(r.end_ns - r.start_ns for r in stays)
    if nature.gpus[0].overlap == 1:
        assert 0.9 * known <= told <= sum(t.exec_ns for t in nature.truth())
    assert 1 <= most_at_once(stays) <= nature.gpus[0].overlap


def test_a_kernel_costs_its_time_to_the_nanosecond_in_every_nature(nature: SimHost):
    load = Workload("decode", kernels=7, kernel_us=101.003, seconds=0.3)
    workers = [nature.spawn(load) for _ in range(3)]
    assert [worker.process.wait(30) for worker in workers] == [0, 0, 0]
    wait_until(lambda: not any(t.is_alive for t in nature.truth()), 30, "the engine notices")
    for worker in workers:
        (truth,) = nature.truth_of(worker)
        assert truth.kernels == 7 * worker.step_count() > 0
        assert truth.exec_ns == truth.kernels * 101_003


def test_the_phase_in_progress_is_extrapolated_exactly(nature: SimHost):
    """Of one kernel each that no event interrupts, in the natures that run them without an end."""
    spec = nature.gpus[0]
    count = spec.overlap if spec.overlap > 1 else 1
    workers = [nature.spawn(replace(LONG, kernel_us=60_000_000)) for _ in range(count)]
    wait_until(lambda: all(exec_ns(nature, *workers)), 30, "they run")
    before, begin = nature.snapshot()
    wait_until(lambda: nature.gpu_truth().as_of_ns - before.as_of_ns > 30 * MS_NS, 30, "time passes")
    after, end = nature.snapshot(sync=False)
    elapsed_ns = after.as_of_ns - before.as_of_ns
    assert after.busy_ns - before.busy_ns == elapsed_ns
    for a, b in zip(begin, end, strict=True):
        assert abs(b.exec_ns - a.exec_ns - elapsed_ns / count) < 1


def test_a_copy_runs_beside_a_kernel_in_every_nature(nature: SimHost, start):
    seen = start(nature, "copies").says()
    assert seen["beside"] == pytest.approx(1010, abs=1), "1 MB at 1 GB/s and the latency"
    after_us = nature.gpus[0].switch_us + 20_000 + 1010
    assert seen["after"] == pytest.approx(after_us, abs=1), "in stream order after a kernel of 20 ms"
    (truth,) = nature.truth()
    assert (truth.exec_ns, truth.copy_ns) == (20 * MS_NS, 2_020_000)


NVML = """
import json, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([n.nvmlDeviceGetUtilizationRates(d).gpu, [(s.pid, s.smUtil) for s in
                  n.nvmlDeviceGetProcessUtilization(d, 0)]]))
"""


@pytest.mark.parametrize("nature", ["to-completion", "overlap", "all"], indirect=True)
def test_nvml_names_an_occupant_in_every_nature(nature: SimHost):
    workers = [nature.spawn(TRAINER), nature.spawn(TRAINER)]
    fill(*workers)
    run_for(nature, SECOND_NS)
    done = subprocess.run(
        [sys.executable, "-c", NVML],
        env={**os.environ, **nature.env()},
        capture_output=True,
        text=True,
        check=True,
    )
    busy_pct, samples = json.loads(done.stdout)
    assert busy_pct > 50 and sum(ratio for _, ratio in samples) > 50
    named = {pid for pid, _ in samples}
    assert named <= {worker.pid for worker in workers}
    assert len(named) == 2 or nature.gpus[0].overlap == 1, "those that run at once are named in turn"


def test_a_context_that_dies_while_it_runs_leaves_the_rest_to_the_others(nature: SimHost):
    doomed, other, third = (nature.spawn(load) for load in (LONG, TRAINER, replace(LONG, kernel_us=20_000)))
    fill(other)
    for worker in (doomed, third):
        wait_until(lambda one=worker: nature.truth_of(one)[0].exec_ns > 0, 30, "it runs")
        worker.kill()
        wait_until(lambda one=worker: not nature.truth_of(one)[0].is_alive, 30, "the engine notices")
        check_accounts(nature)
    run_for(nature, SECOND_NS // 10)
    check_accounts(nature)
    switches = nature.gpu_truth().switches
    run_for(nature, SECOND_NS // 10)
    assert nature.gpu_truth().switches == switches, "it is alone"
    assert sum(growth_ns(nature, SECOND_NS // 20, other)) >= SECOND_NS // 20


@pytest.mark.parametrize("slice_us", [500, 1000, 2097, 6000])
def test_a_slice_has_the_length_of_the_spec(slice_us: int):
    with two_trainers(GpuSpec(slice_us=slice_us)) as host:
        seen = host.residencies_since(0, 0).count
        run_for(host, SECOND_NS // 4)
        stays = [r.end_ns - r.start_ns for r in host.residencies_since(0, seen + 1).stays]
    assert len(stays) > 20 and median(stays) == slice_us * 1000


def test_switches_may_cost_nothing():
    with two_trainers(GpuSpec(switch_us=0)) as host:
        before = host.gpu_truth()
        run_for(host, SECOND_NS // 4)
        after = host.gpu_truth()
    assert after.switches - before.switches >= 100
    assert after.switch_ns == 0
    assert after.busy_ns - before.busy_ns >= 0.97 * (after.as_of_ns - before.as_of_ns)


def test_unequal_slices_give_the_older_three_times_the_time_of_the_younger():
    with SimHost([GpuSpec(slice_spread_ratio=0.5)]) as host:
        workers = [host.spawn(TRAINER), host.spawn(TRAINER)]
        fill(*workers)
        seen = host.residencies_since(0, 0).count
        older, younger = growth_ns(host, SECOND_NS, *workers)
        lengths = [median(stays_of(host, worker, seen)) for worker in workers]
    assert older / younger == pytest.approx(3, rel=0.05)
    assert lengths == [1.5 * SLICE_NS, 0.5 * SLICE_NS]


def test_jittering_slices_are_as_long_as_the_spec_says_on_average():
    with two_trainers(GpuSpec(slice_jitter_ratio=0.4)) as host:
        seen = host.residencies_since(0, 0).count
        run_for(host, 3 * SECOND_NS // 2)
        stays = sorted(r.end_ns - r.start_ns for r in host.residencies_since(0, seen + 1).stays)
    inner = stays[len(stays) // 50 : -len(stays) // 50]  # but the few when somebody ran dry or ran on
    assert len(stays) > 500
    assert 0.6 * SLICE_NS <= inner[0] < 0.7 * SLICE_NS
    assert 1.3 * SLICE_NS < inner[-1] <= 1.4 * SLICE_NS
    assert fmean(inner) == pytest.approx(SLICE_NS, rel=0.05)


def test_jitter_is_the_same_in_each_run_and_another_on_each_gpu():
    runs = []
    for _ in range(2):
        with two_trainers(GpuSpec(slice_jitter_ratio=0.4), GpuSpec(slice_jitter_ratio=0.4)) as host:
            for gpu in range(2):
                wait_until(lambda n=gpu: host.residencies_since(n, 0).count >= 600, 30, "stays")
                runs.append({r.end_ns - r.start_ns for r in host.residencies_since(gpu, 0).stays})
    first, second, again_first, again_second = runs
    assert len(first & again_first) > 200 and len(second & again_second) > 200
    assert len(first & second) < 20


def test_a_kernel_is_not_interrupted_where_it_runs_to_completion():
    with SimHost([GpuSpec(slice_us=2000, run_to_completion=True)]) as host:
        long, short = host.spawn(LONG), host.spawn(TRAINER)
        fill(short)
        wait_until(lambda: len(stays_of(host, long)) >= 4, 30, "four stays")
        assert set(stays_of(host, long)) == {50 * MS_NS}
        assert median(stays_of(host, short)) == 2 * MS_NS
        check_accounts(host)


def test_the_others_are_waiting_until_the_kernel_has_run_to_completion():
    with SimHost([GpuSpec(run_to_completion=True)]) as host:
        host.spawn(replace(LONG, kernel_us=60_000_000))
        wait_until(lambda: host.truth()[0].exec_ns > 0, 30, "it runs")
        other = host.spawn(TRAINER, wait=False)
        wait_until(
            lambda: len(host.truth()) == 2 and host.truth_of(other)[0].wait_ns > 20 * MS_NS, 30, "waits"
        )
        assert exec_ns(host, other) == [0]
        check_accounts(host, sync=False)


def test_a_graph_gives_way_between_its_kernels():
    with SimHost([GpuSpec(run_to_completion=True)]) as host:
        graph, rival = host.spawn(GRAPH), host.spawn(TRAINER)
        fill(rival)
        seen = host.residencies_since(0, 0).count
        wait_until(lambda: len(stays_of(host, graph, seen)) >= 40, 30, "forty stays")
        stays = stays_of(host, graph, seen)
    assert all(stay % (1500 * 1000) == 0 for stay in stays), "whole kernels"
    assert median(stays) == 3 * MS_NS, "the slice and the rest of the second kernel"


def test_two_that_overlap_run_at_half_the_speed_and_never_switch():
    with SimHost([GpuSpec(overlap=2)]) as host:
        workers = [host.spawn(TRAINER), host.spawn(TRAINER)]
        fill(*workers)
        before, begin = host.snapshot()
        grown = growth_ns(host, SECOND_NS // 2, *workers)
        after, end = host.snapshot()
        elapsed_ns = after.as_of_ns - before.as_of_ns
        assert grown[0] == pytest.approx(grown[1], rel=0.02)
        assert sum(b.exec_ns - a.exec_ns for a, b in zip(begin, end, strict=True)) <= elapsed_ns
        assert (after.switches, after.switch_ns) == (before.switches, before.switch_ns)
        done = [b.kernels - a.kernels for a, b in zip(begin, end, strict=True)]
        assert [n * 500_000 for n in done] == pytest.approx([elapsed_ns / 2] * 2, rel=0.05)
        assert sum(t.wait_ns for t in end) == sum(t.wait_ns for t in begin)


def test_three_where_two_overlap_take_turns():
    with SimHost([GpuSpec(overlap=2)]) as host:
        workers = [host.spawn(TRAINER) for _ in range(3)]
        fill(*workers)
        seen, before = host.residencies_since(0, 0).count, host.gpu_truth()
        grown = growth_ns(host, SECOND_NS, *workers)
        after, stays = host.gpu_truth(), host.residencies_since(0, seen + 2).stays
    assert grown == pytest.approx([sum(grown) / 3] * 3, rel=0.05)
    assert most_at_once(stays) == 2
    assert median(r.end_ns - r.start_ns for r in stays) == SLICE_NS
    slices = (after.busy_ns - before.busy_ns) / SLICE_NS
    assert after.switches - before.switches == pytest.approx(slices, rel=0.1), "one switch per set"


def test_a_seat_that_falls_free_is_taken_at_once_and_at_no_cost():
    """Two share the GPU; while one pauses the third has its place, without a switch in mid-slice."""
    with SimHost([GpuSpec(overlap=2, slice_us=1_000_000)]) as host:
        trainer = host.spawn(TRAINER)
        fill(trainer)
        pausing = host.spawn(Workload("decode", kernels=5, kernel_us=200, gap_us=2000))
        third = host.spawn(TRAINER)
        fill(third)
        switches = host.gpu_truth().switches
        seen = host.residencies_since(0, 0).count
        wait_until(lambda: len(stays_of(host, pausing, seen)) >= 2, 30, "it pauses")
        check_accounts(host)
        assert host.gpu_truth().switches - switches <= 20, "it would be hundreds"
        assert most_at_once(host.residencies()) == 2


def test_a_set_that_gives_way_is_followed_by_a_switch():
    """Also if the first of the next set shared the GPU a moment ago, while another paused."""
    with SimHost([GpuSpec(overlap=2)]) as host:
        fill(host.spawn(TRAINER), host.spawn(TRAINER))
        host.spawn(Workload("decode", kernels=5, kernel_us=200, gap_us=2000))
        seen = host.residencies_since(0, 0).count
        run_for(host, SECOND_NS // 2)
        stays = host.residencies_since(0, seen).stays
    together = [end for end, count in Counter(r.end_ns for r in stays).items() if count == 2]
    assert len(together) > 20
    starts = sorted(r.start_ns for r in stays)
    for end_ns in together[:-1]:
        assert starts[bisect_left(starts, end_ns)] >= end_ns + SWITCH_NS


_STREAM_OFFSET = 64 + 4096 * 16 + (256 << 10)


def show_kernel(host: SimHost, stamp_ns: int, amount_ns: int) -> None:
    """Put a command into the first stream of the oldest context, past libcuda, as anybody could."""
    with open(host.state_dir / "gpu0.ctx", "r+b") as file, mmap.mmap(file.fileno(), 0) as regions:
        tail = struct.unpack_from("Q", regions, _STREAM_OFFSET)[0]
        at = _STREAM_OFFSET + 128 + tail * 64
        struct.pack_into("IIQQQQQQQ", regions, at, 1, 1, stamp_ns, 1 << 40, amount_ns, 0, 0, 0, 0)
        struct.pack_into("Q", regions, _STREAM_OFFSET, tail + 1)


def test_what_was_done_is_not_undone_by_a_submission_that_comes_late(host: SimHost, start):
    """A client that is stopped between stamping a command and showing it shows one of long ago."""
    client = start(host, "exact")
    client.says()
    worker = host.spawn(TRAINER)
    fill(worker)
    run_for(host, SECOND_NS // 5)
    (before,) = (t for t in host.truth() if t.pid == client.pid)
    show_kernel(host, before.as_of_ns - SECOND_NS // 10, 10 * MS_NS)
    wait_until(lambda: host.truth()[0].kernels == before.kernels + 1, 30, "it runs")
    (truth,) = host.truth_of(worker)
    assert truth.exec_ns >= truth.kernels * 500_000
    check_accounts(host)


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_kernel_without_an_end_never_ends_and_the_accounts_hold(start, overlap: int):
    with SimHost([GpuSpec(overlap=overlap)]) as host:
        start(host, "exact").says()
        worker = host.spawn(TRAINER)
        fill(worker)
        begun, _ = host.truth()
        show_kernel(host, begun.as_of_ns, 2**64 - 1)
        wait_until(lambda: host.truth()[0].exec_ns > begun.exec_ns, 30, "it runs")
        _, begin = host.snapshot()
        run_for(host, SECOND_NS // 4)
        check_accounts(host)
        _, end = host.snapshot()
        endless, other = (b.exec_ns - a.exec_ns for a, b in zip(begin, end, strict=True))
        assert endless == pytest.approx(other, rel=0.1)
        assert end[0].kernels == begun.kernels


def test_new_stays_are_read_once_and_lost_ones_are_counted():
    with two_trainers(GpuSpec(slice_us=10, switch_us=0)) as host:
        wait_until(lambda: host.residencies_since(0, 0).lost > 0, 60, "the ring has gone round")
        for worker in host.workers:
            os.kill(worker.pid, signal.SIGKILL)
            worker.process.wait()
        wait_until(lambda: not any(t.is_alive for t in host.truth()), 30, "the engine notices")
        everything = host.residencies_since(0, 0)
        assert len(everything.stays) == 8192 and everything.lost == everything.count - 8192
        assert (
            list(everything.stays) == host.residencies() == sorted(everything.stays, key=lambda r: r.start_ns)
        )
        for new in (0, 1, 5000, 8191, 8192):
            some = host.residencies_since(0, everything.count - new)
            assert some.stays == everything.stays[8192 - new :]
            assert (some.count, some.lost) == (everything.count, 0)
        assert host.residencies_since(0, everything.count - 8200).lost == 8
        with pytest.raises(ValueError, match="only"):
            host.residencies_since(0, everything.count + 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slice_us", 9.9),
        ("switch_us", -1),
        ("slice_spread_ratio", 1.1),
        ("slice_jitter_ratio", -0.1),
        ("overlap", 0),
        ("overlap", 17),
    ],
)
def test_an_impossible_nature_is_refused_by_the_name_of_its_field(field: str, value: float):
    with pytest.raises(ValueError, match=field):
        replace(GpuSpec(), **{field: value}).argument("GPU-0")
