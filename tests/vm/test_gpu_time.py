# SPDX-License-Identifier: Apache-2.0
"""The time account's programs under other kernels: real probes on the simulated libcuda, real processes in cgroups.

The GPU runs at its own pace, the calls at a tenth of it or less: steps are long, and what is compared is time of whole
seconds. Compiling and checking some sixty programs takes half a minute here, and belongs into every make test: a kernel
that refuses them has no account.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairsched.bpf.gpu_time import GpuTimeProbe, Library
from fairsched.bpf.loader import has_atomics
from fairsched.bpf.probe import probe as ask_facts
from fairsched.errors import HostUnsupported
from fairsched.protocol.losses import GPU_TIME_LOSSES
from fairsched.simgpu import SimHost, Workload
from fairsched.simgpu.build import build
from fairsched.simgpu.workload import Worker
from tests.support import let_run, wait_until
from tests.vm.conftest import Cgroups, Record
from tests.vm.reach import IS_SHORT

PATIENCE_S = 120.0
ATTACH_S = 400.0
STEP = Workload("decode", kernels=2, kernel_us=50_000, gap_us=30_000)
QUEUE_S = 0.1
"""What a step has queued: its two kernels."""
COMPARED_NS = 2_000_000_000
TOLERANCE = 0.25
"""Who waits for an emulated processor notices the end of its work late, and is charged for that."""
ROWS = PROBED, CHARGED, HELD = (
    "GPU time: probes on libcuda",
    "GPU time: charged per cgroup",
    "GPU time: a frozen tenant's work ends",
)


@dataclass
class Eye:
    """A probe on a copy of libcuda, and a GPU below it."""

    probe: GpuTimeProbe
    library: Library
    host: SimHost

    def spawn(self, cgroup: Path) -> Worker:
        env = {"LD_LIBRARY_PATH": str(Path(self.library.path).parent)}
        worker = self.host.spawn(STEP, cgroup, env=env, wait=False)
        worker.wait_ready(PATIENCE_S)
        return worker

    def charged_ns(self, cgroup: Path) -> int:
        """Of intervals that ended."""
        cgroup_id = cgroup.stat().st_ino
        return sum(use.gpu_time_ns for key, use in self.probe.uses() if key.cgroup_id == cgroup_id)

    def contexts_of(self, worker: Worker) -> list[int]:
        return [slot for slot, context in self.probe.contexts() if context.tgid == worker.pid]

    def true_ns(self, worker: Worker) -> int:
        return sum(one.exec_ns for one in self.host.truth_of(worker))


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eye]:
    if not has_atomics():
        pytest.skip("the account needs the atomic operations of Linux 5.12")
    copy = Path(shutil.copy(build().library_dir / "libcuda.so.1", tmp_path_factory.mktemp("lib")))
    with contextlib.ExitStack() as undo:
        probe = GpuTimeProbe()
        undo.callback(probe.close)
        library = probe.attach_library(str(copy), ATTACH_S)
        host = undo.enter_context(SimHost())
        (name,) = host.uuids()
        probe.set_uuids({uuid.UUID(name.removeprefix("GPU-")).bytes: 0})
        yield Eye(probe, library, host)


@pytest.mark.skipif(IS_SHORT, reason="not with --short, to keep every make test short")
def test_doctor_says_whether_the_account_works_here(facts, record) -> None:
    wrong = {fact.name: fact.remedy for fact in ask_facts() if not fact.is_ok and fact.is_needed}
    if facts.series != "5.10":
        assert wrong == {}
        return
    assert "atomics" in wrong
    with pytest.raises(HostUnsupported) as refused:
        GpuTimeProbe()
    assert "kernel >= 5.12" in refused.value.remedy
    for row in ROWS:
        record(row, "missing", "needs the atomic operations of Linux 5.12; doctor says so")


def test_every_call_of_libcuda_is_probed_behind_its_first_instruction(
    eye: Eye, facts, record: Record
) -> None:
    assert eye.library.failures == {}
    assert eye.library.cheap == eye.library.probes > 100
    assert eye.probe.is_multi == (facts.series != "6.1"), "one link for many probes came with 6.6"
    how = "one link for all probes of a program" if eye.probe.is_multi else "a perf event for each probe"
    record(PROBED, "works", how)


def test_gpu_time_is_charged_to_the_cgroup_that_used_it(eye: Eye, cgroups: Cgroups, record: Record) -> None:
    first, second = cgroups.make("first"), cgroups.make("second")
    both = [(cgroup, eye.spawn(cgroup)) for cgroup in (first, second)]
    try:
        wait_until(lambda: all(eye.charged_ns(cgroup) for cgroup, _ in both), PATIENCE_S, "both are seen")
        before = [(eye.charged_ns(cgroup), eye.true_ns(worker)) for cgroup, worker in both]
        (_, one), (_, begun_ns) = both[0], before[0]
        wait_until(lambda: eye.true_ns(one) - begun_ns > COMPARED_NS, PATIENCE_S, "GPU time passes")
        for (cgroup, worker), (charged_ns, true_ns) in zip(both, before, strict=True):
            charged_ns = eye.charged_ns(cgroup) - charged_ns
            assert charged_ns == pytest.approx(eye.true_ns(worker) - true_ns, rel=TOLERANCE)
    finally:
        for _, worker in both:
            worker.kill()
    losses = {what: count for what, count in eye.probe.counts().items() if what in GPU_TIME_LOSSES and count}
    assert losses == {}
    assert any(sum(delay.bucket) for _, delay in eye.probe.delays()), "queue delays are counted"
    record(CHARGED, "works", "")


def test_a_launch_through_one_of_two_overlays_of_one_directory_counts_once(
    eye: Eye, cgroups: Cgroups, tmp_path: Path
) -> None:
    empty, roots = tmp_path / "empty", [tmp_path / "first", tmp_path / "second"]
    empty.mkdir()
    with contextlib.ExitStack() as undo:
        for root in roots:
            root.mkdir()
            options = f"ro,lowerdir={empty}:{Path(eye.library.path).parent}"
            subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(root)], check=True)
            undo.callback(subprocess.run, ["umount", "--lazy", str(root)], check=True)
            library = eye.probe.attach_library(str(root / "libcuda.so.1"), ATTACH_S)
            assert (library.probes, library.failures) == (eye.library.probes, {})
        seen = Eye(eye.probe, library, eye.host)
        worker = seen.spawn(cgroups.make("overlaid"))
        undo.callback(worker.kill)
        wait_until(lambda: seen.true_ns(worker) > COMPARED_NS, PATIENCE_S, "GPU time passes")
        (slot,) = seen.contexts_of(worker)
        kernels = sum(one.kernels for one in eye.host.truth_of(worker))
        # In each step of two kernels one copy; a step may be under way.
        assert kernels <= eye.probe.context(slot).submitted < 1.8 * kernels


def test_a_process_that_is_killed_amid_its_work_leaves_no_context(eye: Eye, cgroups: Cgroups) -> None:
    worker = eye.spawn(cgroups.make("killed"))
    wait_until(lambda: not eye.probe.is_idle(0), PATIENCE_S, "it has work on the GPU")
    assert len(eye.contexts_of(worker)) == 1
    worker.kill()
    wait_until(lambda: not eye.contexts_of(worker), PATIENCE_S, "its context is gone")
    assert eye.probe.is_idle(0)


def test_work_is_seen_to_end_while_its_tenant_is_frozen(eye: Eye, cgroups: Cgroups, record: Record) -> None:
    cgroup = cgroups.make("held")
    worker = eye.spawn(cgroup)
    try:
        # Frozen with all of a step before it, so that nobody is left to tell that it has ended.
        wait_until(
            lambda: eye.charged_ns(cgroup) > 0 and eye.probe.is_idle(0), PATIENCE_S, "a step has ended"
        )
        wait_until(lambda: not eye.probe.is_idle(0), PATIENCE_S, "the next has begun")
        (cgroup / "cgroup.freeze").write_text("1")
        wait_until(lambda: "frozen 1" in (cgroup / "cgroup.events").read_text(), PATIENCE_S, "it is frozen")
        let_run(3 * QUEUE_S)
        assert not eye.probe.is_idle(0)
        (slot,) = eye.contexts_of(worker)
        assert eye.probe.end_drain(slot, eye.probe.context(slot).generation, 0)
        assert eye.probe.is_idle(0), "the daemon ends it"
        held_ns = eye.charged_ns(cgroup)
        let_run(3 * QUEUE_S)
        assert eye.charged_ns(cgroup) == held_ns
        (cgroup / "cgroup.freeze").write_text("0")
        wait_until(lambda: eye.charged_ns(cgroup) > held_ns, PATIENCE_S, "it goes on")
    finally:
        (cgroup / "cgroup.freeze").write_text("0")
        worker.kill()
    record(HELD, "works", "")
