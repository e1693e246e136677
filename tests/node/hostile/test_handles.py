# SPDX-License-Identifier: Apache-2.0
"""Events and streams without end, each with a handle of its own: where the tables of handles forget the oldest, whoever
makes the most has everybody else forgotten, and nobody's proof of completion is known any more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.hollow import Hollow
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.06
WATCHED_S = 5.0
PLAYED_S = 25.0
LEAST_HANDLES = 200_000


def test_handles_without_end_make_nobody_elses_forgotten(site: Site, tmp_path: Path) -> None:
    tenants = {"chat": {"weight": 4}, "late": {"weight": 1}, "hog": {}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    site.start()
    site.attach()
    workers = [site.spawn(name, STEADY) for name in DUE]
    hog = Hollow(site, "hog", tmp_path, "play_handles", PLAYED_S)
    try:
        let_run(1)
        hog.go()
        wait_until(lambda: "hog" in "".join(site.status()["warnings"]), PATIENCE_S, "status names it")
        with site.maps() as maps:
            before = maps.counts()["event_unknown"]
        shares = site.shares(list(DUE), WATCHED_S)
        with site.maps() as maps:
            unknown = maps.counts()["event_unknown"] - before
        assert hog.finish() > LEAST_HANDLES
    finally:
        hog.process.kill()
    assert abs(shares["chat"] - DUE["chat"]) < SHARE_ERROR, (shares, site.status()["warnings"])
    assert site.tenant("chat")["confidence"] == site.tenant("late")["confidence"] == "high", unknown
    assert logged(site.log(), "budget=exceeded tenant=(chat|late)|misbehaviour=|terminate=|tick failed") == []
    assert all(worker.is_running for worker in workers)
