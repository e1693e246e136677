# SPDX-License-Identifier: Apache-2.0
"""Events and streams without end, each with a handle of its own. The tables of handles forget the one that was used
least recently: whoever makes the most has everybody else's forgotten, and a call that proves work complete proves
nothing any more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.bpf import abi
from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.cost import cost_before, modest, time_ticks
from tests.node.hostile.hollow import Hollow
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.08
"""The first seconds measure tenants: with nobody beside them it was .04 in six seconds."""
REMEMBERED_S = 6.0
PLAYED_S = 12.0
LEAST_HANDLES = 20_000
"""It is held most of the time. Without a budget it makes more than there is room for (FS_MAX_HANDLES) in seconds."""


def test_handles_without_end_make_nobody_elses_forgotten(site: Site, tmp_path: Path) -> None:
    tenants = {"chat": {"weight": 4}, "late": {"weight": 1}, "good": {}, "hog": {}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    time_ticks(site)
    site.start()
    site.attach()
    workers = [site.spawn(name, STEADY) for name in DUE]
    good = Hollow(site, "good", tmp_path, "play_remember", REMEMBERED_S)
    hog = Hollow(site, "hog", tmp_path, "play_handles", PLAYED_S)
    try:
        let_run(1)
        before = cost_before(site)
        good.go()
        hog.go()
        wait_until(lambda: "hog" in "".join(site.status()["warnings"]), PATIENCE_S, "it is named")
        with modest(site, before):
            shares = site.shares(list(DUE), REMEMBERED_S - 2)
        good.finish()
        with site.maps() as maps:
            (context,) = [one for one in maps.contexts() if one.tgid == good.process.pid]
            assert context.busy[abi.COMPUTE].streams == 0, (
                "what it had recorded is known, so its work is over"
            )
        assert hog.finish() > LEAST_HANDLES
    finally:
        hog.process.kill()
        good.process.kill()
    assert abs(shares["chat"] - DUE["chat"]) < SHARE_ERROR, shares
    assert logged(site.log(), "budget=exceeded tenant=(chat|late|good)|misbehaviour=|terminate=") == []
    assert logged(site.log(), "tick failed|Traceback") == []
    assert all(worker.is_running for worker in workers)
