# SPDX-License-Identifier: Apache-2.0
"""The order in which contexts take their turns is found from a tape when it was not what we took it for."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from fairsched.accounting.orders import elected, other_order, votes
from fairsched.accounting.replay import Replay
from fairsched.accounting.tuner import Call
from tests.unit.accounting.model import MS, Gpu, Load, Truth
from tests.unit.accounting.test_tuner import LAUNCHES, Watched

S = 1000 * MS
FOUR = (Load(5, 0.5, 0.02), Load(16, 16, 0.05), Load(16, 16, 0.05), Load(7, 0.5, 0.02))
SEVEN = (*FOUR, Load(12, 8, 0.05), Load(9, 2, 0.05), Load(30, 5, 0.05))


def closes(*moments_ms: tuple[str, float], working: str = "abcd", is_anchor: bool = True) -> list[Call]:
    """All have work all the time, and complete some of it at these moments."""
    calls: list[Call] = [("open", (key, 0)) for key in working]
    return [*calls, *(("progress", (key, round(at * MS), is_anchor)) for key, at in moments_ms)]


def test_two_completions_within_a_slice_say_who_did_not_stand_between() -> None:
    assert votes(closes(("a", 3), ("c", 4.5)), 2 * MS) == {("a", "c", "b"): 1, ("a", "c", "d"): 1}


@pytest.mark.parametrize(
    "calls",
    [
        closes(("a", 3), ("c", 5.5)),  # somebody may have had a slice in between
        closes(("a", 3), ("c", 4.5), is_anchor=False),
        closes(("a", 3), ("c", 4.5), working="ac"),
        [*closes(("a", 3)), ("drain", ("b", 3 * MS, MS)), ("progress", ("c", 4 * MS, True))],
        [
            *closes(("a", 3)),
            ("remove", ("c", 3 * MS)),
            ("open", ("c", 3 * MS)),
            ("progress", ("c", 4 * MS, True)),
        ],
    ],
)
def test_where_more_is_possible_nothing_is_said(calls: list[Call]) -> None:
    assert votes(calls, 2 * MS) == {}


def test_who_began_only_in_between_says_nothing() -> None:
    calls = closes(("a", 3), working="acd")
    calls += [("open", ("b", 4 * MS)), ("progress", ("c", 4.5 * MS, True))]
    assert votes(calls, 2 * MS) == {("a", "c", "d"): 1}


@pytest.mark.parametrize(("count", "is_looked_for"), [(2, False), (3, True), (16, True), (17, False)])
def test_a_circle_of_two_has_one_order_and_a_huge_one_is_left_alone(count: int, is_looked_for: bool) -> None:
    present = [*range(count)]
    right = [0, *range(count - 1, 0, -1)]
    moments = [(key, 3.0 + number) for number, key in enumerate(right)]
    calls: list[Call] = [("open", (key, 0)) for key in present]
    calls += [("progress", (key, round(at * MS), True)) for key, at in moments]
    assert other_order(present, calls, 2 * MS) == (tuple(right) if is_looked_for else None)
    assert other_order(right, calls, 2 * MS) is None


@pytest.mark.parametrize("seed", range(10))
def test_votes_elect_the_order_they_come_from(seed: int) -> None:
    rng = random.Random(seed)
    right, found = (0, *rng.sample(range(1, 9), 8)), Counter()
    for _ in range(400):
        a, b, c = sorted(rng.sample(range(9), 3))
        found[right[a], right[b], right[c]] += 1
    assert elected(range(9), found) == right


def watched_in(order: Sequence[int], truth: Truth) -> Watched:
    """A replay that takes the contexts to stand in this order."""
    found = Watched(0)
    for place, context in enumerate(order):
        found.replay.add(context, (place,))
    for edge in truth.edges:
        found.hear(edge)
    return found


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3)))[1:])
def test_a_wrong_order_is_put_right_within_seconds(order: tuple[int, ...]) -> None:
    truth = Gpu(FOUR, 1).run(15 * S)
    wrong = Watched(0)
    for place, context in enumerate((0, *order)):
        wrong.replay.add(context, (place,))
    for edge in truth.edges:
        (wrong.replay.open if edge.is_open else wrong.replay.close)(edge.context, edge.t_ns)
    assert wrong.replay.hit_ratio < 0.8, "or there was nothing to find"
    found = watched_in((0, *order), truth)
    assert len(found.adopted_ns) == 1 and found.adopted_ns[0] < 9 * S
    assert found.nature == (2 * MS, 100_000)
    assert [context.key for context in found.replay._circle] == [0, 1, 2, 3]
    assert found.replay.hit_ratio > 0.9
    assert found.tuner.last is not None
    assert len(found.tuner.last.best) == 1, (
        "what is hit nearly always need not be compared with other natures"
    )
    assert "adopted=none adopted_order=(hit=" in str(found.tuner.last)


@pytest.mark.parametrize("seed", range(4))
def test_among_seven_the_account_is_right_in_the_end(seed: int) -> None:
    truth, rest = Gpu(SEVEN, seed).run(40 * S), [1, 2, 3, 4, 5, 6]
    random.Random(seed).shuffle(rest)
    found = watched_in((0, *rest), truth)
    assert found.replay.hit_ratio > 0.8


def test_the_right_order_stays() -> None:
    found = watched_in((0, 1, 2, 3), Gpu(FOUR, 2).run(10 * S))
    assert (found.adopted_ns, found.tuner.last) == ([], None)


def test_contexts_keep_their_work_and_later_ones_stand_behind() -> None:
    replay = Replay()
    for place, key in enumerate("abcd"):
        replay.add(key, (place,))
    replay.open("b", 0)
    replay.open("c", 0)
    replay.advance(3 * MS)
    before = replay.exec_by_key()
    replay.set_order(("a", "d", "gone", "c", "b"))
    replay.add("e", (9,))
    assert [context.key for context in replay._circle] == ["a", "d", "c", "b", "e"]
    assert [context.place for context in replay._circle] == [0, 1, 2, 3, 4]
    assert replay.exec_by_key() == {**before, "e": 0}
    replay.close("b", 4 * MS, is_anchor=False)
    replay.close("c", 4 * MS, is_anchor=False)
    assert replay.runnable == 0


def test_a_tape_is_told_in_another_order_only_to_those_that_are_named() -> None:
    found = watched_in((0, 1, 2, 3), Gpu(FOUR, 2).run(S))
    replay = found.replay
    replay.add("idle", (7,))
    replay.hit_ratio = 0.0
    found.tuner.step(100 * S)
    tape = found.tuner._tape
    assert tape is not None
    replay.open(0, 100 * S)
    replay.open(2, 100 * S)
    tape.note("burst", 0, LAUNCHES, True)
    assert tape.working()[0] == 0 and "idle" not in tape.working() and 2 in tape.working()
    other = tape.reordered((2, 0))
    assert [call for call in other.start if call[0] == "add"] == [
        ("add", (0, (2,))),
        ("add", (1, (1,))),
        ("add", (2, (0,))),
        ("add", (3, (3,))),
        ("add", ("idle", (7,))),
    ]
    assert other.calls is tape.calls
