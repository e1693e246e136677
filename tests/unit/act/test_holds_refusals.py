# SPDX-License-Identifier: Apache-2.0
"""What the kernel refuses: nothing else waits for it, and a thaw is tried again, in a dry run too."""

from __future__ import annotations

import pytest

from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.model import Action, ActionKind, Reason, ReasonCode
from tests.unit.act.test_holds import GRANT, OVER, World, make_world


@pytest.fixture
def world() -> World:
    return make_world()


def test_one_action_that_fails_does_not_stop_the_others(world: World) -> None:
    world.hold("chat")
    world.freezer.is_broken = True
    thaw = Action(ActionKind.THAW, "chat", Reason(ReasonCode.CAUGHT_UP))
    world.applier.apply([Action(ActionKind.HOLD, "train", OVER, 500), thaw], 9)
    assert world.applier.errors == 1
    assert "no space left" in str(world.applier.records[-2].error)
    assert world.applier.holds == {}


def test_a_member_that_the_kernel_keeps_frozen_keeps_no_other_and_is_tried_again(world: World) -> None:
    world.hold("train", 0, 500)
    world.freezer.stuck = {2}
    world.thaw("train", 100)
    assert world.freezer.thawed == [3]
    assert (world.applier.errors, set(world.applier.holds)) == (1, {"train"})
    assert "cannot thaw" in str(world.applier.records[-1].error)
    assert world.account.told[-1][0] == "hold"
    world.freezer.stuck = set()
    world.applier.thaw_expired(500)
    assert world.freezer.thawed == [3, 2]
    assert world.applier.holds == {}
    assert world.applier.records[-1].held_ns == 500


def test_deadlines_of_what_no_hold_knows_of_are_kept_too(world: World) -> None:
    world.applier.thaw_expired(700)
    assert world.freezer.expired == [700]


def test_a_refusal_while_others_end_a_hold_ends_nothing_else(world: World) -> None:
    world.hold("train", 100)
    world.hold("chat", 100)
    world.freezer.stuck = {3}
    world.freezer.changes.append(HoldResult(HoldKind.RELEASED, 2, "/2", "train"))
    world.change(HoldKind.RELEASED, 1, "chat")
    assert world.applier.errors == 1
    assert set(world.applier.holds) == {"train"}
    assert [record.error is None for record in list(world.applier.records)[-2:]] == [False, True]
    world.freezer.is_broken = True
    world.applier.settle(200)
    assert world.applier.errors == 2


def test_a_hold_of_before_the_dry_run_is_really_thawed_in_it(world: World) -> None:
    world.hold("chat", 0, 500)
    world.hold("train", 0, 500)
    world.freezer.stuck = {1, 2}
    world.applier.release_all(100)
    world.applier.is_dry_run = True
    assert set(world.applier.holds) == {"chat", "train"}
    world.freezer.stuck = {2}
    world.applier.apply([GRANT], 200)  # is no grant now: nobody is held again
    assert (world.freezer.pulsed, set(world.freezer.holds)) == ([], {2})
    assert not world.applier.records[-1].is_dry_run
    world.hold("train", 300)
    assert world.applier.records[-1].is_dry_run
    world.freezer.stuck = set()
    world.applier.thaw_expired(500)
    assert (world.freezer.holds, world.applier.holds) == ({}, {})
    real, dry = list(world.applier.records)[-2:]
    assert (real.held_ns, real.is_dry_run) == (500, False)
    assert (dry.held_ns, dry.is_dry_run) == (200, True)


def test_a_refusal_that_goes_on_is_counted_each_time_and_said_now_and_then(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.hold("chat")
    world.freezer.stuck = {1}
    for tick in range(100):
        world.thaw("chat", tick)
    assert world.applier.errors == 100
    assert sum("cannot thaw" in record.getMessage() for record in caplog.records) == 5
