# SPDX-License-Identifier: Apache-2.0
"""The guardian as a real process on a tree of plain files, and what the daemon takes for a living one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.base.package import with_package
from fairsched.base.process import ProcessId
from fairsched.base.wait import is_readable
from fairsched.cgroup.journal import Entry, Journal
from fairsched.guardian.process import Guardian
from tests.support import FakeTree, wait_until

EntryOf = Callable[..., Entry]
PATIENCE_S = 30.0
ON_A_TREE = """
import sys
from fairsched.cgroup.path import Mount
from fairsched.guardian import process
process.find_mount = lambda: Mount(sys.argv[1])
sys.exit(process.main(sys.argv[2:]))
"""


class Stage:
    """A guardian on a fake tree, and a process that stands in for its daemon."""

    def __init__(self, fake: FakeTree, journal: Journal) -> None:
        self.daemon = subprocess.Popen(["sleep", "600"])
        owner = ProcessId.of(self.daemon.pid)
        assert owner is not None
        self.owner = owner
        ready, ready_write = os.pipe()
        command = [
            sys.executable,
            "-S",
            "-s",
            "-c",
            ON_A_TREE,
            str(fake.root),
            "--journal",
            journal.directory,
        ]
        command += ["--daemon-pid", str(owner.pid), "--daemon-start", str(owner.start_ticks)]
        command += ["--ready-fd", str(ready_write)]
        self.guardian = subprocess.Popen(
            command,
            env=with_package(os.environ),
            stderr=subprocess.PIPE,
            pass_fds=(ready_write,),
            start_new_session=True,
            text=True,
        )
        os.close(ready_write)
        try:
            assert is_readable(ready, PATIENCE_S), "the guardian watches"
        finally:
            os.close(ready)

    def end(self) -> str:
        """End both; returns what the guardian has said."""
        self.daemon.kill()
        self.daemon.wait()
        try:
            return self.guardian.communicate(timeout=PATIENCE_S)[1]
        finally:
            self.guardian.kill()
            self.guardian.wait()


@pytest.fixture
def stage(fake: FakeTree, journal: Journal) -> Iterator[Stage]:
    stage = Stage(fake, journal)
    yield stage
    stage.end()


def test_it_goes_to_the_root_cgroup_which_nothing_freezes(fake: FakeTree, stage: Stage) -> None:
    assert (fake.root / "cgroup.procs").read_text().split() == ["0"], "0 stands for who writes it"
    assert f"ready pid={stage.guardian.pid} " in (said := stage.end())
    assert " cgroup=/" in said


def test_by_default_a_hold_may_outlive_its_deadline_by_50_ms(
    fake: FakeTree, journal: Journal, entry_of: EntryOf, stage: Stage
) -> None:
    with fake.make("a", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=stage.owner, deadline_ns=time.monotonic_ns()))
    wait_until(lambda: not fake.is_asked("a"), PATIENCE_S, "the guardian thaws it")
    assert "deadline passed by more than 50 ms" in stage.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["SIGINT", "SIGHUP"])
def test_a_signal_of_the_terminal_does_not_keep_it_from_thawing(
    number: signal.Signals, fake: FakeTree, journal: Journal, entry_of: EntryOf, stage: Stage
) -> None:
    with fake.make("a", frozen=True) as ref:
        journal.write(entry_of(ref, daemon=stage.owner, deadline_ns=time.monotonic_ns() + 10**12))
    stage.guardian.send_signal(number)
    stage.end()
    assert stage.guardian.returncode == 0
    assert not fake.is_asked("a")


def test_one_that_is_stopped_or_gone_is_not_alive(tmp_path: Path) -> None:
    guardian = Guardian(str(tmp_path))
    assert not guardian.is_alive()
    process = guardian._process = subprocess.Popen(["sleep", "600"])
    try:
        assert guardian.is_alive()
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not guardian.is_alive(), 10, "a stopped guardian counts as dead")
        process.send_signal(signal.SIGCONT)
        wait_until(guardian.is_alive, PATIENCE_S, "one that goes on does not")
    finally:
        process.kill()
        process.wait()
    assert not guardian.is_alive()
