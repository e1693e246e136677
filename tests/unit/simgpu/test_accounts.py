# SPDX-License-Identifier: Apache-2.0
"""The laws the truth obeys: nothing is lost, nothing counted twice, the circle is fair."""

from __future__ import annotations

import itertools

import pytest

from fairsched.simgpu import GpuSpec, SimHost, Workload
from tests.support import wait_until
from tests.unit.simgpu.mixes import SECOND_NS, SLICE_NS, SWITCH_NS, TRAINER, check_accounts, fill, run_for


def test_execution_switches_and_idleness_add_up_to_wall_time(host: SimHost):
    host.spawn(TRAINER)
    host.spawn(Workload("decode", kernels=10, kernel_us=200, gap_us=3000, jitter_ratio=0.3))
    host.spawn(Workload("decode", kernels=4, kernel_us=700, contexts=2, streams=2, jitter_ratio=0.3))
    for _ in range(5):
        run_for(host, SECOND_NS // 10)
        check_accounts(host)


def test_two_trainers_get_the_same(host: SimHost):
    fill(host.spawn(TRAINER), host.spawn(TRAINER))
    _, begin = host.snapshot()
    run_for(host, 3 * SECOND_NS // 2)
    gpu, end = host.snapshot()
    first, second = (b.exec_ns - a.exec_ns for a, b in zip(begin, end, strict=True))
    assert first == pytest.approx(second, rel=0.02)
    assert gpu.switch_ns / (gpu.busy_ns + gpu.switch_ns) == pytest.approx(
        SWITCH_NS / (SLICE_NS + SWITCH_NS), rel=0.1
    )


def test_a_context_always_waiting_is_accounted_as_waiting(host: SimHost):
    fill(host.spawn(TRAINER), host.spawn(TRAINER))
    _, begin = host.snapshot()
    run_for(host, SECOND_NS // 2)
    _, end = host.snapshot()
    for a, b in zip(begin, end, strict=True):
        told = (b.exec_ns - a.exec_ns) + (b.switch_ns - a.switch_ns) + (b.wait_ns - a.wait_ns)
        assert told == pytest.approx(b.as_of_ns - a.as_of_ns, rel=0.05), "always runnable: all time is told"


def test_slices_and_switch_costs_are_those_of_the_spec():
    with SimHost([GpuSpec(slice_us=5000, switch_us=500)]) as host:
        fill(host.spawn(TRAINER), host.spawn(TRAINER))
        before = len(host.residencies())
        run_for(host, SECOND_NS // 2)
        gpu, _ = host.snapshot()
        stays = [r.end_ns - r.start_ns for r in host.residencies()[before:]]
    assert sorted(stays)[len(stays) // 2] == 5_000_000
    assert gpu.switch_ns == pytest.approx(gpu.switches * 500_000, abs=500_000)


def test_residencies_are_the_execution_and_never_overlap(host: SimHost):
    host.spawn(TRAINER)
    host.spawn(Workload("decode", kernels=5, kernel_us=300, gap_us=1000))
    run_for(host, SECOND_NS // 2)

    def is_told() -> bool:
        """All but the stay in progress."""
        before = sum(c.exec_ns for c in host.truth())
        stays = host.residencies()
        after = sum(c.exec_ns for c in host.truth())
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(stays))
        told = sum(r.end_ns - r.start_ns for r in stays)
        assert told <= after
        return told >= 0.95 * before

    wait_until(is_told, 30, "what was executed is told")


def test_accounts_grow_with_time_even_inside_one_long_kernel(host: SimHost):
    host.spawn(Workload("longkernel", kernels=1, kernel_us=60_000_000))
    wait_until(lambda: host.truth()[0].exec_ns > 0, 30, "it runs")
    (before,) = host.truth()
    wait_until(lambda: host.truth()[0].exec_ns > before.exec_ns + 50_000_000, 30, "time passes")
    (after,) = host.truth(sync=False)
    assert after.kernels == 0
    assert after.exec_ns - before.exec_ns == after.as_of_ns - before.as_of_ns


def test_an_ended_context_stays_on_record(host: SimHost):
    worker = host.spawn(Workload("decode", kernels=4, kernel_us=100, seconds=0.1))
    worker.process.wait(30)
    wait_until(lambda: not host.truth()[0].is_alive, 30, "the engine notices")
    (truth,) = host.truth()
    assert truth.kernels == 4 * worker.step_count()
    assert truth.exec_ns == truth.kernels * 100_000
