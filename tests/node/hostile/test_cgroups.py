# SPDX-License-Identifier: Apache-2.0
"""A tenant that makes more cgroups than anybody needs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

import pytest

from fairsched.cgroup import tree
from tests.node.daemon.conftest import make_site as make_site
from tests.node.daemon.conftest import site as site
from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, Site, logged
from tests.support import let_run, wait_until

CGROUPS = 20_000
ANSWERED_S = 0.02


@pytest.fixture
def crowded(site: Site) -> Iterator[Site]:
    """``bad`` has made its cgroups, and the daemon runs."""
    site.configure({"bad": {}, "good": {"weight": 3}})
    top = site.cgroup("bad")
    for number in range(CGROUPS):
        os.mkdir(top / str(number))
    site.start()
    site.attach()
    yield site
    for worker in site.workers.get("bad", []):
        worker.kill()
    for number in range(CGROUPS):
        wait_until(lambda number=number: _is_removed(top / str(number)), PATIENCE_S, "its processes are gone")


def _is_removed(path: os.PathLike[str]) -> bool:
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def test_an_id_leads_to_its_cgroup_without_a_walk(site: Site) -> None:
    path = site.make_cgroup("one")
    number = path.stat().st_ino
    assert tree.path_of_id(site.mount, number) == site.cgroup_path("one")
    path.rmdir()
    assert tree.path_of_id(site.mount, number) is None


def test_20000_cgroups_of_one_tenant_cost_nobody_else_anything_and_hide_nothing(crowded: Site) -> None:
    site = crowded
    wait_until(lambda: logged(site.log(), "cgroups=many tenant=bad"), PATIENCE_S, "it is named in the log")
    site.spawn("good", DECODE)
    site.spawn(f"bad/{CGROUPS - 1}", GREEDY)
    site.workers.setdefault("bad", []).extend(site.workers.pop(f"bad/{CGROUPS - 1}"))
    wait_until(lambda: site.gpu_time_s("bad") > 0, PATIENCE_S, "what its last cgroup uses is its use")
    waits_s = []
    for _ in range(200):
        begun_s = time.monotonic()
        assert site.ping() == site.pid
        waits_s.append(time.monotonic() - begun_s)
        let_run(0.02)
    # On a machine that others work on at the same time a single request says nothing.
    assert statistics.quantiles(waits_s, n=10)[-1] < ANSWERED_S, max(waits_s)
    site.wait_held("bad")
    assert any("tenant bad" in warning for warning in site.status()["warnings"])
