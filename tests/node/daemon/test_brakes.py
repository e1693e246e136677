# SPDX-License-Identifier: Apache-2.0
"""A daemon that holds without cgroup.freeze: the shares are those promised, and nobody stays held when it is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.path import find_v1_mount
from fairsched.cgroup.v1 import FREEZER, V1Freezer
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged, stand_still
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

AT_ONCE_S = 1.0
TENANTS = {"chat": {"weight": 3}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}
BRAKES = pytest.mark.parametrize("brake", ["sigstop", "freezer_v1"])


@pytest.fixture(autouse=True)
def v1(brake: str) -> Iterator[V1Freezer | None]:
    mount = find_v1_mount(FREEZER)
    if mount is None:
        if brake == "freezer_v1":
            pytest.skip("host: the freezer of cgroup v1 is not mounted")
        yield None
        return
    v1 = V1Freezer(mount)
    yield v1
    v1.tidy()


def is_stopped(site: Site, tenant: str, v1: V1Freezer | None) -> bool:
    """Whether one of its processes is."""
    for pid in map(int, (site.cgroup(tenant) / "cgroup.procs").read_text().split()):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T":
            return True
        path = None if v1 is None else tree.cgroup_path_of(pid, v1.mount)
        if v1 is not None and path is not None and v1.is_paused(path):
            return True
    return False


def start(site: Site, brake: str, v1: V1Freezer | None) -> None:
    site.configure(TENANTS, mechanisms={"brake": brake})
    site.start()
    site.spawn("chat", STEADY)
    site.spawn("greedy", GREEDY)
    site.spawn("greedy", GREEDY)
    wait_until(lambda: is_stopped(site, "greedy", v1), PATIENCE_S, "greedy is held")


@BRAKES
def test_shares_are_kept_without_a_freezer(site: Site, brake: str, v1: V1Freezer | None) -> None:
    start(site, brake, v1)
    let_run(3)
    shares = site.shares(list(TENANTS), 8)
    assert abs(shares["chat"] - 0.75) < 0.1, shares
    assert not any(is_asked(site.cgroup(name)) for name in TENANTS)
    assert logged(site.log(), f"brake={brake} reason=")
    assert site.tenant("greedy")["holds"] != 0
    assert site.stop() == 0
    assert not any(is_stopped(site, name, v1) for name in TENANTS)
    assert v1 is None or homes(v1) == []


@BRAKES
def test_a_killed_daemon_leaves_nobody_stopped(site: Site, brake: str, v1: V1Freezer | None) -> None:
    start(site, brake, v1)

    def is_left() -> bool:
        stand_still(site.pid)
        if is_stopped(site, "greedy", v1):
            return True
        os.kill(site.pid, signal.SIGCONT)
        return False

    wait_until(is_left, PATIENCE_S, "the daemon stands still while it holds")
    site.kill()
    took = time_until(lambda: not is_stopped(site, "greedy", v1), PATIENCE_S, "nobody is stopped")
    assert took.own_s < AT_ONCE_S, took
    done = site.cli("release", "--run-dir", str(site.run_dir))
    assert done.returncode == 0, done.stderr
    assert v1 is None or homes(v1) == []


@BRAKES
def test_doctor_says_which_brake_is_taken(site: Site, brake: str) -> None:
    site.configure(TENANTS, mechanisms={"brake": brake})
    done = site.cli("doctor", "--no-bpf", "--json", "--config", str(site.config_path))
    answer = json.loads(done.stdout)
    assert answer["choices"]["brake"] == brake
    (row,) = [row for row in answer["checks"] if row["name"] == "brake"]
    assert row["fact"].startswith(f"{brake}: ")


def homes(v1: V1Freezer) -> list[str]:
    """The groups of ours that there are."""
    return [node.path for node in tree.walk(v1.mount) if "/fairsched." in node.path]
