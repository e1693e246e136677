# SPDX-License-Identifier: Apache-2.0
"""Curves, spans and windows: the arithmetic under the measures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import stats
from benchmarks.fair import windows
from benchmarks.fair.windows import MS, S
from fairsched.simgpu import Step


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200), st.integers(1, 5)), max_size=20),
    st.integers(-50, 1000),
    st.integers(1, 500),
)
def test_the_token_curve_counts_as_the_slow_sum_does(
    given: list[tuple[int, int, int]], start: int, length: int
) -> None:
    steps = [Step(end * MS, float(tokens), latency * MS) for end, latency, tokens in given]
    window = (start * MS, (start + length) * MS)
    logs = [steps[::2], steps[1::2]]
    curve = windows.token_curve(logs)
    expected = sum(stats.tokens_in(one_at_a_time(log), *window) for log in logs)
    assert float(curve.grown(*window)) == pytest.approx(expected, abs=1e-3)


def one_at_a_time(log: list[Step]) -> list[Step]:
    """Each begins when the one before it is done, or when it was asked for."""
    done, found = 0, []
    for step in sorted(log, key=lambda step: step.end_ns):
        found.append(replace(step, latency_ns=min(step.latency_ns, step.end_ns - done)))
        done = step.end_ns
    return found


def test_of_eight_steps_in_flight_seven_are_waiting_and_nothing_of_them_was_made() -> None:
    """All asked for at 0; one is done each second. By 4.5 s four and a half have been made, however long they took."""
    steps = [Step(n * S, 10.0, n * S) for n in range(1, 9)]
    curve = windows.token_curve([steps])
    assert float(curve.grown(0, 4.5 * S)) == pytest.approx(45.0)
    assert float(curve.grown(4.5 * S, 8 * S)) == pytest.approx(35.0)


def test_steady_steps_do_not_vary_where_whole_tokens_would() -> None:
    """14.3 tokens/s: 14 ends in one second, 15 in the next."""
    ends = [round(n * S / 14.3) for n in range(1, 300)]
    steps = [Step(end, 1.0, round(S / 14.3)) for end in ends]
    starts, stops = windows.fixed(S, 19 * S, S)
    curve = windows.token_curve([steps])
    fractional = stats.variation(curve.grown(starts, stops))
    whole = stats.variation([sum(a < end <= b for end in ends) for a, b in zip(starts, stops, strict=True)])
    assert fractional is not None and whole is not None
    assert fractional < 1e-4 < 0.03 < whole


def test_a_curve_is_level_outside_its_points_and_straight_between() -> None:
    curve = windows.ramps(np.array([100.0, 150.0]), np.array([200.0, 250.0]), np.array([10.0, 20.0]))
    assert curve([0, 100, 150, 200, 250, 900]) == pytest.approx([0, 0, 5, 20, 30, 30])
    assert float(curve.grown(125, 175)) == pytest.approx(5.0 + 5.0)
    assert windows.summed([curve, curve])([175.0])[0] == pytest.approx(2 * 12.5)
    assert windows.summed([])([175.0])[0] == 0


def test_spans_join_over_gaps_up_to_the_grace_only() -> None:
    pairs = [(50, 60), (0, 10), (5, 20), (25, 30), (70, 70)]
    assert windows.spans(pairs).tolist() == [[0, 20], [25, 30], [50, 60]]
    assert windows.spans(pairs, grace_ns=5).tolist() == [[0, 30], [50, 60]]
    assert windows.spans([]).shape == (0, 2)


def test_a_long_span_swallows_the_short_ones_in_it() -> None:
    assert windows.spans([(0, 100), (10, 20), (30, 40), (99, 101)]).tolist() == [[0, 101]]


def test_time_in_spans() -> None:
    of = windows.spans([(0, 10), (20, 50)])
    assert windows.covered(of).grown([0, 5, 10], [30, 25, 20]) == pytest.approx([20, 10, 0])
    assert windows.clipped(of, 5, 30).tolist() == [[5, 10], [20, 30]]
    assert windows.intersection(of, windows.spans([(8, 25), (49, 60)])).tolist() == [
        [8, 10],
        [20, 25],
        [49, 50],
    ]
    assert windows.is_inside(of, np.array([-1.0, 0, 9, 10, 20, 50])).tolist() == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    assert windows.intersection(of, windows.spans([])).shape == (0, 2)


def test_fixed_windows_lie_side_by_side_and_sliding_ones_overlap() -> None:
    starts, ends = windows.fixed(S, 4.5 * S, S)
    assert starts.tolist() == [S, 2 * S, 3 * S] and ends.tolist() == [2 * S, 3 * S, 4 * S]
    starts, ends = windows.sliding(0, 1.25 * S, S)
    assert starts.tolist() == [0, 0.1 * S, 0.2 * S] and set((ends - starts).tolist()) == {S}
    assert len(windows.fixed(0, S - 1, S)[0]) == 1, "a nanosecond short is not a window short"
    assert len(windows.fixed(0, 0.5 * S, S)[0]) == 0


def test_jain_is_of_what_was_received_to_what_was_owed() -> None:
    received = np.array([[3.0, 1.0, 0.0], [1.0, 1.0, 5.0], [4.0, 0.0, 0.0], [4.0, 1.0, 1.0]])
    owed = np.array([[3.0, 1.0, 0.0], [3.0, 1.0, 5.0], [2.0, 2.0, 0.0], [4.0, 1.0, 1.0]])
    counts = np.array([[True, True, False], [True, True, True], [True, True, False], [True, False, False]])
    index = stats.jain(received, owed, counts)
    assert index[0] == pytest.approx(1.0), "3 : 1 of 3 : 1 is fair"
    assert index[1] == pytest.approx((7 / 3) ** 2 / (3 * (1 / 9 + 2)))
    assert index[2] == pytest.approx(0.5), "one of two got it all"
    assert np.isnan(index[3]), "one leaf alone cannot be treated unfairly"
    nothing_due = stats.jain(
        np.array([[3.0, 1.0, 9.0]]), np.array([[3.0, 1.0, 0.0]]), np.ones((1, 3), np.bool_)
    )
    assert nothing_due[0] == pytest.approx(1.0)


def test_variation_is_of_the_sample() -> None:
    assert stats.variation([9, 11]) == pytest.approx(2**0.5 / 10)
    assert stats.variation([7]) is None and stats.variation([0, 0]) is None


def test_rates_of_unlike_loads_are_compared_by_what_a_token_costs() -> None:
    rates = {"a": 10.0, "b": 30.0, "c": 10.0, "d": None}
    assert windows.tokens_cv_across(rates, [["a", "c"]], {}) == 0
    assert windows.tokens_cv_across(rates, [["a", "c"], ["a", "b"]], {}) == pytest.approx(200**0.5 / 20)
    assert windows.tokens_cv_across(rates, [["a", "b"]], {"a": 3e6, "b": 1e6}) == 0
    assert windows.tokens_cv_across(rates, [], {}) is None
    assert windows.tokens_cv_across(rates, [["a", "c", "d"]], {}) is None, "who made no token is not left out"
    with pytest.raises(ValueError, match="1 of 2"):
        windows.tokens_cv_across(rates, [["a", "b"]], {"a": 3e6})
