# SPDX-License-Identifier: Apache-2.0
"""The order of turns, learnt from facts about three contexts."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.accounting.circle import MOST, Circle


@dataclass(eq=False)
class One:
    rank: tuple[int, ...]
    serial: int = 0
    place: int = 0
    is_runnable: bool = True


def circle_of(many: int) -> tuple[Circle[One], list[One]]:
    circle: Circle[One] = Circle()
    ones = [One((rank,)) for rank in range(many)]
    for one in ones:
        circle.add(one)
    return circle, ones


def order(circle: Circle[One], first: One, many: int) -> list[int]:
    """Ranks in the order of turns."""
    found = [first]
    while len(found) < many:
        following = circle.next_after(found[-1])
        assert following is not None
        found.append(following)
    return [one.rank[0] for one in found]


def say(circle: Circle[One], turns: list[One], rng: random.Random, wrong: float = 0.0) -> None:
    """Two completions, one soon after the other: nobody else with work lay between them."""
    at, working = rng.randrange(len(turns)), [one for one in turns if rng.random() < 0.5]
    first = turns[at]
    rest = [one for one in turns[at + 1 :] + turns[:at] if one in working]
    if len(rest) < 2:
        return
    second, passed = rest[0], rest[1:]
    if rng.random() < wrong:
        second = rng.choice(passed)
        passed = [one for one in rest if one is not second]
    circle.tell(first, second, passed)


@pytest.mark.parametrize("many", [3, 5, 8, 16, MOST])
@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_any_order_is_learnt_from_facts_a_tenth_of_which_is_wrong(many: int, wrong: float) -> None:
    for seed in range(3):
        circle, ones = circle_of(many)
        rng = random.Random(seed)
        turns = ones[:]
        rng.shuffle(turns)
        for _ in range(100 * many):
            say(circle, turns, rng, wrong)
        learnt, true = order(circle, turns[0], many), [one.rank[0] for one in turns]
        assert learnt == true, (seed, wrong)
        assert circle.is_sure is (wrong == 0.0) or wrong


def test_an_order_is_not_sure_where_facts_contradict_each_other() -> None:
    circle, ones = circle_of(6)
    rng = random.Random(1)
    for _ in range(1000):
        turns = ones[:]
        rng.shuffle(turns)
        say(circle, turns, rng)
    assert not circle.is_sure


def test_where_turns_follow_no_order_the_circle_is_seldom_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try costs milliseconds among 32 contexts, and what contradicts comes hundreds of times a second."""
    tries: list[int] = []
    mend = Circle._mend
    monkeypatch.setattr(Circle, "_mend", lambda self, *three: tries.append(1) or mend(self, *three))  # type: ignore
    circle, ones = circle_of(MOST)
    rng, facts = random.Random(1), 0
    for _ in range(1000):
        first, second, *rest = rng.sample(ones, 2 + rng.randrange(1, MOST - 1))
        circle.tell(first, second, rest)
        facts += len(rest)
    assert 0 < len(tries) < facts / 64


def test_nobody_lies_surely_between_two_before_facts_say_so() -> None:
    circle, (a, b, c) = circle_of(3)
    assert not circle.is_between(a, b, c)
    for _ in range(100):
        circle.tell(a, b, [c])  # a b c
    assert circle.is_between(a, b, c)
    assert not circle.is_between(a, c, b)
    assert circle.is_between(b, c, a), "it is a circle"


def test_a_new_one_follows_the_one_made_before_it_wherever_that_stands() -> None:
    circle, (a, b, c) = circle_of(3)
    for _ in range(5):
        circle.tell(a, c, [b])
    assert order(circle, a, 3) == [0, 2, 1]
    circle.add(One((1, 5)))
    assert order(circle, a, 4) == [0, 2, 1, 1]


def test_who_is_gone_is_forgotten() -> None:
    circle, (a, b, c) = circle_of(3)
    for _ in range(5):
        circle.tell(a, c, [b])
    circle.remove(b)
    assert order(circle, a, 2) == [0, 2]
    assert not circle._beliefs and b.serial not in circle._told
    circle.remove(a)
    assert circle.next_after(c) is c


def test_of_too_many_no_order_is_learnt() -> None:
    circle, _ = circle_of(MOST + 1)
    assert circle.working() == set()
    few, ones = circle_of(3)
    ones[1].is_runnable = False
    assert few.working() == {ones[0], ones[2]}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "tell"]), st.integers(0, 9), st.integers(0, 99))))
def test_places_are_those_in_the_circle_whatever_comes(calls: list[tuple[str, int, int]]) -> None:
    circle: Circle[One] = Circle()
    there: list[One] = []
    for what, number, seed in calls:
        if what == "add":
            there.append(One((number,)))
            circle.add(there[-1])
        elif there and what == "remove":
            circle.remove(there.pop(number % len(there)))
        elif len(there) > 2:
            first, second, *rest = random.Random(seed).sample(there, len(there))
            circle.tell(first, second, rest)
        assert sorted(one.place for one in there) == list(range(len(there)))
        assert [one.place for one in circle._members] == list(range(len(there)))
        assert all(one in circle._ranked for one in there)
