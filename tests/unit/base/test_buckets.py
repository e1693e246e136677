# SPDX-License-Identifier: Apache-2.0
"""Each duration has one bucket, and buckets are narrow."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairsched.base.buckets import COUNT, WIDEST, bound_ns, bucket_of

BOUNDS = [bound_ns(bucket) for bucket in range(COUNT + 1)]
MS = 1_000_000


@given(st.integers(0, 2**42))
def test_a_duration_is_between_the_bounds_of_its_bucket(ns: int) -> None:
    bucket = bucket_of(ns)
    assert 0 <= bucket < COUNT
    assert BOUNDS[bucket] <= ns
    assert ns < BOUNDS[bucket + 1] or bucket == COUNT - 1


def test_bounds_go_up_by_a_quarter_at_most() -> None:
    assert BOUNDS[0] == 0
    assert all(low < high for low, high in pairwise(BOUNDS))
    assert all(high <= WIDEST * low for low, high in pairwise(BOUNDS[4:]))
    assert BOUNDS[-1] > 60_000 * MS


def test_twenty_milliseconds_are_told_from_sixteen_and_from_twenty_five() -> None:
    assert len({bucket_of(ms * MS) for ms in (16, 20, 25)}) == 3
