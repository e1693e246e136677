# SPDX-License-Identifier: Apache-2.0
"""A host without cgroup v2: tenants are told by systemd's hierarchy of v1, and held by v1's freezer on samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairsched.cgroup.path import SYSTEMD, Mount, find_v1_mount
from fairsched.cgroup.v1 import FREEZER
from tests.node.daemon.site import logged

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.rest
def test_shares_are_kept_on_a_host_without_cgroup_v2(mount: Mount, tmp_path: Path) -> None:
    systemd = find_v1_mount(SYSTEMD)
    if systemd is None or find_v1_mount(FREEZER) is None:
        pytest.skip("host: cgroup v1 is not mounted")
    play = f"umount -l {mount.path} && exec {sys.executable} -m tests.node.daemon.v1_host {tmp_path}"
    command = ["unshare", "--mount", "sh", "-c", play]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["mount"] == [systemd.path, SYSTEMD]
    assert "not in use" in answer["rows"]["cgroup2"]
    assert answer["rows"]["brake"].startswith("freezer_v1: ")
    assert (answer["source"], answer["mode"], answer["exit"]) == ("nvml", "enforce", 0)
    assert logged(answer["log"], "brake=freezer_v1 reason=")
    assert abs(answer["shares"]["chat"] - 0.75) < 0.1, answer["shares"]
