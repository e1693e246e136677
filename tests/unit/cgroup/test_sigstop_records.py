# SPDX-License-Identifier: Apache-2.0
"""The records of holds by SIGSTOP: they name processes, grow, and may be broken."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

from fairsched.base.process import ProcessId
from fairsched.cgroup.release import ReleaseKind, release_all, release_entries
from tests.unit.cgroup.brake_stages import SigstopStage, stands_still
from tests.unit.cgroup.test_brakes import hold
from tests.unit.cgroup.test_sigstop import entry_in, pid_of, stage

__all__ = ["stage"]


def test_release_continues_what_the_older_of_two_records_names_alone(stage: SigstopStage) -> None:
    """A later hold of a daemon that lives keeps what it has stopped itself."""
    ref = stage.make("a")
    older = pid_of(stage, "a")
    hold(stage.brake, ref)
    entry = entry_in(stage.journal)
    newer = stage.add("a")
    stage.brake.settle()
    later = dataclasses.replace(entry_in(stage.journal), since_ns=entry.since_ns + 1)
    later = dataclasses.replace(later, stopped=tuple(one for one in later.stopped if one.pid == newer))
    stage.journal.write(later)
    done = release_all(stage.journal, stage.mount, only=lambda one: one.name == entry.name)
    assert {one.kind for one in done} == {ReleaseKind.THAWED, ReleaseKind.KEPT}
    assert (stands_still(older), stands_still(newer)) == (False, True)


def test_release_reads_what_the_daemon_has_added(stage: SigstopStage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    read_before = stage.journal.entries()
    newcomer = stage.add("a")
    stage.brake.settle()
    assert stands_still(newcomer)
    release_entries(stage.journal, stage.mount, read_before)
    assert not stands_still(newcomer)


def test_a_broken_record_stays_while_its_processes_are_stopped(stage: SigstopStage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    name = entry_in(stage.journal).name
    text = Path(stage.journal.directory, name).read_text()
    Path(stage.journal.directory, name).write_text(text.replace("sigstop", "of a later version"))
    (done,) = release_all(stage.journal, stage.mount)
    assert (done.kind, done.is_clean) == (ReleaseKind.CORRUPT, False)
    assert f"kill -CONT {pid_of(stage, 'a')}" in done.detail
    assert stage.journal.names() == [name]
    os.kill(pid_of(stage, "a"), signal.SIGCONT)
    release_all(stage.journal, stage.mount)
    assert stage.journal.names() == []


def test_a_record_of_many_processes_is_read_whole(stage: SigstopStage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    entry = entry_in(stage.journal)
    many = tuple(ProcessId(pid, 10**9) for pid in range(10**6, 10**6 + 20_000))
    stage.journal.write(dataclasses.replace(entry, stopped=many))
    assert entry_in(stage.journal).stopped == many
    assert Path(stage.journal.directory, entry.name).stat().st_size > 65536 * 4
    stage.journal.write(entry)
