# SPDX-License-Identifier: Apache-2.0
"""Who is accused within five seconds, and who never is, whatever chance the samples bring."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.policy.evidence import Episode, Evidence
from fairsched.policy.misbehaviour import WatchState, judge
from fairsched.policy.sampled import poisson_tail
from tests.unit.policy.sampled import (
    ENDLESS,
    GPU,
    INNOCENT,
    LIMITS,
    UNSEEN,
    Process,
    S,
    World,
    accused,
    first,
    moments,
    phase_of,
    phases,
    seeds,
    unhurried,
)

# ---- who is found, and how soon ----


@pytest.mark.parametrize(("share", "contexts"), [(1.0, 1), (0.4, 1), (0.5, 2), (0.8, 4), (0.9, 8)])
def test_endless_work_is_found_within_five_seconds(share: float, contexts: int) -> None:
    """NVML names one process of those that share a GPU, by lot: one time in a hundred may take a little longer."""

    def world(seed: int) -> World:
        endless = Process(1, share, None, contexts=contexts)
        return World([endless, Process(2, 1 - share)], seed, phase_s=phase_of(seed))

    at = moments(world, ENDLESS)
    assert at[0] >= 3.0
    assert at[-3] <= 5.0
    assert at[-1] <= 8.0


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
def test_work_past_the_exports_is_found_within_five_seconds(share: float) -> None:
    def world(seed: int) -> World:
        unseen = Process(1, share, seen_ratio=0.0)
        return World([unseen, Process(2, 1 - share)], seed, phase_s=phase_of(seed))

    at = moments(world, UNSEEN)
    assert at[-3] <= 5.0
    assert at[-1] <= 8.0


def test_it_is_found_sooner_or_later_if_it_uses_little() -> None:
    found = [
        first(World([Process(1, 0.1, seen_ratio=0.0), Process(2, 0.9)], s), 40, UNSEEN) for s in range(20)
    ]
    assert all(at is not None for at in found)


def test_one_that_shows_a_part_of_its_work_is_found() -> None:
    world = World([Process(1, 0.9, seen_ratio=0.1), Process(2, 0.1)])
    at = first(world, 30, UNSEEN)
    assert at is not None
    assert at <= 6.0


def test_where_turns_cannot_be_followed_only_who_was_charged_nothing_is_accused() -> None:
    """Contexts that run side by side are each there all the time, and charged a part of it."""
    for seed in range(20):
        side_by_side = World(
            [Process(1, 0.9, seen_ratio=0.2), Process(2, 0.1)], seed, unsure=frozenset({GPU})
        )
        assert accused(side_by_side, 60) == set()
        hidden = World([Process(1, 0.5, seen_ratio=0.0), Process(2, 0.5)], seed, unsure=frozenset({GPU}))
        assert first(hidden, 8, UNSEEN) is not None
        elsewhere = World(
            [Process(1, 0.9, seen_ratio=0.2), Process(2, 0.1)], seed, unsure=frozenset({"GPU-b"})
        )
        assert first(elsewhere, 60, UNSEEN) is not None


def test_endless_work_beside_a_context_that_goes_on_is_found() -> None:
    """Samples name the process, not the context: those that the other one explains do not count."""
    stuck, shown = Process(1, 0.7, None, contexts=7), Process(1, 0.1, tenant="t1")
    shown_works = replace(shown, pid=1)

    class Both(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            extra = shown_works.work(now_s, 50)._replace(key=(9999, 1))
            return replace(found, works={**found.works, (1, GPU): (*found.works[1, GPU], extra)})

    at = first(Both([replace(stuck, share=0.8), Process(2, 0.2)]), 8, ENDLESS)
    assert at is not None
    assert at <= 5.5


def test_a_trickle_of_launches_hides_nothing() -> None:
    at = first(World([Process(1, 1.0, None, launches_per_s=0.4)]), 10, ENDLESS)
    assert at is not None


def test_a_program_that_never_asked_and_goes_endless_is_found() -> None:
    """Its launches of before count for nothing any more, and those in flight for what such took."""
    worker = Process(1, 1.0, None, launches_per_s=1000)

    class Turns(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            stopped = {
                where: tuple(w._replace(submitted=min(w.submitted, 10_001)) for w in works)
                for where, works in found.works.items()
            }
            return replace(found, works=stopped)

    at = first(Turns([worker]), 25, ENDLESS)
    assert at is not None
    assert 13 <= at <= 18


@unhurried
@given(seed=seeds, share=st.floats(0.2, 0.6), held_s=st.floats(3.0, 12.0))
def test_a_program_that_never_asks_and_cannot_launch_while_it_is_held_is_not_endless(
    seed: int, share: float, held_s: float
) -> None:
    """A thousand kernels of 5 ms go on for as long as a hold lasts."""

    class Held(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            full = 1000 + (0 if now_s < 5 + held_s else round(200 * share * (now_s - 5 - held_s)))
            works = {
                where: tuple(w._replace(submitted=full, completed=0) for w in those)
                for where, those in found.works.items()
            }
            return replace(found, works=works)

    assert accused(Held([Process(1, share, None, launches_per_s=1000)], seed), 30) == set()


# ---- who is not ----


@pytest.mark.parametrize("seed", range(10))
def test_three_seconds_of_work_in_several_streams_are_not_endless(seed: int) -> None:
    """Each stream is a queue: of 3,000 launches in four of them none need have ended."""

    class Streams(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            works = {
                where: tuple(w._replace(submitted=3000, completed=0, streams=4) for w in those)
                for where, those in found.works.items()
            }
            return replace(found, works=works)

    assert accused(Streams([Process(1, 0.5, None), Process(2, 0.5)], seed), 12) == set()


@pytest.mark.parametrize("is_late", [False, True])
def test_of_who_asks_late_what_it_was_charged_measures_nothing(is_late: bool) -> None:
    """6,000 launches were proven, charged .3 ms each; then 3,000 go on while it is held."""

    class Held(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found, done = super()._evidence(now_s, counts), min(6000, round(1000 * now_s))
            works = {
                where: tuple(
                    w._replace(submitted=done + 3000, completed=done, streams=4, is_late=is_late)
                    for w in those
                )
                for where, those in found.works.items()
            }
            return replace(found, works=works)

    found = accused(Held([Process(1, 0.3, None), Process(2, 0.5)], 1), 30)
    assert (("t1", ENDLESS) in found) is not is_late


@pytest.mark.parametrize("what", INNOCENT)
@unhurried
@given(seed=seeds, phase=phases, share=st.floats(0.01, 1.0))
def test_nobody_is_accused_of_nothing(what: str, seed: int, phase: float, share: float) -> None:
    world = World([INNOCENT[what](share), Process(2, 1 - share)], seed, phase_s=phase)
    assert accused(world, 30) == set()


@pytest.mark.parametrize("is_heard", [True, False])
def test_what_went_on_while_it_was_held_speaks_against_nobody_whose_calls_are_seen(is_heard: bool) -> None:
    """Of kernels longer than any before most run in holds, in which the account takes them to be over."""
    for seed in range(20):
        one = World([Process(1, 0.5, 1.0, seen_ratio=0.2 if is_heard else 0.0), Process(2, 0.5)], seed)
        one.held_ratio = 0.6
        assert (("t1", UNSEEN) in accused(one, 60)) is not is_heard, seed


@unhurried
@given(seed=seeds)
def test_a_crowd_of_long_kernels_is_no_crowd_of_endless_ones(seed: int) -> None:
    crowd = [Process(pid, 1 / 16, 3.2, begin_s=pid / 16) for pid in range(1, 17)]
    assert accused(World(crowd, seed), 30) == set()


@unhurried
@given(seed=seeds, attached_s=st.floats(0.0, 1.3))
def test_a_process_whose_libcuda_is_probed_a_little_late_is_innocent(seed: int, attached_s: float) -> None:
    class Late(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            after_s = max(0.0, min(self.step_s, now_s - attached_s))
            charged = {key: round(ns * after_s / self.step_s) for key, ns in found.charged_ns.items()}
            return replace(found, charged_ns=charged)

    assert accused(Late([Process(1, 1.0)], seed), 20) == set()


@unhurried
@given(seed=seeds)
def test_nobody_is_accused_of_what_the_account_missed_before_it_began(seed: int) -> None:
    process = Process(1, 1.0)

    class Blind(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            return replace(found, charged_ns={}) if now_s < 7.5 else found

    assert accused(Blind([process], seed, blind_until_s=8.0), 20) == set()
    assert accused(Blind([process], seed, blind_until_s=0.0), 20) != set(), "the test can tell"


@unhurried
@given(seed=seeds)
def test_what_nvml_remembers_of_the_time_before_the_account_began_speaks_against_nobody(seed: int) -> None:
    crowd = [Process(pid, 1 / 4, begin_s=-20.0) for pid in range(1, 5)]

    class Began(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            charged = {key: min(ns, round(now_s * S)) for key, ns in found.charged_ns.items()}
            return replace(found, charged_ns=charged)

    assert accused(Began(crowd, seed, history_s=15.0, blind_until_s=5.0), 12) == set()
    assert accused(Began(crowd, seed, history_s=15.0), 12) != set(), "the test can tell"


@unhurried
@given(seed=seeds, phase=phases)
def test_samples_that_come_late_are_explained_by_what_was_charged_before(seed: int, phase: float) -> None:
    class Bursts(World):
        """Runs for 1.5 s of every 8."""

        def _occupant(self, at: float, now_s: float) -> int | None:
            return 1 if now_s % 8 < 1.5 else None

        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            begin_s = now_s - self.step_s
            ran_s = (
                sum(1 / 100 for n in range(100) if (begin_s + self.step_s * n / 100) % 8 < 1.5) * self.step_s
            )
            return replace(found, charged_ns={(1, GPU): round(ran_s * S)})

    assert accused(Bursts([Process(1, 1.0, 0.02)], seed, phase_s=phase, late_s=1.2), 60) == set()


def test_without_samples_nobody_is_accused() -> None:
    class Deaf(World):
        def _occupant(self, at: float, now_s: float) -> int | None:
            return None

    assert accused(Deaf([Process(1, 1.0, None), Process(2, 1.0, seen_ratio=0.0)]), 30) == set()


# ---- episodes ----


def test_an_episode_names_who_and_how_much() -> None:
    world = World([Process(1, 0.5, None, contexts=2), Process(2, 0.5)])
    one = [episodes for _, episodes in world.looks(6)][-1][0]
    assert (one.tenant, one.gpu, one.kind, one.pids, one.contexts) == ("t1", GPU, ENDLESS, (1,), 2)
    assert one.stuck_ns is not None
    assert one.stuck_ns == one.seen_ns - one.since_ns
    assert one.charged_ns == pytest.approx(one.stuck_ns * 0.5, rel=0.01)
    assert one.samples >= 3


def test_two_processes_of_one_tenant_are_one_episode() -> None:
    pair = [Process(1, 0.5, None, tenant="team"), Process(2, 0.5, None, tenant="team")]
    (one,) = [episodes for _, episodes in World(pair).looks(7)][-1]
    assert one.pids == (1, 2)
    assert one.contexts == 2


def test_an_episode_outlasts_a_quiet_look_and_ends_when_it_is_over() -> None:
    world = World([Process(1, 1.0, None, busy_until_s=10.0)])
    active = [now_s for now_s, episodes in world.looks(30) if episodes]
    assert all(later - now < 1.5 for now, later in pairwise(active)), "without a gap"
    assert 10.0 <= active[-1] <= 17.0


@pytest.mark.parametrize("seen_ratio", [0.0, 1.0])
def test_an_episode_is_over_soon_after_the_work_is(seen_ratio: float) -> None:
    """The long window remembers for longer, but accuses nobody who is not seen any more."""
    world = World([Process(1, 1.0, None, seen_ratio=seen_ratio, busy_until_s=10.0)])
    active = [now_s for now_s, episodes in world.looks(40) if episodes]
    assert 10.0 <= active[-1] <= 10.0 + 5.0 + 3.0 + 1.0


def test_an_episode_is_over_when_nothing_spoke_for_it_for_some_seconds() -> None:
    one = Episode("t1", GPU, ENDLESS, since_ns=0, seen_ns=10 * S, pids=(1,))
    state = WatchState(episodes={("t1", GPU, ENDLESS): one})
    for now_ns, is_over in ((12 * S, False), (12.9 * S, False), (13 * S, True)):
        state = judge(Evidence(round(now_ns)), state, LIMITS)
        assert (not state.episodes) == is_over


def test_whose_libraries_nobody_has_looked_at_is_never_certainly_unseen() -> None:
    for watched_s in (None, 0.0):
        world = World([Process(1, 1.0, seen_ratio=0.0)], watched_s=watched_s)
        episodes = [one for _, found in world.looks(8) for one in found]
        assert episodes
        assert any(one.is_certain for one in episodes) == (watched_s is not None)


def test_who_is_over_its_budget_is_not_unseen_and_saves_nobody_else() -> None:
    """What it does is in no account because of tables of ours: it is charged for that."""
    processes = [Process(1, 0.5, seen_ratio=0.0), Process(2, 0.5, seen_ratio=0.0)]
    world = World(processes, over_budget=frozenset({"t1"}), watched_s=0.0)
    episodes = [one for _, found in world.looks(12) for one in found]
    assert {(one.tenant, one.is_certain) for one in episodes} == {("t2", True)}
    assert not any(where[0] == 1 for where in world.state.unknown), "nor is everybody's account unsure for it"


@given(st.integers(0, 60), st.floats(0.0, 40.0))
def test_the_tail_is_that_of_poisson(count: int, mean: float) -> None:
    import math

    below = math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
    tail = poisson_tail(count, mean)
    assert tail == 1.0 if count <= mean else tail == pytest.approx(1 - below, abs=1e-9)
