# SPDX-License-Identifier: Apache-2.0
"""One tenant fills one of the tables in which the daemon keeps what the driver gave to whom. Before they had owners,
whoever came later had no memory and no contexts in the books, nobody kept its limit, and nobody said why.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.node.daemon.site import DECODE, PATIENCE_S, STEADY, Site, logged
from tests.node.driver.crowd import Crowd, build
from tests.node.hostile.cost import cost_of_two, modest, time_ticks
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

GIB = 1 << 30
DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.08
SECONDS = 4.0


def vram(site: Site, tenant: str) -> dict[str, Any]:
    (one,) = site.tenant(tenant)["vram"]
    return dict(one)


@pytest.mark.parametrize(
    ("play", "count", "table"),
    [("clients", 9000, "clients"), ("objects", 140_000, "objects"), ("threads", 16_500, "threads")],
)
def test_who_fills_the_books_of_the_driver_keeps_nobody_out_of_them(
    site: Site, tmp_path: Path, play: str, count: int, table: str
) -> None:
    """``count``: more than the whole table has room for."""
    nodes = site.host.state_dir / "dev"
    site.configure(
        {"chat": {"weight": 4}, "late": {"weight": 1, "vram_limit": "64GiB"}, "hog": {}},
        tenant_defaults={"on_misbehaviour": "terminate"},
        gpu={"device_dir": str(nodes)},
        mechanisms={"driver": "required"},
    )
    time_ticks(site)
    site.start()
    site.attach()
    before = cost_of_two(site, *DUE)
    crowd = Crowd(build(tmp_path), nodes / "nvidiactl", play, count, site.cgroup("hog"))
    try:
        crowd.play()
        workers = [site.spawn("chat", STEADY), site.spawn("late", replace(STEADY, alloc_bytes=2 * GIB))]
        pid = workers[1].pid
        wait_until(lambda: "hog" in "".join(site.status()["warnings"]), PATIENCE_S, "status names it")
        has = sum(context.vram_bytes for context in site.host.truth() if context.pid == pid)
        assert has >= 2 * GIB
        wait_until(
            lambda: vram(site, "late")["used_bytes"] == has, PATIENCE_S, "who comes later is in the books"
        )
        assert vram(site, "late")["source"] == "ioctls"
        with modest(site, before):
            let_run(2)
        expect_shares(site, DUE, SECONDS, SHARE_ERROR)
        calls = {one["name"]: one for one in site.status()["tenants"]}["late"]
        print({name: value for name, value in calls.items() if "driver" in name})
    finally:
        crowd.end()
    assert logged(site.log(), f"budget=exceeded tenant=hog tables={table}")
    assert logged(site.log(), "budget=exceeded tenant=(chat|late)|misbehaviour=|terminate=") == []
    assert logged(site.log(), "tick failed|Traceback|driver=unseen") == []
    assert all(worker.is_running for worker in workers)
    again = site.spawn("hog", DECODE)
    wait_until(lambda: logged(site.log(), "budget=kept tenant=hog"), PATIENCE_S, "it has room again")
    assert again.is_running
