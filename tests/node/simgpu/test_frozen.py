# SPDX-License-Identifier: Apache-2.0
"""Simulated tenants in real cgroups: the queue of a frozen one drains, as on the hardware."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.simgpu import PRESETS, SimHost, Workload
from tests.support import wait_until


def find_cgroup2() -> Path | None:
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, where, kind, *_ = line.split()
            if kind == "cgroup2":
                return Path(where)
    return None


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost() as host:
        yield host


@pytest.fixture
def cgroup(host: SimHost) -> Iterator[Path]:
    root = find_cgroup2()
    if root is None:
        pytest.skip("no cgroup2 file system is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")
    path = root / f"fairsched-test-simgpu-{os.getpid()}"
    path.mkdir()
    yield path
    (path / "cgroup.freeze").write_text("0")
    (path / "cgroup.kill").write_text("1")
    for worker in host.workers:
        worker.kill()
    wait_until(lambda: "populated 0" in (path / "cgroup.events").read_text(), 10, "the cgroup is empty")
    path.rmdir()


def freeze(cgroup: Path) -> None:
    (cgroup / "cgroup.freeze").write_text("1")
    wait_until(lambda: "frozen 1" in (cgroup / "cgroup.events").read_text(), 10, "it is frozen")


def test_a_worker_is_in_its_cgroup_from_the_start(host: SimHost, cgroup: Path):
    worker = host.spawn(PRESETS["decode"], cgroup)
    assert (cgroup / "cgroup.procs").read_text().split() == [str(worker.pid)]


def test_a_frozen_tenant_drains_and_then_stands_still(host: SimHost, cgroup: Path):
    worker = host.spawn(Workload("trainer", kernels=10, kernel_us=20_000, depth=10), cgroup)
    wait_until(lambda: worker.step_count() >= 2, 30, "its queue is full")
    freeze(cgroup)
    (at_freeze,) = host.truth()

    def is_idle() -> bool:
        return host.reader.gpu_phase() == "idle"

    wait_until(is_idle, 30, "the queue is empty")
    (drained,) = host.truth()
    assert drained.exec_ns - at_freeze.exec_ns > 200_000_000, "most of ten steps of 200 ms were still queued"
    steps = worker.step_count()
    (cgroup / "cgroup.freeze").write_text("0")
    wait_until(lambda: worker.step_count() > steps, 30, "it goes on")
    assert host.truth()[0].exec_ns >= drained.exec_ns


def test_a_tenant_killed_while_frozen_gives_its_memory_back(host: SimHost, cgroup: Path):
    worker = host.spawn(Workload("trainer", depth=16, alloc_bytes=1 << 20), cgroup)
    freeze(cgroup)
    worker.kill()
    wait_until(lambda: not host.truth()[0].is_alive, 10, "the engine notices")
    assert host.gpu_truth().vram_used_bytes == 0
