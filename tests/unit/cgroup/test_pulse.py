# SPDX-License-Identifier: Apache-2.0
"""A hold that is interrupted until somebody has had enough, and never without a record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef
from fairsched.errors import KernelRefused
from tests.support import FakeTree

MS = 1_000_000
LATER_NS = time.monotonic_ns() + 86_400_000 * MS
"""When the suite has long ended: this is read when the file is collected, the tests run minutes later."""


def hold(freezer: Freezer, ref: CgroupRef) -> None:
    assert freezer.hold(ref, "chat", LATER_NS, "over_entitlement").kind is HoldKind.HELD


def entries(journal: Journal) -> list[Entry]:
    found = journal.entries()
    assert all(isinstance(entry, Entry) for entry in found)
    return [entry for entry in found if isinstance(entry, Entry)]


def test_it_runs_until_it_has_used_it_up_and_is_held_until_the_new_deadline(
    fake: FakeTree, freezer: Freezer, journal: Journal
) -> None:
    seen: list[tuple[bool, int]] = []

    def used() -> float:
        seen.append((fake.is_asked("a"), len(journal.entries())))
        return len(seen) / 3

    with fake.make("a") as ref:
        hold(freezer, ref)
        (before,) = entries(journal)
        kind = freezer.pulse([ref.id], LATER_NS + 7, "deep_queue", used, 1000 * MS)
        assert kind is HoldKind.HELD
        assert seen == [(False, 1)] * 3  # thawed, and the next hold on record before it is made
        assert fake.is_asked("a")
        (after,) = entries(journal)
        assert after == freezer.holds[ref.id]
        assert (after.deadline_ns, after.reason, after.tenant) == (LATER_NS + 7, "deep_queue", "chat")
        assert after.since_ns > before.since_ns
        assert freezer.settle() == []  # our own writes are nobody's pause
        assert freezer.thaw(ref.id).kind is HoldKind.THAWED
    assert journal.entries() == []


def test_without_enough_in_time_it_runs_on_and_is_off_the_record(
    fake: FakeTree, freezer: Freezer, journal: Journal
) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        assert freezer.pulse([ref.id], LATER_NS, "deep_queue", lambda: 0.5, MS) is HoldKind.THAWED
        assert not fake.is_asked("a")
        assert (journal.entries(), freezer.holds) == ([], {})
        assert freezer.settle() == []
        hold(freezer, ref)


def test_a_gang_is_let_go_and_held_as_one(fake: FakeTree, freezer: Freezer) -> None:
    with fake.make("a") as a, fake.make("b") as b:
        hold(freezer, a)
        hold(freezer, b)
        states: list[tuple[bool, bool]] = []

        def used() -> float:
            states.append((fake.is_asked("a"), fake.is_asked("b")))
            return 1

        assert freezer.pulse([a.id, b.id], LATER_NS, "deep_queue", used, MS) is HoldKind.HELD
        assert states == [(False, False)]
        assert fake.is_asked("a") and fake.is_asked("b")


def test_until_they_have_begun_looks_leave_them_the_processor(
    fake: FakeTree, freezer: Freezer, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps_s: list[float] = []
    monkeypatch.setattr(time, "sleep", naps_s.append)
    parts = iter([0, 0, 0.2, 0.7, 1.1])
    with fake.make("a") as ref:
        hold(freezer, ref)
        kind = freezer.pulse([ref.id], LATER_NS, "deep_queue", lambda: next(parts), 1000 * MS)
    assert kind is HoldKind.HELD
    assert naps_s == pytest.approx([100e-6, 100e-6, 20e-6, 20e-6])


@pytest.mark.parametrize(
    ("begins_ns", "ends_ns", "is_held"),
    [(2, 5, True), (2, 7, False), (4, 5, False), (0, 2, True), (0, 4, False)],
)
def test_the_time_to_begin_is_not_taken_from_the_time_to_do_it(
    fake: FakeTree,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    begins_ns: int,
    ends_ns: int,
    is_held: bool,
) -> None:
    """Of 3 ns for either."""
    clock = [0]

    def used() -> float:
        clock[0] += 1
        return 1 if clock[0] > ends_ns else 0.5 if clock[0] > begins_ns else 0

    monkeypatch.setattr(time, "sleep", lambda _s: None)
    with Freezer(journal, clock_ns=lambda: clock[0]) as freezer, fake.make("a") as ref:
        hold(freezer, ref)
        kind = freezer.pulse([ref.id], LATER_NS, "deep_queue", used, 3)
        assert kind is (HoldKind.HELD if is_held else HoldKind.THAWED)


def test_nobody_runs_while_the_journal_is_written(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[tuple[bool, bool]] = []

    def noting(step: Callable[..., None]) -> Callable[..., None]:
        def note(*arguments: object) -> None:
            states.append((fake.is_asked("a"), fake.is_asked("b")))
            step(*arguments)

        return note

    with fake.make("a") as a, fake.make("b") as b:
        hold(freezer, a)
        hold(freezer, b)
        monkeypatch.setattr(journal, "write", noting(journal.write))
        monkeypatch.setattr(journal, "remove", noting(journal.remove))
        assert freezer.pulse([a.id, b.id], LATER_NS, "deep_queue", lambda: 1, MS) is HoldKind.HELD
        assert states == [(True, True)] * 4
        assert len(journal.entries()) == 2


@pytest.mark.parametrize("whom", ["a", "b"])
def test_a_pause_by_somebody_else_meanwhile_is_theirs_and_ends_the_gang(
    fake: FakeTree, freezer: Freezer, journal: Journal, whom: str
) -> None:
    def pause() -> float:
        fake.write_freeze(whom, "1")
        return 1

    with fake.make("a") as a, fake.make("b") as b:
        hold(freezer, a)
        hold(freezer, b)
        assert freezer.pulse([a.id, b.id], LATER_NS, "deep_queue", pause, MS) is HoldKind.THAWED
        assert (fake.is_asked("a"), fake.is_asked("b")) == (whom == "a", whom == "b")
        assert (journal.entries(), freezer.holds) == ([], {})


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_others_did_before_it_ends_it(
    fake: FakeTree, freezer: Freezer, journal: Journal, value: str
) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        fake.write_freeze("a", value)
        assert freezer.pulse([ref.id], LATER_NS, "deep_queue", lambda: 1, MS) is HoldKind.THAWED
        assert fake.is_asked("a") is (value == "1")
        assert (journal.entries(), freezer.holds) == ([], {})


def test_no_record_no_hold(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_entry: Entry) -> None:
        raise KernelRefused("holds", 28, "cannot write the journal")

    with fake.make("a") as ref:
        hold(freezer, ref)
        monkeypatch.setattr(journal, "write", full)
        with pytest.raises(KernelRefused, match="journal"):
            freezer.pulse([ref.id], LATER_NS, "deep_queue", lambda: 1, MS)
        assert not fake.is_asked("a")
        assert freezer.holds == {}


def test_a_thaw_without_effect_keeps_its_record(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda _fd, data, _offset: len(data))
            with pytest.raises(KernelRefused):
                freezer.pulse([ref.id], LATER_NS, "deep_queue", lambda: 1, MS)
        assert len(journal.entries()) == 1


def test_an_interruption_leaves_it_running(fake: FakeTree, freezer: Freezer, journal: Journal) -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    with fake.make("a") as ref:
        hold(freezer, ref)
        with pytest.raises(KeyboardInterrupt):
            freezer.pulse([ref.id], LATER_NS, "deep_queue", interrupt, MS)
        assert not fake.is_asked("a")
        assert (journal.entries(), freezer.holds) == ([], {})
