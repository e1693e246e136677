# SPDX-License-Identifier: Apache-2.0
"""Decides when to escalate, to which step, and when to take it back (pure).

Problem. Fairness that stays bad wants stronger means than a pause: another split of the GPU, another place for a
pod. Those are slow, disturb people, and are worse than the trouble when they are taken and taken back in turns.

Approach. :func:`decide` is a step of a state machine: (limits, state, reading) -> (state, at most one order). The
caller carries the order out and tells :func:`settle` how it ended. No clock, no I/O: time comes with the reading.

* **Bad** for ``bad_for_s``: only time between two readings counts, each at most ``max_gap_s``. A longer gap, as
  after a restart or a jump of the clock, starts every clock anew. **Hysteresis**: a signal above its threshold, or
  above its floor where that is higher, is bad, at or below ``clear_ratio`` of it clear; between the two its clock
  stands still, and so it does while the signal is not known.
* **Ladder**: the rung is tried; a step that fails, is not possible now, cools down or is in force often enough is
  passed over, and a note says so. After a step that was taken every clock starts anew: it gets time to help.
* **Taken back**: newest first, one at a time, each only after everything was clear for ``clear_for_s`` anew. A step
  that lapses is taken back after its time in any case.
* **Dry run**: as configured, and while the daemon does not enforce (dry_run.py).

Why it cannot flap. (1) One order at a time. (2) ``cool_down_s`` after every action until the next; after a failure
the next rung may be tried at once, but each is tried once per climb, and climbs are ``again_s`` apart. (3) The
cool-down of the step from its last action to the next either way, doubled each time it had to be taken again within
a day of being taken back: an oscillation dies out. (4) ``max_actions_per_hour`` over any hour, failures and
rollbacks included. (5) All of that is in the state, which outlives the process.
tests/unit/companion/escalate/test_policy_properties.py looks for a sequence that breaks one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairsched.companion.escalate.dry_run import follow_mode, is_dry_run
from fairsched.companion.escalate.model import (
    Cause,
    EscalationDecision,
    EscalationLimits,
    Kind,
    Order,
    Outcome,
    Reading,
    Result,
    Rung,
    State,
    StepInForce,
)

HOUR_S = 3600.0
RELAPSE_S = 86_400.0
"""A step that is taken again within so long of its last action had been taken back too soon."""
MAX_DWELL_S = 86_400.0
"""Doubling ends here."""


def decide(limits: EscalationLimits, state: State, reading: Reading) -> EscalationDecision:
    """The state after `reading`, and what is to be done now. While an order is pending there is no other."""
    state = _elapse(limits, _rebase(state, reading.at_s), reading)
    if state.pending is not None:
        return EscalationDecision(state, waiting=f"{state.pending.step} is being carried out")
    state, notes = follow_mode(limits, state, reading)
    limits = replace(limits, is_dry_run=is_dry_run(limits, reading.mode))
    if _is_clear(limits, state):
        if state.rung is not None:
            notes = (*notes, f"over: clear for {state.clear_for_s:.0f} s")
        state = replace(state, rung=None, ended_s=None, bad_for_s={})
    back = _take_back(limits, state, reading.at_s)
    decision = back if back.order is not None else _climb(limits, state, reading)
    waiting = decision.waiting if decision.waiting is not None else back.waiting
    return replace(decision, notes=notes + decision.notes, waiting=waiting)


def settle(limits: EscalationLimits, state: State, result: Result, now_s: float) -> State:
    """The state after the pending order ended at `now_s`. Without a pending order: unchanged."""
    state = _rebase(state, now_s)
    order = state.pending
    if order is None:
        return state
    key = f"{order.step}/{result.outcome.value}"
    state = replace(
        state,
        pending=None,
        pending_undo=None,
        counts={**state.counts, key: state.counts.get(key, 0) + 1},
    )
    if result.outcome is Outcome.SKIPPED:
        # Nothing was done: its place among the actions of the hour is free again.
        state = replace(state, actions_s=_without(state.actions_s, order.at_s))
    if order.kind is Kind.ROLLBACK:
        return _settle_rollback(limits, state, order, result, now_s)
    return _settle_apply(limits, state, order, result, now_s)


def announce(state: State, undo: Mapping[str, object]) -> State:
    """The pending step is about to change something that `undo` takes back; to be kept before it does."""
    return replace(state, pending_undo=dict(undo))


def interrupted(state: State) -> Result:
    """What to settle a pending order with that nobody carries out any more: its process ended in the middle."""
    undo = state.pending_undo
    return Result(
        Outcome.FAILED,
        "interrupted: the process that carried it out has ended",
        undo=undo,
        is_in_force=undo is not None,
    )


def earlier(state: State, step: str) -> tuple[Mapping[str, object], ...]:
    """See Order.earlier."""
    return tuple(one.undo for one in state.in_force if one.step == step and one.undo is not None)


def level(limits: EscalationLimits, state: State) -> int:
    """0 = nothing going on and nothing in force; n = the n-th step of the ladder was taken, or tried, last."""
    steps = [rung.step for rung in limits.ladder]
    for one in reversed(state.in_force):
        if one.step in steps:
            return steps.index(one.step) + 1
    return 0 if state.rung is None else min(state.rung, len(steps))


def _rebase(state: State, now_s: float) -> State:
    """A clock that was set back must not stop everything until it has caught up: move the memory along."""
    if state.last_s is None or now_s >= state.last_s:
        return state
    by_s = now_s - state.last_s
    return replace(
        state,
        last_s=now_s,
        ended_s=None if state.ended_s is None else state.ended_s + by_s,
        last_action_s=None if state.last_action_s is None else state.last_action_s + by_s,
        last_by_step={step: at_s + by_s for step, at_s in state.last_by_step.items()},
        actions_s=tuple(at_s + by_s for at_s in state.actions_s),
        in_force=tuple(
            replace(one, at_s=one.at_s + by_s, next_try_s=one.next_try_s + by_s) for one in state.in_force
        ),
        pending=None if state.pending is None else replace(state.pending, at_s=state.pending.at_s + by_s),
    )


def _elapse(limits: EscalationLimits, state: State, reading: Reading) -> State:
    """Let the clocks of the signals run up to the reading."""
    gap_s = None if state.last_s is None else reading.at_s - state.last_s
    state = replace(
        state,
        last_s=reading.at_s,
        actions_s=tuple(at_s for at_s in state.actions_s if reading.at_s - at_s < HOUR_S),
    )
    if gap_s is None or gap_s > limits.max_gap_s:
        return replace(state, bad_for_s={}, known_s={}, clear_for_s=0.0)
    bad_for_s, known_s = dict(state.bad_for_s), dict(state.known_s)
    verdicts = {signal: _verdict(limits, signal, reading) for signal in limits.thresholds}
    for signal, verdict in verdicts.items():
        if verdict == "unknown":
            continue
        was_away = reading.at_s - known_s.get(signal, reading.at_s) > limits.max_gap_s
        known_s[signal] = reading.at_s
        if verdict == "clear" or was_away:
            bad_for_s.pop(signal, None)
        elif verdict == "bad":
            bad_for_s[signal] = bad_for_s.get(signal, 0.0) + gap_s
    if {"bad", "between"} & set(verdicts.values()):
        clear_for_s = 0.0
    else:
        # Unknown beside clear is clear; while nothing at all is known the clock stands still.
        clear_for_s = state.clear_for_s + (gap_s if "clear" in verdicts.values() else 0.0)
    return replace(state, bad_for_s=bad_for_s, known_s=known_s, clear_for_s=clear_for_s)


def _verdict(limits: EscalationLimits, signal: str, reading: Reading) -> str:
    if reading.is_idle:
        return "clear"
    value = reading.values.get(signal)
    if value is None:
        return "unknown"
    threshold = _threshold(limits, signal, reading)
    if value > threshold:
        return "bad"
    return "clear" if value <= threshold * limits.clear_ratio else "between"


def _threshold(limits: EscalationLimits, signal: str, reading: Reading) -> float:
    return max(limits.thresholds[signal], reading.floors.get(signal, 0.0))


def _is_clear(limits: EscalationLimits, state: State) -> bool:
    return state.clear_for_s >= limits.clear_for_s


def _take_back(limits: EscalationLimits, state: State, now_s: float) -> EscalationDecision:
    """The order that takes one thing back, if one may be taken back now."""
    ready = [(one, _ready_s(limits, state, one)) for one in _to_undo(limits, state, now_s)]
    if not ready:
        return EscalationDecision(state)
    chosen = next((one for one, ready_s in ready if now_s >= ready_s), None)
    if chosen is None:
        first, ready_s = min(ready, key=lambda pair: pair[1])
        return EscalationDecision(
            state, waiting=f"{first.step} is taken back in {ready_s - now_s:.0f} s at the earliest"
        )
    waits = _waits(limits, state, now_s)
    if waits is not None:
        return EscalationDecision(state, waiting=waits)
    if _is_clear(limits, state):
        why = f"clear for {state.clear_for_s:.0f} s"
    else:
        why = f"in force for {now_s - chosen.at_s:.0f} s or more: it lapses"
    return _order_back(limits, state, chosen, now_s, why)


def _order_back(
    limits: EscalationLimits, state: State, chosen: StepInForce, now_s: float, why: str
) -> EscalationDecision:
    state = replace(state, serial=state.serial + 1)
    order = Order(
        id=state.serial,
        kind=Kind.ROLLBACK,
        step=chosen.step,
        at_s=now_s,
        is_dry_run=limits.is_dry_run or chosen.is_dry_run,
        why=why,
        tenant=chosen.tenant,
        gpu=chosen.gpu,
        undo=chosen.undo,
        undoes=chosen.id,
    )
    return EscalationDecision(_given(state, order), order)


def _to_undo(limits: EscalationLimits, state: State, now_s: float) -> list[StepInForce]:
    """The newest of each step that is to be taken back, newest first.

    Newest first: increments of one value can only be taken back in the reverse order. One of each step: a
    rollback that fails again and again must not keep the other steps in force.
    """
    newest = {one.step: one for one in state.in_force}
    oldest = {one.step: one for one in reversed(state.in_force)}
    lapsed = set()
    for step, one in oldest.items():
        rung = _rung_of(limits, step)
        if rung is not None and rung.lapse_s is not None and now_s - one.at_s >= rung.lapse_s:
            lapsed.add(step)
    wanted = [one for step, one in newest.items() if _is_clear(limits, state) or step in lapsed]
    return sorted(wanted, key=lambda one: one.id, reverse=True)


def _ready_s(limits: EscalationLimits, state: State, one: StepInForce) -> float:
    return max(one.next_try_s, one.at_s + _dwell_s(limits, state, one.step))


def _climb(limits: EscalationLimits, state: State, reading: Reading) -> EscalationDecision:
    cause = _cause(limits, state, reading)
    notes: list[str] = []
    if cause is None or not limits.ladder:
        return EscalationDecision(state, notes=tuple(notes))
    if state.rung is None:
        notes.append(f"begins: {_words(cause)}")
        state = replace(state, rung=0, ended_s=None)
    elif state.rung >= len(limits.ladder):
        if state.ended_s is None:
            return _end(limits, state, reading, notes)
        if reading.at_s - state.ended_s < limits.again_s:
            left_s = limits.again_s - (reading.at_s - state.ended_s)
            return EscalationDecision(
                state, waiting=f"the end of the ladder is reached; again in {left_s:.0f} s"
            )
        notes.append(f"again: {_words(cause)}")
        state = replace(state, rung=0, ended_s=None)
    waits = _waits(limits, state, reading.at_s)
    if waits is not None:
        return EscalationDecision(state, notes=tuple(notes), waiting=waits)
    return _next_rung(limits, state, reading, cause, notes)


def _next_rung(
    limits: EscalationLimits, state: State, reading: Reading, cause: Cause, notes: list[str]
) -> EscalationDecision:
    """The order of the first rung that is possible from here on, or the end of the ladder."""
    for index in range(state.rung or 0, len(limits.ladder)):
        rung = limits.ladder[index]
        why_not = _why_not_yet(state, rung, reading.at_s)
        if why_not is not None:
            notes.append(f"{rung.step} is passed over: {why_not}")
            continue
        sufferer = reading.sufferers.get(cause.signal)
        state = replace(state, rung=index, serial=state.serial + 1)
        order = Order(
            id=state.serial,
            kind=Kind.APPLY,
            step=rung.step,
            at_s=reading.at_s,
            is_dry_run=limits.is_dry_run,
            why=_words(cause),
            cause=cause,
            tenant=None if sufferer is None else sufferer.tenant,
            gpu=None if sufferer is None else sufferer.gpu,
            earlier=earlier(state, rung.step),
        )
        return EscalationDecision(_given(state, order), order, tuple(notes))
    return _end(limits, state, reading, notes)


def _end(limits: EscalationLimits, state: State, reading: Reading, notes: list[str]) -> EscalationDecision:
    notes.append("the end of the ladder is reached, and it is still bad")
    return EscalationDecision(
        replace(state, rung=len(limits.ladder), ended_s=reading.at_s), notes=tuple(notes)
    )


def _why_not_yet(state: State, rung: Rung, now_s: float) -> str | None:
    count = sum(one.step == rung.step for one in state.in_force)
    if count >= rung.max_in_force:
        return f"in force {count} times" if count > 1 else "in force"
    last_s = state.last_by_step.get(rung.step)
    if last_s is not None and now_s - last_s < rung.cool_down_s:
        return f"it cools down for {rung.cool_down_s - (now_s - last_s):.0f} s more"
    return None


def _cause(limits: EscalationLimits, state: State, reading: Reading) -> Cause | None:
    """The signal that has been bad for long enough and is so now, furthest beyond its threshold."""
    found = [
        Cause(signal, reading.values[signal], _threshold(limits, signal, reading), state.bad_for_s[signal])
        for signal in limits.thresholds
        if state.bad_for_s.get(signal, 0.0) >= limits.bad_for_s and _verdict(limits, signal, reading) == "bad"
    ]
    return max(found, key=lambda cause: cause.value / max(cause.threshold, 1e-9), default=None)


def _waits(limits: EscalationLimits, state: State, now_s: float) -> str | None:
    """Why no action of any kind may be taken now."""
    if state.last_action_s is not None and now_s - state.last_action_s < limits.cool_down_s:
        return f"cools down for {limits.cool_down_s - (now_s - state.last_action_s):.0f} s more"
    if len(state.actions_s) >= limits.max_actions_per_hour:
        left_s = HOUR_S - (now_s - state.actions_s[-limits.max_actions_per_hour])
        return f"{len(state.actions_s)} actions in the last hour: waits for {left_s:.0f} s"
    return None


def _given(state: State, order: Order) -> State:
    return replace(state, pending=order, pending_undo=None, actions_s=(*state.actions_s, order.at_s))


def _settle_apply(
    limits: EscalationLimits, state: State, order: Order, result: Result, now_s: float
) -> State:
    is_done = result.outcome in (Outcome.DONE, Outcome.DRY_RUN)
    if is_done or result.is_in_force:
        entry = StepInForce(
            order.id, order.step, now_s, order.is_dry_run, order.tenant, order.gpu, result.undo, result.detail
        )
        state = replace(
            state,
            relapses=_relapsed(state, order.step, now_s),
            in_force=(*state.in_force, entry),
            last_action_s=now_s,
            bad_for_s={},
            clear_for_s=0.0,
        )
    if result.outcome is not Outcome.SKIPPED:
        # A failure cools down its own step only: the next rung may be tried at once.
        state = replace(state, last_by_step={**state.last_by_step, order.step: now_s})
        state = _cooled(limits, state, order.step, now_s)
    if state.rung is None or state.rung >= len(limits.ladder) or limits.ladder[state.rung].step != order.step:
        return state  # by hand, or the ladder was changed meanwhile
    count = sum(one.step == order.step for one in state.in_force)
    stays = is_done and count < limits.ladder[state.rung].max_in_force
    return state if stays else replace(state, rung=state.rung + 1)


def _cooled(limits: EscalationLimits, state: State, step: str, now_s: float) -> State:
    """What is in force of `step` is not taken back before it has cooled down either."""
    rung = _rung_of(limits, step)
    if rung is None:
        return state
    until_s = now_s + rung.cool_down_s
    return replace(
        state,
        in_force=tuple(
            replace(one, next_try_s=max(one.next_try_s, until_s)) if one.step == step else one
            for one in state.in_force
        ),
    )


def _relapsed(state: State, step: str, now_s: float) -> Mapping[str, int]:
    """Count a step that is taken again soon after it was taken back."""
    if any(one.step == step for one in state.in_force):
        return state.relapses
    last_s = state.last_by_step.get(step)
    is_relapse = step in state.relapses and last_s is not None and now_s - last_s < RELAPSE_S
    return {**state.relapses, step: state.relapses[step] + 1 if is_relapse else 0}


def _settle_rollback(
    limits: EscalationLimits, state: State, order: Order, result: Result, now_s: float
) -> State:
    if result.outcome is not Outcome.SKIPPED:
        state = replace(
            state,
            last_action_s=now_s,
            last_by_step={**state.last_by_step, order.step: now_s},
            clear_for_s=0.0,
        )
    undone = next((one for one in state.in_force if one.id == order.undoes), None)
    if undone is None:
        return state
    is_gone = result.outcome in (Outcome.ROLLED_BACK, Outcome.DONE)
    if is_gone or (result.outcome is Outcome.DRY_RUN and undone.is_dry_run):
        return replace(state, in_force=tuple(one for one in state.in_force if one is not undone))
    tries = undone.failed_rollbacks + 1
    pause_s = min(MAX_DWELL_S, max(limits.cool_down_s, 60.0) * 2.0 ** min(tries - 1, 20))
    later = replace(undone, failed_rollbacks=tries, next_try_s=now_s + pause_s)
    return replace(state, in_force=tuple(later if one is undone else one for one in state.in_force))


def _dwell_s(limits: EscalationLimits, state: State, step: str) -> float:
    """Least time in force before a step is taken back."""
    rung = _rung_of(limits, step)
    base_s = limits.cool_down_s if rung is None else max(rung.cool_down_s, limits.cool_down_s)
    return min(max(MAX_DWELL_S, base_s), base_s * 2.0 ** min(state.relapses.get(step, 0), 20))


def _rung_of(limits: EscalationLimits, step: str) -> Rung | None:
    return next((rung for rung in limits.ladder if rung.step == step), None)


def _without(times_s: tuple[float, ...], one_s: float) -> tuple[float, ...]:
    index = times_s.index(one_s) if one_s in times_s else len(times_s)
    return times_s[:index] + times_s[index + 1 :]


def _words(cause: Cause) -> str:
    return f"{cause.signal} is {cause.value:.4g}, above {cause.threshold:.4g} for {cause.for_s:.0f} s"


def by_hand(state: State, order: Order) -> State:
    """The state with an order that a person gave. It counts among the actions of the hour and waits for nothing."""
    return _given(replace(state, serial=max(state.serial, order.id)), order)
