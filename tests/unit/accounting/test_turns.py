# SPDX-License-Identifier: Apache-2.0
"""Who is charged what where the GPU tells whose turn it is."""

from __future__ import annotations

import pytest

from fairsched.accounting.turns import GIVEN_NS, Turns
from fairsched.gpu.trace import Switch
from fairsched.model import NEVER_NS
from tests.unit.accounting.fake_probe import MS

A, B, C = 11, 12, 13
"""Processes; each has the context and the channel of its number."""


def engine(*pids: int) -> Turns:
    turns = Turns(2 * MS, MS // 10)
    for pid in pids:
        turns.add(pid, (pid,), pid)
    return turns


def comes(turns: Turns, at_ms: float, pid: int) -> None:
    turns.feed([Switch(round(at_ms * MS), pid, pid, True)], NEVER_NS)


def goes(turns: Turns, at_ms: float, pid: int) -> None:
    turns.feed([Switch(round(at_ms * MS), pid, pid, False)], NEVER_NS)


def has(turns: Turns, *stays: tuple[int, float, float]) -> None:
    for pid, begin_ms, end_ms in stays:
        comes(turns, begin_ms, pid)
        goes(turns, end_ms, pid)


def charged_ms(turns: Turns, pid: int) -> float:
    return turns.exec_ns(pid) / MS


def test_turns_are_those_of_the_trace_however_long() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    has(turns, (A, 0, 7), (B, 7.2, 8), (A, 8.2, 9))
    turns.advance(10 * MS)
    assert (charged_ms(turns, A), charged_ms(turns, B)) == pytest.approx((7.8, 0.8))


def test_who_stays_without_work_is_charged_nothing() -> None:
    turns = engine(A)
    turns.open(A, 0)
    comes(turns, 0, A)
    turns.close(A, 3 * MS)
    turns.open(A, 10 * MS)
    turns.advance(12 * MS)
    assert charged_ms(turns, A) == 5
    assert turns.idle_ns(12 * MS) == 7 * MS


def test_who_is_given_a_turn_while_others_wait_has_work_whatever_its_calls_say() -> None:
    turns = engine(A, B)
    turns.open(B, 0)
    has(turns, (A, 1, 3))
    turns.advance(4 * MS)
    assert charged_ms(turns, A) == 2


def test_turns_of_the_drivers_own_end_no_drain() -> None:
    """They cannot be told apart: two of them need not be one that had two turns."""
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    has(turns, (A, 0, 1))
    turns.drain(A, MS, 9 * MS)
    has(turns, (B, 1, 3), (0, 3.01, 3.02), (0, 3.03, 3.04))
    turns.advance(4 * MS)
    assert turns.is_runnable(A)
    has(turns, (B, 4, 5))
    turns.advance(6 * MS)
    assert not turns.is_runnable(A), "it is, by one that has a name"


def test_a_drain_is_over_when_the_others_have_passed_it_twice() -> None:
    turns = engine(A, B, C)
    for pid in (A, B, C):
        turns.open(pid, 0)
    has(turns, (A, 0, 2))
    turns.drain(A, 2 * MS, 100 * MS)
    has(turns, (B, 2, 4), (C, 4, 6), (A, 6, 8), (B, 8, 10), (C, 10, 12))
    turns.advance(12 * MS)
    assert turns.is_runnable(A)
    assert turns.take_drained() == []
    comes(turns, 12, B)
    turns.advance(13 * MS)
    assert turns.take_drained() == [(A, 12 * MS)]
    assert charged_ms(turns, A) == 4


def test_a_drain_that_outlasts_its_estimate_is_charged_what_it_runs() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    turns.drain(A, 0, MS)
    has(turns, (A, 0, 2), (B, 2, 4), (A, 4, 6), (B, 6, 8))
    turns.advance(8 * MS)
    assert charged_ms(turns, A) == 4
    assert turns.is_runnable(A)


def test_a_drain_that_is_alone_ends_as_estimated_for_nobody_passes_it() -> None:
    turns = engine(A)
    turns.open(A, 0)
    comes(turns, 0, A)
    turns.drain(A, 0, 5 * MS)
    turns.advance(4 * MS)
    assert turns.drain_end_ns() == 5 * MS
    turns.advance(9 * MS)
    assert [key for key, _ in turns.take_drained()] == [A]


def test_a_switch_that_is_told_of_late_takes_back_what_was_charged_beyond_it() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    comes(turns, 0, A)
    turns.advance(5 * MS)
    goes(turns, 2, A)
    comes(turns, 2, B)
    turns.advance(6 * MS)
    assert (charged_ms(turns, A), charged_ms(turns, B)) == (2, 4)


def test_nothing_is_charged_in_a_hole_of_the_trace() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    comes(turns, 0, A)
    turns.advance(MS)
    turns.lose()
    turns.advance(5 * MS)
    assert charged_ms(turns, A) == 1
    comes(turns, 5, A)
    turns.advance(6 * MS)
    assert charged_ms(turns, A) == 2


def test_when_the_trace_is_lost_turns_are_replayed_from_there() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    has(turns, (A, 0, 6))
    turns.advance(6 * MS)
    turns.lose(is_for_good=True)
    turns.advance(26 * MS)
    assert charged_ms(turns, A) + charged_ms(turns, B) == pytest.approx(26, rel=0.1)
    assert charged_ms(turns, A) - 6 == pytest.approx(charged_ms(turns, B), abs=2)
    assert turns.idle_ns(26 * MS) == 0


def test_the_trace_takes_over_from_the_replay_without_a_jump() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    turns.advance(20 * MS)
    before = charged_ms(turns, A), charged_ms(turns, B)
    assert sum(before) > 18
    has(turns, (A, 20, 25))
    turns.advance(26 * MS)
    assert (charged_ms(turns, A), charged_ms(turns, B)) == pytest.approx((before[0] + 5, before[1]))


def test_of_the_contexts_of_a_process_that_one_is_charged_which_waits() -> None:
    turns = Turns(2 * MS, 0)
    turns.add("first", (1,), A)
    turns.add("second", (2,), A)
    turns.open("second", 0)
    has(turns, (A, 0, 2))
    turns.open("first", 2 * MS)
    has(turns, (A, 3, 5), (A, 5, 7))
    turns.advance(8 * MS)
    assert (turns.exec_ns("first"), turns.exec_ns("second")) == (2 * MS, 4 * MS)


def test_settling_and_moving_charges_is_for_replays() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    has(turns, (A, 0, 2))
    turns.advance(2 * MS)
    turns.settle(A, 5 * MS)
    turns.transfer(A, B, MS)
    assert (charged_ms(turns, A), charged_ms(turns, B)) == (2, 0)


def test_a_process_of_which_no_call_is_seen_is_charged_while_somebody_waits() -> None:
    turns = engine(A)
    turns.open(A, 0)
    has(turns, (C, 0, 2), (A, 2, 4), (C, 4, 6))
    turns.advance(7 * MS)
    turns.close(A, 7 * MS)
    has(turns, (C, 8, 20))  # alone, at work or not
    turns.advance(21 * MS)
    assert list(turns.take_strangers()) == [(C, 4 * MS, 20 * MS)]
    assert list(turns.take_strangers()) == [(C, 0, 20 * MS)]
    turns.forget_stranger(C)
    assert list(turns.take_strangers()) == []


def test_how_long_nobody_had_work_is_kept_when_the_trace_is_lost() -> None:
    turns = engine(A)
    turns.open(A, 0)
    comes(turns, 0, A)
    turns.close(A, 3 * MS)
    turns.advance(10 * MS)
    turns.lose(is_for_good=True)
    assert turns.idle_ns(10 * MS) == 7 * MS


def rounds(turns: Turns, begin_ms: int, end_ms: int, *pids: int) -> None:
    """Each has 2 ms in turn; the engine is looked at each 10 ms."""
    at = begin_ms
    while at < end_ms:
        for pid in pids:
            has(turns, (pid, at, at + 2))
            at += 2
        turns.look(at * MS)


def test_who_waits_for_something_else_than_a_turn_has_no_work_for_the_engine() -> None:
    """A launch behind an event that never comes: turns go round, and it has none."""
    turns = engine(A, B, C)
    for pid in (A, B, C):
        turns.open(pid, 0)
    rounds(turns, 0, 100, A, B)
    assert [turns.is_runnable(pid) for pid in (A, B, C)] == [True, True, False]
    turns.open(C, 100 * MS)  # as its calls have it, it goes on
    assert not turns.is_runnable(C)
    comes(turns, 100, C)
    turns.advance(102 * MS)
    assert turns.is_runnable(C)
    assert charged_ms(turns, C) == 2


def test_who_waits_for_its_turn_has_work_however_long_that_takes() -> None:
    others = list(range(20, 60))
    turns = engine(C, *others)
    for pid in (C, *others):
        turns.open(pid, 0)
    rounds(turns, 0, 80, *others)
    assert turns.is_runnable(C)


def test_an_engine_that_stays_with_nobody_is_wanted_by_nobody() -> None:
    """Who was there last is not charged for that somebody seems to wait."""
    turns = engine(A, C)
    turns.open(A, 0)
    turns.open(C, 0)
    comes(turns, 0, A)
    turns.close(A, 3 * MS)
    for at in range(10, 1000, 10):
        turns.look(at * MS)
    assert not turns.is_runnable(C)
    assert turns.runnable == 0
    assert charged_ms(turns, A) <= 60


def test_bursts_that_end_without_a_turn_add_up() -> None:
    """Copies, or the host: each is short, and none needs the engine."""
    turns = engine(A, C)
    turns.open(A, 0)
    for at in range(0, 200, 20):
        turns.open(C, at * MS)
        rounds(turns, at, at + 20, A, B)
        turns.close(C, (at + 20) * MS)
    turns.open(C, 200 * MS)
    assert not turns.is_runnable(C)
    turns.close(C, 201 * MS)
    comes(turns, 202, C)  # of work that no call told of
    turns.advance(204 * MS)
    assert not turns.is_runnable(C)


def test_a_drain_that_nobody_passes_ends_though_somebody_seems_to_wait() -> None:
    turns = engine(A, C)
    turns.open(A, 0)
    turns.open(C, 0)
    comes(turns, 0, A)
    turns.drain(A, 0, 5 * MS)
    for at in range(0, 200, 10):
        turns.look(at * MS)
    assert [key for key, _ in turns.take_drained()] == [A]
    assert not turns.is_runnable(C)


def test_who_stalled_has_work_for_the_replay_when_the_trace_is_lost() -> None:
    turns = engine(A, B, C)
    for pid in (A, B, C):
        turns.open(pid, 0)
    rounds(turns, 0, 100, A, B)
    turns.lose(is_for_good=True)
    assert turns.is_runnable(C)
    turns.advance(200 * MS)
    assert charged_ms(turns, C) > 20


def test_who_is_alone_after_a_hole_has_the_engine_though_no_switch_tells() -> None:
    turns = engine(A)
    turns.open(A, 0)
    comes(turns, 0, A)
    turns.advance(MS)
    turns.lose()
    turns.advance(5 * MS)
    assert charged_ms(turns, A) == 5
    turns.drain(A, 5 * MS, 2 * MS)
    turns.advance(9 * MS)
    assert [key for key, _ in turns.take_drained()] == [A]


def one_left_beside_a_drain() -> Turns:
    """A drained; B, whose turn came while A seemed to wait, has ended its work at 6 ms and still has the engine."""
    turns = engine(A, B)
    turns.open(A, 0)
    turns.open(B, 0)
    comes(turns, 0, A)
    turns.drain(A, MS, 9 * MS)
    goes(turns, 2, A)
    comes(turns, 2.2, B)
    turns.close(B, 6 * MS)
    return turns


def test_a_drain_that_is_not_given_an_engine_that_nobody_wants_is_over() -> None:
    turns = one_left_beside_a_drain()
    assert turns.drain_end_ns() == 6 * MS + GIVEN_NS, "worth a look"
    turns.look(6 * MS + GIVEN_NS - 1)
    assert turns.runnable == 1
    turns.look(20 * MS)
    assert [key for key, _ in turns.take_drained()] == [A]
    assert turns.drain_end_ns() is None
    assert charged_ms(turns, A) == 2
    assert charged_ms(turns, B) == pytest.approx(3.8), (
        "not for the time after its work, in which nobody waited"
    )


def test_nothing_follows_from_a_time_of_which_nothing_is_told_yet() -> None:
    """A read of the trace came late: somebody may well have been given the engine."""
    turns = one_left_beside_a_drain()
    turns.feed([], 7 * MS)
    turns.look(90 * MS)
    assert turns.take_drained() == []
    assert turns.runnable == 1


def test_who_is_given_the_engine_beside_a_drain_and_told_of_no_work_is_charged() -> None:
    turns = engine(A, B)
    turns.open(A, 0)
    comes(turns, 0, A)
    turns.drain(A, MS, 9 * MS)
    goes(turns, 2, A)
    comes(turns, 2.2, B)
    turns.look(12 * MS)
    assert turns.take_drained() == []
    assert charged_ms(turns, B) == pytest.approx(9.8)


def test_of_several_drains_the_last_is_worth_a_look() -> None:
    turns = engine(A, B)
    for pid in (A, B):
        turns.open(pid, 0)
        turns.drain(pid, 0, 5 * MS)
    has(turns, (A, 0, 2), (B, 2, 4))
    comes(turns, 4, A)
    turns.advance(5 * MS)
    assert turns.drain_end_ns() == 10 * MS
