# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import select
import shutil
import time
from pathlib import Path

import pytest

from fairsched.cgroup import freezer as freezer_module
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef
from fairsched.errors import FairschedError, KernelRefused
from tests.support import FakeTree

SECOND_NS = 1_000_000_000


def hold(freezer: Freezer, ref: CgroupRef, tenant: str = "chat") -> HoldResult:
    return freezer.hold(ref, tenant, time.monotonic_ns() + 60 * SECOND_NS, "over_entitlement")


def kinds(results: list[HoldResult]) -> list[HoldKind]:
    return [result.kind for result in results]


def test_hold_and_thaw_leave_nothing_behind(fake: FakeTree, freezer: Freezer, journal: Journal) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    ref = fake.make("a")
    assert hold(freezer, ref).kind is HoldKind.HELD
    assert fake.is_asked("a")
    (entry,) = journal.entries()
    assert entry == freezer.holds[ref.id]
    assert isinstance(entry, Entry)
    assert (entry.path, entry.tenant, entry.cgroup_id) == ("/a", "chat", ref.id)
    assert hold(freezer, ref).kind is HoldKind.ALREADY_HELD
    assert freezer.thaw(ref.id).kind is HoldKind.THAWED
    assert not fake.is_asked("a")
    assert journal.entries() == []
    assert freezer.thaw(ref.id).kind is HoldKind.NOT_HELD
    assert freezer.settle() == []
    ref.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_hold_is_on_record_before_it_is_made(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, int]] = []
    real_pwrite = os.pwrite

    def watching_pwrite(fd: int, data: bytes, offset: int) -> int:
        if data == b"1":
            seen.append((fake.is_asked("a"), len(journal.entries())))
        return real_pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", watching_pwrite)
    with fake.make("a") as ref:
        hold(freezer, ref)
    assert seen == [(False, 1)]


def test_thaw_is_verified_before_the_record_goes(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda fd, data, offset: len(data))  # accepted, without effect
            with pytest.raises(KernelRefused, match="cannot thaw"):
                freezer.thaw(ref.id)
        assert len(journal.entries()) == 1
        assert ref.id in freezer.holds
        assert freezer.thaw(ref.id).kind is HoldKind.THAWED


def test_no_journal_no_hold(fake: FakeTree, freezer: Freezer, journal: Journal) -> None:
    shutil.rmtree(journal.directory)
    Path(journal.directory).write_text("a file in the way")
    with fake.make("a") as ref, pytest.raises(KernelRefused):
        hold(freezer, ref)
    assert not fake.is_asked("a")
    assert freezer.holds == {}


def test_refused_freeze_takes_the_record_back(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, data: bytes, offset: int) -> int:
        raise OSError(16, "busy")

    with fake.make("a") as ref:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            with pytest.raises(KernelRefused, match="cannot freeze"):
                hold(freezer, ref)
        assert (freezer.holds, journal.entries()) == ({}, [])


def test_interrupted_hold_is_undone(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite = os.pwrite

    def write_and_be_interrupted(fd: int, data: bytes, offset: int) -> int:
        real_pwrite(fd, data, offset)
        if data == b"1":
            raise KeyboardInterrupt
        return len(data)

    monkeypatch.setattr(os, "pwrite", write_and_be_interrupted)
    with fake.make("a") as ref, pytest.raises(KeyboardInterrupt):
        hold(freezer, ref)
    assert not fake.is_asked("a")
    assert (freezer.holds, journal.entries()) == ({}, [])


@pytest.mark.parametrize("who", [{"frozen": True}, {"parent_frozen": True}])
def test_cgroup_found_paused_is_foreign_and_untouched(
    fake: FakeTree, freezer: Freezer, journal: Journal, who: dict[str, bool]
) -> None:
    with fake.make("a", **who) as ref:
        before = fake.freeze_file("a").read_text()
        assert hold(freezer, ref).kind is HoldKind.FOREIGN
        assert fake.freeze_file("a").read_text() == before
        assert (freezer.holds, journal.entries()) == ({}, [])


@pytest.mark.parametrize("noticed_by", ["settle", "thaw", "close"])
def test_pause_over_our_hold_is_handed_over_and_never_thawed(
    fake: FakeTree, freezer: Freezer, journal: Journal, noticed_by: str
) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        assert freezer.settle() == []
        fake.write_freeze("a", "1")
        if noticed_by == "settle":
            assert kinds(freezer.settle()) == [HoldKind.FOREIGN]
        elif noticed_by == "thaw":
            assert freezer.thaw(ref.id).kind is HoldKind.FOREIGN
            assert freezer.settle() == []
        else:
            assert kinds(freezer.close()) == [HoldKind.FOREIGN]
        assert fake.is_asked("a")
        assert (freezer.holds, journal.entries()) == ({}, [])


def test_pause_that_merges_with_our_own_write_is_still_seen(
    fake: FakeTree, freezer: Freezer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite = os.pwrite

    def write_and_be_overtaken(fd: int, data: bytes, offset: int) -> int:
        written = real_pwrite(fd, data, offset)
        if data == b"1":
            fake.write_freeze("a", "1")  # before we can read the queue
        return written

    monkeypatch.setattr(os, "pwrite", write_and_be_overtaken)
    with fake.make("a") as ref:
        assert hold(freezer, ref).kind is HoldKind.FOREIGN
    assert fake.is_asked("a")


def test_pause_that_comes_while_the_record_is_written_is_foreign(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = journal.write

    def write_and_be_overtaken(entry: Entry) -> None:
        real_write(entry)
        fake.write_freeze("a", "1")

    monkeypatch.setattr(journal, "write", write_and_be_overtaken)
    with fake.make("a") as ref:
        assert hold(freezer, ref).kind is HoldKind.FOREIGN
        assert (freezer.holds, journal.entries()) == ({}, [])
        assert freezer.settle() == []
    assert fake.is_asked("a")


def test_thaw_by_somebody_else_ends_the_hold_without_a_fight(
    fake: FakeTree, freezer: Freezer, journal: Journal
) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        fake.write_freeze("a", "0")
        assert kinds(freezer.settle()) == [HoldKind.RELEASED]
        assert not fake.is_asked("a")
        assert (freezer.holds, journal.entries()) == ({}, [])
        assert hold(freezer, ref).kind is HoldKind.HELD


def test_opening_the_file_without_writing_is_no_pause(fake: FakeTree, freezer: Freezer) -> None:
    with fake.make("a") as ref:
        hold(freezer, ref)
        os.close(os.open(fake.freeze_file("a"), os.O_WRONLY))
        assert freezer.settle() == []
        assert freezer.thaw(ref.id).kind is HoldKind.THAWED


def test_writes_to_other_cgroups_are_told_apart(fake: FakeTree, freezer: Freezer) -> None:
    with fake.make("a") as a, fake.make("b") as b:
        hold(freezer, a)
        hold(freezer, b)
        fake.write_freeze("b", "1")
        (change,) = freezer.settle()
        assert (change.kind, change.path) == (HoldKind.FOREIGN, "/b")
        assert list(freezer.holds) == [a.id]


def test_foreign_write_makes_the_freezer_readable(fake: FakeTree, freezer: Freezer) -> None:
    poll = select.poll()
    poll.register(freezer.fileno(), select.POLLIN)
    with fake.make("a") as ref:
        hold(freezer, ref)
        assert poll.poll(0) == []
        fake.write_freeze("a", "1")
        assert poll.poll(1000)
        freezer.settle()
        assert poll.poll(0) == []


def test_what_we_do_ourselves_does_not_make_the_freezer_readable(fake: FakeTree, freezer: Freezer) -> None:
    poll = select.poll()
    poll.register(freezer.fileno(), select.POLLIN)
    with fake.make("a") as ref:
        for _ in range(2):
            hold(freezer, ref)
            assert poll.poll(0) == []
            freezer.thaw(ref.id)
            assert poll.poll(0) == []


def test_vanished_cgroup_is_data(fake: FakeTree, freezer: Freezer) -> None:
    with fake.make("a") as ref:
        shutil.rmtree(fake.root / "a")
        assert hold(freezer, ref).kind is HoldKind.GONE
    assert freezer.holds == {}


def test_deadline_in_the_past_is_no_hold(fake: FakeTree, freezer: Freezer) -> None:
    with fake.make("a") as ref:
        assert freezer.hold(ref, "t", time.monotonic_ns(), "x").kind is HoldKind.EXPIRED
        assert not fake.is_asked("a")


def test_expired_holds_and_no_others_are_thawed(fake: FakeTree, freezer: Freezer) -> None:
    now_ns = time.monotonic_ns()
    with fake.make("a") as a, fake.make("b") as b:
        freezer.hold(a, "a", now_ns + 100 * SECOND_NS, "x")
        freezer.hold(b, "b", now_ns + 300 * SECOND_NS, "x")
        assert kinds(freezer.thaw_expired(now_ns + 200 * SECOND_NS)) == [HoldKind.THAWED]
        assert (fake.is_asked("a"), fake.is_asked("b")) == (False, True)


def test_leaving_the_freezer_thaws_everything(fake: FakeTree, journal: Journal) -> None:
    refs = [fake.make(name) for name in "abc"]
    with pytest.raises(RuntimeError), Freezer(journal) as freezer:
        for ref in refs:
            hold(freezer, ref)
        raise RuntimeError
    assert not any(fake.is_asked(name) for name in "abc")
    assert journal.entries() == []
    assert freezer.close() == []


def test_gang_is_held_together(fake: FakeTree, freezer: Freezer) -> None:
    refs = [fake.make(name) for name in "abc"]
    gang = freezer.hold_gang(refs, "train", time.monotonic_ns() + 60 * SECOND_NS, "x")
    assert gang.kind is HoldKind.HELD
    assert set(freezer.holds) == {ref.id for ref in refs}


def test_gang_with_a_foreign_member_is_not_held_at_all(
    fake: FakeTree, freezer: Freezer, journal: Journal
) -> None:
    refs = [fake.make("a"), fake.make("b"), fake.make("c", frozen=True), fake.make("d")]
    gang = freezer.hold_gang(refs, "train", time.monotonic_ns() + 60 * SECOND_NS, "x")
    assert gang.kind is HoldKind.FOREIGN
    assert gang.members[-1].path == "/c"
    assert [fake.is_asked(name) for name in "abcd"] == [False, False, True, False]
    assert (freezer.holds, journal.entries()) == ({}, [])


def test_gang_error_undoes_the_members_before_it(fake: FakeTree, freezer: Freezer) -> None:
    refs = [fake.make("a"), fake.make("b")]
    fake.freeze_file("b").unlink()
    with pytest.raises(FairschedError):
        freezer.hold_gang(refs, "train", time.monotonic_ns() + 60 * SECOND_NS, "x")
    assert not fake.is_asked("a")
    assert freezer.holds == {}


def test_gang_goes_on_without_members_that_are_gone(fake: FakeTree, freezer: Freezer) -> None:
    refs = [fake.make("a"), fake.make("b")]
    shutil.rmtree(fake.root / "b")
    deadline_ns = time.monotonic_ns() + 60 * SECOND_NS
    assert freezer.hold_gang(refs, "train", deadline_ns, "x").kind is HoldKind.HELD
    assert fake.is_asked("a")
    assert freezer.hold_gang(refs[1:], "train", deadline_ns, "x").kind is HoldKind.GONE


class StepClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_what_is_at_rest_is_read_where_there_is_news_and_after_a_while(
    fake: FakeTree, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = [SECOND_NS], list[int]()
    read_frozen = freezer_module.read_frozen
    monkeypatch.setattr(freezer_module, "read_frozen", lambda fd: reads.append(fd) or read_frozen(fd))
    with fake.make("a") as ref, Freezer(journal, clock_ns=lambda: now[0]) as freezer:
        freezer.hold(ref, "chat", 60 * SECOND_NS, "over_entitlement")
        held = freezer._held[ref.id]
        assert not held.is_polled, "a plain file: nobody tells"
        held.is_polled = True
        freezer.settle()

        def reads_of_a_settle() -> int:
            reads.clear()
            freezer.settle()
            return len(reads)

        assert reads_of_a_settle() == 1, "it is not at rest yet"
        fake.settle("a")
        assert reads_of_a_settle() == 1
        assert reads_of_a_settle() == 0
        now[0] += SECOND_NS
        assert reads_of_a_settle() == 1
        assert reads_of_a_settle() == 0
        held.is_polled = False
        assert reads_of_a_settle() == 1


def test_what_is_held_for_a_tenant_is_told_apart(fake: FakeTree, freezer: Freezer) -> None:
    with fake.make("a") as one, fake.make("b") as two, fake.make("c") as other:
        held = freezer.held
        for ref, tenant in ((one, "chat"), (other, "train"), (two, "chat")):
            hold(freezer, ref, tenant)
        assert freezer.held_for("chat") == [one.id, two.id]
        assert set(held) == {one.id, two.id, other.id}
        freezer.thaw(one.id)
        assert freezer.held_for("chat") == [two.id]
        assert set(held) == {two.id, other.id}


def test_more_writes_of_others_than_one_read_takes_are_all_seen(fake: FakeTree, freezer: Freezer) -> None:
    refs = [fake.make(f"many/{number}") for number in range(400)]
    for ref in refs:
        hold(freezer, ref)
    for number in range(len(refs)):
        fake.write_freeze(f"many/{number}", "0")
    assert kinds(freezer.settle()) == [HoldKind.RELEASED] * len(refs)
    for ref in refs:
        ref.close()


def test_latency_is_measured_until_rest_and_smoothed(fake: FakeTree, journal: Journal) -> None:
    clock = StepClock()
    with Freezer(journal, clock_ns=clock) as freezer, fake.make("a") as ref:

        def once(latency_ns: int, settles: bool) -> None:
            clock.now_ns += SECOND_NS
            freezer.hold(ref, "a", clock.now_ns + 100 * SECOND_NS, "x")
            clock.now_ns += latency_ns
            if settles:
                fake.settle("a")
                (change,) = freezer.settle()
                assert (change.kind, change.latency_ns) == (HoldKind.SETTLED, latency_ns)
            freezer.thaw(ref.id)
            fake.make("a").close()
            (fake.root / "a/cgroup.events").write_text("frozen 0\n")

        assert freezer.latency_ns(ref.id) is None
        once(1000, settles=True)
        assert freezer.latency_ns(ref.id) == 1000
        once(2000, settles=True)
        assert freezer.latency_ns(ref.id) == 1250  # 1000 + (2000 - 1000) / 4
        once(500, settles=False)
        assert freezer.latency_ns(ref.id) == 1250  # thawed before rest: only says "at least 500"
        once(5250, settles=False)
        assert freezer.latency_ns(ref.id) == 2250


def test_of_a_cgroup_that_is_nobodys_any_more_nothing_is_kept(fake: FakeTree, freezer: Freezer) -> None:
    refs = {name: fake.make(name) for name in ("tenant", "gone", "held")}
    for ref in refs.values():
        hold(freezer, ref)
        freezer.thaw(ref.id)
    hold(freezer, refs["held"])
    freezer.forget_others({refs["tenant"].id})
    known = {name: freezer.latency_ns(ref.id) is not None for name, ref in refs.items()}
    assert known == {"tenant": True, "gone": False, "held": True}
    assert set(freezer.holds) == {refs["held"].id}, "to let go is for the policy to decide"
    for ref in refs.values():
        ref.close()
