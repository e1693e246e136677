# SPDX-License-Identifier: Apache-2.0
"""How often and for how long tenants were held, by why."""

from __future__ import annotations

from fairsched.cgroup.outcome import HoldKind
from fairsched.model import Action, ActionKind, Reason, ReasonCode
from tests.unit.act.test_holds import make_world


def test_holds_are_counted_by_why_they_began_and_ended() -> None:
    world = make_world()
    world.hold("chat", 100)
    world.thaw("chat", 350)
    quota = Reason(ReasonCode.OVER_QUOTA, "GPU-a")
    world.applier.apply([Action(ActionKind.HOLD, "chat", quota, 900)], 400)
    assert world.applier.real.held_for_ns("chat", 460) == {
        ReasonCode.OVER_ENTITLEMENT: 250,
        ReasonCode.OVER_QUOTA: 60,
    }
    world.thaw("chat", 500)
    world.hold("chat", 600)
    assert world.applier.real.held_for_ns("chat", 610) == {
        ReasonCode.OVER_ENTITLEMENT: 260,
        ReasonCode.OVER_QUOTA: 100,
    }
    assert world.applier.real.done["chat"] == {
        (ActionKind.HOLD, ReasonCode.OVER_ENTITLEMENT): 2,
        (ActionKind.HOLD, ReasonCode.OVER_QUOTA): 1,
        (ActionKind.THAW, ReasonCode.CAUGHT_UP): 2,
    }
    assert sum(world.applier.real.held_by_reason_ns["chat"].values()) == world.applier.real.held_ns["chat"]
    assert world.applier.real.held_for_ns("train", 610) == {}


def test_what_failed_or_was_not_done_is_not_counted() -> None:
    world = make_world()
    world.freezer.refuse[1] = HoldKind.FOREIGN
    world.hold("chat")
    assert world.applier.real.done == {}
    dry = make_world(is_dry_run=True)
    dry.hold("chat")
    assert dry.applier.real.done == {}
    assert dry.applier.records


def test_a_hold_after_a_grant_is_one_of_a_deep_queue() -> None:
    world = make_world()
    world.account.queued_ns = [50]
    world.hold("chat", 0)
    grant = Action(ActionKind.THAW, "chat", Reason(ReasonCode.CAUGHT_UP), deadline_ns=900, grant_ns=40)
    world.applier.apply([grant], 100)
    hold = world.applier.holds["chat"]
    told = world.applier.real.held_for_ns("chat", hold.since_ns + 7)
    assert told == {ReasonCode.OVER_ENTITLEMENT: 100, ReasonCode.DEEP_QUEUE: 7}
    assert (ActionKind.HOLD, ReasonCode.DEEP_QUEUE) in world.applier.real.done["chat"]
