# SPDX-License-Identifier: Apache-2.0
"""The definitions: deviation, coefficient of variation, whole tokens, histograms, the objective."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.slis.formulas import deviation, grown, is_fair, variation, variation_in_time

RATES = st.lists(st.floats(0.001, 1e6), min_size=2, max_size=30)


def test_by_hand() -> None:
    assert deviation([1, 2, 3, 4]) == pytest.approx(math.sqrt(5 / 3))
    assert variation([1, 3]) == pytest.approx(math.sqrt(2) / 2)


@pytest.mark.parametrize("values", [[], [5.0]])
def test_fewer_than_two_say_nothing(values: list[float]) -> None:
    assert deviation(values) is None
    assert variation(values) is None


def test_where_nothing_was_made_nothing_is_fair_or_unfair() -> None:
    assert variation([0, 0, 0]) is None
    assert variation_in_time([0.0] * 20) is None


def test_who_starves_shows() -> None:
    assert variation([0, 100]) == pytest.approx(math.sqrt(2))


@given(values=RATES, unit=st.floats(0.01, 100))
def test_properties_the_unit_does_not_matter(values: list[float], unit: float) -> None:
    once, scaled = variation(values), variation([unit * value for value in values])
    assert once is not None and scaled is not None
    assert scaled == pytest.approx(once, rel=1e-6, abs=1e-6)


@given(values=RATES)
def test_properties_equal_is_zero_and_order_does_not_matter(values: list[float]) -> None:
    assert variation([values[0]] * len(values)) == pytest.approx(0, abs=1e-6)
    assert variation(values[::-1]) == pytest.approx(variation(values) or 0.0, abs=1e-9)


@pytest.mark.parametrize("rate", [5.3, 14.1, 71.7])
def test_an_even_stream_of_tokens_is_even_although_the_counter_shows_whole_ones(rate: float) -> None:
    """As read: at moments that have nothing to do with the tokens, so that one second shows 14 and the next 15."""
    shown, chance = [], random.Random(7)
    for _ in range(200):
        phase = chance.random()
        counter = [math.floor(phase + rate * second) for second in range(61)]
        found = variation_in_time([after - before for before, after in pairwise(counter)])
        assert found is not None
        shown.append(found)
    assert sum(shown) / len(shown) < 0.35 / rate, "less than what whole tokens would add: about .4 / rate"


def test_what_varies_more_than_whole_tokens_do_is_still_seen() -> None:
    slow_and_fast = [10.0, 18.0] * 15
    assert variation_in_time(slow_and_fast) == pytest.approx(variation(slow_and_fast) or 0.0, rel=0.01)


def test_a_few_seconds_are_not_enough() -> None:
    assert variation_in_time([10.0, 20.0] * 4) is None
    assert variation_in_time([10.0, 20.0] * 5) is not None


@pytest.mark.parametrize(
    ("old", "new", "between"),
    [
        ((), (0, 2), [0, 2]),
        ((1, 2), (1, 5), [0, 3]),
        ((1, 2), (1, 2, 7), [0, 0, 7]),
        ((1, 2), (0, 9), [0, 9]),
        ((1, 2, 3), (4, 5), [4, 5]),
    ],
)
def test_what_a_histogram_grew_by(old: tuple[int, ...], new: tuple[int, ...], between: list[int]) -> None:
    assert grown(old, new) == between


@given(
    old=st.lists(st.integers(0, 100), max_size=8),
    more=st.lists(st.integers(0, 100), min_size=8, max_size=12),
)
def test_properties_what_was_counted_since_is_found_again(old: list[int], more: list[int]) -> None:
    new = [count + (old[index] if index < len(old) else 0) for index, count in enumerate(more)]
    assert grown(old, new) == more


@pytest.mark.parametrize(
    ("cv", "fair"), [(0.0, True), (0.0499, True), (0.05, False), (2.0, False), (None, None)]
)
def test_below_five_percent_is_fair(cv: float | None, fair: bool | None) -> None:
    assert is_fair(cv) is fair
