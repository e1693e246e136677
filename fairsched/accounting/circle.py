# SPDX-License-Identifier: Apache-2.0
"""In which order the contexts of a GPU take turns, learnt from what they complete (pure).

Problem. A runlist is a circle, and the replay needs its order. Driver and hardware give places as they become free, so
on a GPU that has been up for a while it is any order: on an H100 not the one in which contexts were made in ten of
thirteen mixes, and there the replay had the right context on the GPU at 20 to 75 of 100 completions.

Approach. Two completions of two contexts within half a slice say that nobody had a turn between them: who had work all
the while does not lie between the two in the circle. Each such fact is one about three contexts: from the
first, the second comes before the third. Facts are added up, so that one that is wrong (who was woken late, say) is
outvoted; where they speak against the circle, whichever of the three is moved makes more of all facts right.

The same fact, once the order is sure, says of one whose work may be over (a drain) that it is.

Terms. circle: the contexts in the order of their turns; after the last comes the first. place: in it. passed: had work
all the while and had no turn.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

MOST = 32
"""Contexts among which an order is learnt: facts are about three of them."""
_BELIEVED = 3
"""Facts more for an order of three than against it, for it to be believed ..."""
_MOST_BELIEF = 8
"""... and at most so many count: what was true once may not be now."""
_REST, _LONG_REST = 8, 64
"""Facts for which the circle is left as it is after it was mended, or could not be: where turns follow no order facts
contradict each other for ever."""
_MEMORY, _SURE = 0.05, 0.95
"""The part of facts that agreed with the circle, the latest by so much; above it the order is sure."""


class Member(Protocol):
    """A context, as far as this module knows it."""

    rank: tuple[int, ...]
    serial: int
    place: int
    is_runnable: bool


M = TypeVar("M", bound=Member)


class Circle(Generic[M]):
    """Contexts in the order of their turns: by rank until facts say otherwise."""

    def __init__(self) -> None:
        self._members: list[M] = []
        self._ranked: list[M] = []
        self._serial = 0
        self._beliefs: dict[tuple[int, ...], int] = {}
        """By three serial numbers in order: how much more speaks for that order of turns than for the other one."""
        self._told: set[int] = set()
        """Those numbers."""
        self._agreed = 0.0
        self._rest = 0

    def working(self) -> set[M]:
        """Those with work; nobody where there are too many to learn an order."""
        if len(self._members) > MOST:
            return set()
        return {member for member in self._members if member.is_runnable}

    # ---- contexts ----

    def add(self, member: M) -> None:
        """It follows the one of the next lower rank."""
        self._serial += 1
        member.serial = self._serial
        at = bisect.bisect_right(self._ranked, member.rank, key=_rank)
        place = self._ranked[at - 1].place + 1 if at else 0
        self._ranked.insert(at, member)
        self._members.insert(place, member)
        self._number(place)

    def remove(self, member: M) -> None:
        """It is gone."""
        del self._members[member.place]
        at = bisect.bisect_left(self._ranked, member.rank, key=_rank)
        while self._ranked[at] is not member:
            at += 1
        del self._ranked[at]
        self._number(member.place)
        if member.serial in self._told:  # not the many that come and go without a word
            self._told.discard(member.serial)
            self._beliefs = {
                three: belief for three, belief in self._beliefs.items() if member.serial not in three
            }

    def next_after(self, member: M) -> M | None:
        """The next with work; itself where nobody else has any."""
        following = member.place + 1
        return self._first(range(following - len(self._members), following))  # below 0 counts from the end

    def last_before(self, member: M) -> M | None:
        """The one before with work; itself where nobody else has any."""
        before = member.place - 1
        return self._first(range(before, before - len(self._members), -1))

    def _first(self, places: range) -> M | None:
        for place in places:
            if self._members[place].is_runnable:
                return self._members[place]
        return None

    def _number(self, begin: int) -> None:
        """Contexts come and go seldom, and are looked for at each switch."""
        for place in range(begin, len(self._members)):
            self._members[place].place = place

    # ---- facts ----

    @property
    def is_sure(self) -> bool:
        """Whether facts agree with the circle: who takes turns otherwise, or for less time, has no order."""
        return self._agreed > _SURE

    def tell(self, first: M, second: M, passed: Iterable[M]) -> None:
        """``second`` had its turn after ``first``, and none of ``passed`` in between."""
        for third in passed:
            numbers = first.serial, second.serial, third.serial
            three, sign = tuple(sorted(numbers)), 1 if _is_in_turn(*numbers) else -1
            belief = self._beliefs.get(three, 0) + sign
            self._beliefs[three] = min(max(belief, -_MOST_BELIEF), _MOST_BELIEF)
            self._told.update(three)
            agrees = _is_in_turn(first.place, second.place, third.place)
            self._agreed += _MEMORY * (agrees - self._agreed)
            self._rest -= 1
            if not agrees and sign * belief >= _BELIEVED and self._rest < 0:
                self._rest = _REST if self._mend(first, second, third) else _LONG_REST

    def is_between(self, first: M, third: M, second: M) -> bool:
        """Whether ``third`` surely has its turn after ``first`` and before ``second``."""
        numbers = first.serial, third.serial, second.serial
        belief = self._beliefs.get(tuple(sorted(numbers)), 0)
        is_believed = (belief if _is_in_turn(*numbers) else -belief) >= _BELIEVED
        return self.is_sure and is_believed and _is_in_turn(first.place, third.place, second.place)

    def _mend(self, first: M, second: M, third: M) -> bool:
        """One of the three stands in the wrong place. Whether another one makes more of what is believed so."""
        tries = (
            (third, self._moved(third, second.place + 1)),
            (second, self._moved(second, first.place + 1)),
            (first, self._moved(first, second.place)),
        )
        gain, best = max(((self._gain(member, order), order) for member, order in tries), key=_gain)
        if gain > 0:
            self._members = best
            self._number(0)
        return gain > 0

    def _moved(self, member: M, place: int) -> list[M]:
        """All, with one before whoever stands in that place."""
        rest = self._members[:place], self._members[place:]
        before, after = ([one for one in part if one is not member] for part in rest)
        return [*before, member, *after]

    def _gain(self, moved: M, order: list[M]) -> int:
        """How much more of what is believed would be so in that order, in which one has moved."""
        now = {member.serial: member.place for member in self._members}
        then = {member.serial: place for place, member in enumerate(order)}
        gain = 0
        for three, belief in self._beliefs.items():
            if moved.serial in three:
                a, b, c = three
                gain += belief * (
                    _is_in_turn(then[a], then[b], then[c]) - _is_in_turn(now[a], now[b], now[c])
                )
        return gain


def _gain(pair: tuple[int, list[M]]) -> int:
    return pair[0]


def _rank(member: Member) -> tuple[int, ...]:
    return member.rank


def _is_in_turn(first: int, second: int, third: int) -> bool:
    """Whether places, all different, follow each other in the circle."""
    return (first < second) + (second < third) + (third < first) == 2
