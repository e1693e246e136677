# SPDX-License-Identifier: Apache-2.0
"""What samples say that tenants have beyond what their calls account for."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator

import pytest

from fairsched.model import Unseen
from fairsched.policy.evidence import Evidence
from fairsched.policy.sampled import binomial_tail
from fairsched.policy.unseen import borne_out, suspected_gpus, unseen_rates
from tests.unit.policy.sampled import ALWAYS_S, GPU, INNOCENT, Process, World, phase_of

BEGIN_S = 10.0
SEEDS = range(20)
HOG = "hog"


class Rated(World):
    """Remembers what each look was shown."""

    evidence = Evidence(0)

    def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
        self.evidence = super()._evidence(now_s, counts)
        return self.evidence

    def rated(self, seconds: float) -> Iterator[tuple[float, Unseen]]:
        for now_s, _ in self.looks(seconds):
            yield now_s, unseen_rates(self.state, self.evidence)


def world(processes: list[Process], seed: int) -> Rated:
    return Rated(processes, seed, phase_s=phase_of(seed), watched_s=ALWAYS_S, look_s=0.9)


def mean_rate(processes: list[Process], seed: int, tenant: str = HOG, seconds: float = 80) -> float:
    """In the mean of the time after the first twenty seconds."""
    found = [
        (now_s, one.rates.get((tenant, GPU), 0.0)) for now_s, one in world(processes, seed).rated(seconds)
    ]
    late = [(now_s, rate) for now_s, rate in found if now_s > 20]
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(late)]
    return sum(step * rate for step, (_, rate) in zip(steps, late[1:], strict=True)) / sum(steps)


def in_turn(share: float, lasts_s: float, seen_ratio: float = 0.0) -> list[Process]:
    """One after the other, each gone before anybody can say anything of it."""
    return [
        Process(
            100 + n,
            share,
            seen_ratio=seen_ratio,
            begin_s=n * lasts_s,
            busy_until_s=(n + 1) * lasts_s,
            charge_until_s=(n + 1) * lasts_s,
            tenant=HOG,
        )
        for n in range(int(90 / lasts_s))
    ]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("lasts_s", [0.2, 0.5, 4.0, 30.0, 1000.0])
def test_what_a_tenant_has_unseen_is_told_however_long_its_processes_live(
    share: float, lasts_s: float
) -> None:
    unseen = in_turn(share, lasts_s) or [Process(1, share, seen_ratio=0.0, tenant=HOG)]
    found = [mean_rate([*unseen, Process(2, 1 - share)], seed) for seed in SEEDS]
    assert statistics.mean(found) == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize("kind", INNOCENT)
def test_of_who_is_charged_what_it_had_hardly_anything_is_told(kind: str) -> None:
    """Of one that is charged a tenth too little at times something is; of the others nothing, in any look."""
    told = []
    for seed in SEEDS:
        processes = [INNOCENT[kind](0.5), Process(2, 0.4, seen_ratio=0.0, tenant=HOG)]
        told += [("t1", GPU) in one.rates for _, one in world(processes, seed).rated(40)]
    assert statistics.mean(told) <= (0.02 if kind == "one whose account is a tenth too low" else 0.0)


@pytest.mark.parametrize("lasts_s", [0.2, 1.0, 4.0])
def test_processes_that_are_charged_for_what_they_do_are_not_charged_twice(lasts_s: float) -> None:
    for seed in SEEDS:
        processes = [*in_turn(0.5, lasts_s, seen_ratio=1.0), Process(2, 0.5)]
        assert not any(one.rates for _, one in world(processes, seed).rated(60))


def test_a_few_calls_that_are_seen_hide_nothing_of_processes_that_are_gone_at_once() -> None:
    processes = [*in_turn(0.5, 0.5, seen_ratio=0.3), Process(2, 0.5)]
    assert statistics.mean(mean_rate(processes, seed) for seed in SEEDS) == pytest.approx(0.35, rel=0.15)


def test_of_one_that_is_accused_what_it_was_charged_is_not_charged_again() -> None:
    found = [
        mean_rate([Process(1, 0.5, seen_ratio=0.2, tenant=HOG), Process(2, 0.5)], seed) for seed in SEEDS
    ]
    assert statistics.mean(found) == pytest.approx(0.4, rel=0.1)


def test_all_are_left_no_more_than_the_time_there_is() -> None:
    """Two that are seen are charged all of it, as if nobody else were there."""
    seen = [Process(pid, 0.35, seen_ratio=1 / 0.7) for pid in (2, 3)]
    for seed in SEEDS:
        looks = world([Process(1, 0.3, seen_ratio=0.0, tenant=HOG), *seen], seed).rated(60)
        left = [one.left[GPU] for now_s, one in looks if now_s > 20]
        assert statistics.mean(left) == pytest.approx(0.7, abs=0.06)


def test_who_was_charged_what_it_had_is_left_all_of_it() -> None:
    for seed in SEEDS:
        looks = world([Process(1, 0.3, seen_ratio=0.0, tenant=HOG), Process(2, 0.35)], seed).rated(60)
        left = [one.left[GPU] for now_s, one in looks if now_s > 20]
        assert statistics.mean(left) > 0.97


def test_who_is_over_its_budget_is_charged_for_that_elsewhere() -> None:
    one = world([Process(1, 0.5, seen_ratio=0.0, tenant=HOG), Process(2, 0.5)], 1)
    one.over_budget = frozenset({HOG})
    assert not any(found.rates for _, found in one.rated(40))


def test_where_turns_cannot_be_followed_samples_count_all_the_more() -> None:
    """Nobody is accused there, and everybody is charged what it has."""
    one = world([Process(1, 0.5, seen_ratio=0.1, tenant=HOG), Process(2, 0.5)], 1)
    one.unsure = frozenset({GPU})
    assert any(found.rates for _, found in one.rated(40))
    assert not one.state.episodes


@pytest.mark.parametrize("charged", [0.25, 0.5])
def test_an_account_that_is_wrong_of_two_is_set_right(charged: float) -> None:
    """Both are seen and charged the same; one has three quarters of the GPU."""
    wrong = [
        Process(1, 0.75, seen_ratio=charged / 0.75, tenant=HOG),
        Process(2, 0.25, seen_ratio=charged / 0.25),
    ]
    rates, left = [], []
    for seed in SEEDS:
        late = [one for now_s, one in world(wrong, seed).rated(60) if now_s > 30]
        rates += [one.rates.get((HOG, GPU), 0.0) for one in late]
        left += [one.left.get(GPU, 1.0) for one in late]
    assert statistics.mean(rates) == pytest.approx(0.75 - charged, abs=0.03)
    assert statistics.mean(left) * charged == pytest.approx(0.25, abs=0.05)


def test_who_had_what_it_was_charged_is_borne_out() -> None:
    found: dict[float, list[bool]] = {}
    for ratio in (0.8, 1.0, 1.6):
        for seed in SEEDS:
            one = world([Process(1, 0.4, seen_ratio=ratio), Process(2, 0.6)], seed)
            told = [(1, GPU) in borne_out(one.state, one.evidence.now_ns) for _, _ in one.rated(40)]
            found.setdefault(ratio, []).extend(told[30:])
    assert statistics.mean(found[0.8]) > 0.9
    assert statistics.mean(found[1.0]) > 0.9
    assert statistics.mean(found[1.6]) < 0.2


@pytest.mark.parametrize(
    ("count", "of", "chance"), [(5, 36, 0.05), (20, 36, 0.5), (36, 36, 0.9), (30, 144, 0.1)]
)
def test_the_tail_is_that_of_a_binomial_variable(count: int, of: int, chance: float) -> None:
    terms = [math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(count, of + 1)]
    assert binomial_tail(count, of, chance) == pytest.approx(sum(terms))
    assert (binomial_tail(1, of, 0.0), binomial_tail(of, of, 1.0), binomial_tail(of + 9, of, 0.9)) == (
        0.0,
        1.0,
        pytest.approx(0.9**of),
    )


def test_it_is_told_soon_after_it_began_and_no_longer_soon_after_it_ended() -> None:
    begun_s, ended_s = [], []
    for seed in range(100):
        unseen = Process(1, 0.34, seen_ratio=0.0, begin_s=BEGIN_S, busy_until_s=30.0, tenant=HOG)
        others = [Process(pid, 0.33) for pid in (2, 3)]
        looks = world([unseen, *others], seed).rated(60)
        told_s = [now_s for now_s, one in looks if any(one.rates.values())]
        begun_s.append(told_s[0] - BEGIN_S)
        ended_s.append(told_s[-1] - 30)
    assert sorted(begun_s)[49] < 3.0
    assert sorted(begun_s)[94] < 5.0
    assert max(ended_s) < 7.0, "what was sampled once is charged once"


def test_from_the_second_sample_on_of_one_that_was_charged_nothing_nothing_is_learnt_there() -> None:
    waits_s = []
    for seed in range(100):
        unseen = Process(1, 0.34, seen_ratio=0.0, begin_s=BEGIN_S)
        one = world([unseen, Process(2, 0.33), Process(3, 0.33)], seed)
        waits_s.append(next(now_s for now_s, found in one.rated(30) if suspected_gpus(one.state, found)))
    assert statistics.median(waits_s) - BEGIN_S < 1.5
