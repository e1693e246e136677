# SPDX-License-Identifier: Apache-2.0
"""Leaving a cgroup again and again, told from being placed."""

from __future__ import annotations

import pytest

from fairsched.model import MisbehaviourKind
from fairsched.policy.evidence import Evidence, Leave, MisbehaviourLimits
from fairsched.policy.misbehaviour import WatchState, judge
from fairsched.policy.moving import moving, recent_leaves

S = 1_000_000_000
KEY = ("bad", "GPU-a", MisbehaviourKind.MOVING)


def leave(at_s: float, pid: int = 7, slot: int = 0, tenant: str = "bad", gpu: str = "GPU-a") -> Leave:
    return Leave(round(at_s * S), tenant, pid, gpu, (slot, 1))


@pytest.mark.parametrize(
    ("leaves", "is_named"),
    [
        ([leave(1), leave(2), leave(3)], True),
        ([leave(1), leave(2)], False),  # placed by its runtime, and by an operator
        ([leave(1, slot=0), leave(1, slot=1), leave(1, slot=2)], False),  # three contexts, moved once
        ([leave(1, pid=7), leave(2, pid=8), leave(3, pid=9)], False),  # three processes, each placed
        ([leave(1), leave(2), leave(3, gpu="GPU-b")], False),
    ],
)
def test_it_takes_one_context_that_leaves_again_and_again(leaves: list[Leave], is_named: bool) -> None:
    assert (moving(leaves, 4 * S).keys() == {KEY}) is is_named


def test_all_who_do_it_are_named_with_the_most_that_one_left() -> None:
    leaves = [leave(at, pid) for pid, count in ((7, 3), (8, 5), (9, 2)) for at in range(count)]
    (episode,) = moving(leaves, 6 * S).values()
    assert (episode.pids, episode.leaves, episode.since_ns, episode.window_ns) == ((7, 8), 5, 0, 6 * S)
    assert episode.is_certain


def test_each_tenant_is_judged_by_itself() -> None:
    leaves = [leave(at, tenant=tenant) for tenant in ("bad", "worse") for at in (1, 2, 3)]
    assert {tenant for tenant, _, _ in moving(leaves, 4 * S)} == {"bad", "worse"}


def test_what_is_long_ago_does_not_count_and_a_flood_is_not_kept() -> None:
    leaves = tuple(leave(at) for at in (1, 2, 3, 6.5))
    assert recent_leaves(leaves, 7 * S) == leaves[1:]
    assert len(recent_leaves((leave(1),) * 10_000, S)) == 4096


def test_the_judgement_remembers_leaves_from_look_to_look_and_forgets_the_episode() -> None:
    state, named = WatchState(), []
    for now_s in range(1, 20):
        leaves = (leave(now_s - 0.5),) if now_s <= 4 else ()
        state = judge(Evidence(now_ns=now_s * S, leaves=leaves), state, MisbehaviourLimits())
        named.append(KEY in state.episodes)
    assert named.index(True) == 2, "with the third"
    assert not any(named[11:]), "five seconds behind it, and what an episode takes to be over"
    assert state.leaves == ()
