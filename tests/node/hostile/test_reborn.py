# SPDX-License-Identifier: Apache-2.0
"""A process that makes a new cgroup for itself again and again and removes the one before: every id is a new one, and
none is there any more when somebody looks. With nothing behind it, and with a GPU's work.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.cost import cost_before, modest, time_ticks
from tests.node.hostile.hollow import Hollow
from tests.node.hostile.shares import LONGER_S, expect_shares
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.06
PLAYED_S = 25.0 + LONGER_S
WATCHED_S = 6.0
LEAST_MOVES = 300
"""While it is held it makes none."""
# Arguments: the cgroup of its tenant, and a process that goes into new ones below it, each for so many seconds.
_MOVER = """
import itertools, os, sys, time
top, pid, stay_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
before = None
for number in itertools.count():
    path = f"{top}/again{number % 2}"
    os.mkdir(path)
    with open(path + "/cgroup.procs", "w") as file:
        file.write(pid)
    while before is not None:
        try:
            os.rmdir(before)
            break
        except OSError:
            time.sleep(0.0002)
    before = path
    time.sleep(stay_s)
"""


def test_who_is_reborn_all_the_time_is_one_tenant_all_the_time(site: Site, tmp_path: Path) -> None:
    tenants = {"chat": {"weight": 4}, "late": {"weight": 1}, "hog": {}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    time_ticks(site)
    site.start()
    site.attach()
    workers = [site.spawn(name, STEADY) for name in DUE]
    hog = Hollow(site, "hog", tmp_path, "play_reborn", PLAYED_S)
    try:
        let_run(1)
        before = cost_before(site)
        hog.go()
        let_run(2)
        daemon = psutil.Process(site.pid)
        descriptors = daemon.num_fds()
        with modest(site, before):
            expect_shares(site, DUE, WATCHED_S, SHARE_ERROR)
        assert hog.finish() > LEAST_MOVES
    finally:
        hog.process.kill()
    assert daemon.num_fds() < descriptors + 20, "nothing is kept of cgroups that are gone"
    assert logged(site.log(), "budget=exceeded tenant=(chat|late)|misbehaviour=|terminate=|tick failed") == []
    assert logged(site.log(), "housekeeping failed|Traceback") == []
    assert all(worker.is_running for worker in workers)
    with site.maps() as maps:
        assert maps.counts()["use_full"] == 0
    hog.process.wait()
    _remove_cgroups(site)


@pytest.mark.parametrize("stay_s", [0.004, 0.03])
def test_work_in_cgroups_that_live_for_a_moment_is_their_tenants(site: Site, stay_s: float) -> None:
    """It had .50 and .33 of due .20, nothing of it was charged, and nobody was named (2026-11-27)."""
    due = {"chat": 0.8, "hog": 0.2}
    site.configure(
        {"chat": {"weight": 4}, "hog": {"weight": 1}}, tenant_defaults={"on_misbehaviour": "terminate"}
    )
    site.start()
    site.attach()
    workers = [site.spawn("chat", STEADY), site.spawn("hog", GREEDY)]
    argv = [sys.executable, "-S", "-c", _MOVER, str(site.cgroup("hog")), str(workers[1].pid), str(stay_s)]
    mover = site.host.popen(argv, site.cgroup("hog"))
    try:
        let_run(4)  # both are measured, and what is owed from then is repaid
        before_s = site.gpu_time_s("hog")
        expect_shares(site, due, WATCHED_S, SHARE_ERROR)
        assert site.gpu_time_s("hog") > before_s
        assert mover.poll() is None
    finally:
        mover.kill()
    assert logged(site.log(), "misbehaviour=|terminate=|tick failed|Traceback") == []
    assert all(worker.is_running for worker in workers)
    mover.wait()
    workers[1].kill()
    _remove_cgroups(site)


def _remove_cgroups(site: Site) -> None:
    for number in range(2):
        path = site.cgroup("hog") / f"again{number}"
        if path.exists():
            wait_until(lambda path=path: not _is_busy(path), PATIENCE_S, "its process is gone")


def _is_busy(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
