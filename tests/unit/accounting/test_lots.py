# SPDX-License-Identifier: Apache-2.0
"""What is concluded from samples: nothing that chance, or a neighbour's turns, explain as well."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.lots import MISSES, REST_NS, Look, Lots

PERIOD_NS = 139_000_000
GROUPS = {pid: 100 * pid for pid in range(1, 33)}


class World:
    """A GPU that is sampled by lot, looked at after every other sample."""

    def __init__(self, turns: Mapping[int, int], seed: int = 1) -> None:
        self.turns, self.rng = dict(turns), random.Random(seed)
        self.lots = Lots()
        for pid in turns:
            self.lots.see(pid, GROUPS[pid])

    def look(self, held: Sequence[int] = (), *, samples: int = 2) -> tuple[Counter[int], Mapping[int, int]]:
        """What was sampled, and what is charged. ``held``: pids, whose queues are empty."""
        running = {pid: turns for pid, turns in self.turns.items() if pid not in held}
        told: Counter[int] = Counter()
        for pid in self.rng.choices(list(running), list(running.values()), k=samples):
            told[pid] += PERIOD_NS
            self.lots.see(pid, GROUPS[pid])
        groups, elapsed_ns = [GROUPS[pid] for pid in held], samples * PERIOD_NS
        charged = self.lots.charged(told, groups, elapsed_ns, PERIOD_NS)
        self.lots.miss(told, groups, elapsed_ns, PERIOD_NS)
        return told, charged


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_what_is_charged_is_what_was_told(count: int, seed: int) -> None:
    world = World({pid: 1 + pid % 3 for pid in range(1, count + 1)}, seed)
    for number in range(40):
        held = [1] if number % 7 == 3 else []
        told, charged = world.look(held)
        assert min(charged.values(), default=0) >= 0
        assert abs(sum(charged.values()) - sum(told.values())) <= count


@pytest.mark.parametrize(("count", "most_uneven"), [(2, 5), (4, 10), (8, 20)])
def test_chance_moves_no_account_of_who_takes_equal_turns(count: int, most_uneven: int) -> None:
    """Over a minute each of a hundred times: seldom is one charged a tenth more than another, or taken to be gone."""
    uneven = 0
    for seed in range(100):
        world, charged = World(dict.fromkeys(range(1, count + 1), 1), seed), Counter[int]()
        for _ in range(216):
            charged.update(world.look()[1])
        most, least = (how(charged[pid] for pid in world.turns) for how in (max, min))
        uneven += most - least > 0.1 * sum(charged.values()) / count
    assert uneven <= most_uneven


@pytest.mark.parametrize("turns", [{1: 8, 2: 1, 3: 1}, {1: 1, 2: 3}, {1: 4, 2: 2, 3: 1}])
def test_unequal_turns_are_charged_as_sampled(turns: dict[int, int]) -> None:
    world = World(turns, seed=4)
    for _ in range(60):
        world.look()
    told, charged = Counter[int](), Counter[int]()
    for _ in range(40):
        one, other = world.look()
        told.update(one)
        charged.update(other)
    assert charged == told


def test_equal_turns_are_not_assumed_while_somebody_is_held_nor_soon_afterwards() -> None:
    world = World({1: 1, 2: 1})
    for _ in range(20):
        world.look()
    told, charged = world.look(held=[1])
    assert charged == told
    for _ in range(REST_NS // (2 * PERIOD_NS)):
        told, charged = world.look()
        assert charged == told
    told, charged = world.look()
    assert charged == {1: PERIOD_NS, 2: PERIOD_NS}


def test_one_beside_eight_contexts_of_another_is_not_taken_to_be_gone() -> None:
    """It is in a tenth of the samples: missing from fifteen in a row every fifth time, and always there."""
    gone = 0
    for seed in range(20):
        world = World({1: 8, 2: 1, 3: 1}, seed)
        for number in range(300):
            world.look(samples=1)
            gone += number > 100 and world.lots.processes[2].is_gone
    assert gone <= 0.1 * 20 * 200


def test_turns_are_shared_out_among_those_that_run() -> None:
    """While the one with eight is held the others learn nothing of their part of the whole."""
    world = World({1: 8, 2: 1, 3: 1})
    for _ in range(150):
        world.look()
    for _ in range(150):
        world.look(held=[1])
    turns = {pid: process.turns for pid, process in world.lots.processes.items()}
    assert turns[1] > 2.5 * (turns[2] + turns[3])


def test_one_that_leaves_is_missing_from_as_many_samples_as_its_turns_are_worth() -> None:
    world = World({1: 1, 2: 1})
    for _ in range(100):
        world.look()
    del world.turns[2]
    looks = 0
    while not world.lots.processes[2].is_gone:
        world.look(samples=1)
        looks += 1
    assert MISSES <= looks <= 4 * MISSES
    _, charged = world.look()
    assert charged.keys() <= {1}


def look_of(
    used_ns: int, *, idle_ns: int = 0, is_free: bool = False, elapsed_ns: int = 2 * PERIOD_NS
) -> Look:
    there = Counter((GROUPS[1], GROUPS[2]))
    return Look("a", [GROUPS[1]], used_ns, idle_ns, elapsed_ns, PERIOD_NS, is_free, there)


def test_an_idle_gpu_is_no_pause_of_one_whose_rivals_ran() -> None:
    world = World({1: 1, 2: 1})
    for _ in range(50):
        assert world.lots.paused_ns(look_of(PERIOD_NS // 2, idle_ns=PERIOD_NS)) == 0


def test_who_was_seen_to_pause_is_believed_to_want_its_part_again_some_minutes_later() -> None:
    world = World({1: 1, 2: 1})
    for _ in range(5):
        world.lots.paused_ns(look_of(0, idle_ns=2 * PERIOD_NS, is_free=True))
    paused_ns = world.lots.paused_ns(look_of(PERIOD_NS // 10))
    assert paused_ns == pytest.approx(2 * PERIOD_NS - 2 * PERIOD_NS / 10)
    for _ in range(1300):
        paused_ns = world.lots.paused_ns(look_of(PERIOD_NS // 10))
    assert paused_ns == 0


def test_the_turns_of_a_tenant_are_those_of_its_processes_that_take_turns() -> None:
    """Two of its ten processes have drained: eight of nine turns are its."""
    lots, groups = Lots(), {*range(1, 11)}
    for pid in range(1, 12):
        lots.see(pid, pid)
    lots.processes[1].absent = lots.processes[2].absent = 2.5
    for idle_ns in (2 * PERIOD_NS,) * 5:
        lots.paused_ns(Look("a", groups, 0, idle_ns, 2 * PERIOD_NS, PERIOD_NS, True, lots.there()))
    paused_ns = lots.paused_ns(Look("a", groups, 800, 0, 900, PERIOD_NS, False, lots.there()))
    assert paused_ns == 0


def test_a_sample_more_or_less_in_a_look_is_no_idle_gpu() -> None:
    """Looks of a quarter of a second have one sample or two."""
    lots, told_ns, idle_ns = Lots(), 0, 0
    for number in range(1, 401):
        now_ns = number * 250_000_000
        used_ns = now_ns // PERIOD_NS * PERIOD_NS - told_ns
        told_ns += used_ns
        idle_ns += lots.idle_ns({1: used_ns}, 250_000_000, PERIOD_NS)
    assert idle_ns <= 2 * PERIOD_NS
