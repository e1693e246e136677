# SPDX-License-Identifier: Apache-2.0
"""NVML's samples of a GPU that is idle part of the time, alone and scaled to what DCGM says it was active for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.simgpu import SimHost, Workload
from fairsched.simgpu.hostengine import HostEngine
from fairsched.simgpu.node import DaemonProcess, SimNode
from tests.support import let_run, wait_until

SAMPLES = Path(__file__).with_name("samples.py")
ROOT = SAMPLES.parents[3]
SECONDS = 15
WITHOUT_EBPF = "mechanisms: {ebpf: off}\n"


@pytest.fixture
def tenants(mount: Mount) -> Iterator[list[CgroupRef]]:
    refs = [tree.create(mount, f"/fairsched-dcgm-{os.getpid()}/{name}") for name in ("a", "b")]
    yield refs
    parent = CgroupRef.open(mount, f"/fairsched-dcgm-{os.getpid()}")
    for ref in (*refs, parent):
        wait_until(lambda ref=ref: not tree.read_pids(ref), 30, "the tenant is empty")
        tree.remove(mount, ref)
        ref.close()


@pytest.fixture
def host(mount: Mount, tenants: list[CgroupRef]) -> Iterator[SimHost]:
    """Two tenants that use some two fifths of the GPU together."""
    with SimHost() as host:
        for ref in tenants:
            load = Workload("decode", kernels=10, kernel_us=1000, gap_us=35_000, jitter_ratio=0.2)
            host.spawn(load, Path(mount.absolute(ref.path)))
        yield host


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[HostEngine]:
    with HostEngine(str(tmp_path / "engine")) as engine:
        yield engine


class Run:
    """The daemon's sensors in a process of their own, and the load of the GPU meanwhile."""

    def __init__(self, host: SimHost, configuration: str) -> None:
        self._host, self._before = host, host.gpu_truth()
        self._process = subprocess.Popen(
            [sys.executable, str(SAMPLES), str(SECONDS), WITHOUT_EBPF + configuration],
            env={**os.environ, **host.dcgm_env(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[dict[str, Any], float]:
        """What it says, and what was accounted in parts of the truth."""
        out, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        answer: dict[str, Any] = json.loads(out)
        after = self._host.gpu_truth()
        truth = (after.busy_ns - self._before.busy_ns) / (after.as_of_ns - self._before.as_of_ns)
        assert 0.05 < truth < 0.7, "partly idle"
        return answer, sum(answer["used"].values()) / answer["elapsed"] / truth


@pytest.mark.rest
def test_samples_alone_undercount_a_partly_idle_gpu(host: SimHost) -> None:
    answer, part = Run(host, "gpu: {dcgm: off}").end()
    assert answer["source"] == "nvml"
    assert part < 0.8


@pytest.mark.rest
def test_scaled_to_what_dcgm_says_they_add_up(
    host: SimHost, engine: HostEngine, tenants: list[CgroupRef]
) -> None:
    answer, part = Run(host, f"gpu: {{dcgm: required, dcgm_address: {engine.address}}}").end()
    assert answer["source"] == "dcgm"
    assert part == pytest.approx(1.0, abs=0.15)
    assert set(map(int, answer["used"])) == {ref.id for ref in tenants}
    assert answer["confidences"] == ["sampled"], "who it was is as uncertain as before"


@pytest.mark.rest
def test_a_host_engine_that_is_restarted_meanwhile_is_taken_back(host: SimHost, engine: HostEngine) -> None:
    run = Run(host, f"gpu: {{dcgm: required, dcgm_address: {engine.address}}}")
    let_run(5)
    engine.stop()
    let_run(1)
    engine.start()
    answer, part = run.end()
    assert answer["source"] == "dcgm"
    assert part == pytest.approx(1.0, abs=0.3)


@pytest.mark.rest
def test_without_a_host_engine_one_of_our_own_is_started(host: SimHost) -> None:
    answer, part = Run(host, "gpu: {dcgm_address: embedded}").end()
    assert answer["source"] == "dcgm"
    assert part == pytest.approx(1.0, abs=0.2)


def test_the_daemon_says_where_its_numbers_come_from_and_no_total_ever_falls(
    tmp_path: Path, engine: HostEngine
) -> None:
    with SimNode(f"/gpu.slice/dcgm-{os.getpid()}-") as node:
        daemon = DaemonProcess(tmp_path, node.host.dcgm_env())
        try:
            daemon.configure(
                {
                    "mechanisms": {"ebpf": "off"},
                    "gpu": {"dcgm_address": engine.address},
                    "tenants": {"chat": {"cgroup": node.cgroup_path("chat")}},
                }
            )
            daemon.launch()
            daemon.wait_for(daemon.ping, 60, "it answers")
            node.make_cgroup("chat")
            node.spawn("chat", Workload("decode", kernels=10, kernel_us=1000, gap_us=35_000))
            totals: list[float] = []

            def is_source(source: str) -> bool:
                said = daemon.status()
                totals.append(said["tenants"][0]["gpu_time_s"] or 0.0)
                return bool(said["source"] == source)

            daemon.wait_for(lambda: is_source("dcgm") and totals[-1] > 0, 30, "the samples are scaled")
            engine.stop()
            daemon.wait_for(lambda: is_source("nvml"), 30, "they are no longer")
            engine.start()
            daemon.wait_for(lambda: is_source("dcgm"), 60, "they are again")
            assert totals == sorted(totals)
        finally:
            daemon.close()
