# SPDX-License-Identifier: Apache-2.0
"""Events and streams without end, each with a handle of its own: where the tables of handles forget the oldest, whoever
makes the most has everybody else forgotten, and nobody's proof of completion is known any more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.daemon.site import DECODE, STEADY, Site, logged
from tests.node.hostile.cost import modest, time_ticks
from tests.node.hostile.hollow import Hollow
from tests.support import let_run

pytestmark = pytest.mark.alone

DUE = {"chat": 0.8, "late": 0.2}
CALM = replace(DECODE, gap_us=50_000)
"""Has pauses, in which it is to be seen that its work is over."""
ACCOUNT_ERROR = 0.15
SHARE_ERROR = 0.06
WATCHED_S = 5.0
PLAYED_S = 25.0
LEAST_HANDLES = 33_000
"""More than the tables have room for."""


def test_handles_without_end_make_nobody_elses_forgotten(site: Site, tmp_path: Path) -> None:
    tenants = {"chat": {"weight": 4}, "late": {"weight": 1}, "calm": {"weight": 4}, "hog": {}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    time_ticks(site)
    site.start()
    site.attach()
    workers = [site.spawn(name, STEADY) for name in DUE]
    workers.append(site.spawn("calm", CALM))
    hog = Hollow(site, "hog", tmp_path, "play_handles", PLAYED_S)
    try:
        let_run(1)
        hog.go()
        let_run(2)
        with site.maps() as maps:
            before = maps.counts()["event_unknown"]
        charged_s, ran_ns = site.gpu_time_s("calm"), site.truth_ns()["calm"]
        with modest(site):
            shares = site.shares(list(DUE), WATCHED_S)
        with site.maps() as maps:
            unknown = maps.counts()["event_unknown"] - before
        charged_s, ran_ns = site.gpu_time_s("calm") - charged_s, site.truth_ns()["calm"] - ran_ns
        warnings = "".join(site.status()["warnings"])
        assert hog.finish() > LEAST_HANDLES
    finally:
        hog.process.kill()
    said = (shares, charged_s, ran_ns / 1e9, unknown, warnings)
    assert abs(shares["chat"] - DUE["chat"]) < SHARE_ERROR, said
    assert charged_s == pytest.approx(ran_ns / 1e9, rel=ACCOUNT_ERROR), said
    assert site.tenant("chat")["confidence"] == site.tenant("late")["confidence"] == "high", said
    assert "hog" in warnings, "it is named"
    assert logged(site.log(), "budget=exceeded tenant=(chat|late)|misbehaviour=|terminate=|tick failed") == []
    assert all(worker.is_running for worker in workers)
