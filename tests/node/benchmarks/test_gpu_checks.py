# SPDX-License-Identifier: Apache-2.0
"""The GPU checks on the simulated GPU, and what they do with PyTorch tenants, played by a program without PyTorch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.gpu import coverage, freeze, hosts
from benchmarks.gpu.facts import Facts
from benchmarks.gpu.figures import Figure, Verdict
from benchmarks.gpu.hosts import STEP_NS, Crew, Load, Simulated
from benchmarks.gpu.real import Real
from benchmarks.rig import BenchError
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.cgroup.path import Mount
from fairsched.gpu.nvml import Gpu, Nvml
from fairsched.simgpu import Workload
from fairsched.simgpu.node import PARENT
from fairsched.simgpu.workload import Worker
from tests.support import wait_until

MEASURES = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
JUDGE = freeze.judge
STAND_IN = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from benchmarks.gpu.steplog import StepLog
from benchmarks.gpu.tenant import parse
from fairsched.base.wait import is_readable

options = parse(sys.argv[2:])
if options.kind == "spin":
    sys.exit("no kernels here")
log, gpu_log = StepLog(options.log), StepLog(options.gpu_log)
options.report.write_text('{"launches": 7, "launches_from": "profiler"}')
log.ready()
sys.stdin.readline()
while not is_readable(sys.stdin, 0.001):
    for each in (log, gpu_log):
        each.step(time.monotonic_ns(), 1.0, 1_000_000)
"""


@pytest.fixture(scope="module")
def simulated(mount: Mount) -> Iterator[Simulated]:
    with Simulated() as host:
        yield host


@pytest.fixture(scope="module")
def probe(simulated: Simulated) -> Iterator[GpuTimeProbe]:
    with simulated.eyes() as probe:
        yield probe


def verdicts(figures: list[Figure]) -> dict[str, str]:
    return {figure.bar.key: f"{figure.verdict.value}: {figure.note}" for figure in figures}


@MEASURES
def test_every_launch_of_every_kind_is_counted(simulated: Simulated, probe: GpuTimeProbe) -> None:
    figures = coverage.measure(simulated, probe, 1.0)
    # A step is launched within 0.1 ms of its 10, and the counter read as quickly: at most one is torn.
    assert [figure.bar.key for figure in figures] == [f"coverage_{kind}_error" for kind in coverage.KINDS]
    assert all(figure.value is not None and figure.value < 0.02 for figure in figures), verdicts(figures)


@MEASURES
def test_launches_past_the_probes_are_missed(
    simulated: Simulated, probe: GpuTimeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of libcuda is another file: nothing of it is probed, and the check has to say so."""
    copy = shutil.copy(simulated.libcuda, simulated.directory / "libcuda.so.copy")
    monkeypatch.setattr(coverage, "KINDS", ("spin",))
    monkeypatch.setattr(hosts, "sim_workload", lambda load: Workload(libcuda=str(copy)))
    (figure,) = coverage.measure(simulated, probe, 1.0)
    assert (figure.value, figure.verdict) == (1.0, Verdict.MISSED)


@MEASURES
def test_a_frozen_queue_drains_and_nothing_of_its_process_moves(
    simulated: Simulated, probe: GpuTimeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds: list[freeze.Hold] = []
    worker: Worker
    tenants = Simulated.tenants

    @contextlib.contextmanager
    def trainer(host: Simulated, loads: Sequence[Load]) -> Iterator[Crew]:
        nonlocal worker
        with tenants(host, loads) as crew:
            worker = crew[loads[0].name][0].worker
            yield crew

    def judge(found: Sequence[freeze.Hold]) -> list[Figure]:
        holds.extend(found)
        return JUDGE(found)

    monkeypatch.setattr(Simulated, "tenants", trainer)
    monkeypatch.setattr(freeze, "judge", judge)
    figures = {figure.bar.key: figure for figure in freeze.measure(simulated, probe, 1.0)}
    assert figures["frozen_launches"].value == figures["frozen_returns"].value == 0
    assert figures["drain_least_ratio"].verdict is Verdict.MET, figures["drain_least_ratio"].note
    # The figure is the longest of three: one hold in which others had the processor is no longer queue.
    usual_ns = statistics.median(hold.drain_ns for hold in holds if hold.drain_ns is not None)
    # Where they have it all the time, the simulated GPU is slower, held or not: a queue is so many steps of this hour.
    gaps_ns = [after.end_ns - step.end_ns for step, after in pairwise(worker.steps())]
    # Across a hold a gap is longer; after it the program hears of the drained steps at once.
    queue_ns = (
        freeze.QUEUE_MS
        * 1e6
        / STEP_NS
        * statistics.fmean(gap_ns for gap_ns in gaps_ns if STEP_NS / 2 < gap_ns < 10 * STEP_NS)
    )
    usual = replace(figures["drain_ratio"], value=usual_ns / queue_ns)
    assert usual.verdict is Verdict.MET, usual
    assert all(figures[key].value is not None for key in ("freeze_latency_ms", "thaw_latency_ms"))


@MEASURES
def test_a_process_that_is_not_held_is_no_frozen_one(
    simulated: Simulated, probe: GpuTimeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hold ended at once, launches and returns are seen and the bars missed."""
    settle = freeze.settle

    def settle_and_thaw(freezer: freeze.Freezer) -> int:
        latency_ns = settle(freezer)
        for cgroup_id in list(freezer.holds):
            freezer.thaw(cgroup_id)
        return latency_ns

    monkeypatch.setattr(freeze, "settle", settle_and_thaw)
    figures = {figure.bar.key: figure for figure in freeze.measure(simulated, probe, 1.0)}
    assert figures["frozen_launches"].verdict is Verdict.MISSED
    assert figures["frozen_returns"].verdict is Verdict.MISSED
    assert figures["drain_ratio"].verdict is Verdict.MISSED


@MEASURES
def test_the_command_accounts_and_schedules_and_writes_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--simulated", "--seconds", "1", "--json", str(out)]
    command += ["--only", "account", "--only", "fairness"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(out.read_text())
    assert found["is_simulated"] is True
    # One second on a busy machine proves no bar; that everything was measured it does.
    assert {figure["section"] for figure in found["figures"].values()} == {"account", "fairness"}
    unknown = {key: figure["note"] for key, figure in found["figures"].items() if figure["value"] is None}
    assert unknown.keys() <= {"account_nvml_points"}, (
        unknown
    )  # there may be no sample of any of them in a second
    errors = {key: figure["value"] for key, figure in found["figures"].items() if key.endswith("_error")}
    assert len(errors) == 4 and all(value < 0.3 for value in errors.values()), errors
    assert "account_truth_error" in done.stdout and "share_error_points" in done.stdout


def test_without_a_gpu_the_command_names_what_is_missing() -> None:
    nvml = Nvml()
    nvml.close()
    if nvml.gpus:
        pytest.skip("host: this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 3
    assert "nvidia-smi must list it" in done.stderr
    assert "--simulated" in done.stderr
    assert done.stdout == ""


# ---- PyTorch tenants, played ----


@pytest.fixture
def real(mount: Mount, tmp_path: Path) -> Iterator[Real]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path}/stand_in.py {ROOT} "$@"\n')
    python.chmod(0o755)
    gpu = Gpu("GPU-00000000-0000-0000-0000-000000000001")
    with Real(Facts("3", "2", "12", gpu, Path("/nowhere/libcuda.so.1")), str(python)) as host:
        yield host


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_pytorch_tenants_run_in_their_cgroups_and_leave_nothing(real: Real, mount: Mount) -> None:
    loads = [Load("a", "decode"), Load("b", "trainer", processes=2)]
    with real.tenants(loads) as crew:
        assert {name: len(members) for name, members in crew.items()} == {"a": 1, "b": 2}
        for name, members in crew.items():
            for member in members:
                cgroup = Path(f"/proc/{member.worker.pid}/cgroup").read_text()
                assert f"0::{PARENT}/{real.prefix}{name}\n" in cgroup
                assert (member.launches, member.launches_from) == (7, "profiler")
                count = member.worker.step_count()
                wait_until(lambda m=member, c=count: m.worker.step_count() > c, PATIENCE_S, "it goes on")
        pids = [member.worker.pid for members in crew.values() for member in members]
        top = Path(mount.absolute(f"{PARENT}/{real.prefix}b"))
        (top / "cgroup.freeze").write_text("1")  # somebody who dies here leaves it so
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert not top.exists()


def test_nobody_begins_before_the_last_has_measured_itself(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    started: list[hosts.Member] = []
    start = Real._start

    def watched(self: Real, *args: object) -> hosts.Member:
        member = start(self, *args)  # type: ignore[arg-type]
        started.append(member)
        seen.extend(one.worker.step_count() for one in started)
        return member

    monkeypatch.setattr(Real, "_start", watched)
    with real.tenants([Load("a", "decode"), Load("b", "decode"), Load("c", "decode")]):
        assert seen == [0] * 6
        for member in started:
            wait_until(lambda m=member: m.worker.step_count() > 0, PATIENCE_S, "it begins")


def test_a_tenant_that_fails_takes_the_others_along_and_is_quoted(real: Real, mount: Mount) -> None:
    wanted = [Load("a", "decode"), Load("s", "spin")]
    with pytest.raises(BenchError, match="before it began: no kernels here"), real.tenants(wanted):
        pass
    left = [name for name in os.listdir(mount.absolute(PARENT)) if name.startswith(real.prefix)]
    assert left == []


def test_the_drain_is_told_by_what_the_gpu_reached_during_the_hold(real: Real) -> None:
    with real.tenants([Load("a", "decode")]) as crew:
        (member,) = crew["a"]
        wait_until(lambda: member.worker.step_count() > 3, PATIENCE_S, "it makes steps")
        member.worker.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state(member.worker.pid) == "T", PATIENCE_S, "it stands still")
        assert member.gpu_log is not None
        ends = [step.end_ns for step in member.gpu_log.steps()]
        assert real.drain_end_ns(member, ends[-3], ends[-1] + 5_000_000_000) == ends[-1]
        assert real.drain_end_ns(member, ends[-1], ends[-1] + 5_000_000_000) is None
