# SPDX-License-Identifier: Apache-2.0
"""What the ladder does in the stories that operators will live through."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fairsched.companion.escalate import policy
from fairsched.companion.escalate.dry_run import without_dry_runs
from fairsched.companion.escalate.model import (
    QUEUE_DELAY,
    TOKEN_CV,
    EscalationLimits,
    Kind,
    Order,
    Outcome,
    Reading,
    Result,
    Rung,
    State,
)
from tests.unit.companion.escalate.play import LIMITS, START_S, Play, reading, succeed

BAD, BETWEEN, CLEAR = 42.0, 18.0, 5.0


def fail(order: Order) -> Result:
    return Result(Outcome.FAILED, "no") if order.kind is Kind.APPLY else succeed(order)


def test_a_step_is_taken_after_three_bad_minutes_and_not_before() -> None:
    play = Play()
    play.see(BAD)
    assert play.see_for(BAD, 150) == []
    order = play.see(BAD)
    assert order is not None and (order.kind, order.step, order.tenant, order.gpu) == (
        Kind.APPLY,
        "quota",
        "chat",
        "GPU-a",
    )
    assert order.cause is not None
    assert (order.cause.signal, order.cause.value, order.cause.threshold, order.cause.for_s) == (
        QUEUE_DELAY,
        BAD,
        20.0,
        180.0,
    )
    assert order.why == "queue_delay_p99_ms is 42, above 20 for 180 s"


def test_a_clear_moment_starts_the_clock_anew_and_one_in_between_does_not() -> None:
    play = Play()
    play.see_for(BAD, 180)
    play.see(CLEAR)
    assert play.see_for(BAD, 150) == []
    other = Play()
    other.see_for(BAD, 180)
    other.see_for(BETWEEN, 600)
    assert other.see(BAD) is not None


def test_exactly_the_threshold_is_not_bad() -> None:
    assert Play().see_for(20.0, 3600) == []


def test_what_is_not_known_is_neither_bad_nor_clear() -> None:
    play = Play()
    play.see_for(BAD, 180)
    play.see(None)
    assert play.see(BAD) is not None, "a moment without a value"
    play = Play()
    play.see_for(BAD, 180)
    play.see_for(None, 120)
    assert play.see_for(BAD, 150) == [], "after two minutes without a value nothing is known of them"


def test_a_gap_proves_nothing() -> None:
    play = Play()
    play.see_for(BAD, 150)
    assert play.see(BAD, after_s=86_400) is None
    assert play.see_for(BAD, 150) == []
    assert play.see(BAD) is not None


def test_a_gap_is_not_taken_for_a_clear_time() -> None:
    play = Play()
    play.see_for(BAD, 300)
    play.see_for(CLEAR, 120)
    assert play.see(CLEAR, after_s=86_400) is None
    assert play.see_for(CLEAR, 270) == []
    order = play.see(CLEAR)
    assert order is not None and order.kind is Kind.ROLLBACK


def test_the_ladder_is_climbed_rung_by_rung_with_time_to_help_on_each() -> None:
    play = Play()
    play.see_for(BAD, 4 * 3600)
    steps = [action.order.step for action in play.actions]
    assert steps[:5] == ["quota", "quota", "quota", "evict", "mig"]
    assert len(play.state.in_force) == 5
    for earlier, later in pairwise(play.actions):
        assert later.began_s - earlier.ended_s >= 300
    assert any("end of the ladder" in note for note in play.notes)


def test_a_step_that_fails_goes_on_to_the_next_at_once_and_says_so() -> None:
    play = Play(answer=lambda order: fail(order) if order.step == "quota" else succeed(order))
    play.see_for(BAD, 240)
    assert play.orders() == [("apply", "quota"), ("apply", "evict")]
    assert play.actions[1].began_s - play.actions[0].ended_s <= 31
    assert play.state.counts == {"quota/failed": 1, "evict/done": 1}
    assert [one.step for one in play.state.in_force] == ["evict"]


def test_a_ladder_of_failures_ends_and_is_climbed_again_an_hour_later() -> None:
    play = Play(replace(LIMITS, max_actions_per_hour=60), fail)
    play.see_for(BAD, 3600)
    assert play.orders() == [("apply", "quota"), ("apply", "evict"), ("apply", "mig")]
    play.see_for(BAD, 1200)
    assert len(play.actions) > 3
    assert play.actions[3].began_s - play.actions[2].ended_s >= 3600
    assert [note for note in play.notes if note.startswith("again")]


def test_what_was_skipped_costs_nothing() -> None:
    play = Play(
        answer=lambda order: Result(Outcome.SKIPPED, "used") if order.step != "mig" else succeed(order)
    )
    play.see_for(BAD, 270)
    assert play.orders() == [("apply", "quota"), ("apply", "evict"), ("apply", "mig")]
    assert len(play.state.actions_s) == 1


def test_everything_is_taken_back_newest_first_once_it_is_clear_for_long() -> None:
    play = Play()
    play.see_for(BAD, 3600)
    taken = [one.id for one in play.state.in_force]
    assert len(taken) >= 4
    play.see_for(CLEAR, 6 * 3600)
    back = [action.order.undoes for action in play.actions if action.order.kind is Kind.ROLLBACK]
    assert back == taken[::-1]
    assert play.state.in_force == () and play.state.rung is None
    assert policy.level(play.limits, play.state) == 0
    first = next(action for action in play.actions if action.order.kind is Kind.ROLLBACK)
    assert first.order.undo == {"id": taken[-1]}, "the step is told what it wrote down"


def test_an_idle_node_is_clear() -> None:
    play = Play()
    play.see_for(BAD, 300)
    assert play.state.in_force
    for _ in range(200):
        play.see(None, is_idle=True)
    assert play.state.in_force == ()


def test_one_rollback_that_fails_does_not_keep_the_others_in_force() -> None:
    def answer(order: Order) -> Result:
        if order.kind is Kind.ROLLBACK and order.step == "evict":
            return Result(Outcome.FAILED, "no")
        return succeed(order)

    play = Play(answer=answer)
    play.see_for(BAD, 3600)
    play.see_for(CLEAR, 5 * 3600)
    assert [one.step for one in play.state.in_force] == ["evict"]
    tries = [a.began_s for a in play.actions if a.order.kind is Kind.ROLLBACK and a.order.step == "evict"]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[-1] >= 8 * pauses[0], "ever more rarely"


def test_a_step_that_lapses_is_taken_back_while_it_is_still_bad() -> None:
    rung = replace(LIMITS.ladder[0], lapse_s=1200.0, max_in_force=2)
    play = Play(replace(LIMITS, ladder=(rung,), max_actions_per_hour=60))
    play.see_for(BAD, 2400)
    back = [action for action in play.actions if action.order.kind is Kind.ROLLBACK]
    assert back and back[0].order.undoes == 2, "the newest first: increments come off in the reverse order"
    assert "lapses" in back[0].order.why


def test_the_budget_of_the_hour_is_kept_and_said() -> None:
    play = Play(replace(LIMITS, max_actions_per_hour=2))
    play.see_for(BAD, 3600)
    assert len(play.actions) == 2
    assert play.last is not None and play.last.waiting is not None
    assert "2 actions in the last hour" in play.last.waiting
    play.see_for(BAD, 300)
    assert len(play.actions) == 3


def test_one_order_at_a_time() -> None:
    state = State()
    orders = []
    for n in range(100):
        decision = policy.decide(LIMITS, state, reading(START_S + 30 * n, BAD))
        state = decision.state
        orders += [decision.order] if decision.order is not None else []
    assert len(orders) == 1 and state.pending == orders[0]


def test_the_signal_furthest_beyond_its_threshold_is_the_cause() -> None:
    limits = replace(LIMITS, thresholds={QUEUE_DELAY: 20.0, TOKEN_CV: 0.05})
    state = State()
    for n in range(10):
        seen = Reading(START_S + 30 * n, {QUEUE_DELAY: 30.0, TOKEN_CV: 0.2})
        decision = policy.decide(limits, state, seen)
        state = decision.state
        if decision.order is not None:
            assert decision.order.cause is not None and decision.order.cause.signal == TOKEN_CV
            return
    pytest.fail("no order")


def test_what_is_below_its_floor_is_not_bad_and_beyond_it_the_floor_is_the_threshold() -> None:
    """Of twelve tenants each must wait for eleven turns: no step of a ladder makes that less."""
    assert Play(floors={QUEUE_DELAY: 31.0}).see_for(30.0, 7200) == []
    (order, *_) = Play(floors={QUEUE_DELAY: 31.0}).see_for(40.0, 300)
    assert order.cause is not None and order.cause.threshold == 31.0
    (order, *_) = Play(floors={QUEUE_DELAY: 5.0}).see_for(30.0, 300)
    assert order.cause is not None and order.cause.threshold == 20.0, "the higher of the two"


def test_each_signal_has_a_clock_of_its_own() -> None:
    limits = replace(LIMITS, thresholds={QUEUE_DELAY: 20.0, TOKEN_CV: 0.05})
    state = State()
    for n in range(120):  # one or the other is bad all the time, neither for long
        is_first = n // 4 % 2 == 0
        values = {QUEUE_DELAY: BAD if is_first else CLEAR, TOKEN_CV: 0.01 if is_first else 0.2}
        decision = policy.decide(limits, state, Reading(START_S + 30 * n, values))
        assert decision.order is None
        state = decision.state


def test_a_clock_that_is_set_back_stops_nothing_and_allows_nothing() -> None:
    play = Play()
    play.see_for(BAD, 300)
    assert len(play.actions) == 1
    play.wall_s -= 86_400.0
    play.see_for(BAD, 400)
    assert len(play.actions) == 2
    assert play.actions[1].began_s - play.actions[0].ended_s >= 300


def test_a_clock_that_is_set_back_does_not_lengthen_the_hour_of_the_budget() -> None:
    play = Play(replace(LIMITS, max_actions_per_hour=1))
    play.see_for(BAD, 300)
    play.wall_s -= 86_400.0
    play.see_for(BAD, 3600)
    assert len(play.actions) == 2


def test_a_step_taken_again_soon_after_it_was_taken_back_stays_longer() -> None:
    ladder = (replace(LIMITS.ladder[1], cool_down_s=300.0),)
    play = Play(replace(LIMITS, ladder=ladder, max_actions_per_hour=60))
    stays = []
    for _ in range(5):
        while not play.state.in_force:
            play.see(BAD)
        began_s = play.actions[-1].ended_s
        while play.state.in_force:
            play.see(CLEAR)
        stays.append(play.actions[-1].began_s - began_s)
    for shorter, longer in pairwise(stays[1:]):
        assert longer >= 1.8 * shorter


def test_a_step_that_failed_cools_down_before_it_is_taken_back() -> None:
    """Two actions of quota, the second of which failed: the first one stays for the cool-down of the step."""
    play = Play(replace(LIMITS, ladder=(Rung("quota", 1800.0, 2),)))
    play.see_for(BAD, 300)
    play.answer = fail
    play.see_for(BAD, 4200)
    failed = play.actions[-1]
    assert failed.result.outcome is Outcome.FAILED and len(play.state.in_force) == 1
    play.see_for(CLEAR, 3600)
    back = next(action for action in play.actions if action.order.kind is Kind.ROLLBACK)
    assert back.began_s - failed.ended_s >= 1800


def test_a_step_is_told_what_it_has_in_force_already() -> None:
    play = Play()
    play.see_for(BAD, 1500)
    quotas = [action.order for action in play.actions if action.order.step == "quota"]
    assert [one.earlier for one in quotas] == [(), ({"id": 1},), ({"id": 1}, {"id": 2})]
    assert next(a.order for a in play.actions if a.order.step == "evict").earlier == ()


def test_a_dry_run_climbs_and_descends_as_the_real_one_would() -> None:
    real, dry = Play(), Play(replace(LIMITS, is_dry_run=True))
    for play in (real, dry):
        play.see_for(BAD, 3600)
        play.see_for(CLEAR, 4 * 3600)
    assert dry.orders() == real.orders()
    assert all(action.order.is_dry_run for action in dry.actions)


def test_what_a_dry_run_pretended_is_forgotten_when_it_becomes_serious() -> None:
    dry = Play(replace(LIMITS, is_dry_run=True))
    dry.see_for(BAD, 300)
    state = without_dry_runs(LIMITS, dry.state)
    assert state.in_force == () and state.rung is None
    assert state.actions_s == dry.state.actions_s, "the budget is kept all the same"
    assert without_dry_runs(dry.limits, dry.state) == dry.state


def test_what_is_really_in_force_is_not_taken_back_by_a_dry_run() -> None:
    play = Play()
    play.see_for(BAD, 300)
    play.limits = replace(LIMITS, is_dry_run=True)
    play.see_for(CLEAR, 7200)
    assert len(play.state.in_force) == 1
    assert play.actions[-1].order.is_dry_run and play.actions[-1].order.kind is Kind.ROLLBACK


@pytest.mark.parametrize("mode", ["observe", "dry_run"])
def test_while_the_daemon_does_not_enforce_every_order_is_a_dry_run(mode: str) -> None:
    play = Play(mode=mode)
    play.see_for(BAD, 3600)
    assert play.actions and all(action.order.is_dry_run for action in play.actions)
    assert play.notes[0] == f"only a dry run from here on: the daemon's mode is {mode}"
    assert sum("dry run from here on" in note for note in play.notes) == 1, "said once"
    play.mode = "enforce"
    play.notes.clear()
    play.see_for(BAD, 60)
    assert play.notes[0].startswith("acts from here on") and play.state.in_force == ()
    play.see_for(BAD, 300)
    assert not play.actions[-1].order.is_dry_run and len(play.state.in_force) == 1


def test_what_is_really_in_force_waits_until_the_daemon_enforces_again() -> None:
    play = Play()
    play.see_for(BAD, 300)
    play.mode = "observe"
    play.see_for(CLEAR, 7200)
    assert len(play.state.in_force) == 1 and play.actions[-1].order.is_dry_run
    play.mode = "enforce"
    play.see_for(CLEAR, 600)
    assert play.state.in_force == () and not play.actions[-1].order.is_dry_run


def test_a_step_that_was_interrupted_is_taken_back_if_it_had_announced_a_change() -> None:
    state = State()
    for n in range(8):
        state = policy.decide(LIMITS, state, reading(START_S + 30 * n, BAD)).state
    assert state.pending is not None
    silent = policy.settle(LIMITS, state, policy.interrupted(state), START_S + 300)
    assert silent.in_force == () and silent.rung == 1
    state = policy.announce(state, {"node": "n"})
    known = policy.settle(LIMITS, state, policy.interrupted(state), START_S + 300)
    assert [one.undo for one in known.in_force] == [{"node": "n"}]
    assert known.pending is None and known.rung == 1


def test_the_level_says_how_far_up_it_went() -> None:
    play = Play()
    assert policy.level(play.limits, play.state) == 0
    play.see_for(BAD, 300)
    assert policy.level(play.limits, play.state) == 1
    play.see_for(BAD, 3600)
    assert policy.level(play.limits, play.state) >= 2


def test_without_a_ladder_nothing_is_ordered() -> None:
    assert Play(EscalationLimits(thresholds={QUEUE_DELAY: 20.0})).see_for(BAD, 7200) == []
