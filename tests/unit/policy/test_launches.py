# SPDX-License-Identifier: Apache-2.0
"""What a launch takes, by samples, of who never waits for the end of any."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from fairsched.model import SampledLaunch
from fairsched.policy.evidence import Evidence
from fairsched.policy.launches import NO_TIMINGS, Timings, time_launches
from fairsched.policy.sampled import LAG_NS, LONG_WINDOW_NS
from fairsched.policy.unseen import unseen_rates
from tests.unit.policy.sampled import ALWAYS_S, GPU, MS, UNSEEN, Process, S, World, accused, phase_of

SEEDS = range(20)
PER_S = 100
LOOKED_S = 40


@dataclass
class Launching(World):
    """All launch a hundred times a second. ``blind``: for whose work nobody waits."""

    blind: frozenset[int] = frozenset({1})
    per_s: int = PER_S
    anchored_part: float = 0.0
    """Of what is charged, in contexts for whose work somebody waits."""
    evidence: Evidence = field(default_factory=lambda: Evidence(0))
    timings: Timings = NO_TIMINGS

    def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
        evidence = super()._evidence(now_s, counts)
        launches = {where: round(self.step_s * self.per_s) for where in evidence.charged_ns}
        blind = frozenset((pid, GPU) for pid in self.blind)
        anchored = {where: round(ns * self.anchored_part) for where, ns in evidence.charged_ns.items()}
        self.evidence = replace(evidence, launches=launches, anchored_ns=anchored, unanchored=blind)
        return self.evidence


def told(
    seed: int,
    processes: list[Process],
    *,
    blind: Sequence[int] = (1,),
    per_s: int = PER_S,
    anchored_part: float = 0.0,
) -> list[dict[int, SampledLaunch]]:
    """By process, at the looks of the second half of forty seconds."""
    one = Launching(
        processes,
        seed,
        phase_s=phase_of(seed),
        look_s=0.9,
        blind=frozenset(blind),
        per_s=per_s,
        anchored_part=anchored_part,
    )
    found = []
    for _ in one.looks(LOOKED_S):
        one.timings = time_launches(one.state, one.evidence, one.timings)
        found.append({pid: launch for (pid, _), launch in one.timings.launches.items()})
    return found[len(found) // 2 :]


def needed_part(charged: float, had: float, *, is_less: bool) -> float:
    """Of the looks."""
    found = []
    for seed in SEEDS:
        blind = Process(1, had, seen_ratio=charged / had) if had else Process(1, charged, busy_until_s=0.0)
        looks = told(seed, [blind, Process(2, 0.4)])
        found += [1 in look and look[1].is_needed and look[1].is_less is is_less for look in looks]
    return statistics.mean(found)


def test_a_launch_takes_what_samples_say_that_all_took() -> None:
    found = [
        look[1].ns
        for seed in SEEDS
        for look in told(seed, [Process(1, 0.4, seen_ratio=0.1), Process(2, 0.4)])
    ]
    assert statistics.mean(found) == pytest.approx(0.4 * S / PER_S, rel=0.05)
    assert statistics.stdev(found) < 0.2 * 0.4 * S / PER_S


def test_what_is_waited_for_in_another_context_is_not_in_what_a_launch_takes() -> None:
    found = [
        look[1].ns
        for seed in SEEDS
        for look in told(seed, [Process(1, 0.4, seen_ratio=0.5), Process(2, 0.4)], anchored_part=0.5)
    ]
    assert statistics.mean(found) == pytest.approx(0.3 * S / PER_S, rel=0.05)


def test_of_which_there_are_no_samples_all_took_one_at_most() -> None:
    (*_, look) = told(1, [Process(1, 0.4, busy_until_s=0.0), Process(2, 0.4)])
    assert look[1].ns < 140 * MS / (PER_S * 18)


def test_who_had_less_than_it_was_charged_is_found_out() -> None:
    assert needed_part(0.4, 0.0, is_less=True) > 0.95
    assert needed_part(0.5, 0.2, is_less=True) > 0.7


def test_who_had_more_than_it_was_charged_is_found_out() -> None:
    assert needed_part(0.1, 0.5, is_less=False) > 0.95


def test_of_who_had_what_it_was_charged_nothing_is_needed() -> None:
    for is_less in (True, False):
        assert needed_part(0.3, 0.3, is_less=is_less) < 0.02


def test_many_of_a_tenant_that_are_charged_little_count_together() -> None:
    many = [Process(pid, 0.03, busy_until_s=0.0, tenant="hog") for pid in (1, 2, 3, 4)]
    (*_, look) = told(1, [*many, Process(9, 0.6)], blind=(1, 2, 3, 4))
    assert all(look[pid].is_less for pid in (1, 2, 3, 4))
    assert sum(launch.ns for launch in look.values()) < 140 * MS / (PER_S * 18)


def test_of_those_for_whose_work_somebody_waits_nothing_is_told() -> None:
    (*_, look) = told(1, [Process(1, 0.4, seen_ratio=0.1), Process(2, 0.4)], blind=())
    assert look == {}


def test_of_who_launches_nothing_nothing_is_told() -> None:
    (*_, look) = told(1, [Process(1, 0.4, seen_ratio=0.1), Process(2, 0.4)], per_s=0)
    assert look == {}


def test_who_is_charged_by_samples_is_not_called_unseen() -> None:
    for blind, found in ((frozenset[int](), {("t1", UNSEEN)}), (frozenset({1}), set())):
        processes = [Process(1, 0.5, seen_ratio=0.1), Process(2, 0.4)]
        assert accused(Launching(processes, blind=blind, watched_s=ALWAYS_S), 30) == found


def test_who_launches_nothing_in_it_is_excused_by_no_context() -> None:
    """It launched there long ago, and works past the exports now."""
    processes = [Process(1, 0.5, seen_ratio=0.0), Process(2, 0.4)]
    assert accused(Launching(processes, per_s=0, watched_s=ALWAYS_S), 30) == {("t1", UNSEEN)}


def test_where_nvml_says_nothing_nothing_is_told() -> None:
    one = Launching([Process(1, 0.4), Process(2, 0.4)], 1, look_s=0.9)
    for _ in one.looks(LOOKED_S):
        pass
    assert time_launches(one.state, one.evidence, NO_TIMINGS).launches
    later = replace(one.evidence, now_ns=one.evidence.now_ns + 4 * S)
    assert not time_launches(one.state, later, NO_TIMINGS).launches


def less_since(now_ns: int, last_ns: int) -> Timings:
    return Timings({}, {("hog", GPU): (now_ns, last_ns)})


def test_what_others_were_charged_before_speaks_against_nobody_but_the_one_who_was_charged_more() -> None:
    timings = less_since(10 * S, 10 * S)
    assert timings.begin_ns("chat", GPU) == 10 * S + LAG_NS
    assert timings.begin_ns("hog", GPU) == 0
    assert timings.begin_ns("chat", "GPU-other") == 0


def test_it_is_forgotten_when_it_has_not_launched_for_long() -> None:
    timings = less_since(10 * S, 10 * S)
    world = Launching([Process(2, 0.4)])
    next(iter(world.looks(1)))
    kept = time_launches(world.state, replace(world.evidence, now_ns=10 * S + LONG_WINDOW_NS), timings)
    assert kept.less == timings.less
    gone = time_launches(world.state, replace(world.evidence, now_ns=10 * S + LONG_WINDOW_NS + 1), timings)
    assert gone.less == {}


def test_what_a_neighbour_had_more_while_another_was_charged_it_is_no_rate() -> None:
    """Half of what it had was charged to one that had nothing; that is known since a second."""
    world = Launching([Process(2, 0.8, seen_ratio=0.5, tenant="chat")], look_s=0.9)
    for _ in world.looks(20):
        pass
    now_ns = world.evidence.now_ns
    assert unseen_rates(world.state, world.evidence, NO_TIMINGS).rates
    assert not unseen_rates(world.state, world.evidence, less_since(now_ns - S, now_ns)).rates
