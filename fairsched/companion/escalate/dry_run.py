# SPDX-License-Identifier: Apache-2.0
"""Tells when orders only check, and forgets what was only pretended (pure).

An order is a dry run as configured (``escalation.dry_run``), and while the daemon does not enforce, as the readings
say: whoever told it to hold no tenant does not expect that pods are moved meanwhile. So what is really in force stays,
too, until it enforces again.
"""

from __future__ import annotations

from dataclasses import replace

from fairsched.companion.escalate.model import ENFORCE, EscalationLimits, Reading, State, StepInForce


def is_dry_run(limits: EscalationLimits, mode: str | None) -> bool:
    """Whether orders only check; `mode` is the daemon's, None = not known yet."""
    return limits.is_dry_run or mode not in (None, ENFORCE)


def follow_mode(limits: EscalationLimits, state: State, reading: Reading) -> tuple[State, tuple[str, ...]]:
    """The state for the daemon's mode, and what that changes for the ladder, to be said once."""
    was_dry, is_dry = is_dry_run(limits, state.mode), is_dry_run(limits, reading.mode)
    notes: list[str] = []
    if was_dry != is_dry:
        how = "only a dry run from here on" if is_dry else "acts from here on"
        notes.append(f"{how}: the daemon's mode is {reading.mode}")
    real = without_dry_runs(replace(limits, is_dry_run=is_dry), state)
    if real is not state:
        notes.append("what the dry run pretended is forgotten")
    if was_dry and not is_dry:
        # Rollbacks that were only pretended have made the next try wait, up to a day.
        real = replace(real, in_force=tuple(_untried(one) for one in real.in_force))
    return replace(real, mode=reading.mode), tuple(notes)


def without_dry_runs(limits: EscalationLimits, state: State) -> State:
    """The state for a ladder that acts: what a dry run only pretended to do is forgotten, with its cool-downs."""
    kept = tuple(one for one in state.in_force if not one.is_dry_run)
    if limits.is_dry_run or kept == state.in_force:
        return state
    return replace(
        state,
        in_force=kept,
        rung=None,
        ended_s=None,
        bad_for_s={},
        clear_for_s=0.0,
        relapses={},
        last_by_step={},
    )


def _untried(one: StepInForce) -> StepInForce:
    return replace(one, failed_rollbacks=0, next_try_s=0.0) if one.failed_rollbacks else one
