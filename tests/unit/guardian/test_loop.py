# SPDX-License-Identifier: Apache-2.0
"""The guardian's loop on a tree of plain files, with a real process standing in for the daemon."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.journal import BrakeName, Entry, Journal
from fairsched.cgroup.release import Release, ReleaseKind
from fairsched.cgroup.stopping import is_stopping
from fairsched.guardian.loop import Keeper, log
from tests.support import FakeTree, wait_until

GRACE_NS = 50_000_000
EntryOf = Callable[..., Entry]


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """Stands in for the daemon: a process that lives until the test kills it."""
    term = signal.getsignal(signal.SIGTERM)
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, term)


def owner_of(process: subprocess.Popen[bytes]) -> ProcessId:
    owner = ProcessId.of(process.pid)
    assert owner is not None
    return owner


def run_while(keeper: Keeper, steps: Callable[[], None]) -> int:
    """Run the loop here while ``steps`` act on the world beside it; their failure is the test's, and ends the loop."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            steps()
        except BaseException as error:
            failures.append(error)
            os.kill(keeper._daemon.pid, signal.SIGKILL)

    actor = threading.Thread(target=act)
    actor.start()
    status = keeper.run()
    actor.join()
    if failures:
        raise failures[0]
    return status


def test_death_of_the_daemon_thaws_its_holds_and_only_its(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)

    def steps() -> None:
        with fake.make("held") as ref:
            journal.write(entry_of(ref, daemon=owner_of(daemon)))
            fake.write_freeze("held", "1")
        with fake.make("other", frozen=True) as ref:
            journal.write(entry_of(ref, deadline_ns=time.monotonic_ns() + 10**12))
        fake.make("foreign", frozen=True).close()
        daemon.kill()

    assert run_while(keeper, steps) == 0
    assert not fake.is_asked("held")
    assert fake.is_asked("other"), "the daemon of that hold lives"
    assert fake.is_asked("foreign")


def test_daemon_whose_pid_was_reused_is_dead(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    earlier = ProcessId(daemon.pid, owner_of(daemon).start_ticks - 1)
    with fake.make("held", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=earlier))
    assert Keeper(earlier, journal, fake.mount, GRACE_NS).run() == 0
    assert not fake.is_asked("held")


def test_deadline_is_enforced_while_the_daemon_lives(
    fake: FakeTree,
    journal: Journal,
    entry_of: EntryOf,
    daemon: subprocess.Popen[bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    deadline_ns = time.monotonic_ns() + 100_000_000
    with fake.make("late", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=owner_of(daemon), deadline_ns=deadline_ns))
    with fake.make("early", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=owner_of(daemon), deadline_ns=deadline_ns + 10**12))
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)

    def steps() -> None:
        wait_until(lambda: not fake.is_asked("late"), 5, "the late hold is thawed")
        assert time.monotonic_ns() >= deadline_ns + GRACE_NS
        assert fake.is_asked("early")
        daemon.kill()

    assert run_while(keeper, steps) == 0
    assert "tenant=chat why='deadline passed by more than 50 ms'" in capfd.readouterr().err


def test_the_grace_is_waited_for_and_no_longer(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    deadline_ns, grace_ns = time.monotonic_ns() + 100_000_000, 500_000_000
    with fake.make("late", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=owner_of(daemon), deadline_ns=deadline_ns))
    keeper = Keeper(owner_of(daemon), journal, fake.mount, grace_ns)

    def steps() -> None:
        wait_until(lambda: time.monotonic_ns() > deadline_ns, 5, "the deadline has come")
        with fake.make("other", frozen=True) as ref:  # news, which wakes the guardian within the grace
            journal.write(entry_of(ref, daemon=owner_of(daemon), deadline_ns=deadline_ns + 10**12))
        wait_until(lambda: not fake.is_asked("late"), 6, "the late hold is thawed")
        assert time.monotonic_ns() >= deadline_ns + grace_ns
        daemon.kill()

    assert run_while(keeper, steps) == 0


def test_a_hold_made_at_the_very_end_of_the_daemon_is_not_missed(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    """It comes after a look at the journal and before the death: the journal is looked at once more."""
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    refresh, owner = keeper._refresh, owner_of(daemon)

    def refresh_and_die() -> None:
        refresh()
        if daemon.returncode is None:
            with fake.make("last", frozen=True) as ref:
                journal.write(entry_of(ref, daemon=owner))
            daemon.kill()
            daemon.wait()

    keeper._refresh = refresh_and_die  # type: ignore[method-assign]
    assert keeper.run() == 0
    assert not fake.is_asked("last")
    assert journal.names() == []


def test_a_thaw_that_is_refused_is_tried_again_until_it_is_done(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    with fake.make("stuck", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=owner_of(daemon)))
    file, aside = fake.freeze_file("stuck"), fake.root / "aside"
    file.rename(aside)
    file.mkdir()  # even root cannot write a directory
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    release, refusals = keeper._release, 0

    def release_and_mend(names: set[str], why: str) -> list[Release]:
        """At the third refusal whatever kept the kernel from it is over."""
        nonlocal refusals
        results = release(names, why)
        refusals += any(result.kind is ReleaseKind.FAILED for result in results)
        if refusals == 3 and file.is_dir():
            file.rmdir()
            aside.rename(file)
        return results

    keeper._release = release_and_mend  # type: ignore[method-assign]
    daemon.kill()
    daemon.wait()
    assert keeper.run() == 0
    assert refusals == 3
    assert not fake.is_asked("stuck")
    assert journal.names() == []


def test_pause_by_somebody_else_survives_the_deadline(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    with fake.make("a", frozen=True) as ref:
        entry = entry_of(ref, daemon=owner_of(daemon), deadline_ns=time.monotonic_ns() + 100_000_000)
    journal.write(entry)
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    keeper._refresh()
    fake.write_freeze("a", "1")

    def steps() -> None:
        wait_until(lambda: not journal.has(entry.name), 5, "the hold is handed over")
        daemon.kill()

    assert run_while(keeper, steps) == 0
    assert fake.is_asked("a")


def test_deleted_journal_does_not_make_the_guardian_forget(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    with fake.make("a", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=owner_of(daemon)))
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    keeper._refresh()
    shutil.rmtree(journal.directory)
    with fake.make("b", frozen=True) as ref:
        Journal(journal.directory).write(entry_of(ref, daemon=owner_of(daemon)))
    daemon.kill()
    assert keeper.run() == 0
    assert not fake.is_asked("a")
    assert not fake.is_asked("b")


def test_a_record_that_grows_is_known_as_it_was_last_also_when_the_journal_is_deleted(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    victim = subprocess.Popen(["sleep", "600"])
    try:
        with fake.make("a") as ref:
            entry = entry_of(ref, daemon=owner_of(daemon), brake=BrakeName.SIGSTOP)
        journal.write(entry)
        keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
        keeper._refresh()
        journal.write(dataclasses.replace(entry, stopped=(owner_of(victim),)))
        keeper._refresh()
        victim.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopping(owner_of(victim)), 10, "it is stopped")
        shutil.rmtree(journal.directory)
        daemon.kill()
        assert keeper.run() == 0
        assert not is_stopping(owner_of(victim))
    finally:
        victim.kill()
        victim.wait()


def test_broken_entries_do_not_keep_the_guardian_from_thawing(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    Path(journal.directory, "12.7").write_text("{")
    Path(journal.directory, "hello").mkdir()
    with fake.make("a", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=owner_of(daemon)))
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    daemon.kill()
    assert keeper.run() == 0
    assert not fake.is_asked("a")


def test_told_to_leave_it_stays_while_something_is_held(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, daemon: subprocess.Popen[bytes]
) -> None:
    with fake.make("a", frozen=True) as ref:
        journal.write(entry_of(ref, deadline_ns=time.monotonic_ns() + 100_000_000))
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    signal.raise_signal(signal.SIGTERM)
    assert keeper.run() == 0
    assert not fake.is_asked("a"), "it left before the hold had ended"
    assert daemon.poll() is None


def test_a_cgroup_of_any_name_is_thawed_and_said(
    fake: FakeTree,
    journal: Journal,
    entry_of: EntryOf,
    daemon: subprocess.Popen[bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in (b"\xff\x1b[2J", b"x id=7", b"z" * 255):
        with fake.make(os.fsdecode(name), frozen=True) as ref:
            journal.write(entry_of(ref, daemon=owner_of(daemon), tenant=os.fsdecode(name)))
    keeper = Keeper(owner_of(daemon), journal, fake.mount, GRACE_NS)
    daemon.kill()
    assert keeper.run() == 0
    assert not any(fake.is_asked(os.fsdecode(name)) for name in (b"\xff\x1b[2J", b"x id=7", b"z" * 255))
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3
    assert r"cgroup=/\xff\x1b[2J id=" in "".join(said)
    assert "cgroup='/x id=7' id=" in "".join(said)


def test_the_journal_knows_the_time_itself(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairsched.guardian.loop.is_journal", lambda environ, fd: True)
    log("guardian leaves")
    assert capfd.readouterr().err == "guardian leaves\n"


def test_a_line_that_is_cut_still_ends(capfd: pytest.CaptureFixture[str]) -> None:
    log("\udcff" * 5000)
    said = capfd.readouterr().err
    assert re.match(r"time=\S+Z \\xff\\xff", said)
    assert said.endswith("\n")
