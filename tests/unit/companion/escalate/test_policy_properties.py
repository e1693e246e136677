# SPDX-License-Identifier: Apache-2.0
"""No sequence of readings, failures, restarts and clocks set back makes the escalation flap.

The laws are checked on the record of what happened, in true time, by arithmetic of their own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.companion.escalate import policy
from fairsched.companion.escalate.model import (
    QUEUE_DELAY,
    EscalationLimits,
    Kind,
    Order,
    Outcome,
    Result,
    Rung,
)
from tests.unit.companion.escalate.play import Action, Play, succeed

BAD, CLEAR = 42.0, 5.0
DAY_S = 86_400.0
VALUES = {"bad": BAD, "between": 18.0, "clear": CLEAR, "unknown": None}
ANSWERS = {
    "ok": succeed,
    "fails": lambda order: Result(Outcome.FAILED, "no"),
    "half": lambda order: Result(Outcome.FAILED, "half", {"x": 1}, is_in_force=order.kind is Kind.APPLY),
    "skips": lambda order: Result(Outcome.SKIPPED, "not now"),
}


@st.composite
def limits(draw: st.DrawFn) -> EscalationLimits:
    steps = draw(st.lists(st.sampled_from(["quota", "command", "mig", "evict"]), min_size=1, unique=True))
    return EscalationLimits(
        ladder=tuple(
            Rung(
                step,
                cool_down_s=draw(st.sampled_from([60.0, 300.0, 1800.0])),
                max_in_force=draw(st.integers(1, 3)),
                lapse_s=draw(st.none() | st.sampled_from([600.0, 3600.0])),
            )
            for step in steps
        ),
        thresholds={QUEUE_DELAY: 20.0},
        bad_for_s=draw(st.sampled_from([60.0, 180.0, 600.0])),
        clear_for_s=draw(st.sampled_from([60.0, 300.0])),
        cool_down_s=draw(st.sampled_from([60.0, 300.0, 900.0])),
        max_actions_per_hour=draw(st.integers(1, 5)),
        again_s=draw(st.sampled_from([600.0, 3600.0])),
        max_gap_s=60.0,
        is_dry_run=draw(st.booleans()),
    )


PHASES = st.lists(
    st.tuples(
        st.sampled_from(["bad", "bad", "clear", "clear", "between", "unknown", "alternating"]),
        st.integers(1, 120),
        st.sampled_from([10.0, 30.0, 30.0, 60.0, 90.0]),
        st.sampled_from(["ok", "ok", "ok", "fails", "half", "skips"]),
        st.sampled_from([0.0, 0.0, 0.0, -5.0, -DAY_S]),
    ),
    min_size=1,
    max_size=12,
)


def played(allowed: EscalationLimits, phases: list[tuple[str, int, float, str, float]]) -> Play:
    play = Play(allowed)
    for kind, count, every_s, answer, jump_s in phases:
        play.answer = ANSWERS[answer]
        play.wall_s += jump_s
        for n in range(count):
            word = ("bad", "clear")[n % 2] if kind == "alternating" else kind
            play.see(VALUES[word], after_s=every_s)
    return play


@settings(max_examples=60, deadline=None)
@given(limits(), PHASES)
def test_the_laws_hold_whatever_happens(
    allowed: EscalationLimits, phases: list[tuple[str, int, float, str, float]]
) -> None:
    play = played(allowed, phases)
    check_budget(play)
    check_cool_downs(play)
    check_in_force(play)
    for action in play.actions:
        if action.order.kind is Kind.APPLY:
            check_bad_for_long(play, action)
        else:
            check_clear_for_long_or_lapsed(play, action)


def check_budget(play: Play) -> None:
    """Never more than so many in any hour."""
    times = [action.began_s for action in play.actions if not action.is_skipped]
    for first in times:
        within = [at for at in times if first <= at < first + 3600]
        assert len(within) <= play.limits.max_actions_per_hour


def check_cool_downs(play: Play) -> None:
    """After anything that was taken nothing is, for cool_down_s; and each step has a cool-down of its own."""
    rungs = {rung.step: rung for rung in play.limits.ladder}
    for later_index, later in enumerate(play.actions):
        for earlier in play.actions[:later_index]:
            pause_s = later.began_s - earlier.ended_s
            if earlier.is_taken:
                assert pause_s >= play.limits.cool_down_s - 1e-6
            if earlier.order.step == later.order.step and not earlier.is_skipped:
                is_retry = earlier.order.kind is Kind.ROLLBACK and later.order.kind is Kind.ROLLBACK
                if not is_retry:
                    assert pause_s >= rungs[later.order.step].cool_down_s - 1e-6


def check_in_force(play: Play) -> None:
    rungs = {rung.step: rung for rung in play.limits.ladder}
    for action in play.actions:
        if action.order.kind is Kind.APPLY:
            there = sum(one.step == action.order.step for one in action.state_before.in_force)
            assert there < rungs[action.order.step].max_in_force


def check_bad_for_long(play: Play, action: Action) -> None:
    """Bad for so long before, without a clear moment, a gap, or an action that had no time yet to help."""
    assert action.order.cause is not None and action.order.cause.value > 20.0
    since_s = max(
        (one.ended_s for one in play.actions if one.is_taken and one.ended_s <= action.began_s), default=0
    )
    bad_s = 0.0
    seen = [(at, one) for at, one in play.readings if at <= action.began_s]
    for (before_s, _), (at_s, one) in reversed(list(pairwise(seen))):
        value = one.values.get(QUEUE_DELAY)
        gap_s = at_s - before_s
        if before_s < since_s or gap_s > play.limits.max_gap_s or (value is not None and value <= 16.0):
            bad_s += gap_s if value == BAD and gap_s <= play.limits.max_gap_s else 0.0
            break
        bad_s += gap_s if value == BAD else 0.0
    assert bad_s >= play.limits.bad_for_s - 1e-6


def check_clear_for_long_or_lapsed(play: Play, action: Action) -> None:
    undone = next(one for one in action.state_before.in_force if one.id == action.order.undoes)
    rung = next(rung for rung in play.limits.ladder if rung.step == undone.step)
    oldest = min(one.id for one in action.state_before.in_force if one.step == undone.step)
    began_s = next(one.ended_s for one in play.actions if one.order.id == oldest)
    is_lapsed = rung.lapse_s is not None and action.began_s - began_s >= rung.lapse_s
    recent = [
        one.values.get(QUEUE_DELAY)
        for at_s, one in play.readings
        if action.began_s - play.limits.clear_for_s < at_s <= action.began_s
    ]
    is_clear = all(value is None or value <= 16.0 for value in recent)
    assert is_clear or is_lapsed
    own_s = next(one.ended_s for one in play.actions if one.order.id == undone.id)
    assert action.began_s - own_s >= max(rung.cool_down_s, play.limits.cool_down_s) - 1e-6


@settings(max_examples=10, deadline=None)
@given(limits())
def test_an_adversary_who_watches_gets_one_turn_a_day_in_the_end(allowed: EscalationLimits) -> None:
    """It makes things bad as soon as all is taken back, and clear as soon as a step is in force."""
    allowed = replace(allowed, ladder=(replace(allowed.ladder[0], max_in_force=1, lapse_s=None),))
    play = Play(allowed, is_restarting=False)
    days = 5
    while play.true_s < days * DAY_S:
        play.see(CLEAR if play.state.in_force else BAD, after_s=60.0)
    turns = sum(action.order.kind is Kind.APPLY for action in play.actions)
    # Doubling from a minute at least takes eleven turns to a day; then one a day.
    assert turns <= 11 + days + 1


@settings(max_examples=40, deadline=None)
@given(limits())
def test_every_rung_is_reached_while_it_stays_bad_and_all_comes_back_when_it_is_clear(
    allowed: EscalationLimits,
) -> None:
    allowed = replace(allowed, ladder=tuple(replace(rung, lapse_s=None) for rung in allowed.ladder))
    play = Play(allowed)
    wanted = sum(rung.max_in_force for rung in allowed.ladder)
    while len(play.state.in_force) < wanted:
        play.see(BAD, after_s=60.0)
        assert play.true_s < 40 * 3600
    ended_s = play.true_s
    while play.state.in_force:
        play.see(CLEAR, after_s=60.0)
        assert play.true_s < ended_s + 5 * DAY_S
    assert policy.level(allowed, play.state) == 0


@settings(max_examples=40, deadline=None)
@given(limits(), PHASES, st.integers(0, 10_000))
def test_a_process_that_dies_with_an_order_pending_breaks_no_law(
    allowed: EscalationLimits, phases: list[tuple[str, int, float, str, float]], when: int
) -> None:
    play = played(allowed, phases)

    def die(order: Order) -> Result:
        announced = policy.announce(play.state, {"x": order.id}) if when % 2 else play.state
        return policy.interrupted(announced)

    play.answer = die
    for n in range(200):
        play.see(BAD if n < 100 else CLEAR)
    check_budget(play)
    check_cool_downs(play)
    check_in_force(play)
    assert play.state.pending is None
