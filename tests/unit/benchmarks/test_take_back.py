# SPDX-License-Identifier: Apache-2.0
"""How soon a leaf has its GPU time back."""

from __future__ import annotations

import pytest

from benchmarks.fair.measures import Measures, measure
from tests.unit.benchmarks.made_recordings import Leaf, Part, record, steps, turns


def owner(away: Part, back_after: float, *, held: list[Part] | None = None, dribble: float = 0.0) -> Measures:
    """b lends its half while it is away and has every other ms again ``back_after`` ms after it wants it."""
    start, wants = away
    again, end = wants + back_after, wants + 1000
    some: list[Part] = [(wants + 10 * n, wants + 10 * n + dribble) for n in range(int(back_after // 10))]
    some = some if dribble else []
    b: list[Part] = [*turns("ba", "b", 0, start), *some, *turns("ba", "b", again, end)]
    a: list[Part] = [*turns("ba", "a", 0, start), (start, wants)]
    edges = [wants, *(edge for part in some for edge in part), again]
    a += [(x, y) for x, y in zip(edges[::2], edges[1::2], strict=True) if y > x]
    a += turns("ba", "a", again, end)
    leaves = {
        "a": Leaf(ran=a, steps=steps(0, end, 10), held=held or []),
        "b": Leaf(ran=b, steps=[*steps(0, start, 10), *steps(wants, end, 10)]),
    }
    return measure(record(leaves, ms=end))


def test_an_owner_is_back_when_it_is_served_as_it_is_owed() -> None:
    made = owner((1000, 2000), 30)
    assert made.whole.take_backs == made.leaves["b"].take_backs == 1
    assert made.whole.take_back_p95_ms == pytest.approx(30, abs=1)
    assert made.leaves["b"].take_back_p50_ms == pytest.approx(30, abs=1)
    assert made.whole.take_back_beyond_drain_p95_ms == pytest.approx(30, abs=1)


def test_an_owner_that_is_served_at_once_has_nothing_to_wait_for() -> None:
    assert owner((1000, 2000), 0).whole.take_back_p95_ms == pytest.approx(0, abs=1)


def test_a_slice_now_and_then_is_not_being_back() -> None:
    """A fifth of its due for 200 ms."""
    took = owner((1000, 2000), 200, dribble=1).whole.take_back_p95_ms
    assert took is not None and 150 <= took <= 200


def test_the_drain_of_who_is_held_already_is_told_apart() -> None:
    """Held 10 ms after the owner came back; what it had queued ran 20 ms longer."""
    made = owner((1000, 2000), 30, held=[(2010, 2100)]).whole
    assert made.take_back_p95_ms == pytest.approx(30, abs=1)
    assert made.take_back_beyond_drain_p95_ms == pytest.approx(10, abs=1)


def test_a_short_absence_is_no_lending() -> None:
    assert owner((1000, 1099), 30).whole.take_backs == 0
    assert owner((1000, 1101), 30).whole.take_backs == 1


def test_with_nobody_else_there_is_nothing_to_take_back() -> None:
    work = [*steps(0, 1000, 10), *steps(2000, 3000, 10)]
    assert measure(record({"a": Leaf(ran=work, steps=work)}, ms=3000)).whole.take_backs == 0


def test_an_owner_that_is_never_served_waits_as_long_as_it_wants() -> None:
    leaves = {
        "a": Leaf(ran=[(0, 3000)], steps=steps(0, 3000, 10)),
        "b": Leaf(steps=[(1000, 1400)], waited=[(1000, 1400)]),
    }
    assert measure(record(leaves, ms=3000)).whole.take_back_p95_ms == pytest.approx(400)
