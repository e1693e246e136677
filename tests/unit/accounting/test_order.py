# SPDX-License-Identifier: Apache-2.0
"""The replay where contexts take turns in another order than that of their creation."""

from __future__ import annotations

import random

import pytest

from fairsched.accounting.circle import Circle
from fairsched.accounting.replay import Replay
from tests.unit.accounting.model import MIXES, MS, SLICE_NS, SWITCH_NS, feed, replayed, simulate

WRONG_ORDER_SHOWS = [
    "four decoders",
    "three decoders and a trainer",
    "two decoders and four trainers",
    "three with short bursts and a trainer",
    "all kinds",
]
"""With two contexts, or one that ever completes anything, a reversed circle is the same circle."""
ORDER_SHOWS = sorted(set(MIXES) - {"two decoders and four trainers", "bursty, trainer, decoder"})
"""Where bursts are long hardly two end within half a slice: three facts in 20 s."""


@pytest.mark.parametrize("mix", ORDER_SHOWS)
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_order_of_turns_is_learnt(mix: str, seed: int) -> None:
    """Contexts stand in the runlist where there was room, in any order. What is charged from then on is right."""
    truth = simulate(mix, seed=seed)
    ranks = list(range(len(truth.exec_ns)))
    random.Random(seed).shuffle(ranks)
    middle = next(i for i, edge in enumerate(truth.edges) if edge.t_ns > truth.end_ns // 2)
    had = []
    for order in (sorted(ranks), ranks):
        replay = Replay(SLICE_NS, SWITCH_NS)
        for key, rank in enumerate(order):
            replay.add(key, (rank,))
        feed(replay, truth.edges[:middle])
        before = replay.exec_by_key()
        feed(replay, truth.edges[middle:])
        had.append([ns - before[key] for key, ns in replay.exec_by_key().items()])
    right, learnt = had
    assert learnt == pytest.approx(right, rel=0.005)


@pytest.mark.parametrize("mix", WRONG_ORDER_SHOWS)
def test_a_wrong_order_that_nobody_learns_shows_in_the_hit_ratio(
    mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Circle, "tell", lambda *_: None)
    truth = simulate(mix)
    replay = replayed(truth, ranks=range(len(truth.exec_ns))[::-1])
    assert replay.hits / (replay.hits + replay.misses) < 0.6


def abc() -> Replay:
    """Three contexts in that order."""
    replay = Replay(SLICE_NS, SWITCH_NS)
    for rank, key in enumerate("abc"):
        replay.add(key, (rank,))
    return replay


def drain_b(replay: Replay, t_ns: int) -> None:
    """It has work for long, or none: that is not known."""
    replay.open("b", t_ns)
    replay.doubt("b")
    replay.drain("b", t_ns, 900 * MS)


def one_after_the_other(replay: Replay, rounds: int, t_ns: int, *, between: str = "") -> int:
    """a, b and c end bursts of .3 ms in turn; ``between`` has work, and no turn."""
    for _ in range(rounds):
        for key in "abc":
            if key != between:
                replay.open(key, t_ns)
        for key in "abc":
            t_ns += SWITCH_NS + 300_000
            if key != between:
                replay.close(key, t_ns)
        t_ns += MS
    return t_ns


def test_a_drain_whose_turn_others_have_is_over() -> None:
    replay = abc()
    t_ns = one_after_the_other(replay, 100, 0)
    drain_b(replay, t_ns)
    one_after_the_other(replay, 2, t_ns, between="b")
    assert [key for key, _ in replay.take_passed()] == ["b", "b"]
    assert replay.take_passed() == []


def test_a_drain_runs_on_where_the_order_is_not_sure() -> None:
    """Believed after a few facts, but facts have not agreed for long."""
    replay = abc()
    t_ns = one_after_the_other(replay, 6, 0)
    drain_b(replay, t_ns)
    one_after_the_other(replay, 6, t_ns, between="b")
    assert replay.take_passed() == []
