# SPDX-License-Identifier: Apache-2.0
"""Samples undercount a partly idle GPU; scaled to its load they add up to it, and shares stay what they were."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.normalise import MEMORY_NS, Normaliser
from fairsched.accounting.nvml import NvmlAccount
from fairsched.gpu.sampler import NvmlReader, Sample

S_NS = 1_000_000_000
POLL_NS = 250_000_000
WINDOW_NS = 139_000_000


def drawn(load: float, parts: dict[int, float], seconds: int, seed: int) -> tuple[Counter[int], Counter[int]]:
    """GPU time by process as samples of a GPU at ``load`` have it, and scaled: one sample per window, on whoever is on
    the GPU then; at an idle moment on nobody."""
    rng = random.Random(seed)
    normaliser = Normaliser(lambda _slot: load)
    sampled: Counter[int] = Counter()
    scaled: Counter[int] = Counter()
    for poll in range(seconds * S_NS // POLL_NS):
        used: dict[int, int] = {}
        for _ in range((poll + 1) * POLL_NS // WINDOW_NS - poll * POLL_NS // WINDOW_NS):
            if rng.random() < load:
                (pid,) = rng.choices(list(parts), list(parts.values()))
                used[pid] = used.get(pid, 0) + int(load * WINDOW_NS)
        sampled.update(used)
        scaled.update(normaliser.scaled(0, used, poll * POLL_NS))
    return sampled, scaled


@pytest.mark.parametrize("load", [0.1, 0.4, 0.8, 1.0])
def test_the_sum_is_what_the_gpu_was_active_for(load: float) -> None:
    seconds = 600
    sampled, scaled = drawn(load, {1: 0.25, 2: 0.75}, seconds, seed=7)
    truth_ns = load * seconds * S_NS
    assert sampled.total() / truth_ns == pytest.approx(load, rel=0.15), "the samples alone: load squared"
    assert scaled.total() / truth_ns == pytest.approx(1.0, abs=0.02)
    assert scaled[1] / scaled.total() == pytest.approx(0.25, abs=0.06)


def test_shares_are_not_biased_by_who_is_sampled_rarely() -> None:
    runs = [drawn(0.3, {1: 0.1, 2: 0.9}, 120, seed)[1] for seed in range(40)]
    shares = [run[1] / run.total() for run in runs]
    assert sum(shares) / len(shares) == pytest.approx(0.1, abs=0.015)


def test_the_first_look_is_as_sampled_and_so_is_all_without_a_load() -> None:
    loads: list[float | None] = [0.5, None, None, 0.5, 0.5]
    normaliser = Normaliser(lambda _slot: loads.pop(0))
    said = [normaliser.scaled(0, {1: 100_000_000}, now * S_NS) for now in range(5)]
    raw = {1: 100_000_000}
    # One second at half load is half a second; the second after DCGM came back is not made up for.
    assert said == [raw, raw, raw, raw, {1: 500_000_000}]


def test_time_passes_on_each_gpu_by_itself() -> None:
    normaliser = Normaliser(lambda slot: (0.25, 1.0)[slot])
    for slot in (0, 1):
        normaliser.scaled(slot, {}, 0)
    assert normaliser.scaled(0, {1: 7}, S_NS) == {1: S_NS // 4}
    assert normaliser.scaled(1, {1: 7}, S_NS) == {1: S_NS}


def test_what_nobody_was_sampled_for_goes_to_the_next_and_after_ten_seconds_to_nobody() -> None:
    normaliser = Normaliser(lambda _slot: 0.5)
    normaliser.scaled(0, {}, 0)
    for now in range(1, 4):
        assert normaliser.scaled(0, {}, now * S_NS) == {}
    assert normaliser.scaled(0, {1: 5, 2: 15}, 4 * S_NS) == {1: S_NS // 2, 2: 3 * S_NS // 2}
    for now in range(5, 64):
        normaliser.scaled(0, {}, now * S_NS)
    (late_ns,) = normaliser.scaled(0, {1: 5}, 64 * S_NS).values()
    assert late_ns <= 0.5 * (MEMORY_NS + S_NS)


def test_a_sample_of_no_time_is_charged_nothing_and_takes_nothing_off() -> None:
    normaliser = Normaliser(lambda _slot: 1.0)
    normaliser.scaled(0, {}, 0)
    assert normaliser.scaled(0, {1: 0}, S_NS) == {1: 0}
    assert normaliser.scaled(0, {2: 1}, 2 * S_NS) == {2: 2 * S_NS}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(-1, 3)),
            st.dictionaries(st.integers(1, 4), st.integers(0, 10**9), max_size=4),
            st.integers(0, 30 * S_NS),
        ),
        max_size=40,
    )
)
def test_no_total_ever_falls_and_none_exceeds_the_time(
    steps: list[tuple[float | None, dict[int, int], int]],
) -> None:
    load: float | None = None
    normaliser = Normaliser(lambda _slot: load)
    now_ns = since_ns = charged_ns = 0
    was_known = False
    for load, used, passed_ns in steps:
        now_ns += passed_ns
        said = normaliser.scaled(0, used, now_ns)
        assert set(said) == set(used) and all(ns >= 0 for ns in said.values())
        if load is None or not was_known:
            assert said == used
            since_ns, charged_ns = now_ns, 0
        else:
            charged_ns += sum(said.values())
            assert charged_ns <= now_ns - since_ns + len(steps)
        was_known = load is not None


def test_the_sampled_account_charges_what_the_normaliser_says() -> None:
    start_us = 10**15
    at = [0]
    nvml = SimpleNamespace(
        read=lambda _after_us: [Sample(start_us + n * 139_000, 7, 0.5) for n in range(at[0])]
    )
    account = NvmlAccount([cast(NvmlReader, cast(Any, nvml))], lambda _pid: 42, poll_ns=0)
    account.normaliser = Normaliser(lambda _slot: 0.5)
    used_ns = []
    for now in range(1, 5):
        at[0] = 1 + now * 7
        used_ns += [row.used_ns for row in account.read(now * S_NS)]
    assert used_ns[-3:] == [S_NS // 2] * 3
