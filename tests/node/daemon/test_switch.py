# SPDX-License-Identifier: Apache-2.0
"""From enforce to dry_run and back, while the daemon runs."""

from __future__ import annotations

import json

import pytest

from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, STEADY, Site, is_asked
from tests.support import let_run, wait_until

TENANTS = {"chat": {"weight": 4}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}


def switch(site: Site, mode: str) -> None:
    """On return it is in force."""
    site.configure(TENANTS, mode=mode, mechanisms={"guardian": "off"})
    site.ask("reload")


@pytest.mark.parametrize("mode", ["dry_run", "observe"])
def test_who_is_held_when_holding_ends_is_let_go(site: Site, mode: str) -> None:
    """The next one to thaw it would be the deadline, a minute later."""
    site.configure(TENANTS, mechanisms={"guardian": "off"})
    site.start()
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)

    def is_let_go_by_the_switch() -> bool:
        """It may also have been its turn just then."""
        site.wait_held("greedy")
        switch(site, mode)
        assert not is_asked(site.cgroup("greedy"))
        return any(record["reason"]["code"] == "shutdown" for record in site.decisions("greedy"))

    def is_done() -> bool:
        if is_let_go_by_the_switch():
            return True
        switch(site, "enforce")
        return False

    wait_until(is_done, PATIENCE_S, "whoever is held is let go")
    let_run(1)
    assert not is_asked(site.cgroup("greedy"))


def test_what_was_used_while_nobody_was_held_is_nobodys_debt(site: Site) -> None:
    site.configure(TENANTS, mode="observe")
    site.start()
    site.spawn("chat", STEADY)
    site.spawn("greedy", GREEDY)

    def lag_ms() -> float:
        return float(site.tenant("greedy")["lag_ms"] or 0)

    wait_until(lambda: lag_ms() < -350, PATIENCE_S, "it has taken far more than its part")
    switch(site, "enforce")
    site.wait_held("greedy")
    first = site.decisions("greedy")[0]
    assert (first["action"], first["is_dry_run"]) == ("hold", False)
    assert first["reason"]["lag_ns"] > -200e6, "of the time since it is in force"
    switch(site, "dry_run")
    assert site.stop() == 0
    assert json.loads((site.state_dir / "state.json").read_text())["policy"]["accounts"] == []


def test_a_dry_run_ends_its_holds_as_they_would_end_and_is_added_to_nothing(site: Site) -> None:
    site.configure(TENANTS, mode="dry_run")
    site.start()
    site.spawn("chat", STEADY)
    site.spawn("greedy", GREEDY)

    def ends() -> set[str]:
        return {one["reason"]["code"] for one in site.decisions("greedy") if one["held_ns"] is not None}

    wait_until(lambda: "caught_up" in ends(), PATIENCE_S, "what it owes is repaid, though it goes on running")
    switch(site, "enforce")
    site.wait_held("greedy")
    records = site.decisions("greedy")
    assert [one["is_dry_run"] for one in records] == sorted(
        (one["is_dry_run"] for one in records), reverse=True
    )
    dry = [one for one in records if one["is_dry_run"]]
    assert dry[-1]["action"] == "thaw", "none outlasts the switch"
    tenant, uptime_s = site.tenant("greedy"), site.status()["uptime_s"]
    dry_s = sum(one["held_ns"] or 0 for one in dry) / 1e9
    assert abs(tenant["dry_held_s"] - dry_s) < 1e-6
    assert tenant["dry_held_s"] + tenant["held_s"] <= uptime_s
