# SPDX-License-Identifier: Apache-2.0
"""On which unseen work the account can count, and beside which its neighbours are sure of nothing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

import pytest

from fairsched.policy.evidence import Evidence
from fairsched.policy.unseen import intruded_gpus, steady_unseen, uncharged
from tests.unit.policy.sampled import ALWAYS_S, GPU, Process, S, World, phase_of

BEGIN_S = 10.0
SEEDS = range(100)


class Counting(World):
    """Remembers what each look was shown."""

    evidence = Evidence(0)

    def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
        self.evidence = super()._evidence(now_s, counts)
        return self.evidence

    def counted(self, seconds: float) -> Iterator[tuple[float, bool, bool]]:
        """When, whether it is counted on, and whether nobody can be sure."""
        steady = frozenset()  # type: ignore[var-annotated]
        for now_s, _ in self.looks(seconds):
            steady = steady_unseen(self.state, self.evidence, steady)
            yield now_s, bool(steady), GPU in intruded_gpus(self.state, steady, round(now_s * S))


def beside_two(share: float, seed: int, *, until_s: float = 1e9) -> Counting:
    """Two that are seen share the rest."""
    unseen = Process(1, share, seen_ratio=0.0, begin_s=BEGIN_S, busy_until_s=until_s)
    others = [Process(pid, (1 - share) / 2) for pid in (2, 3)]
    return Counting([unseen, *others], seed, phase_s=phase_of(seed), watched_s=ALWAYS_S, look_s=0.9)


def test_who_has_every_third_turn_is_counted_on_as_soon_as_it_is_found_and_not_given_up_for_chance() -> None:
    waits_s, looks, given_up = [], 0, 0
    for seed in SEEDS:
        world = beside_two(0.34, seed)
        found_s = counted_s = None
        for now_s, is_counted, _ in world.counted(BEGIN_S + 30):
            if world.state.episodes and found_s is None:
                found_s = now_s
            if is_counted and counted_s is None:
                counted_s = now_s
            looks += counted_s is not None
            given_up += counted_s is not None and not is_counted
        assert found_s is not None and counted_s is not None
        waits_s.append(counted_s - found_s)
    assert sorted(waits_s)[74] < 0.1
    assert sorted(waits_s)[94] < 1.0
    assert sorted(waits_s)[97] < 4.0
    assert given_up / looks < 0.01


@pytest.mark.parametrize(("share", "least", "most"), [(0.1, 0.5, 1.0), (0.01, 0.0, 0.04)])
def test_who_takes_less_is_not_counted_on_and_makes_nobody_sure_if_it_shows(
    share: float, least: float, most: float
) -> None:
    looks = counted = intruded = 0
    for seed in range(20):
        for now_s, is_counted, is_intruded in beside_two(share, seed).counted(120):
            if now_s > 60:
                looks, counted, intruded = looks + 1, counted + is_counted, intruded + is_intruded
    assert counted / looks < 0.1
    assert least <= intruded / looks <= most


def test_from_the_second_sample_of_one_that_was_charged_nothing_nobody_is_sure() -> None:
    doubted_s, found_s = [], []
    for seed in SEEDS:
        world = beside_two(0.34, seed)
        times = [
            (now_s, is_intruded, bool(world.state.episodes)) for now_s, _, is_intruded in world.counted(20)
        ]
        doubted_s.append(next(now_s for now_s, is_intruded, _ in times if is_intruded) - BEGIN_S)
        found_s.append(next(now_s for now_s, _, is_found in times if is_found) - BEGIN_S)
    assert statistics.median(doubted_s) < 1.4
    assert statistics.median(found_s) > 1.7


def test_it_is_given_up_when_it_has_ended() -> None:
    for seed in range(20):
        later = [
            (is_counted, is_intruded)
            for now_s, is_counted, is_intruded in beside_two(0.34, seed, until_s=30).counted(60)
            if now_s > 40
        ]
        assert set(later) == {(False, False)}


def charged_beyond(processes: list[Process], seed: int) -> float:
    """What samples say that the tenant had beyond what it was charged, in the mean of a minute."""
    world = Counting(processes, seed, phase_s=phase_of(seed), watched_s=ALWAYS_S, look_s=0.9)
    found = [
        (now_s, uncharged(world.state, world.evidence).get(("hog", GPU), 0.0)) for now_s, _ in world.looks(80)
    ]
    late = [(now_s, ratio) for now_s, ratio in found if now_s > 20]
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(late)]
    return sum(step * ratio for step, (_, ratio) in zip(steps, late[1:], strict=True)) / sum(steps)


def in_turn(share: float, lasts_s: float, seen_ratio: float) -> list[Process]:
    """One after the other, each gone before anybody can say anything of it."""
    count = int(80 / lasts_s)
    return [
        Process(100 + n, share, seen_ratio=seen_ratio, begin_s=n * lasts_s, busy_until_s=(n + 1) * lasts_s,
                charge_until_s=(n + 1) * lasts_s, tenant="hog")
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("lasts_s", [0.2, 0.5, 4.0])
def test_what_a_tenant_has_unseen_is_charged_to_it_however_short_its_processes_live(lasts_s: float) -> None:
    found = [charged_beyond([*in_turn(0.3, lasts_s, 0.0), Process(1, 0.7)], seed) for seed in range(5)]
    assert statistics.mean(found) == pytest.approx(0.3, abs=0.05)


def test_of_one_that_is_charged_for_a_part_the_rest_is_charged() -> None:
    """Of a GPU .4, of which its calls account for .08; what was charged a little earlier may explain samples, too."""
    partly = Process(100, 0.4, seen_ratio=0.2, tenant="hog")
    found = [charged_beyond([partly, Process(1, 0.5)], seed) for seed in range(10)]
    assert statistics.mean(found) == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(("share", "lasts_s"), [(0.3, 0.2), (0.02, 0.4), (0.3, 4.0), (0.1, 80.0)])
def test_who_is_charged_for_all_it_has_is_charged_nothing_beyond(share: float, lasts_s: float) -> None:
    found = [charged_beyond([*in_turn(share, lasts_s, 1.0), Process(1, 0.7)], seed) for seed in range(5)]
    assert statistics.mean(found) < 0.01
