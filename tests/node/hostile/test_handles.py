# SPDX-License-Identifier: Apache-2.0
"""Events and streams without end, each with a handle of its own; threads without end. The tables of streams and threads
forget the one that was used least recently: whoever makes the most has everybody else's forgotten, and work is taken to
be in another context. Of events each tenant has a part of its own, so that a call that proves work complete proves it
however many others have recorded meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.bpf import abi
from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.cost import cost_before, modest, time_ticks
from tests.node.hostile.hollow import Hollow
from tests.node.hostile.shares import IS_FULL, LONGER_S, expect_shares
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone
REST = pytest.mark.rest

DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.08
"""The first seconds measure tenants: with nobody beside them it was .04 in six seconds."""
EVENT_S = 6.0 + LONGER_S
"""An event is remembered for however long."""
THREAD_S = 2.0 if IS_FULL else 6.0
"""At its budget of 4,000 a second one alone fills the table of threads (FS_MAX_HANDLES) in eight seconds; in one that
is full already six may be too long."""
NAMED_S = 8.0
"""It is over its budget within seconds, and plays on until the other one is done."""
LEAST_HANDLES, LEAST_THREADS = 20_000, 10_000
"""It is held most of the time. Without a budget it makes more than there is room for (FS_MAX_HANDLES) in seconds."""


@pytest.mark.parametrize(
    ("remember", "forget", "remembered_s", "least", "launches"),
    [
        pytest.param("play_remember", "play_handles", EVENT_S, LEAST_HANDLES, [1], id="handles"),
        pytest.param(
            "play_return", "play_threads", THREAD_S, LEAST_THREADS, [0, 1], id="threads", marks=REST
        ),
        pytest.param(
            "play_return",
            "play_quiet_threads",
            THREAD_S,
            LEAST_THREADS,
            [0, 1],
            id="quiet threads",
            marks=REST,
        ),
    ],
)
def test_what_one_makes_without_end_makes_nobody_elses_forgotten(
    site: Site,
    tmp_path: Path,
    remember: str,
    forget: str,
    remembered_s: float,
    least: int,
    launches: list[int],
) -> None:
    """``launches``: of the honest one, in each of its contexts."""
    tenants = {"chat": {"weight": 4}, "late": {"weight": 1}, "good": {}, "hog": {}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    time_ticks(site)
    site.start()
    site.attach()
    workers = [site.spawn(name, STEADY) for name in DUE]
    good = Hollow(site, "good", tmp_path, remember, remembered_s)
    hog = Hollow(site, "hog", tmp_path, forget, NAMED_S + LONGER_S + remembered_s)
    try:
        let_run(1)
        before = cost_before(site)
        hog.go()
        wait_until(lambda: "hog" in "".join(site.status()["warnings"]), PATIENCE_S, "it is named")
        if IS_FULL:
            expect_shares(site, DUE, 0, SHARE_ERROR)
        good.go()
        with modest(site, before):
            if IS_FULL:
                let_run(remembered_s)
            else:
                expect_shares(site, DUE, remembered_s, SHARE_ERROR)
        good.finish()
        with site.maps() as maps:
            contexts = [one for one in maps.contexts() if one.tgid == good.process.pid]
            assert [one.submitted for one in contexts] == launches, "where it works is known"
            assert not any(one.busy[abi.COMPUTE].streams for one in contexts), "and that its work is over"
        assert hog.finish() > least
    finally:
        hog.process.kill()
        good.process.kill()
    assert logged(site.log(), "budget=exceeded tenant=(chat|late|good)|misbehaviour=|terminate=") == []
    assert logged(site.log(), "tick failed|Traceback") == []
    assert all(worker.is_running for worker in workers)
