# SPDX-License-Identifier: Apache-2.0
"""A dry run: nobody is frozen, its holds begin and end in books of their own, and no total exceeds the time passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli import explain
from fairsched.daemon.ledger import Ledger
from fairsched.daemon.tenants import _Past
from fairsched.model import Action, ActionKind, Hold, Reason, ReasonCode
from tests.unit.act.test_holds import GRANT, S, World, make_world

MS = 1_000_000
TENANTS = ("chat", "train")


@pytest.fixture
def dry() -> World:
    return make_world(is_dry_run=True)


def test_a_dry_run_freezes_nobody(dry: World) -> None:
    dry.hold("chat", 100, 600)
    assert dry.freezer.holds == {}
    assert dry.applier.holds == {}
    assert dry.account.told == []
    assert dry.applier.all_holds() == {"chat": Hold("chat", 100, 600, is_ours=True)}, "as the law sees it"
    dry.thaw("chat", 250)
    assert (dry.applier.all_holds(), dry.freezer.thawed, dry.account.told) == ({}, [], [])


def test_its_holds_are_said_when_they_begin_and_end_and_are_counted_apart(dry: World) -> None:
    dry.hold("chat", 100)
    dry.hold("train", 150)
    dry.hold("chat", 200)  # it is held already
    dry.thaw("chat", 350)
    dry.thaw("chat", 400)  # it is not held
    assert [(r.tenant, r.action.value, r.held_ns) for r in dry.applier.records] == [
        ("chat", "hold", None),
        ("train", "hold", None),
        ("chat", "thaw", 250),
    ]
    assert all(record.is_dry_run for record in dry.applier.records)
    assert dry.applier.dry.held_for_ns("chat", 900) == {ReasonCode.OVER_ENTITLEMENT: 250}
    assert dry.applier.dry.held_for_ns("train", 900) == {ReasonCode.OVER_ENTITLEMENT: 750}
    assert dry.applier.dry.done["chat"][ActionKind.HOLD, ReasonCode.OVER_ENTITLEMENT] == 1
    assert dry.applier.real.remembered_tenants() == set()


def test_they_end_at_their_deadline_though_the_policy_is_not_asked(dry: World) -> None:
    dry.hold("chat", 100, 600)
    dry.applier.thaw_expired(599)
    assert "chat" in dry.applier.dry.holds
    dry.applier.thaw_expired(600)
    last = dry.applier.records[-1]
    assert (last.reason.code, last.held_ns, dry.applier.dry.holds) == (ReasonCode.DEADLINE, 500, {})


def test_after_a_grant_the_tenant_would_be_held_again(dry: World) -> None:
    dry.hold("chat", 0)
    dry.applier.apply([GRANT], 300)
    assert [(r.action.value, r.reason.code.value) for r in list(dry.applier.records)[-2:]] == [
        ("thaw", "caught_up"),
        ("hold", "deep_queue"),
    ]
    assert dry.applier.dry.holds["chat"] == Hold("chat", 300, GRANT.deadline_ns, is_ours=True)
    assert dry.freezer.pulsed == []


@pytest.mark.parametrize("is_reserved", [True, False])
def test_it_holds_nobody_whom_somebody_else_has_paused(dry: World, is_reserved: bool) -> None:
    dry.hold("chat", 100)
    if is_reserved:
        dry.applier.reserved = frozenset({"chat"})
    else:
        dry.tenants["chat"].foreign.add(1)
    dry.applier.apply([], 300)
    last = dry.applier.records[-1]
    assert (last.reason.code, last.held_ns) == (ReasonCode.FOREIGN, 200)
    assert not dry.applier.all_holds()["chat"].is_ours


def test_a_switch_of_the_mode_ends_the_holds_of_the_mode_before(dry: World) -> None:
    dry.hold("chat", 100)
    dry.applier.switch(is_dry_run=False, now_ns=300)
    assert (dry.applier.all_holds(), dry.applier.dry.held_ns) == ({}, {"chat": 200})
    dry.hold("chat", 400)
    assert (set(dry.freezer.holds), dry.applier.dry.holds) == ({1}, {})
    dry.applier.switch(is_dry_run=True, now_ns=450)
    assert (dry.freezer.holds, dry.applier.all_holds()) == ({}, {})
    assert (dry.applier.real.held_ns, dry.applier.dry.held_ns) == ({"chat": 50}, {"chat": 200})


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3_000),
        st.sampled_from(["hold", "hold", "thaw", "grant", "expire", "release", "switch", "pause", "tick"]),
        st.sampled_from(TENANTS),
        st.integers(1, 4_000),
    ),
    max_size=60,
)


def play(world: World, step: str, tenant: str, now_ns: int, length_ns: int) -> None:
    applier, deadline_ns = world.applier, now_ns + length_ns
    if step == "hold" and tenant not in applier.all_holds():
        world.hold(tenant, now_ns, deadline_ns)
    elif step == "thaw":
        world.thaw(tenant, now_ns)
    elif step == "grant":
        reason = Reason(ReasonCode.CAUGHT_UP, "GPU-a")
        grant_ns = 50 if applier.is_dry_run else None  # of a real one the clock is the machine's
        applier.apply([Action(ActionKind.THAW, tenant, reason, deadline_ns, grant_ns)], now_ns)
    elif step == "expire":
        applier.thaw_expired(now_ns)
    elif step == "release":
        applier.release_all(now_ns)
    elif step == "switch":
        applier.switch(is_dry_run=not applier.is_dry_run, now_ns=now_ns)
    elif step == "pause":
        world.tenants[tenant].foreign ^= set(world.tenants[tenant].refs)
    else:
        applier.apply([], now_ns)


@given(STEPS, st.booleans())
def test_no_total_exceeds_the_time_that_passed(
    steps: list[tuple[int, str, str, int]], is_dry_run: bool
) -> None:
    """Not what is counted since the start, nor what `status` makes of ten seconds, nor what `explain` tells."""
    world, now_ns = make_world(is_dry_run=is_dry_run), 1
    in_mode_ns = {True: 0, False: 0}
    for wait_ms, step, tenant, length_ms in steps:
        now_ns += wait_ms * MS
        in_mode_ns[world.applier.is_dry_run] += wait_ms * MS
        play(world, step, tenant, now_ns, length_ms * MS)
    applier, records = world.applier, list(world.applier.records)
    past = _Past.of(Ledger(), records, now_ns)
    for tenant in TENANTS:
        for is_dry, tally in ((False, applier.real), (True, applier.dry)):
            told = sum(tally.held_for_ns(tenant, now_ns).values())
            assert told <= in_mode_ns[is_dry], "the time of the other mode is not in it"
            mine = [one for one in records if one.tenant == tenant and one.is_dry_run is is_dry]
            ended = sum(one.held_ns or 0 for one in mine)
            assert ended == tally.held_ns.get(tenant, 0)
            episodes = explain._episodes(mine, now_ns)
            assert sum(one.held_ns() for one in episodes) == told
            assert sum(one.held_ns(now_ns - S) for one in episodes) <= S
        hold = applier.holds.get(tenant)
        recent_ns = past.recently_held_ns.get(tenant, 0)
        recent_ns += now_ns - max(hold.since_ns, now_ns - 10 * S) if hold is not None else 0
        assert recent_ns <= min(10 * S, in_mode_ns[False])
