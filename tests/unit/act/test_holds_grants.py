# SPDX-License-Identifier: Apache-2.0
"""Grants: so much may a tenant queue, then it is held again, also when it is slow to begin."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from fairsched.cgroup.outcome import HoldKind
from fairsched.model import NEVER_NS, ActionKind, ReasonCode
from tests.unit.act.test_holds import GRANT, World, make_world, view

MS = 1_000_000


@pytest.fixture
def world() -> World:
    return make_world()


def test_a_grant_is_a_thaw_and_a_hold_as_soon_as_it_is_used_up(world: World) -> None:
    world.hold("chat", 100)
    world.account.queued_ns = [0, 20, 50]
    world.applier.apply([GRANT], 400)
    assert (world.freezer.pulsed, world.freezer.thawed) == ([[1]], [])
    assert set(world.freezer.holds) == {1}
    assert world.applier.holds["chat"].deadline_ns == world.freezer.deadlines[-1] == 900
    assert world.applier.real.held_ns == {"chat": 300}
    said = [(record.action, record.reason.code) for record in world.applier.records][-2:]
    assert said == [(ActionKind.THAW, ReasonCode.CAUGHT_UP), (ActionKind.HOLD, ReasonCode.DEEP_QUEUE)]
    assert [what for what, _, _ in world.account.told] == ["hold", "thaw", "hold"]


def test_the_grants_of_one_plan_do_not_hold_up_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairsched.act.holds.time.monotonic_ns", lambda: world.freezer.clock[0])
    monkeypatch.setattr(world.account, "queued_since_hold_ns", lambda _ids: 0)
    world.tree.tenants.update({f"t{number}": view(f"t{number}", number) for number in range(10, 15)})
    grants = [replace(GRANT, tenant=f"t{number}") for number in range(10, 15)]
    for _ in range(2):
        for grant in grants:
            world.hold(grant.tenant)
        world.freezer.limits_ns.clear()
        world.applier.apply(grants, 400)
        assert [limit / 1e6 for limit in world.freezer.limits_ns] == [3, 3, 0, 0, 0]
        assert not world.freezer.holds


def test_a_gang_is_granted_as_one(world: World) -> None:
    world.hold("train", 100)
    world.account.queued_ns = [50]
    world.applier.apply([replace(GRANT, tenant="train")], 400)
    assert sorted(world.freezer.pulsed[0]) == [2, 3]


def test_who_does_not_use_its_grant_up_runs_on(world: World) -> None:
    world.hold("chat", 100)
    world.account.queued_ns = [49]
    world.applier.apply([GRANT], 400)
    assert world.freezer.holds == {}
    assert world.applier.holds == {}
    assert world.account.told[-1][0] == "thaw"


def test_a_grant_to_one_that_is_not_held_any_more_thaws_nothing(world: World) -> None:
    world.applier.apply([GRANT], 400)
    assert world.freezer.pulsed == []
    assert world.applier.errors == 0


def test_a_grant_that_fails_ends_the_hold_here_too(world: World) -> None:
    before = os.sched_getscheduler(0)
    world.hold("chat", 100)
    world.account.queued_ns = [50]
    world.freezer.is_broken = True
    world.applier.apply([GRANT], 400)
    assert world.applier.errors == 1
    assert world.applier.records[-1].error
    assert world.applier.holds == {}
    assert os.sched_getscheduler(0) == before


# ---- slow to begin ----


def let_go(world: World, *tenants: str, queued_ns: int = 0) -> None:
    """Held, and let go with a grant that nobody has used up by the end of the wait."""
    for tenant in tenants:
        world.hold(tenant, 100)
    world.account.queued_ns = [queued_ns]
    world.applier.apply([replace(GRANT, tenant=tenant) for tenant in tenants], 400)
    assert world.freezer.holds == {}


def test_who_uses_its_grant_up_only_after_the_wait_is_held_then(world: World) -> None:
    let_go(world, "chat")
    assert world.applier.look_ns < NEVER_NS
    world.account.queued_ns = [49]
    world.applier.hold_filled(2 * MS)
    assert (world.freezer.holds, world.applier.look_ns) == ({}, 2 * MS + MS // 2)
    world.account.queued_ns = [50]
    world.applier.hold_filled(3 * MS)
    assert set(world.freezer.holds) == {1}
    assert world.applier.look_ns == NEVER_NS
    hold = world.applier.holds["chat"]
    assert (hold.since_ns, hold.deadline_ns) == (3 * MS, 900)
    last = world.applier.records[-1]
    assert (last.action, last.reason.code) == (ActionKind.HOLD, ReasonCode.DEEP_QUEUE)
    world.thaw("chat", 4 * MS)
    assert world.applier.real.held_by_reason_ns["chat"][ReasonCode.DEEP_QUEUE] == MS


def test_each_is_held_when_it_has_used_up_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go(world, "chat", "train")
    monkeypatch.setattr(world.account, "queued_since_hold_ns", lambda ids: 50 if 2 in ids else 0)
    world.applier.hold_filled(MS)
    assert set(world.applier.holds) == {"train"}
    monkeypatch.setattr(world.account, "queued_since_hold_ns", lambda ids: 50)
    world.applier.hold_filled(2 * MS)
    assert set(world.applier.holds) == {"chat", "train"}


def test_the_next_plan_knows_better(world: World) -> None:
    let_go(world, "chat")
    world.applier.apply([], 500)
    assert world.applier.look_ns == NEVER_NS
    world.account.queued_ns = [50]
    world.applier.hold_filled(MS)
    assert world.freezer.holds == {}


def test_where_everybody_is_let_go_nobody_is_held_behind_that(world: World) -> None:
    """The probes are lost, or a reload says ``observe``: no other plan comes."""
    let_go(world, "chat")
    world.applier.release_all(500)
    world.account.queued_ns = [50]
    world.applier.hold_filled(MS)
    assert (world.freezer.holds, world.applier.look_ns) == ({}, NEVER_NS)


def test_whoever_is_gone_or_not_the_policys_business_is_not_held(world: World) -> None:
    let_go(world, "chat", "train")
    world.account.queued_ns = [50]
    del world.tenants["chat"]
    world.applier.reserved = frozenset({"train"})
    world.applier.hold_filled(MS)
    assert (world.freezer.holds, world.applier.look_ns) == ({}, NEVER_NS)


def test_a_pause_of_somebody_else_meanwhile_is_theirs(world: World) -> None:
    let_go(world, "chat")
    world.account.queued_ns = [50]
    world.freezer.refuse[1] = HoldKind.FOREIGN
    world.applier.hold_filled(MS)
    assert (world.applier.holds, world.applier.look_ns) == ({}, NEVER_NS)
    assert world.tenants["chat"].foreign == {1}


def test_a_refusal_of_one_keeps_no_other_from_its_hold(world: World) -> None:
    let_go(world, "chat", "train")
    world.account.queued_ns = [50]
    world.freezer.is_broken = True
    world.applier.hold_filled(MS)
    assert world.applier.errors == 2
    assert (world.applier.holds, world.applier.look_ns) == ({}, NEVER_NS)
