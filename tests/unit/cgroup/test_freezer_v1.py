# SPDX-License-Identifier: Apache-2.0
"""Holds with the freezer of cgroup v1: which groups are frozen, and who is in them then. The kernel is played.

What only the real one can tell is asked in tests/node/cgroup/test_freezer_v1.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId, has_ended
from fairsched.cgroup import freezer_v1, lookout, release
from fairsched.cgroup.freezer_v1 import FreezerV1
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef
from fairsched.cgroup.release import ReleaseKind, release_all
from fairsched.errors import KernelRefused
from tests.support import FakeTree, wait_until
from tests.unit.cgroup.brake_stages import FakeV1, FreezerV1Stage
from tests.unit.cgroup.test_brakes import hold, kinds, settled


@pytest.fixture
def stage(fake: FakeTree, journal: Journal) -> Iterator[FreezerV1Stage]:
    stage = FreezerV1Stage(fake, journal)
    yield stage
    stage.end()


def pid_of(stage: FreezerV1Stage, name: str, index: int = 0) -> int:
    return stage.processes[name][index].pid


def paths_of(journal: Journal) -> list[str]:
    (entry,) = journal.entries()
    assert isinstance(entry, Entry)
    return [group.path for group in entry.groups]


def test_a_tenant_is_held_in_every_group_it_is_in_and_nobody_beside_it(stage: FreezerV1Stage) -> None:
    ref, _ = stage.make("a"), stage.make("b")
    stage.add("a")
    stage.v1.add("/", pid_of(stage, "a", 1))
    stage.v1.add("/a", pid_of(stage, "b"))
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert sorted(paths_of(stage.journal)) == [f"/a/fairsched.{ref.id}", f"/fairsched.{ref.id}"]
    assert (stage.is_held("a"), stage.is_held("b")) == (True, False)


def test_each_group_is_on_record_before_it_is_frozen(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, write, unrecorded = stage.make("a"), FakeV1.write, list[str]()
    stage.add("a")
    stage.v1.add("/", pid_of(stage, "a", 1))

    def seeing_write(self: FakeV1, group: CgroupRef, is_frozen: bool) -> None:
        if is_frozen and group.path not in paths_of(stage.journal):
            unrecorded.append(group.path)
        write(self, group, is_frozen)

    monkeypatch.setattr(FakeV1, "write", seeing_write)
    hold(stage.brake, ref)
    assert stage.is_held("a")
    assert unrecorded == []


def test_who_has_left_the_tenant_is_not_frozen_for_a_moment(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, _ = stage.make("a"), stage.make("b")
    stage.add("a")
    hold(stage.brake, ref)
    stage.brake.thaw(ref.id)
    gone = stage.processes["a"].pop()
    stage.processes["b"].append(gone)
    for name in "ab":
        stage.list(name)
    write, frozen = FakeV1.write, list[bool]()

    def seeing_write(self: FakeV1, group: CgroupRef, is_frozen: bool) -> None:
        write(self, group, is_frozen)
        frozen.append(self.is_stopped(gone.pid))

    monkeypatch.setattr(FakeV1, "write", seeing_write)
    hold(stage.brake, ref)
    assert frozen == [False]
    assert stage.v1.groups[gone.pid] == "/a"


def test_a_home_that_somebody_else_has_frozen_is_left_so(stage: FreezerV1Stage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    stage.brake.thaw(ref.id)
    stage.v1.put(f"/a/fairsched.{ref.id}", "1")
    assert hold(stage.brake, ref).kind is HoldKind.FOREIGN
    stage.brake.close()
    assert stage.is_held("a")


def test_a_second_hold_moves_nobody(stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, moved = stage.make("a"), list[int]()
    hold(stage.brake, ref)
    stage.brake.thaw(ref.id)
    monkeypatch.setattr(FakeV1, "place", lambda _self, _group, pid: moved.append(pid))
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert moved == []
    assert stage.is_held("a")


def test_who_goes_on_without_its_first_thread_is_moved_once(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, tasks, place = stage.make("a"), FakeV1.tasks, FakeV1.place
    moved = list[int]()
    # 60 is exit(2) of x86-64, 93 of others: of this thread only
    number = 60 if os.uname().machine == "x86_64" else 93
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
        f"ctypes.CDLL(None).syscall({number}, 0)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    stage.processes["a"].append(process)
    stage.list("a")
    stage.v1.add("/a", process.pid)
    wait_until(lambda: has_ended(f"/proc/{process.pid}"), 30, "its first thread has ended")
    running = {int(tid) for tid in os.listdir(f"/proc/{process.pid}/task")} - {process.pid}

    def real_tasks(self: FakeV1, group: CgroupRef) -> set[int]:
        found = tasks(self, group)
        return found - {process.pid} | running if process.pid in found else found

    def counting_place(self: FakeV1, group: CgroupRef, pid: int) -> bool:
        moved.append(pid)
        return place(self, group, pid)

    monkeypatch.setattr(FakeV1, "tasks", real_tasks)
    monkeypatch.setattr(FakeV1, "place", counting_place)
    hold(stage.brake, ref)
    assert stage.is_held("a")
    assert kinds(settled(stage.brake)) == [HoldKind.SETTLED]
    assert sorted(moved) == sorted(one.pid for one in stage.processes["a"])


def test_a_move_that_is_refused_undoes_the_hold(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeV1, group: CgroupRef, pid: int) -> bool:
        raise KernelRefused(group.path, 13, "cannot write")

    ref = stage.make("a")
    monkeypatch.setattr(FakeV1, "place", refuse)
    with pytest.raises(KernelRefused):
        hold(stage.brake, ref)
    assert not stage.is_held("a")
    assert not stage.v1.is_paused(f"/a/fairsched.{ref.id}")
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})


def test_what_does_not_come_to_rest_is_told_once_and_stays_held(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = stage.make("a")
    monkeypatch.setattr(FakeV1, "is_at_rest", lambda _self, _group: False)
    monkeypatch.setattr(freezer_v1, "LATE_NS", 0)
    hold(stage.brake, ref)
    assert kinds(settled(stage.brake)) == [HoldKind.LATE]
    assert stage.brake.settle() == []
    assert stage.is_held("a")
    assert stage.brake.thaw(ref.id).kind is HoldKind.THAWED


def test_who_moves_out_is_looked_for_again_soon(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, waits = stage.make("a"), list[int]()
    monkeypatch.setattr(lookout, "_REST", 0)
    hold(stage.brake, ref)
    settled(stage.brake)
    for _ in range(10):
        stage.brake.settle()
    monkeypatch.setattr(stage.brake._timer, "set", waits.append)  # type: ignore[attr-defined]
    stage.brake.settle()
    stage.v1.add("/a", pid_of(stage, "a"))
    stage.brake.settle()
    assert stage.is_held("a")
    assert waits[1] < waits[0] / 2


def test_release_finds_a_group_by_its_id_wherever_it_is(stage: FreezerV1Stage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    (stage.v1.root / "a").rename(stage.v1.root / "renamed")
    stage.v1.groups[pid_of(stage, "a")] = f"/renamed/fairsched.{ref.id}"
    assert [one.kind for one in release_all(stage.journal, stage.mount)] == [ReleaseKind.THAWED]
    assert not stage.is_held("a")


def test_release_of_an_older_record_leaves_the_groups_of_a_later_hold(stage: FreezerV1Stage) -> None:
    ref = stage.make("a")
    stage.add("a")
    stage.v1.add("/", pid_of(stage, "a", 1))
    hold(stage.brake, ref)
    (entry,) = stage.journal.entries()
    assert isinstance(entry, Entry)
    older = dataclasses.replace(entry, since_ns=1, daemon=ProcessId(1 << 22, 1))
    stage.journal.write(older)
    in_root = next(group for group in entry.groups if group.path.count("/") == 1)
    stage.journal.write(dataclasses.replace(entry, groups=(in_root,)))
    done = release_all(stage.journal, stage.mount, only=lambda one: one.name == older.name)
    assert {one.name: one.kind for one in done}[older.name] is ReleaseKind.THAWED
    assert [stage.v1.is_stopped(process.pid) for process in stage.processes["a"]] == [False, True]


def test_a_damaged_record_of_a_frozen_group_tells_a_person_where_it_is(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    (entry,) = stage.journal.entries()
    assert isinstance(entry, Entry)
    Path(stage.journal.directory, entry.name).write_text("garbage")
    monkeypatch.setattr(release, "find_v1_mount", lambda _name: stage.v1.mount)
    (done,) = release_all(stage.journal, stage.mount)
    assert done.kind is ReleaseKind.CORRUPT
    assert f"/a/fairsched.{ref.id} FROZEN, by whom is not known" in done.detail
    assert stage.is_held("a")
    assert len(stage.journal.entries()) == 1


def test_release_leaves_another_group_at_the_path_alone(stage: FreezerV1Stage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    where = stage.v1.root / "a"
    shutil.move(
        where / f"fairsched.{ref.id}", stage.journal.directory + ".kept"
    )  # its inode number stays taken
    stage.v1.make(f"/a/fairsched.{ref.id}")
    stage.v1.put(f"/a/fairsched.{ref.id}", "1")
    assert [one.kind for one in release_all(stage.journal, stage.mount)] == [ReleaseKind.NOT_FROZEN]
    assert stage.v1.is_paused(f"/a/fairsched.{ref.id}")


@pytest.mark.parametrize("has_directory", [True, False])
def test_release_says_when_the_hierarchy_is_not_mounted_here(
    stage: FreezerV1Stage, has_directory: bool
) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    stage.v1.root.rename(stage.v1.root.parent / "elsewhere")
    if has_directory:
        stage.v1.root.mkdir()
    (done,) = release_all(stage.journal, stage.mount)
    assert (done.kind, done.is_clean) == (ReleaseKind.FAILED, False)
    assert "mount it" in done.detail
    assert len(stage.journal.entries()) == 1
    if has_directory:
        stage.v1.root.rmdir()
    (stage.v1.root.parent / "elsewhere").rename(stage.v1.root)


def test_who_forks_without_end_is_not_waited_for(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, pids = stage.make("a"), itertools.count(1)
    hold(stage.brake, ref)
    stage.brake.thaw(ref.id)

    def fork(_self: FakeV1, _home: CgroupRef) -> set[int]:
        pid = next(pids)
        assert pid < 1000, "it waits for as long as somebody forks"
        return {pid}

    monkeypatch.setattr(FakeV1, "procs", fork)
    monkeypatch.setattr(FakeV1, "place", lambda _self, _group, _pid: True)
    stage.brake.forget_others([])


def test_groups_that_are_gone_are_not_asked_for_again(
    stage: FreezerV1Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, asked, take = stage.make("a"), list[str](), FreezerV1._take
    stage.v1.make("/b")
    stage.v1.add("/b", stage.add("a"))
    hold(stage.brake, ref)
    stage.brake.thaw(ref.id)
    stage.v1.add("/a", pid_of(stage, "a", 1))
    shutil.rmtree(stage.v1.root / "b")

    def seeing_take(self: FreezerV1, held: freezer_v1._Held, path: str) -> CgroupRef | None:
        asked.append(path)
        return take(self, held, path)

    monkeypatch.setattr(FreezerV1, "_take", seeing_take)
    for _ in range(2):
        hold(stage.brake, ref)
        stage.brake.thaw(ref.id)
    assert asked.count(f"/b/fairsched.{ref.id}") == 1


def test_homes_of_tenants_that_are_gone_are_given_up(stage: FreezerV1Stage) -> None:
    refs = {name: stage.make(name) for name in "abc"}
    for ref in refs.values():
        hold(stage.brake, ref)
    for name in "ab":
        stage.brake.thaw(refs[name].id)
    stage.brake.forget_others([refs["a"].id])
    groups = {name: stage.v1.groups[pid_of(stage, name)] for name in "abc"}
    assert groups == {"a": f"/a/fairsched.{refs['a'].id}", "b": "/b", "c": f"/c/fairsched.{refs['c'].id}"}
