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
from fairsched.simgpu import PRESETS, SimHost
from tests.support import wait_until

SAMPLES = Path(__file__).with_name("samples.py")
ROOT = SAMPLES.parents[3]
SECONDS = 10


@pytest.fixture
def tenants(mount: Mount) -> Iterator[list[CgroupRef]]:
    refs = [tree.create(mount, f"/fairsched-nvml-{os.getpid()}/{name}") for name in ("a", "b")]
    yield refs
    parent = CgroupRef.open(mount, f"/fairsched-nvml-{os.getpid()}")
    for ref in (*refs, parent):
        wait_until(lambda ref=ref: not tree.read_pids(ref), 30, "the tenant is empty")
        tree.remove(mount, ref)
        ref.close()


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
    assert sum(used.values()) / answer["elapsed"] == pytest.approx(0.95, abs=0.1)  # busy but for switches
    # six points at 10 s, one sigma: four of them
    assert used[tenants[0].id] / sum(used.values()) == pytest.approx(0.5, abs=0.24)
