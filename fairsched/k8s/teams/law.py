# SPDX-License-Identifier: Apache-2.0
"""The law by which a team's weight is corrected (pure): what it got of the window against what it was entitled to.

Problem. Weights divide each GPU among those who are on it at the moment. Over minutes and over nodes a team may
still get less than its part: it was held for others, or its pods are where the crowd is. Whoever corrects that must
not swing, not chase noise, and not turn a small weight into a large one.

Approach. For the teams that wanted GPUs within the window, and what they got together,

    error      = ln(entitled part / received part)
    target     = clamp(GAIN * error, +- ln(bound))
    correction = correction + (target - correction) * (1 - 2 ** (-dt / HALF_LIFE_S))

and a team weighs nominal * exp(correction). A correction is always a mean of what it was and a target, so it never
leaves the bounds. Shares answer to corrections one for one at most (in ratios between teams), and the window, which
averages, answers no more than that: with GAIN below one the whole loop's gain is below one, however long the window
is, so that it converges and cannot swing. The price: of a lasting disadvantage of 1 the loop leaves 1 / (1 + GAIN).

Nobody wanted anything, only one team did, or all got less than LEAST_SECONDS: that says nothing, and nothing
changes. No word of Prometheus: corrections are held for as long as the window lasts, since they were made for what
has been; then they go back to nothing, at the same pace. A team that was not there in the window goes back
likewise.

Units: seconds; GPU-seconds; corrections are natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

GAIN = 0.8
"""Below one, see above; what is left of a lasting disadvantage is 56 %."""
HALF_LIFE_S = 5.0
"""After 20 s of a lasting error 94 % of the correction are made: the promise is 30 s, a round and a write included."""
DEADBAND = 0.05
"""A weight that differs by less from what is written is not written: over seconds nodes hold shares no better."""
SETTLED = 0.01
"""A correction below this is none: the nominal weight is written, so that nothing is left of what is over."""
LEAST_SECONDS = 1.0
"""All teams together; less is noise of the scrapes."""


@dataclass(frozen=True)
class Reading:
    """What was found of one window."""

    seconds: Mapping[str, float]
    """GPU-seconds by team."""
    wanting: Set[str]
    """Teams that had demand."""


@dataclass(frozen=True)
class Limits:
    """What a person has set."""

    bound: float = 2.0
    """A weight is at most this times, and at least this part of, the nominal one; 1: never corrected."""
    window_s: float = 600.0


def step(
    corrections: Mapping[str, float],
    nominal: Mapping[str, float],
    reading: Reading | None,
    silent_s: float,
    dt_s: float,
    limits: Limits,
) -> dict[str, float]:
    """Corrections of the teams in `nominal`, `dt_s` later. `reading` None: nothing was told for `silent_s`."""
    now = {team: _bounded(corrections.get(team, 0.0), limits) for team in nominal}
    if reading is None:
        if silent_s <= limits.window_s:
            return now
        return {team: _moved(value, 0.0, dt_s) for team, value in now.items()}
    errors = errors_of(nominal, reading)
    if errors is None:
        return now
    return {
        team: _bounded(_moved(value, _bounded(GAIN * errors.get(team, 0.0), limits), dt_s), limits)
        for team, value in now.items()
    }


def errors_of(nominal: Mapping[str, float], reading: Reading) -> dict[str, float] | None:
    """ln(entitled / received) of each team that wanted GPUs; inf: it got nothing. None: the window says nothing."""
    got = {team: max(0.0, reading.seconds.get(team, 0.0)) for team in nominal}
    present = [team for team in nominal if got[team] > 0 or team in reading.wanting]
    total, weight = sum(got[team] for team in present), sum(nominal[team] for team in present)
    if len(present) < 2 or total < LEAST_SECONDS:
        return None
    # Of each by itself: the part that somebody got may be so small that it is none as a number.
    return {
        team: math.log(nominal[team] / weight) - math.log(got[team]) + math.log(total)
        if got[team] > 0
        else math.inf
        for team in present
    }


def weight_of(nominal: float, correction: float) -> float:
    """What is to be written; the nominal one itself where there is next to no correction."""
    return nominal if abs(correction) < SETTLED else nominal * math.exp(correction)


def is_worth_writing(written: float | None, wanted: float, nominal: float) -> bool:
    """Whether what is written is to be replaced; None: nothing is written."""
    if written is None or written <= 0:
        return True
    if wanted == nominal:
        return abs(written / nominal - 1) > 1e-3  # what is written has four digits
    return abs(math.log(wanted / written)) > DEADBAND


def _moved(value: float, target: float, dt_s: float) -> float:
    moved = value + (target - value) * (1.0 - 2.0 ** (-max(0.0, dt_s) / HALF_LIFE_S))
    return 0.0 if abs(moved) < 1e-6 else moved


def _bounded(value: float, limits: Limits) -> float:
    edge = math.log(max(1.0, limits.bound))
    return min(max(value, -edge), edge)
