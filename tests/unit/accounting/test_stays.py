# SPDX-License-Identifier: Apache-2.0
"""Who had a GPU and who waits for it, by its trace alone."""

from __future__ import annotations

import pytest

from fairsched.accounting.stays import LONGEST_TURN_NS, Stays
from fairsched.gpu.trace import Switch

MS = 1_000_000
SLICE, SWITCH = 2 * MS, 0
TURN = SLICE + SWITCH


class Told:
    """A book and the trace it is fed; channels are ten times the process."""

    def __init__(self, switch_ns: int = SWITCH) -> None:
        self.book, self.now, self.resident = Stays(SLICE, switch_ns), 0, 0

    def give(self, pid: int, for_ns: int, channel: int | None = None) -> None:
        """The engine goes to it now, and it is told what happens until that time is over."""
        switches = []
        if self.resident:
            switches.append(Switch(self.now, self.resident, 10 * self.resident, False))
        switches.append(Switch(self.now, pid, channel or 10 * pid, True))
        self.resident = pid
        self.book.feed(switches, self.now)
        self.wait(for_ns)

    def leave(self, for_ns: int = 0, pid: int | None = None) -> None:
        """The one that has it leaves it to nobody."""
        named = self.resident if pid is None else pid
        self.book.feed([Switch(self.now, named, 10 * named or 0xFFFFFFFF, False)], self.now)
        self.resident = 0
        self.wait(for_ns)

    def wait(self, for_ns: int) -> None:
        self.now += for_ns
        self.book.feed([], self.now)

    def charged(self, pid: int) -> tuple[int, int]:
        one = self.book.processes[pid]
        return one.certain_ns, one.uncertain_ns

    def wants(self, pid: int) -> bool:
        return self.book.is_wanting(self.book.processes[pid])


def test_who_takes_turns_is_charged_them_and_wants_more() -> None:
    told = Told()
    for _ in range(10):
        told.give(1, 2 * MS)
        told.give(2, 2 * MS)
    assert told.charged(1) == told.charged(2) == (20 * MS, 0)
    assert told.wants(1) and told.wants(2)


def test_what_is_longer_than_a_turn_is_uncertain() -> None:
    told = Told()
    told.give(1, 10 * MS)
    assert told.charged(1) == (2 * MS, 8 * MS)
    told.give(2, MS)
    assert told.charged(2) == (MS, 0)


def test_a_switch_is_nobodys_but_no_more_than_half_of_a_stay() -> None:
    told = Told(switch_ns=155_000)
    told.give(1, 2 * MS)
    told.give(2, 100_000)
    told.give(1, 0)
    assert told.charged(1)[0] == 2 * MS - 90_000
    assert told.charged(2)[0] == 50_000


def test_who_left_and_is_not_given_it_back_had_run_dry_then() -> None:
    told = Told()
    told.give(1, MS)
    told.give(2, 2 * MS)
    assert told.wants(1), "its turn comes now"
    told.book.changes.clear()
    told.wait(MS)
    assert not told.wants(1)
    assert told.book.changes == [(MS, 1, False)], "told of late, of when it left"
    assert told.wants(2)


def test_who_is_passed_twice_by_the_same_channel_wants_nothing() -> None:
    told = Told()
    told.give(1, 2 * MS)
    for pid in (2, 3):
        told.give(pid, 2 * MS)
    assert told.wants(1)
    told.give(2, 0)
    assert not told.wants(1)
    assert told.wants(3)


def test_processes_with_many_contexts_pass_once_with_each() -> None:
    told = Told()
    told.give(1, 2 * MS)
    for channel in range(100, 130):
        told.give(2, 2 * MS, channel)
    assert told.wants(1)
    told.give(2, 0, 100)
    assert not told.wants(1)


def test_an_engine_with_nobody_is_wanted_by_nobody() -> None:
    told = Told()
    told.give(1, 2 * MS)
    told.give(2, MS)
    told.leave(for_ns=500_000)
    assert told.wants(1)
    told.wait(MS)
    assert not told.wants(1) and not told.wants(2)
    assert told.book.free_ns == 1_500_000


def test_a_hole_charges_nobody_until_the_next_switch() -> None:
    told = Told()
    told.give(1, MS)
    told.book.lose()
    told.wait(10 * MS)
    told.give(2, MS)
    assert told.charged(1) == (MS, 0)
    assert told.charged(2) == (MS, 0)
    assert told.book.counts["holes"] == 1


def test_a_hole_lies_at_its_place_and_makes_nobody_want_less() -> None:
    """As the reader of the driver's ring tells it: an end without a name."""
    told = Told()
    told.give(2, 2 * MS)
    told.give(1, MS)
    told.book.feed([Switch(told.now, 0, 0, False)], told.now)
    told.wait(5 * MS)
    assert told.charged(1) == (MS, 0)
    assert told.book.counts == {"holes": 1}
    assert told.wants(2), "nothing says that it had run dry"


def test_after_the_drivers_own_turn_nobody_is_known_to_have_the_engine() -> None:
    told = Told()
    told.give(2, 2 * MS)
    told.give(1, 2 * MS)
    told.book.feed([Switch(told.now, 0, 0xFFFFFFFF, True), Switch(told.now, 0, 0xFFFFFFFF, False)], told.now)
    told.wait(5 * MS)
    assert told.wants(1) and told.wants(2)


def test_after_a_hole_who_had_it_last_has_it_if_nobody_takes_turns() -> None:
    told = Told()
    told.give(1, MS)
    told.book.lose()
    told.wait(2 * LONGEST_TURN_NS)
    assert sum(told.charged(1)) == pytest.approx(2 * LONGEST_TURN_NS + MS)
    assert told.book.counts["guessed"] == 1


def test_a_context_that_the_driver_cannot_name_is_nobodys() -> None:
    """Its start has the name of who left before, its end has none."""
    told = Told()
    told.give(1, 2 * MS)
    told.give(1, 2 * MS)
    told.leave(pid=0)
    assert told.charged(1) == (2 * MS, 0)
    assert told.book.counts["unnamed"] == 1


def test_the_drivers_own_turn_is_nobodys() -> None:
    told = Told()
    told.give(1, MS)
    told.book.feed([Switch(MS, 1, 10, False), Switch(MS, 0, 0, True)], 2 * MS)
    assert told.charged(1) == (MS, 0)
    assert told.book.resident is None
    told.book.feed([Switch(2 * MS, 0, 0, False), Switch(2 * MS, 1, 10, True)], 3 * MS)
    assert told.charged(1) == (2 * MS, 0)


def test_longer_slices_are_found_out_by_two_that_are_stopped_alike() -> None:
    told = Told()
    for _ in range(20):
        told.give(1, 10 * MS)
        told.give(2, 10 * MS)
    assert told.book.turn_ns == 10 * MS
    told.give(1, 10 * MS)
    assert told.wants(2)


def test_who_comes_by_the_clock_does_not_make_slices_longer() -> None:
    """One works .1 ms of each 10, the other always: that is stopped after as long each time."""
    told = Told()
    for _ in range(50):
        told.give(1, 100_000)
        told.give(2, 9_900_000)
    assert told.book.turn_ns == TURN
    assert not told.wants(1)


def test_who_was_let_go_waits_until_something_says_otherwise() -> None:
    told = Told()
    told.give(1, MS)
    told.give(2, 20 * MS)
    assert not told.wants(1)
    told.book.expect(told.book.processes[1], told.now)
    assert told.wants(1)
    told.wait(10 * MS)
    assert not told.wants(1)


def test_one_that_has_ended_is_forgotten() -> None:
    told = Told()
    told.give(1, MS)
    told.book.forget(1)
    told.book.forget(1)
    told.wait(MS)
    assert 1 not in told.book.processes and told.book.resident is None


def test_what_is_told_of_late_is_charged_no_second_time() -> None:
    told = Told()
    told.give(1, 4 * MS)
    told.book.feed([Switch(2 * MS, 1, 10, False), Switch(2 * MS, 2, 20, True)], 6 * MS)
    assert sum(told.charged(1)) + sum(told.charged(2)) <= 6 * MS
