# SPDX-License-Identifier: Apache-2.0
"""Holds by SIGSTOP: whom it reaches, whom it spares, and who is continued in the end. The processes are real."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup import sigstop as sigstop_module
from fairsched.cgroup import stopping, tree
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import Mount
from fairsched.cgroup.release import ReleaseKind, release_all
from fairsched.errors import KernelRefused
from tests.support import FakeTree, wait_until
from tests.unit.cgroup.brake_stages import SigstopStage, stands_still
from tests.unit.cgroup.test_brakes import PATIENCE_S, hold, kinds, later_ns, settled

PTRACE_SEIZE = 0x4206
PATIENT_NS = 3600 * 10**9
"""For a look: to start a program takes longer than a fork."""


@pytest.fixture
def stage(fake: FakeTree, journal: Journal) -> Iterator[SigstopStage]:
    stage = SigstopStage(fake, journal)
    yield stage
    stage.end()


def pid_of(stage: SigstopStage, name: str, index: int = 0) -> int:
    return stage.processes[name][index].pid


def entry_in(journal: Journal) -> Entry:
    (entry,) = journal.entries()
    assert isinstance(entry, Entry)
    return entry


def recorded(journal: Journal) -> set[int]:
    return {process.pid for process in entry_in(journal).stopped}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, signal.Signals]]:
    """What is sent, in order. It is sent all the same."""
    seen: list[tuple[int, signal.Signals]] = []
    send = sigstop_module.send

    def seeing_send(process: ProcessId, number: signal.Signals) -> bool:
        seen.append((process.pid, number))
        return send(process, number)

    monkeypatch.setattr(sigstop_module, "send", seeing_send)
    return seen


def test_children_that_appear_while_others_are_stopped_are_stopped_too(
    stage: SigstopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigstop_module, "LOOK_NS", PATIENT_NS)
    ref, send, on_record = stage.make("a"), sigstop_module.send, list[bool]()

    def send_and_fork(process: ProcessId, number: signal.Signals) -> bool:
        on_record.append(process.pid in recorded(stage.journal))
        if len(stage.processes["a"]) < 4:
            stage.add("a")
        return send(process, number)

    monkeypatch.setattr(sigstop_module, "send", send_and_fork)
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert on_record == [True] * 4
    assert stage.is_held("a")
    assert kinds(settled(stage.brake)) == [HoldKind.SETTLED]


def test_a_child_that_appears_when_its_parent_has_come_to_rest_is_stopped_before_it_is_said_to_rest(
    stage: SigstopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, is_at_rest = stage.make("a"), sigstop_module.is_at_rest
    hold(stage.brake, ref)

    def fork_and_rest(process: ProcessId) -> bool:
        if len(stage.processes["a"]) < 2:
            stage.add("a")
        return is_at_rest(process)

    monkeypatch.setattr(sigstop_module, "is_at_rest", fork_and_rest)
    assert kinds(settled(stage.brake)) == [HoldKind.SETTLED]
    assert len(recorded(stage.journal)) == 2
    assert stage.is_held("a")


def test_one_that_has_ended_when_it_is_looked_at_may_have_left_a_child(
    stage: SigstopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigstop_module, "LOOK_NS", PATIENT_NS)
    ref, read = stage.make("a"), tree.read_pids_recursive
    ended = stage.add("a")
    ended_process = stage.processes["a"].pop()
    ended_process.kill()
    ended_process.wait()
    stage.list("a")
    lists = iter([[pid_of(stage, "a")], [pid_of(stage, "a")], [pid_of(stage, "a"), ended]])

    def list_and_fork(mount: Mount, path: str) -> list[int]:
        """The third list names one that forks and ends right after it."""
        pids = next(lists, None)
        if pids is not None and ended in pids:
            stage.add("a")
        return read(mount, path) if pids is None else pids

    monkeypatch.setattr(tree, "read_pids_recursive", list_and_fork)
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert stage.is_held("a")


def test_a_process_that_enters_a_held_cgroup_is_stopped_and_continued_with_it(stage: SigstopStage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    assert kinds(settled(stage.brake)) == [HoldKind.SETTLED]
    pid = stage.add("a")

    def is_stopped() -> bool:
        assert stage.brake.settle() == []
        return stands_still(pid)

    wait_until(is_stopped, PATIENCE_S, "the newcomer is stopped")
    assert pid in recorded(stage.journal)
    stage.brake.thaw(ref.id)
    assert not stands_still(pid)


def test_past_the_deadline_nobody_is_stopped_any_more(
    fake: FakeTree, journal: Journal, stage: SigstopStage
) -> None:
    now = [1_000]
    with sigstop_module.Sigstop(journal, fake.mount, clock_ns=lambda: now[0]) as brake:
        brake.hold(stage.make("a"), "chat", 2_000, "x")
        now[0] = 2_000
        pid = stage.add("a")
        brake.settle()
        assert not stands_still(pid)


def test_one_that_was_stopped_before_us_stays_stopped_and_the_others_go_on(stage: SigstopStage) -> None:
    ref = stage.make("a")
    stage.pause("a")
    other, ours = pid_of(stage, "a"), stage.add("a")
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert recorded(stage.journal) == {ours}
    assert kinds(settled(stage.brake)) == [HoldKind.SETTLED]
    assert stage.brake.thaw(ref.id).kind is HoldKind.THAWED
    assert (stands_still(other), stands_still(ours)) == (True, False)
    hold(stage.brake, ref)
    assert [one.kind for one in release_all(stage.journal, stage.mount)] == [ReleaseKind.THAWED]
    assert (stands_still(other), stands_still(ours)) == (True, False)


def test_one_that_somebody_else_continues_while_we_hold_is_stopped_by_us(stage: SigstopStage) -> None:
    ref = stage.make("a")
    stage.pause("a")
    other = pid_of(stage, "a")
    stage.add("a")
    hold(stage.brake, ref)
    os.kill(other, signal.SIGCONT)
    wait_until(lambda: stage.brake.settle() is None or stands_still(other), PATIENCE_S, "it is stopped")
    assert other in recorded(stage.journal)
    stage.brake.thaw(ref.id)
    assert not stands_still(other)


def test_what_a_debugger_holds_is_left_alone(
    stage: SigstopStage, sent: list[tuple[int, signal.Signals]]
) -> None:
    ref, libc = stage.make("a"), ctypes.CDLL(None, use_errno=True)
    traced = pid_of(stage, "a")
    assert libc.ptrace(PTRACE_SEIZE, traced, None, None) == 0, os.strerror(ctypes.get_errno())
    try:
        assert hold(stage.brake, ref).kind is HoldKind.FOREIGN
        ours = stage.add("a")
        assert hold(stage.brake, ref).kind is HoldKind.HELD
        assert recorded(stage.journal) == {ours}
        stage.brake.thaw(ref.id)
        assert traced not in {pid for pid, _ in sent}
        assert not stands_still(traced)
    finally:
        os.kill(traced, signal.SIGKILL)


def test_a_pid_that_was_somebody_elses_when_it_was_listed_is_not_signalled(
    stage: SigstopStage, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[int, signal.Signals]]
) -> None:
    ref, outside = stage.make("a"), stage.make("outside") and pid_of(stage, "outside")
    read, stale = tree.read_pids_recursive, [[outside]]
    monkeypatch.setattr(
        tree, "read_pids_recursive", lambda mount, path: read(mount, path) + (stale.pop() if stale else [])
    )
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert {pid for pid, _ in sent} == {pid_of(stage, "a")}
    assert outside not in recorded(stage.journal)


def test_a_later_process_with_the_same_pid_is_not_signalled(stage: SigstopStage) -> None:
    stage.make("a")
    now = ProcessId.of(pid_of(stage, "a"))
    assert now is not None
    earlier = dataclasses.replace(now, start_ticks=now.start_ticks - 1)
    assert not stopping.send(earlier, signal.SIGSTOP)
    assert not stands_still(now.pid)
    assert stopping.send(now, signal.SIGSTOP)
    assert stands_still(now.pid)
    assert not stopping.is_stopping(earlier)
    assert stopping.let_go([earlier]) == 0
    assert stands_still(now.pid)
    assert stopping.let_go([now]) == 1
    assert not stands_still(now.pid)


def test_we_stop_neither_ourselves_nor_who_started_us_nor_init(
    stage: SigstopStage, sent: list[tuple[int, signal.Signals]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigstop_module, "send", lambda process, number: sent.append((process.pid, number)))
    ref = stage.make("a")
    pids = (0, 1, os.getpid(), os.getppid(), pid_of(stage, "a"))
    (stage.fake.root / "a" / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    hold(stage.brake, ref)
    assert sent == [(pid_of(stage, "a"), signal.SIGSTOP)]


def test_a_cgroup_that_somebody_froze_is_foreign(stage: SigstopStage) -> None:
    ref = stage.make("a")
    stage.fake.write_freeze("a", "1")
    assert hold(stage.brake, ref).kind is HoldKind.FOREIGN
    assert not stage.is_held("a")
    stage.fake.freeze_file("a").unlink()
    assert hold(stage.brake, ref).kind is HoldKind.HELD, "this kernel has no freezer"


def test_a_process_that_is_killed_while_it_is_held_ends_no_hold(stage: SigstopStage) -> None:
    ref = stage.make("a")
    stage.add("a")
    hold(stage.brake, ref)
    assert kinds(settled(stage.brake)) == [HoldKind.SETTLED]
    killed = stage.processes["a"].pop()
    killed.kill()
    killed.wait()
    stage.list("a")
    assert stage.brake.settle() == stage.brake.settle() == stage.brake.settle() == []
    assert stage.brake.thaw(ref.id).kind is HoldKind.THAWED


@pytest.mark.parametrize("noticed_by", ["settle", "thaw"])
def test_who_left_a_cgroup_that_is_gone_is_continued(stage: SigstopStage, noticed_by: str) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    shutil.rmtree(stage.fake.root / "a")
    if noticed_by == "settle":
        assert kinds(settled(stage.brake)) == [HoldKind.GONE]
    else:
        assert stage.brake.thaw(ref.id).kind is HoldKind.GONE
    assert not stands_still(pid_of(stage, "a"))
    assert stage.journal.entries() == []


def refuse(number: signal.Signals) -> Callable[[int, int], None]:
    real = signal.pidfd_send_signal

    def send(pidfd: int, what: int) -> None:
        if what == number:
            raise PermissionError(errno.EPERM, "no")
        real(pidfd, what)

    return send


def test_a_refused_stop_undoes_those_before_it(stage: SigstopStage, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stage.make("a")
    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", refuse(signal.SIGSTOP))
        with pytest.raises(KernelRefused, match="cannot send SIGSTOP") as caught:
            hold(stage.brake, ref)
    assert "CAP_KILL" in caught.value.remedy
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})


def test_an_interrupted_hold_is_undone(stage: SigstopStage, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, send = stage.make("a"), sigstop_module.send

    def send_and_be_interrupted(process: ProcessId, number: signal.Signals) -> bool:
        send(process, number)
        raise KeyboardInterrupt

    monkeypatch.setattr(sigstop_module, "send", send_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold(stage.brake, ref)
    assert not stage.is_held("a")
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})
    assert stage.brake.latency_ns(ref.id) is None or stage.brake.latency_ns(ref.id) < 10**9


def test_a_thaw_that_is_refused_keeps_its_record_and_is_tried_again(
    stage: SigstopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref, later_ns(1))
    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", refuse(signal.SIGCONT))
        with pytest.raises(KernelRefused, match="cannot send SIGCONT"):
            stage.brake.thaw(ref.id)
        assert [one.kind for one in release_all(stage.journal, stage.mount)] == [ReleaseKind.FAILED]
    assert recorded(stage.journal) == {pid_of(stage, "a")}
    assert kinds(stage.brake.thaw_expired(later_ns(2))) == [HoldKind.THAWED]
    assert not stage.is_held("a")


def test_a_signal_without_effect_is_a_refusal(stage: SigstopStage, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", lambda _pidfd, _number: None)
        with pytest.raises(KernelRefused, match="still stopped"):
            stage.brake.thaw(ref.id)
    assert len(stage.journal.entries()) == 1


def test_without_a_record_a_newcomer_runs_and_the_hold_goes_on(
    stage: SigstopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_entry: Entry) -> None:
        raise KernelRefused("holds", errno.ENOSPC, "cannot write the journal")

    ref = stage.make("a")
    hold(stage.brake, ref)
    pid = stage.add("a")
    with monkeypatch.context() as patch:
        patch.setattr(stage.journal, "write", full)
        with pytest.raises(KernelRefused, match="journal"):
            stage.brake.settle()
        assert not stands_still(pid)
        assert stands_still(pid_of(stage, "a"))
    stage.brake.settle()
    assert stands_still(pid)


def test_a_pulse_continues_and_stops_the_same_processes_and_newcomers(stage: SigstopStage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    left = stage.add("a")

    def used() -> float:
        if not stands_still(left):
            os.kill(left, signal.SIGSTOP)  # somebody else's from here on
        stage.add("a")
        return 1

    assert stage.brake.pulse([ref.id], later_ns(), "deep_queue", used, 10**10) is HoldKind.HELD
    assert stage.is_held("a")
    assert recorded(stage.journal) == {pid_of(stage, "a"), pid_of(stage, "a", 2)}
    stage.brake.thaw(ref.id)
    assert [stands_still(process.pid) for process in stage.processes["a"]] == [False, True, False]


def test_one_that_somebody_stopped_during_a_pulse_is_theirs(stage: SigstopStage) -> None:
    ref = stage.make("a")
    other = stage.add("a")
    hold(stage.brake, ref)

    def used() -> float:
        os.kill(other, signal.SIGSTOP)
        return 1

    assert stage.brake.pulse([ref.id], later_ns(), "deep_queue", used, 10**10) is HoldKind.HELD
    assert recorded(stage.journal) == {pid_of(stage, "a")}
    stage.brake.thaw(ref.id)
    assert [stands_still(process.pid) for process in stage.processes["a"]] == [False, True]


def test_one_who_forks_all_the_time_does_not_keep_the_caller(
    fake: FakeTree, journal: Journal, stage: SigstopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked, ref = [10**9], list[int](), stage.make("a")

    def fork_slowly(_mount: Mount, _path: str) -> list[int]:
        now[0] += 3_000_000
        return [pid_of(stage, "a"), 2**22 - 1]  # one that has always ended

    with sigstop_module.Sigstop(journal, fake.mount, clock_ns=lambda: now[0]) as brake:
        monkeypatch.setattr(tree, "read_pids_recursive", fork_slowly)
        monkeypatch.setattr(brake._timer, "set", asked.append)
        brake.hold(ref, "chat", 10**12, "x")
        assert now[0] - 10**9 <= 12_000_000
        before_ns = now[0]
        brake.settle()
        assert asked[-1] >= 20 * (now[0] - before_ns), "it costs a twentieth of the time at most"
