# SPDX-License-Identifier: Apache-2.0
"""The rule of bpf/vram_gate.h, step by step: calls of several processes in any order, each read on its own.

The program cannot run here, so this is its twin over a simulated driver; tests/vm runs the program itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

LIMIT = 10
TRIES = 4
GROUPS = 3

Steps = Generator[None, None, None]


@dataclass
class Sum:
    """struct fs_cgroup_vram, of one GPU."""

    held: int = 0
    begun: int = 0
    ended: int = 0


@dataclass
class World:
    """A tenant of some cgroups; what the driver gave it; and what was found out about the rule."""

    sums: list[Sum] = field(default_factory=lambda: [Sum() for _ in range(GROUPS)])
    given: int = 0
    """By the driver."""
    in_flight: int = 0
    most_in_flight: int = 0
    refused: int = 0
    unjustified: int = 0

    @property
    def charged(self) -> int:
        return sum(one.held for one in self.sums)


def has_more(world: World, room: int) -> Generator[None, None, bool]:
    """Twin of has_more(): one read between two yields."""
    for _ in range(TRIES):
        ended = held = begun = 0
        for one in world.sums:
            yield
            ended += one.ended
        for one in world.sums:
            yield
            held += max(0, one.held)
        for one in world.sums:
            yield
            begun += one.begun
        if held <= room:
            return False
        if begun == ended:
            return True
    return False


def has_more_read_once(world: World, room: int) -> Generator[None, None, bool]:
    """What it would be without the check."""
    held = 0
    for one in world.sums:
        yield
        held += max(0, one.held)
    return held > room


Rule = Callable[[World, int], Generator[None, None, bool]]


def call(world: World, rule: Rule, group: int, size: int, *, may_fail: bool) -> Steps:
    """One process: allocates, and frees what it got."""
    world.in_flight += size
    world.most_in_flight = max(world.most_in_flight, world.in_flight)
    most, judging = world.charged, rule(world, LIMIT - size)
    while True:
        try:
            next(judging)
        except StopIteration as done:
            is_refused = bool(done.value)
            break
        yield
        most = max(most, world.charged)
    most = max(most, world.charged)
    if is_refused:
        world.in_flight -= size
        world.refused += 1
        world.unjustified += most + size <= LIMIT
        return
    yield
    if may_fail:  # the driver has not so much left
        world.in_flight -= size
        return
    world.given += size
    yield
    world.sums[group].held += size
    world.in_flight -= size
    yield
    world.given -= size
    yield
    world.sums[group].begun += 1
    yield
    world.sums[group].held -= size
    yield
    world.sums[group].ended += 1


CALLS = st.lists(
    st.tuples(st.integers(0, GROUPS - 1), st.integers(1, LIMIT + 1), st.integers(0, 9).map(lambda n: n == 0)),
    min_size=1,
    max_size=12,
)
ORDER = st.lists(st.integers(0, 11), max_size=400)


def play(rule: Rule, calls: list[tuple[int, int, bool]], order: list[int]) -> World:
    """All calls, one step of one of them at a time; those left over at the end one after the other."""
    world = World()
    running = [call(world, rule, group, size, may_fail=fails) for group, size, fails in calls]
    begun: dict[int, Steps] = {}
    for number in [*order, *(n for n in range(len(running)) for _ in range(200))]:
        if number >= len(running):
            continue
        steps = begun.setdefault(number, running[number])
        next(steps, None)
        assert world.given <= LIMIT + world.most_in_flight
    assert world.given == world.charged == world.in_flight == 0
    return world


@settings(max_examples=300, deadline=None)
@given(CALLS, ORDER)
def test_nobody_is_refused_what_fits_and_nobody_gets_more_than_was_in_flight(
    calls: list[tuple[int, int, bool]], order: list[int]
) -> None:
    assert play(has_more, calls, order).unjustified == 0


def test_one_call_after_the_other_is_judged_exactly() -> None:
    world = World()
    first = call(world, has_more, 0, 6, may_fail=False)
    while world.charged < 6:
        next(first)
    for size, refused in ((5, 1), (4, 1), (11, 2)):
        list(call(world, has_more, 1, size, may_fail=False))
        assert world.refused == refused
    list(first)
    list(call(world, has_more, 2, 10, may_fail=False))
    assert (world.refused, world.unjustified) == (2, 0)


def _swap(rule: Rule) -> World:
    """6 move from the first cgroup to the second while a third process asks for 4: they are never 12."""
    world = World()
    moved, asks = (call(world, rule, group, 6, may_fail=False) for group in (0, 2))
    while world.sums[0].held < 6:
        next(moved)
    judged = call(world, rule, 1, 4, may_fail=False)
    return _interleave(world, moved, asks, judged, rule)


def _interleave(world: World, moved: Steps, asks: Steps, judged: Steps, rule: Rule) -> World:
    reads = 1 if rule is has_more_read_once else GROUPS + 1
    for _ in range(reads + 1):  # until it has read the first cgroup
        next(judged)
    list(moved)
    while world.sums[2].held < 6:
        next(asks)
    list(judged)
    return world


def test_what_moves_while_it_is_counted_is_not_counted_twice() -> None:
    """The check is what prevents it: read once, the same calls are refused what fits."""
    assert _swap(has_more_read_once).unjustified == 1
    assert _swap(has_more).unjustified == 0


def by_chance(rule: Rule, plays: int) -> int:
    """Unjustified refusals in as many plays of two processes that allocate and free, and some that ask."""
    draw, found = random.Random(7), 0
    for _ in range(plays):
        calls = [(draw.choice((0, GROUPS - 1)), draw.randint(5, 7), False) for _ in range(2)]
        calls += [(draw.randrange(GROUPS), draw.randint(3, 5), False) for _ in range(3)]
        found += play(rule, calls, [draw.randrange(len(calls)) for _ in range(150)]).unjustified
    return found


def test_chance_finds_the_rule_wrong_without_the_check_and_only_then() -> None:
    assert by_chance(has_more_read_once, 3000) > 0
    assert by_chance(has_more, 3000) == 0
