# SPDX-License-Identifier: Apache-2.0
"""The replay against the model of the hardware, and what holds for it whatever comes in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.accounting import replay as replay_module
from fairsched.accounting.replay import Replay, Runner
from tests.unit.accounting.model import MIXES, MS, SLICE_NS, SWITCH_NS, replayed, simulate, worst_error
from tests.unit.accounting.random_calls import KEYS, act, steps

ROUND = SLICE_NS + SWITCH_NS
WRONG_SLICE_SHOWS = sorted(
    set(MIXES) - {"short bursts and a trainer", "three with short bursts and a trainer"}
)
"""A burst that fits into one slice ends at the same moment whatever the length of a slice is taken to be."""


def test_an_even_share_is_what_one_more_would_have_had() -> None:
    replay = Replay(SLICE_NS, SWITCH_NS)
    for key in (1, 2):
        replay.add(key, (key,))
    assert replay.even_ns(10 * MS) == 10 * MS
    replay.open(1, 10 * MS)
    replay.open(2, 30 * MS)  # a half of 20, from here on a third
    replay.close(1, 60 * MS)
    assert replay.even_ns(80 * MS) == pytest.approx((10 + 20 / 2 + 30 / 3 + 20 / 2) * MS)


# ---- against the model ----


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_context_is_charged_what_it_executed(mix: str, seed: int) -> None:
    truth = simulate(mix, seed=seed)
    replay = replayed(truth)
    assert worst_error(truth, replay) < 0.005
    assert replay.hits / (replay.hits + replay.misses) > 0.9


@pytest.mark.parametrize("mix", WRONG_SLICE_SHOWS)
@pytest.mark.parametrize("slice_ms", [1, 4])
def test_a_wrong_slice_shows_in_the_hit_ratio(mix: str, slice_ms: int) -> None:
    replay = replayed(simulate(mix), slice_ns=slice_ms * MS)
    assert replay.hits / (replay.hits + replay.misses) < 0.6


# ---- slices ----


def two() -> Replay:
    """Two contexts, both with work since 0."""
    replay = Replay(SLICE_NS, SWITCH_NS)
    for rank, key in enumerate("ab"):
        replay.add(key, (rank,))
        replay.open(key, 0)
    return replay


def test_contexts_take_turns_and_switching_is_nobodys_time() -> None:
    replay = two()
    replay.advance(SLICE_NS)
    assert (replay.exec_ns("a"), replay.exec_ns("b")) == (SLICE_NS, 0)
    replay.advance(SLICE_NS + SWITCH_NS // 2)
    assert replay.exec_ns("b") == 0
    replay.advance(2 * ROUND)
    assert (replay.exec_ns("a"), replay.exec_ns("b")) == (SLICE_NS, SLICE_NS)


def test_one_alone_gets_everything_and_pays_no_switches() -> None:
    replay = two()
    replay.close("b", 0, is_anchor=False)
    replay.advance(50 * MS)
    assert replay.exec_ns("a") == 50 * MS


def test_one_that_joins_waits_for_the_slice_in_progress() -> None:
    replay = two()
    replay.close("b", 0, is_anchor=False)
    replay.open("b", 5 * MS)  # a is in the middle of its third slice
    replay.advance(6 * MS)
    assert (replay.exec_ns("a"), replay.exec_ns("b")) == (6 * MS, 0)
    replay.advance(8 * MS)
    assert replay.exec_ns("b") == 8 * MS - 6 * MS - SWITCH_NS


def test_one_that_ends_early_gives_the_rest_of_its_slice_away() -> None:
    replay = two()
    replay.close("a", MS)
    replay.advance(MS + SWITCH_NS + MS)
    assert (replay.exec_ns("a"), replay.exec_ns("b")) == (MS, MS)


def test_the_place_in_the_circle_comes_from_the_rank_not_from_the_order_of_arrival() -> None:
    replay = Replay(SLICE_NS, SWITCH_NS)
    for key, rank in (("c", 3), ("a", 1), ("b", 2)):
        replay.add(key, (rank,))
    for key in "cab":
        replay.open(key, 0)
    replay.advance(SLICE_NS + SWITCH_NS + MS)
    assert {key: replay.exec_ns(key) for key in "abc"} == {"a": MS, "b": 0, "c": SLICE_NS}


def test_opening_twice_and_closing_twice_change_nothing() -> None:
    replay = two()
    replay.open("a", MS)
    assert replay.runnable == 2
    replay.close("a", MS)
    replay.close("a", MS)
    assert replay.runnable == 1


def test_an_earlier_time_is_taken_as_the_latest_one_seen() -> None:
    replay = two()
    replay.advance(10 * MS)
    before = [replay.exec_ns(key) for key in "ab"]
    replay.advance(3 * MS)
    assert [replay.exec_ns(key) for key in "ab"] == before


def test_a_context_that_is_gone_leaves_the_circle() -> None:
    replay = two()
    replay.remove("a", MS)
    replay.remove("a", MS)
    replay.advance(10 * MS)
    assert replay.keys() == ["b"]
    assert replay.exec_ns("b") == 10 * MS - MS - SWITCH_NS


# ---- anchors ----


def test_a_completion_of_the_running_context_is_a_hit() -> None:
    replay = two()
    replay.close("a", MS)
    assert (replay.hits, replay.misses) == (1, 0)


def test_a_completion_of_another_is_a_miss_and_sets_the_replay_right() -> None:
    replay = two()
    replay.close("b", MS)  # only the running one can have ended
    assert (replay.hits, replay.misses) == (0, 1)
    assert replay.exec_ns("b") > 0
    assert replay.exec_ns("a") + replay.exec_ns("b") == MS


def test_a_completion_nobody_waited_for_judges_nothing() -> None:
    replay = two()
    replay.close("b", MS, is_anchor=False)
    assert (replay.hits, replay.misses) == (0, 0)
    assert replay.exec_ns("a") == MS


def test_a_completion_without_company_judges_nothing() -> None:
    replay = two()
    replay.close("b", 0, is_anchor=False)
    replay.close("a", MS)
    assert (replay.hits, replay.misses) == (0, 0)


def test_progress_judges_and_the_context_goes_on() -> None:
    replay = two()
    replay.progress("b", MS, is_anchor=True)
    assert replay.misses == 1
    assert replay.is_runnable("b")
    replay.progress("b", MS, is_anchor=False)
    assert replay.hits + replay.misses == 1


def test_a_replay_that_ran_a_moment_ahead_gives_that_moment_back() -> None:
    replay = two()
    late = SLICE_NS + SWITCH_NS + MS // 4
    replay.close("a", late)  # a was still running: its slice began a little later than we thought
    assert replay.exec_ns("a") == SLICE_NS + MS // 4
    assert replay.exec_ns("b") == 0


# ---- drains ----


def test_a_drain_ends_by_itself_and_is_reported_once() -> None:
    replay = two()
    replay.drain("a", 0, 3 * MS)
    replay.advance(100 * MS)
    assert replay.exec_ns("a") == 3 * MS
    assert not replay.is_runnable("a")
    assert [key for key, _ in replay.take_drained()] == ["a"]
    assert replay.take_drained() == []
    assert replay.left_ns("a") is None


def test_a_drain_alone_ends_on_time_and_the_gpu_is_idle_then() -> None:
    replay = two()
    replay.close("b", 0, is_anchor=False)
    replay.drain("a", 0, 5 * MS)
    assert replay.drain_end_ns() == 5 * MS
    replay.advance(4 * MS)
    assert replay.drain_end_ns() == 5 * MS
    replay.advance(50 * MS)
    assert (replay.exec_ns("a"), replay.runnable, replay.drain_end_ns()) == (5 * MS, 0, None)


def test_a_drain_beside_others_takes_its_turns() -> None:
    replay = two()
    replay.drain("b", 0, 3 * MS)
    replay.advance(2 * ROUND + SLICE_NS + SWITCH_NS + MS)  # a b a b
    assert (replay.exec_ns("a"), replay.exec_ns("b")) == (2 * SLICE_NS, 3 * MS)
    assert [key for key, _ in replay.take_drained()] == ["b"]


def test_nothing_left_to_drain_ends_at_its_next_turn_without_time() -> None:
    replay = two()
    replay.drain("b", 0, 0)
    replay.advance(100 * MS)
    assert replay.exec_ns("b") == 0
    assert not replay.is_runnable("b")


def test_a_thawed_context_is_no_longer_ended_by_its_drain() -> None:
    replay = two()
    replay.close("b", 0, is_anchor=False)
    replay.drain("a", 0, 5 * MS)
    replay.resume("a", 2 * MS)
    replay.advance(50 * MS)
    assert replay.exec_ns("a") == 50 * MS


def test_new_work_ends_a_drain() -> None:
    replay = two()
    replay.close("b", 0, is_anchor=False)
    replay.drain("a", 0, 5 * MS)
    replay.open("a", MS)
    assert replay.left_ns("a") is None


def test_a_context_without_work_has_nothing_to_drain() -> None:
    replay = two()
    replay.close("a", 0, is_anchor=False)
    replay.drain("a", 0, 5 * MS)
    assert replay.left_ns("a") is None


def test_what_is_settled_is_had_from_then_on() -> None:
    replay = two()
    replay.advance(10 * MS)
    before = [replay.exec_ns(key) for key in "ab"]
    replay.settle("a", -7)
    replay.settle("b", 5)
    assert [replay.exec_ns(key) for key in "ab"] == [before[0] - 7, before[1] + 5]


# ---- whatever comes in ----

Steps = steps(most=60)


def charged(replay: Replay) -> dict[str, int]:
    names = replay.keys()
    return {str(key): replay.exec_ns(key) for key in names}


@settings(max_examples=400, deadline=None)
@given(steps=Steps)
def test_time_is_never_made_and_nobody_has_less_than_none(steps: list[tuple[int, str, str]]) -> None:
    replay, now, gone = Replay(SLICE_NS, SWITCH_NS), 0, 0
    for later, what, key in steps:
        now += later
        replay.advance(now)
        if what == "gone":
            gone += charged(replay).get(key, 0)
        act(replay, what, key, now)
        assert sum(charged(replay).values()) + gone <= now
        assert min(charged(replay).values(), default=0) >= 0
        assert replay.runnable == sum(replay.is_runnable(one) for one in charged(replay))


@settings(max_examples=400, deadline=None)
@given(steps=Steps)
def test_a_correction_moves_time_and_makes_none(steps: list[tuple[int, str, str]]) -> None:
    replay, now = Replay(SLICE_NS, SWITCH_NS), 0
    for later, what, key in steps:
        now += later
        replay.advance(now)
        before = sum(charged(replay).values())
        if what != "gone":
            act(replay, what, key, now)
            assert sum(charged(replay).values()) == before


@settings(max_examples=400, deadline=None)
@given(steps=Steps)
def test_without_corrections_no_account_ever_falls(steps: list[tuple[int, str, str]]) -> None:
    replay, now = Replay(SLICE_NS, SWITCH_NS), 0
    seen = dict.fromkeys(KEYS, 0)
    for later, what, key in steps:
        if what in ("anchor", "progress", "gone"):
            continue
        now += later
        act(replay, what, key, now)
        for one, ns in charged(replay).items():
            assert ns >= seen[one]
            seen[one] = ns


@settings(max_examples=200, deadline=None)
@given(steps=Steps, looks=st.lists(st.integers(1, 5 * MS), max_size=5))
def test_how_often_somebody_looks_makes_no_difference(
    steps: list[tuple[int, str, str]], looks: list[int]
) -> None:
    rarely, often, now = Replay(SLICE_NS, SWITCH_NS), Replay(SLICE_NS, SWITCH_NS), 0
    for later, what, key in steps:
        for look in looks:
            if look < later:
                often.advance(now + look)
        now += later
        act(rarely, what, key, now)
        act(often, what, key, now)
        assert charged(rarely) == charged(often)


def test_while_it_is_not_known_who_runs_a_miss_is_not_held_against_the_replay() -> None:
    replay = Replay(SLICE_NS, SWITCH_NS)
    for key in ("a", "b"):
        replay.add(key, (ord(key),))
        replay.open(key, 0)
    replay.doubt("b")
    replay.progress("b", MS, is_anchor=True)  # in the middle of a's first slice
    assert (replay.hits, replay.misses) == (0, 0)
    replay.doubt("b", is_open=False)
    replay.close("b", MS + MS // 4)  # whose turn begins, and when, is known again
    replay.open("b", MS + MS // 2)
    assert (replay.hits, replay.misses) == (0, 0)
    replay.progress("b", MS + MS // 2, is_anchor=True)
    assert (replay.hits, replay.misses) == (0, 1)


def in_company() -> Replay:
    """a has had its turn since 0, and b waits."""
    replay = Replay(SLICE_NS, SWITCH_NS)
    for key in ("a", "b"):
        replay.add(key, (ord(key),))
        replay.open(key, 0)
    return replay


def test_a_miss_leaves_the_phase_open_until_somebodys_end_tells_it() -> None:
    replay = in_company()
    assert replay.progress("b", MS, is_anchor=True) is False
    assert replay.progress("a", MS + MS // 2, is_anchor=True) is None, (
        "how much of its slice b had was a guess"
    )
    assert (replay.hits, replay.misses) == (0, 1)
    assert replay.close("b", 2 * MS) is None
    replay.open("b", 2 * MS)
    assert replay.progress("a", 3 * MS, is_anchor=True) is True
    assert (replay.hits, replay.misses) == (1, 1)


@pytest.mark.parametrize("how", ["drain", "late", "gone"])
def test_a_turn_that_ended_unseen_leaves_the_phase_open(how: str) -> None:
    replay = in_company()
    replay.add("c", (ord("c"),))
    replay.open("c", 0)
    assert replay.progress("a", MS // 2, is_anchor=True) is True
    if how == "drain":
        replay.drain("a", MS // 2, MS // 4)
    elif how == "late":
        replay.close_before("a", MS, MS // 4)
    else:
        replay.remove("a", MS)
    assert replay.progress("b", 2 * MS, is_anchor=True) is None
    assert (replay.hits, replay.misses) == (1, 0)


def test_contexts_that_always_have_work_and_are_held_in_turn_say_nothing_about_turns() -> None:
    """As two trainers with quotas are: each drain is an estimate, and nobody is ever seen to end."""
    replay, generator = in_company(), random.Random(7)
    now = 0
    for turn in range(200):
        held, other = ("a", "b") if turn % 2 else ("b", "a")
        replay.drain(held, now, generator.randrange(1, 20 * MS))
        for _ in range(3):
            now += generator.randrange(5 * MS, 15 * MS)
            replay.progress(other, now, is_anchor=True)
        replay.resume(held, now)
        replay.open(held, now)
        for _ in range(3):
            now += generator.randrange(5 * MS, 15 * MS)
            replay.progress(held, now, is_anchor=True)
            replay.progress(other, now + MS // 3, is_anchor=True)
    assert replay.hits + replay.misses < 12
    assert replay.misses < 7


def test_what_an_anchor_says_of_the_others_is_told_in_an_order_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in that of a set of objects, which is another in each process: then two plays of the same edges differ."""

    class Backwards(Runner):
        def __hash__(self) -> int:
            return 7 - self.serial

    monkeypatch.setattr(replay_module, "Runner", Backwards)
    replay = Replay(SLICE_NS, SWITCH_NS)
    told: list[list[str]] = []
    monkeypatch.setattr(
        replay._circle, "tell", lambda _first, _second, passed: told.append([one.key for one in passed])
    )
    for rank, key in enumerate("abcde"):
        replay.add(key, (rank,))
        replay.open(key, 0)
    replay.progress("a", 10 * MS, is_anchor=True)
    replay.progress("b", 10 * MS + SLICE_NS // 4, is_anchor=True)
    assert told == [["c", "d", "e"]]
