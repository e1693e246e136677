# SPDX-License-Identifier: Apache-2.0
"""A daemon that holds by SIGSTOP: the shares are those promised, and nobody stays stopped when it is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged, stand_still
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

AT_ONCE_S = 1.0
TENANTS = {"chat": {"weight": 3}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}
SIGSTOP = {"brake": "sigstop"}


def is_stopped(site: Site, tenant: str) -> bool:
    """Whether one of its processes is."""
    pids = (site.cgroup(tenant) / "cgroup.procs").read_text().split()
    return any(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T" for pid in pids)


def start(site: Site) -> None:
    site.configure(TENANTS, mechanisms=SIGSTOP)
    site.start()
    site.spawn("chat", STEADY)
    site.spawn("greedy", GREEDY)
    site.spawn("greedy", GREEDY)
    wait_until(lambda: is_stopped(site, "greedy"), PATIENCE_S, "greedy is held")


def test_shares_are_kept_without_a_freezer(site: Site) -> None:
    start(site)
    let_run(3)
    shares = site.shares(list(TENANTS), 8)
    assert abs(shares["chat"] - 0.75) < 0.1, shares
    assert not any(is_asked(site.cgroup(name)) for name in TENANTS)
    assert logged(site.log(), "brake=sigstop reason=")
    assert site.tenant("greedy")["holds"] != 0
    assert site.stop() == 0
    assert not any(is_stopped(site, name) for name in TENANTS)


def test_a_killed_daemon_leaves_nobody_stopped(site: Site) -> None:
    start(site)

    def is_left() -> bool:
        stand_still(site.pid)
        if is_stopped(site, "greedy"):
            return True
        os.kill(site.pid, signal.SIGCONT)
        return False

    wait_until(is_left, PATIENCE_S, "the daemon stands still while it holds")
    site.kill()
    took = time_until(lambda: not is_stopped(site, "greedy"), PATIENCE_S, "nobody is stopped")
    assert took.own_s < AT_ONCE_S, took
    done = site.cli("release", "--run-dir", str(site.run_dir))
    assert done.returncode == 0, done.stderr


def test_doctor_says_which_brake_is_taken(site: Site) -> None:
    site.configure(TENANTS, mechanisms=SIGSTOP)
    done = site.cli("doctor", "--no-bpf", "--json", "--config", str(site.config_path))
    answer = json.loads(done.stdout)
    assert answer["choices"]["brake"] == "sigstop"
    (row,) = [row for row in answer["checks"] if row["name"] == "brake"]
    assert row["fact"].startswith("sigstop: ")
