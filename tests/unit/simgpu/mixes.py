# SPDX-License-Identifier: Apache-2.0
"""Loads whose accounts can be foretold, and the laws that hold in every nature of GPU."""

from __future__ import annotations

from collections.abc import Iterable

from fairsched.simgpu import GpuSpec, Residency, SimHost, Workload
from fairsched.simgpu.workload import Worker
from tests.support import wait_until

SECOND_NS = 1_000_000_000
MS_NS = 1_000_000
SLICE_NS, SWITCH_NS = round(GpuSpec.slice_us * 1000), round(GpuSpec.switch_us * 1000)
TRAINER = Workload("trainer", kernels=20, kernel_us=500, depth=40)
"""Queues 400 ms of work: held up for less than that by this machine, it always has some."""


def run_for(host: SimHost, duration_ns: int, gpu: int = 0) -> None:
    """Until the GPU has been busy for that long."""
    begin = host.gpu_truth(gpu).busy_ns
    wait_until(lambda: host.gpu_truth(gpu).busy_ns - begin >= duration_ns, 30, f"busy for {duration_ns} ns")


def fill(*workers: Worker) -> None:
    """Until each has filled its queue: no step is waited for before that."""
    wait_until(lambda: all(worker.step_count() >= 2 for worker in workers), 30, "their queues are full")


def check_accounts(host: SimHost, gpu_index: int = 0, sync: bool = True) -> None:
    """Nothing is lost and nothing counted twice."""
    gpu, contexts = host.snapshot(gpu_index, sync)
    assert sum(c.exec_ns for c in contexts) == gpu.busy_ns
    assert sum(c.switch_ns for c in contexts) == gpu.switch_ns
    assert gpu.idle_ns >= 0
    assert gpu.busy_ns + gpu.switch_ns + gpu.idle_ns == gpu.as_of_ns - gpu.start_ns
    for context in contexts:
        lived_ns = context.as_of_ns - context.created_ns
        assert context.exec_ns + context.switch_ns + context.wait_ns <= lived_ns


def most_at_once(stays: Iterable[Residency]) -> int:
    """The largest number of stays that share a moment."""
    edges = sorted((at, change) for r in stays for at, change in ((r.start_ns, 1), (r.end_ns, -1)))
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most
