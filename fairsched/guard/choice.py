# SPDX-License-Identifier: Apache-2.0
"""Chooses whom an end hits: as few as needed, of the user with most, the youngest first (pure).

The youngest has worked for the shortest time, so least is lost. Whoever is allowed is never chosen, and what is not
known accuses nobody: where another user may have more, nobody is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairsched.guard.sample import Process


class Portion(NamedTuple):
    """What one process has of what is limited."""

    process: Process
    amount: float
    is_known: bool = True
    """Otherwise it may be more."""


def whose(portions: Iterable[Portion]) -> int | None:
    """uid of the user with most; None: that is not known, or nobody has anything. Of two with as much it is the one
    who came last."""
    sums: dict[int | None, float] = {}
    latest: dict[int | None, tuple[int, int]] = {}
    unknown = set()
    for one in portions:
        uid = one.process.uid
        sums[uid] = sums.get(uid, 0.0) + one.amount
        latest[uid] = max(latest.get(uid, (0, 0)), age(one.process))
        if not one.is_known or uid is None:
            unknown.add(uid)
    if not sums:
        return None
    most = max(sums, key=lambda uid: (sums[uid], latest[uid]))
    return most if sums[most] > 0 and not unknown - {most} else None


def needed(portions: Iterable[Portion], excess: float) -> tuple[Process, ...]:
    """Whom to end so that `excess` (above 0) is gone, of those who may be; all that help if they are not enough."""
    portions = list(portions)
    uid = whose(portions)
    if uid is None:
        return ()
    mine = sorted(
        (one for one in portions if one.process.uid == uid and one.amount > 0),
        key=lambda one: age(one.process),
        reverse=True,
    )
    for one in mine:
        if one.amount >= excess:
            return (one.process,)
    chosen: list[Portion] = []
    for one in mine:
        chosen.append(one)
        if sum(each.amount for each in chosen) >= excess:
            chosen = _without_spare(chosen, excess)
            break
    return tuple(one.process for one in chosen)


def youngest_first(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Each once."""
    once = {process.key: process for process in processes}
    return tuple(sorted(once.values(), key=age, reverse=True))


def age(process: Process) -> tuple[int, int]:
    """Grows with the start: of one boot."""
    return (process.start_ticks, process.pid)


def _without_spare(chosen: Sequence[Portion], excess: float) -> list[Portion]:
    """Without those that need not go, the oldest first."""
    kept = list(chosen)
    for one in reversed(chosen):
        rest = [each for each in kept if each is not one]
        if sum(each.amount for each in rest) >= excess:
            kept = rest
    return kept
