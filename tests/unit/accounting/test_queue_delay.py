# SPDX-License-Identifier: Apache-2.0
"""Quantiles of a histogram against the quantiles of what was put into it, and totals that never fall."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.queue_delay import DelayBook
from fairsched.base import buckets
from fairsched.protocol.delays import quantile_ms


def histogram(waits: list[int]) -> list[int]:
    counted = [0] * buckets.COUNT
    for wait in waits:
        counted[buckets.bucket_of(wait)] += 1
    return counted


def test_nothing_counted_is_not_zero() -> None:
    assert quantile_ms([], 0.5) is None
    assert quantile_ms([0] * buckets.COUNT, 0.99) is None


def test_one_bucket_is_interpolated() -> None:
    counted = [0] * 20 + [4]
    low, high = buckets.bound_ns(20), buckets.bound_ns(21)
    assert quantile_ms(counted, 0.5) == pytest.approx((low + high) / 2e6)
    assert quantile_ms(counted, 1.0) == pytest.approx(high / 1e6)


def test_the_first_bucket_begins_at_zero() -> None:
    assert quantile_ms([10], 0.5) == pytest.approx(512e-6)
    assert quantile_ms([10], 0.0) == 0.0


@given(
    waits=st.lists(st.integers(0, 2**35), min_size=1, max_size=200),
    q=st.floats(0.01, 1.0),
)
def test_a_quantile_is_right_within_a_bucket(waits: list[int], q: float) -> None:
    found = quantile_ms(histogram(waits), q)
    assert found is not None
    waits.sort()
    rank = min(len(waits) - 1, max(0, -int(-q * len(waits) // 1) - 1))
    true_ns = waits[rank]
    near_ns = 4096
    assert true_ns / buckets.WIDEST - near_ns <= found * 1e6 <= buckets.WIDEST * true_ns + near_ns


@given(waits=st.lists(st.integers(0, 2**39), min_size=1), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_higher_quantile_is_never_lower(waits: list[int], low: float, high: float) -> None:
    counted = histogram(waits)
    first, second = (quantile_ms(counted, q) for q in sorted((low, high)))
    assert first is not None
    assert second is not None
    assert first <= second


def entry(cgroup_id: int, gpu: int, *bucket: int, sum_ns: int) -> Any:
    return SimpleNamespace(cgroup_id=cgroup_id, gpu=gpu), SimpleNamespace(bucket=list(bucket), sum_ns=sum_ns)


OWNERS = {1: "chat", 2: "chat", 3: "train"}
ALL = ("chat", "train")


def test_the_delays_of_a_tenant_are_those_of_its_cgroups_by_gpu() -> None:
    book = DelayBook()
    delays = [
        entry(1, 0, 1, 2, sum_ns=10),
        entry(2, 0, 3, 0, sum_ns=5),
        entry(2, 1, 7, 7, sum_ns=9),
        entry(3, 0, 4, 4, sum_ns=1),
        entry(9, 0, 8, 8, sum_ns=8),
    ]
    found = book.read(delays, OWNERS.get, ALL)
    assert found == {("chat", 0): [4, 2, 15], ("chat", 1): [7, 7, 9], ("train", 0): [4, 4, 1]}
    assert book.entries == 5


def test_what_a_cgroup_counted_stays_when_it_goes() -> None:
    book = DelayBook()
    before = [entry(1, 0, 1, 2, sum_ns=10), entry(2, 0, 3, 0, sum_ns=5)]
    assert book.read(before, OWNERS.get, ALL) == {("chat", 0): [4, 2, 15]}
    # the cgroup is gone from the tree at first, and then from the map
    assert book.read(before, {2: "chat"}.get, ALL) == {("chat", 0): [4, 2, 15]}
    assert book.gone(lambda cgroup_id: cgroup_id != 1) == [(1, 0)]
    after = [entry(2, 0, 4, 0, sum_ns=6)]
    for _ in range(2):
        assert book.read(after, {2: "chat"}.get, ALL) == {("chat", 0): [5, 2, 16]}
    assert book.gone(lambda cgroup_id: cgroup_id != 1) == []


def test_entries_of_nobody_do_not_fill_the_map_and_new_cgroups_keep_theirs() -> None:
    book = DelayBook()
    delays = [entry(8, 0, 1, 0, sum_ns=1), entry(9, 0, 1, 0, sum_ns=1)]
    assert book.read(delays, OWNERS.get, ALL) == {}
    assert book.gone(lambda _cgroup_id: False) == [], "they may be younger than the last look"
    assert book.read(delays, OWNERS.get, ALL) == {}
    assert book.gone(lambda cgroup_id: cgroup_id == 9) == [(8, 0)]


def test_probes_that_were_loaded_again_count_on() -> None:
    book = DelayBook()
    book.read([entry(1, 0, 5, 5, sum_ns=50)], OWNERS.get, ALL)
    assert book.read([entry(1, 0, 1, 0, sum_ns=1)], OWNERS.get, ALL) == {("chat", 0): [6, 5, 51]}


def test_of_tenants_that_are_no_more_nothing_is_kept() -> None:
    book = DelayBook()
    book.read([entry(3, 0, 5, 5, sum_ns=50)], OWNERS.get, ALL)
    assert book.read([], OWNERS.get, ("chat",)) == {}
    assert book.read([], OWNERS.get, ALL) == {}


@given(
    steps=st.lists(
        st.dictionaries(st.integers(1, 3), st.integers(0, 5), max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_totals_never_fall(steps: list[dict[int, int]]) -> None:
    """Cgroups come, count, and go in any order; one that went does not come back."""
    book, counts, gone, last = DelayBook(), dict[int, int](), set[int](), 0
    for step in steps:
        gone |= counts.keys() - step.keys()
        for cgroup_id, more in step.items():
            if cgroup_id not in gone:
                counts[cgroup_id] = counts.get(cgroup_id, 0) + more
        shown = [entry(key, 0, count, sum_ns=count) for key, count in counts.items() if key not in gone]
        found = book.read(shown, {1: "chat", 2: "chat", 3: "chat"}.get, ("chat",))
        total = found.get(("chat", 0), [0])[0]
        assert total == sum(counts.values()) >= last
        last = total
