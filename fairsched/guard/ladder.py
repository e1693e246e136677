# SPDX-License-Identifier: Apache-2.0
"""Climbs from warnings over the grace to the end, for one bound and one subject (pure).

Only time over the limit counts: each round that finds a subject over adds the time since the round before, so who is
over in every second round spends half of the time. Being under for less than an hour forgives nothing, after an hour
everything. Time between two rounds that come too far apart was not seen and does not count; nor does any while the
clock is set. So nothing comes sooner than warnings and grace allow.

Terms: *spent* is time over the limit, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairsched.guard.breach import Act
from fairsched.guard.rules import Bound

LAPSE_S = 3600.0
"""Under for so long forgives."""
BATCH_S = 60.0
"""From one batch to the next at least: those of the last one may still be leaving."""
GAP_S = 120.0
"""What lies between two rounds further apart was not seen."""
RungKey = tuple[str, str, str, str, str]
"""Limit, what, kind of subject, ident, GPU (empty: all together)."""


@dataclass(slots=True)
class Rung:
    """How far one subject has come."""

    mark: str
    """Of the bound: what it says. Another one begins anew."""
    since_s: float
    last_s: float
    """Last seen over."""
    spent_s: float = 0.0
    warnings: int = 0
    stepped_s: float = 0.0
    """Spent when it was last warned, or when somebody was last ended."""
    ends: int = 0
    """Batches that were ended."""


_KEPT = ("mark", "since_s", "last_s", "spent_s", "warnings", "stepped_s", "ends")


@dataclass(frozen=True, slots=True)
class Step:
    """What a round comes to."""

    is_warning: bool
    is_end_due: bool
    next_act: Act | None
    next_s: float | None


class Ladders:
    """All rungs, by what and whom."""

    def __init__(self) -> None:
        self.rungs: dict[RungKey, Rung] = {}

    def climb(self, key: RungKey, bound: Bound, mark: str, t_s: float, dt_s: float) -> tuple[Rung, Step]:
        """It is over at `t_s`; ``dt_s``: since the round before, 0 = that was not seen."""
        rung = self.rungs.get(key)
        if rung is None or rung.mark != mark or t_s - rung.last_s >= LAPSE_S:
            rung = self.rungs[key] = Rung(mark, t_s, t_s)
        else:
            rung.spent_s += dt_s
            rung.last_s = t_s
        is_warning = rung.warnings == 0 or (
            rung.warnings < bound.warnings and rung.spent_s >= rung.stepped_s + bound.every_s
        )
        is_due = False
        if is_warning:
            rung.warnings += 1
            rung.stepped_s = rung.spent_s
        elif rung.warnings >= bound.warnings and bound.is_hard:
            is_due = rung.spent_s >= rung.stepped_s + grace_s(bound, rung) and t_s >= begin_s(bound)
        return rung, Step(is_warning, is_due, *upcoming(bound, rung, t_s))

    def lapse(self, t_s: float) -> None:
        """Forget who has been under for long enough."""
        for key in [key for key, rung in self.rungs.items() if t_s - rung.last_s >= LAPSE_S]:
            del self.rungs[key]

    def set_back(self, t_s: float) -> None:
        """The clock shows less than before: nothing was in the future."""
        for rung in self.rungs.values():
            rung.last_s, rung.since_s = min(rung.last_s, t_s), min(rung.since_s, t_s)

    def state(self) -> list[list[Any]]:
        return [[*key, *(getattr(rung, name) for name in _KEPT)] for key, rung in self.rungs.items()]

    def restore(self, rows: Any) -> None:
        """Raises ValueError or TypeError for what is none."""
        for row in rows:
            limit, what, per, ident, gpu, mark, since_s, last_s, spent_s, warnings, stepped_s, ends = row
            if not (0 <= stepped_s <= spent_s and isinstance(warnings, int) and warnings >= 0):
                raise ValueError(f"not a rung: {row!r:.100}")
            self.rungs[str(limit), str(what), str(per), str(ident), str(gpu)] = Rung(
                str(mark),
                float(since_s),
                float(last_s),
                float(spent_s),
                warnings,
                float(stepped_s),
                int(ends),
            )


def begin_s(bound: Bound) -> float:
    """Nobody is ended before."""
    return 0.0 if bound.maintenance is None else bound.maintenance.begin_s


def grace_s(bound: Bound, rung: Rung) -> float:
    """Between the last warning, or the last batch, and the next batch."""
    return max(bound.grace_s, BATCH_S) if rung.ends else bound.grace_s


def upcoming(bound: Bound, rung: Rung, t_s: float) -> tuple[Act | None, float | None]:
    """What comes next if it goes on, and when."""
    left_s = rung.stepped_s - rung.spent_s
    if rung.warnings < bound.warnings:
        return Act.WARN, t_s + max(0.0, left_s + bound.every_s)
    if not bound.is_hard:
        return None, None
    return Act.END, max(t_s + max(0.0, left_s + grace_s(bound, rung)), begin_s(bound))
