# SPDX-License-Identifier: Apache-2.0
"""On which unseen work the account can count, and beside which its neighbours are sure of nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from fairsched.policy.evidence import Evidence
from fairsched.policy.unseen import intruded_gpus, steady_unseen
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
