# SPDX-License-Identifier: Apache-2.0
"""In which order contexts take their turns, as their completions tell (pure).

Problem. The replay takes contexts to stand in the runlist in the order in which they were created. Of a context that is
older than our probes (the daemon was started again while tenants ran) only the start of its process is known, to
10 ms, and which of several processes made its context first is chance. In a wrong order most anchors miss.

Approach. Two completions less than a slice apart tell who comes after whom: had anybody stood between the two, with
work, it would have had a slice in between, or completed. Each such pair votes, for every context that had work and did
*not* run, that it does not stand between them. The order that most votes agree with is elected; whether it explains
what was seen is for others to judge (tuner.py).

Terms. order: keys as they follow each other. The circle has no beginning, so the first key stays the first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

Order = tuple[Hashable, ...]
Votes = Counter[tuple[Hashable, Hashable, Hashable]]
"""(a, b, c): after a comes b before c."""

_MOST = 16
"""With more, no order is looked for: the work grows with the fourth power."""


def other_order(
    present: Sequence[Hashable], calls: Iterable[tuple[str, tuple[Any, ...]]], slice_ns: int
) -> Order | None:
    """The one elected, if it is not the present one. ``calls``: of a replay, from its beginning."""
    if not 3 <= len(present) <= _MOST:  # two have only one
        return None
    order = elected(present, votes(calls, slice_ns))
    return None if order == tuple(present) else order


def votes(calls: Iterable[tuple[str, tuple[Any, ...]]], slice_ns: int) -> Votes:
    """What completions that followed each other within a slice say."""
    found: Votes = Counter()
    working: set[Hashable] = set()
    waited: set[Hashable] = set()
    """Have had work ever since the last completion."""
    last: Hashable | None = None
    last_ns = 0
    for name, arguments in calls:
        key = arguments[0]
        if name == "open":
            working.add(key)
        elif name in ("close", "progress"):
            _, t_ns, is_anchor = arguments
            if is_anchor:
                if key in waited and last is not None and t_ns - last_ns <= slice_ns:
                    found.update((last, key, other) for other in waited - {last, key})
                last, last_ns = key, t_ns
            if name == "close":
                working.discard(key)
            if is_anchor:
                waited = set(working)
        elif name in ("drain", "close_before", "remove", "resume"):  # whether it still has work is not known
            working.discard(key)
            waited.discard(key)
            last = None
    return found


def elected(present: Sequence[Hashable], found: Votes) -> Order:
    """The order that agrees with most votes, as far as putting one after the other to its best place finds it."""
    first, *others = present
    said: Counter[Hashable] = Counter()
    for triple, count in found.items():
        for key in triple:
            said[key] += count
    order = [first]
    for key in sorted(others, key=lambda one: -said[one]):  # stable: where nothing was said, as it is
        order = _placed(order, key, found)
    for key in others:  # again, now that all stand there
        order.remove(key)
        order = _placed(order, key, found)
    return tuple(order)


def _placed(order: list[Hashable], key: Hashable, found: Votes) -> list[Hashable]:
    """With the key at the place that most votes agree with, the last such place."""
    best, best_votes = len(order), -1
    for place in range(len(order), 0, -1):
        rotated = order[place:] + order[:place]  # as they come after the key
        agree = sum(
            found[key, a, b] + found[a, b, key] + found[b, key, a]
            for a, b in itertools.combinations(rotated, 2)
        )
        if agree > best_votes:
            best, best_votes = place, agree
    return [*order[:best], key, *order[best:]]
