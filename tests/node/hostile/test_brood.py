# SPDX-License-Identifier: Apache-2.0
"""A tenant with children makes cgroups without end, each of which is a child: the others have their parts all the same.

Each child had a number, and with it a part of every table, so that nothing was kept for anybody.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.hollow import Hollow
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.08
"""It was .23 while the one who came later had no room for its one context."""
CHILDREN = 1500
ALONE_S = 7.0
"""The first seconds measure a tenant."""
PROCESSES, CONTEXTS = 33, 16
"""Of two children: all that is not kept for anybody."""


def test_children_without_end_leave_the_others_their_parts(site: Site, tmp_path: Path) -> None:
    site.configure({"chat": {"weight": 4}, "late": {"weight": 1}, "team": {"children": {"c0": {}}}})
    site.start()
    site.attach()
    (tmp_path / "team").mkdir()
    for number in range(2):
        site.make_cgroup(f"team/c{number}")
    site.spawn("chat", STEADY)
    let_run(ALONE_S)
    for number in range(CHILDREN):
        (site.cgroup("team") / f"e{number}").mkdir()
    wait_until(lambda: len(site.status()["tenants"]) > CHILDREN, PATIENCE_S, "each is a tenant")
    hogs = [Hollow(site, f"team/c{n}", tmp_path, "play_contexts", PROCESSES, CONTEXTS, 0) for n in range(2)]
    for one in hogs:
        one.play()
    site.spawn("late", STEADY)
    wait_until(lambda: site.gpu_time_s("late") > 0.05, PATIENCE_S, "the one that comes later is accounted")
    let_run(1)
    expect_shares(site, DUE, 6, SHARE_ERROR)
    assert logged(site.log(), "budget=exceeded tenant=(chat|late)|misbehaviour=|tick failed") == []
    assert logged(site.log(), "budget=exceeded tenant=team/")
