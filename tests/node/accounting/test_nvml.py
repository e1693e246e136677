# SPDX-License-Identifier: Apache-2.0
"""The NVML account against the simulated GPU, which samples as coarsely as the driver does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.simgpu import PRESETS, GpuSpec, SimHost
from tests.support import wait_until

SAMPLES = Path(__file__).with_name("samples.py")
ROOT = SAMPLES.parents[3]
SECONDS = 10
BUSY_RATIO = GpuSpec.slice_us / (GpuSpec.slice_us + GpuSpec.switch_us)
"""Of a GPU that always has work: but for switches."""


@pytest.fixture
def tenants(mount: Mount) -> Iterator[list[CgroupRef]]:
    refs = [tree.create(mount, f"/fairsched-nvml-{os.getpid()}/{name}") for name in ("a", "b")]
    yield refs
    parent = CgroupRef.open(mount, f"/fairsched-nvml-{os.getpid()}")
    for ref in (*refs, parent):
        wait_until(lambda ref=ref: not tree.read_pids(ref), 30, "the tenant is empty")
        tree.remove(mount, ref)
        ref.close()


@pytest.mark.rest
def test_samples_go_to_the_right_cgroups_and_add_up(mount: Mount, tenants: list[CgroupRef]) -> None:
    with SimHost() as host:
        for ref in tenants:
            # deep queues: they have work whatever else this machine does
            host.spawn(replace(PRESETS["trainer"], depth=20), Path(mount.absolute(ref.path)))
        done = subprocess.run(
            [sys.executable, str(SAMPLES), str(SECONDS)],
            env={**os.environ, **host.env(), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    answer = json.loads(done.stdout)
    assert answer["source"] == "nvml"
    assert "ebpf is off" in answer["reason"]
    assert answer["confidences"] == ["sampled"]
    used = {int(cgroup_id): ns for cgroup_id, ns in answer["used"].items()}
    assert set(used) == {ref.id for ref in tenants}
    assert sum(used.values()) / answer["elapsed"] == pytest.approx(BUSY_RATIO, abs=0.1)
    # six points at 10 s, one sigma: four of them
    assert used[tenants[0].id] / sum(used.values()) == pytest.approx(0.5, abs=0.24)


@pytest.mark.rest
@pytest.mark.skipif(
    os.geteuid() != 0, reason="the driver's accounting mode takes root: run the tests as root"
)
@pytest.mark.parametrize("accounting", ["off", "on"])
def test_short_processes_are_charged_to_their_cgroup(
    mount: Mount, tenants: list[CgroupRef], accounting: str
) -> None:
    """One after the other, each for two samples or so: who is on the GPU is asked before the samples are."""
    steady, short = (Path(mount.absolute(ref.path)) for ref in tenants)
    brief = replace(PRESETS["trainer"], depth=20, seconds=0.2)
    with SimHost() as host:
        host.spawn(replace(PRESETS["trainer"], depth=20), steady)
        reading = subprocess.Popen(
            [
                sys.executable,
                str(SAMPLES),
                str(SECONDS),
                f"mechanisms: {{ebpf: off}}\ngpu: {{nvml_accounting: {accounting}}}",
            ],
            env={**os.environ, **host.env(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        brief_pids = set()
        while reading.poll() is None:
            worker = host.spawn(brief, short)
            brief_pids.add(worker.pid)
            worker.process.wait(30)
        out, _ = reading.communicate()
        truth = host.truth()
    answer = json.loads(out)
    used = {int(cgroup_id): ns for cgroup_id, ns in answer["used"].items()}
    had = sum(one.exec_ns for one in truth if one.pid in brief_pids) / sum(one.exec_ns for one in truth)
    assert len(brief_pids) > 5
    assert used.get(0, 0) < 0.1 * sum(used.values()), "hardly anything is nobody's"
    assert used.get(tenants[1].id, 0) / sum(used.values()) == pytest.approx(had, abs=0.24)
