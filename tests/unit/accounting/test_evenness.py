# SPDX-License-Identifier: Apache-2.0
"""When the cost of work, alone and in company, says that turns are unequal; and what must never say so."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.accounting.evenness import Evenness

MS = 1_000_000
S = 1000 * MS
BURST_NS = 20 * MS
LAUNCHES = 20
STAYS_NS = 60 * S
RECENT_NS = 10 * S
ENOUGH = 8


class Day:
    """Bursts of one context, one every 50 ms."""

    def __init__(self) -> None:
        self.evenness = Evenness()
        self.now_ns = 0

    def alone(self, count: int = 1, factor: float = 1.0, key: str = "a", launches: int = LAUNCHES) -> Day:
        """Charged for all the time they took."""
        return self._burst(count, round(BURST_NS * factor), 1.0, key, launches)

    def in_company(
        self, count: int = 1, factor: float = 1.0, key: str = "a", launches: int = LAUNCHES
    ) -> Day:
        """Charged for half of it."""
        return self._burst(count, round(BURST_NS * factor), 0.5, key, launches)

    def _burst(self, count: int, spent_ns: int, part: float, key: str, launches: int) -> Day:
        for _ in range(count):
            self.now_ns += 50 * MS
            self.evenness.note(
                key, f"tenant of {key}", spent_ns, launches, round(spent_ns / part), self.now_ns
            )
        return self

    @property
    def is_uneven(self) -> bool:
        return bool(self.evenness.claims(self.now_ns))


def test_work_that_costs_the_same_alone_and_in_company_is_even() -> None:
    assert not Day().alone(40).in_company(40).is_uneven


@pytest.mark.parametrize("factor", [2 / 3, 4 / 3])
def test_work_that_is_charged_a_third_less_or_more_in_company_is_not(factor: float) -> None:
    assert Day().alone(ENOUGH).in_company(ENOUGH, factor).is_uneven
    assert Day().in_company(ENOUGH, factor).alone(ENOUGH).is_uneven, "in whichever order"


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_a_difference_that_habit_explains_says_nothing(factor: float) -> None:
    assert not Day().alone(40).in_company(40, factor).is_uneven


def test_what_counts_is_the_cost_of_a_launch_not_of_a_burst() -> None:
    assert not Day().alone(40, 1.0, launches=20).in_company(40, 0.5, launches=10).is_uneven
    assert Day().alone(40, 1.0, launches=20).in_company(40, 1.0, launches=10).is_uneven


def test_each_context_is_compared_with_itself() -> None:
    assert not Day().alone(40, key="a").in_company(40, 0.5, key="b").is_uneven


def test_who_says_so_is_told_and_how_much_its_work_costs_in_company() -> None:
    day = Day().alone(ENOUGH).in_company(ENOUGH, 1.5).alone(40, key="b").in_company(40, key="b")
    assert day.evenness.claims(day.now_ns) == {"tenant of a": pytest.approx(1.5)}


def test_it_is_said_for_a_minute_after_the_last_sign_of_it() -> None:
    day = Day().alone(ENOUGH).in_company(ENOUGH, 0.66)
    said_ns = day.now_ns
    assert day.evenness.claims(said_ns + STAYS_NS - 1)
    assert not day.evenness.claims(said_ns + STAYS_NS)
    day.in_company(1, 0.66)
    assert day.evenness.claims(day.now_ns + STAYS_NS - 1)


def test_a_few_samples_say_nothing() -> None:
    assert not Day().alone(ENOUGH - 1).in_company(40, 0.5).is_uneven
    assert not Day().alone(40).in_company(ENOUGH - 1, 0.5).is_uneven


def test_old_samples_say_nothing() -> None:
    day = Day().alone(ENOUGH)
    day.now_ns += RECENT_NS - 50 * MS  # the first one alone is too old with the first one in company
    assert not day.in_company(ENOUGH, 0.5).is_uneven
    day = Day().alone(ENOUGH)
    day.now_ns += RECENT_NS - (2 * ENOUGH) * 50 * MS
    assert day.in_company(ENOUGH, 0.5).is_uneven


@pytest.mark.parametrize(
    ("alone", "company", "counts"), [(0.92, 0.5, False), (1.0, 0.68, False), (0.93, 0.66, True)]
)
def test_bursts_neither_alone_nor_in_company_are_not_counted(
    alone: float, company: float, counts: bool
) -> None:
    evenness, now = Evenness(), 0
    for part, spent_ns in [(alone, BURST_NS), (company, BURST_NS // 2)] * 40:
        now += 50 * MS
        evenness.note("a", "tenant", spent_ns, LAUNCHES, round(spent_ns / part), now)
    assert bool(evenness.claims(now)) is counts


def test_a_burst_that_was_charged_nothing_is_passed_over() -> None:
    day = Day().alone(ENOUGH)
    for spent_ns in (0, -5):
        day.evenness.note("a", "tenant", spent_ns, LAUNCHES, BURST_NS, day.now_ns)
    day.evenness.note("a", "tenant", 0, LAUNCHES, 0, day.now_ns)
    assert not day.is_uneven


# ---- chance ----


def bursts(seed: int, spread: float, count: int, kernels: int) -> Iterator[tuple[bool, float]]:
    """(Whether alone, its cost in parts of the mean): a third alone, kernels log-normal by ``spread``."""
    chance = random.Random(seed)
    for _ in range(count):
        costs = [chance.lognormvariate(0, spread) for _ in range(kernels)]
        yield chance.random() < 1 / 3, sum(costs) / kernels


def ever_uneven(seed: int, *, spread: float = 0.3, kernels: int = 1, in_company: float = 1.0) -> bool:
    day = Day()
    for is_alone, cost in bursts(seed, spread, 100, kernels):
        (day.alone if is_alone else day.in_company)(1, cost if is_alone else cost * in_company)
        if day.is_uneven:
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_kernels_that_vary_by_a_third_say_nothing(seed: int) -> None:
    assert not ever_uneven(seed, kernels=10)


def test_bursts_of_one_kernel_that_varies_by_a_third_hardly_ever_do() -> None:
    assert sum(ever_uneven(seed) for seed in range(60)) <= 1


def test_in_all_that_noise_a_third_less_is_found() -> None:
    assert all(ever_uneven(seed, kernels=10, in_company=0.66) for seed in range(20))
    assert sum(ever_uneven(seed, in_company=0.6) for seed in range(20)) > 15


# ---- forgetting ----


def test_of_a_context_that_is_gone_nothing_is_kept() -> None:
    day = Day().alone(40)
    day.evenness.forget("a")
    day.evenness.forget("a")
    assert not day.in_company(40, 0.5).is_uneven
    day = Day().in_company(40, 0.5)
    day.evenness.forget("a")
    assert not day.alone(40).is_uneven


def test_a_verdict_outlives_the_context_that_gave_rise_to_it() -> None:
    day = Day().alone(ENOUGH).in_company(ENOUGH, 0.5)
    day.evenness.forget("a")
    assert day.is_uneven, "the GPU is still the same"


def test_another_replay_begins_without_verdict_and_without_samples() -> None:
    day = Day().alone(40).in_company(40, 0.5)
    day.evenness.reset()
    assert not day.is_uneven
    assert not day.in_company(40, 0.5).is_uneven
    day.evenness.reset()
    assert not day.alone(40).is_uneven
