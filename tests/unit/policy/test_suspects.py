# SPDX-License-Identifier: Apache-2.0
"""Who is sampled without a call is found in half the time, and whose calls were not seen yet is innocent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import NEVER_NS
from fairsched.policy.evidence import Evidence, TenantSamples
from fairsched.policy.misbehaviour import WatchState, judge
from tests.unit.policy.sampled import (
    ALWAYS_S,
    GPU,
    INNOCENT,
    LIMITS,
    PERIOD,
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


@pytest.mark.parametrize("share", [0.35, 0.5, 1.0])
def test_who_maps_no_unwatched_library_is_found_sooner(share: float) -> None:
    """A third of the GPU is a sample every 0.4 s in the mean: the fourth may take its time."""

    def world(seed: int) -> World:
        pair = [Process(1, share, seen_ratio=0.0), Process(2, 1 - share)]
        return World(pair, seed, phase_s=phase_of(seed), watched_s=ALWAYS_S, look_s=0.9)

    at = moments(world, UNSEEN)
    assert at[150] <= 2.6
    assert at[-6] <= 3.9
    assert at[-1] <= 6.0


def test_an_excuse_that_comes_late_is_none() -> None:
    """One who loads another unwatched library every second is found as if nobody had looked."""
    for seed in range(50):
        world = World([Process(1, 1.0, seen_ratio=0.0)], seed, watched_s=1e9)
        at = first(world, 10, UNSEEN)
        assert at is not None
        assert at <= 5.0


@pytest.mark.parametrize("what", INNOCENT)
@unhurried
@given(seed=seeds, phase=phases, share=st.floats(0.01, 1.0))
def test_nobody_is_accused_sooner_because_the_libraries_are_known(
    what: str, seed: int, phase: float, share: float
) -> None:
    pair = [INNOCENT[what](share), Process(2, 1 - share)]
    assert accused(World(pair, seed, phase_s=phase, watched_s=ALWAYS_S), 30) == set()


@unhurried
@given(seed=seeds, phase=phases, share=st.floats(0.1, 1.0), attached_s=st.floats(0.0, 2.8))
def test_samples_of_before_the_probes_speak_against_nobody(
    seed: int, phase: float, share: float, attached_s: float
) -> None:
    class Late(World):
        def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
            found = super()._evidence(now_s, counts)
            after_s = max(0.0, min(self.step_s, now_s - attached_s))
            charged = {key: round(ns * after_s / self.step_s) for key, ns in found.charged_ns.items()}
            return replace(found, charged_ns=charged)

    assert accused(Late([Process(1, share)], seed, phase_s=phase, watched_s=attached_s), 20) == set()


@pytest.mark.parametrize("beyond_s", [0.0, 1.0, 1.7])
@unhurried
@given(seed=seeds, phase=phases, share=st.floats(0.1, 1.0), attached_s=st.floats(0.0, 2.8))
def test_work_queued_before_the_probes_is_nobodys_fault(
    beyond_s: float, seed: int, phase: float, share: float, attached_s: float
) -> None:
    """None of it is in the account, and some of it runs after they were put there."""
    process = Process(1, share, seen_ratio=0.0, busy_until_s=attached_s + beyond_s)
    assert accused(World([process], seed, phase_s=phase, watched_s=attached_s), 20) == set()


@pytest.mark.parametrize(
    ("samples", "charged_ns", "watched", "is_accused"),
    [(4, 0, {1: 0}, True), (3, 0, {1: 0}, False), (4, 1, {1: 0}, False), (4, 0, {}, False)],
)
def test_four_samples_are_enough_only_against_one_who_makes_no_call(
    samples: int, charged_ns: int, watched: dict[int, int], is_accused: bool
) -> None:
    found = TenantSamples("t1", 1, GPU, samples, samples * PERIOD, PERIOD, 6 * S, 9 * S)
    evidence = Evidence(10 * S, samples=(found,), charged_ns={(1, GPU): charged_ns}, watched_since_ns=watched)
    assert bool(judge(evidence, WatchState(), LIMITS).episodes) == is_accused


@pytest.mark.parametrize(("watched", "is_accused"), [({}, True), ({1: NEVER_NS}, False)])
def test_whose_libcuda_cannot_have_probes_is_accused_of_nothing_however_long(
    watched: dict[int, int], is_accused: bool
) -> None:
    state = WatchState()
    for now_s in range(10, 40):
        found = TenantSamples("t1", 1, GPU, 7, 7 * PERIOD, PERIOD, (now_s - 1) * S, now_s * S)
        state = judge(Evidence(now_s * S, samples=(found,), watched_since_ns=watched), state, LIMITS)
    assert bool(state.episodes) == is_accused
    assert 1 in state.suspects, "and is looked at again: it may get them yet"


@pytest.mark.parametrize(
    ("late_s", "watched", "is_accused"), [(60, {}, False), (60, {1: 0}, True), (0, {}, True)]
)
def test_while_many_wait_for_their_probes_only_whose_libraries_are_known_is_accused(
    late_s: int, watched: dict[int, int], is_accused: bool
) -> None:
    state = WatchState()
    for now_s in range(10, 40):
        found = TenantSamples("t1", 1, GPU, 7, 7 * PERIOD, PERIOD, (now_s - 1) * S, now_s * S)
        evidence = Evidence(now_s * S, samples=(found,), watched_since_ns=watched, late_until_ns=late_s * S)
        state = judge(evidence, state, LIMITS)
    assert bool(state.episodes) == is_accused
