# SPDX-License-Identifier: Apache-2.0
"""Tokens over time, from readings of counters that restart, come and go."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.slis.curve import Curve

S = 1_000_000_000
KEEP = 100 * S


def curve(*readings: tuple[float, float]) -> Curve:
    """(second, tokens) of one series."""
    made = Curve(KEEP)
    for at_s, tokens in readings:
        made.add(round(at_s * S), {"a": tokens})
    return made


def test_a_token_across_an_edge_counts_by_its_part_inside() -> None:
    made = curve((1, 100), (2, 110), (4, 150))
    assert made.grown(1 * S, 4 * S) == 50
    assert made.grown(round(1.5 * S), 3 * S) == pytest.approx(5 + 20)
    assert made.grown(2 * S, 2 * S) == 0


@pytest.mark.parametrize(("start_s", "end_s"), [(0, 2), (1, 5), (3, 2)])
def test_outside_of_the_readings_nothing_is_known(start_s: int, end_s: int) -> None:
    assert curve((1, 100), (4, 110)).grown(start_s * S, end_s * S) is None


def test_one_reading_is_no_rate() -> None:
    assert Curve(KEEP).known_ns is None
    assert curve((1, 100)).known_ns is None
    assert curve((1, 100)).grown(1 * S, 1 * S) is None


def test_no_window_reaches_across_a_restart() -> None:
    made = curve((1, 100), (2, 200), (3, 5), (4, 15))
    assert made.known_ns == (3 * S, 4 * S)
    assert made.grown(2 * S, 4 * S) is None
    assert made.grown(3 * S, 4 * S) == 10
    assert made.breaks == 1


def test_one_series_that_restarts_is_noticed_although_the_sum_grows() -> None:
    made = Curve(KEEP)
    made.add(1 * S, {"a": 100, "b": 100})
    made.add(2 * S, {"a": 5, "b": 1000})
    assert (made.known_ns, made.breaks) == (None, 1)


@pytest.mark.parametrize("later", [{"a": 100, "b": 7}, {}, {"b": 100}])
def test_a_series_that_comes_or_goes_breaks_the_curve(later: dict[str, float]) -> None:
    made = curve((1, 100), (2, 100))
    made.add(3 * S, later)
    assert (made.known_ns, made.breaks) == (None, 1)


def test_a_reading_out_of_order_is_left_out() -> None:
    made = curve((1, 100), (2, 110))
    made.add(2 * S, {"a": 1})
    made.add(1 * S, {"a": 1})
    assert made.grown(1 * S, 2 * S) == 10


def test_single_seconds_between_readings_far_apart_are_not_made_up() -> None:
    made = curve((1, 0), (2, 10), (8, 70), (9, 80))
    assert made.grown(1 * S, 9 * S) == 80
    assert made.grown(3 * S, 4 * S, 2 * S) is None
    assert made.grown(1 * S, 2 * S, 2 * S) is None, "the edge at 2 s lies in the gap"
    assert made.grown(8 * S, 9 * S, 2 * S) == 10


def test_old_readings_are_forgotten_and_the_rest_stays_right() -> None:
    made = Curve(10 * S)
    for second in range(1000):
        made.add(second * S, {"a": 3 * second})
    assert made.known_ns is not None
    assert made.known_ns[0] in (988 * S, 989 * S)
    assert made.grown(990 * S, 999 * S) == 27


@given(
    steps=st.lists(st.tuples(st.integers(1, 3 * S), st.integers(0, 10_000)), min_size=2, max_size=40),
    cuts=st.lists(st.floats(0, 1), max_size=5),
)
def test_properties_windows_side_by_side_hold_every_token_once(
    steps: list[tuple[int, int]], cuts: list[float]
) -> None:
    made, t_ns, tokens = Curve(10**15), 0, 0
    for step_ns, more in steps:
        t_ns, tokens = t_ns + step_ns, tokens + more
        made.add(t_ns, {"a": float(tokens)})
    known = made.known_ns
    assert known is not None
    edges = sorted({known[0], known[1], *(known[0] + round(cut * (known[1] - known[0])) for cut in cuts)})
    parts = [made.grown(start, end) for start, end in pairwise(edges)]
    assert all(part is not None and part >= -1e-6 for part in parts)
    assert sum(part or 0.0 for part in parts) == pytest.approx(made.grown(*known) or 0.0, abs=1e-3)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60))
def test_properties_no_reading_whatever_makes_tokens_negative(values: list[int]) -> None:
    made = Curve(KEEP)
    for second, value in enumerate(values):
        made.add(second * S, {"a": float(value)})
        known = made.known_ns
        if known is not None:
            assert (made.grown(*known) or 0.0) >= 0
