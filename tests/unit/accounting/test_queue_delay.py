# SPDX-License-Identifier: Apache-2.0
"""Quantiles of the log2 histogram against the quantiles of what was put into it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.queue_delay import quantile_ms
from fairsched.bpf import abi


def histogram(waits: list[int]) -> list[int]:
    buckets = [0] * abi.DELAY_BUCKETS
    for wait in waits:
        buckets[min(max(wait.bit_length() - 1, 0), abi.DELAY_BUCKETS - 1)] += 1
    return buckets


def test_nothing_counted_is_not_zero() -> None:
    assert quantile_ms([], 0.5) is None
    assert quantile_ms([0] * abi.DELAY_BUCKETS, 0.99) is None


def test_one_bucket_is_interpolated() -> None:
    buckets = [0] * 40
    buckets[20] = 4
    assert quantile_ms(buckets, 0.5) == pytest.approx(1.5 * 2**20 / 1e6)
    assert quantile_ms(buckets, 1.0) == pytest.approx(2**21 / 1e6)


def test_the_first_bucket_begins_at_zero() -> None:
    assert quantile_ms([10], 0.5) == pytest.approx(1e-6)
    assert quantile_ms([10], 0.0) == 0.0


@given(
    waits=st.lists(st.integers(0, 2**39), min_size=1, max_size=200),
    q=st.floats(0.01, 1.0),
)
def test_a_quantile_is_within_a_factor_of_two(waits: list[int], q: float) -> None:
    found = quantile_ms(histogram(waits), q)
    assert found is not None
    waits.sort()
    rank = min(len(waits) - 1, max(0, -int(-q * len(waits) // 1) - 1))
    true_ns = waits[rank]
    assert true_ns / 2 - 2 <= found * 1e6 <= 2 * true_ns + 2


@given(waits=st.lists(st.integers(0, 2**39), min_size=1), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_higher_quantile_is_never_lower(waits: list[int], low: float, high: float) -> None:
    buckets = histogram(waits)
    first, second = (quantile_ms(buckets, q) for q in sorted((low, high)))
    assert first is not None
    assert second is not None
    assert first <= second
