# SPDX-License-Identifier: Apache-2.0
"""Quantiles of the log2 histogram against the quantiles of what was put into it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.queue_delay import DelayBook
from fairsched.bpf import abi
from fairsched.protocol.delays import quantile_ms


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
