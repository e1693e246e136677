# SPDX-License-Identifier: Apache-2.0
"""Holds with the freezer of cgroup v1: the contract of all brakes again, on the real kernel, and what v1 adds to it."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.freezer_v1 import FreezerV1
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef, Mount, find_v1_mount
from fairsched.cgroup.release import ReleaseKind, release_all
from fairsched.cgroup.v1 import V1Freezer
from tests.node.cgroup.test_guardian import AT_ONCE_S, PATIENCE_S, StandIn, is_running
from tests.node.cgroup.test_sigstop import FORKS
from tests.node.promptness import time_until
from tests.support import let_run, wait_until
from tests.unit.cgroup import test_brakes as contract
from tests.unit.cgroup.test_brakes import *  # noqa: F403  each promise, of the stage below

if TYPE_CHECKING:
    from tests.node.cgroup.conftest import Node, Worker

pytestmark = pytest.mark.node

SECOND_NS = 1_000_000_000
dead, guard = contract.dead, contract.guard
VFORK = """
import ctypes, os, sys, time
libc = ctypes.PyDLL(None)
if libc.vfork() == 0:
    libc.sleep(600)
    libc._exit(0)
"""
"""The parent waits in the kernel until the child has ended or started another program."""
THREADS = """
import threading
def spin():
    while True:
        pass
for _ in range(3):
    threading.Thread(target=spin).start()
"""


class V1:
    """A part of the real hierarchy for one test."""

    def __init__(self, mount: Mount) -> None:
        self.kernel = V1Freezer(mount)
        self.mount = mount
        self.top = f"/fairsched-test.{os.getpid()}"
        self.make(self.top)

    def make(self, path: str) -> str:
        os.makedirs(self.mount.absolute(path), exist_ok=True)
        return path

    def put(self, path: str, pid: int) -> None:
        (Path(self.mount.absolute(path)) / "cgroup.procs").write_text(str(pid))

    def write(self, path: str, state: str) -> None:
        """What docker pause does."""
        (Path(self.mount.absolute(path)) / "freezer.state").write_text(state)

    def group_of(self, pid: int) -> str:
        path = tree.cgroup_path_of(pid, self.mount)
        assert path is not None
        return path

    def is_frozen(self, pid: int) -> bool:
        """Whoever did it."""
        path = self.group_of(pid)
        return path != "/" and self.kernel.is_paused(path)

    def homes(self) -> list[str]:
        return [node.path for node in tree.walk(self.mount) if "/fairsched." in node.path]

    def end(self) -> None:
        def is_removed() -> bool:
            for node in reversed([*tree.walk(self.mount, self.top), tree.Node(0, self.top)]):
                with contextlib.suppress(OSError):
                    self.write(node.path, "THAWED")
                for pid in tree.read_pids_at(self.mount, node.path):
                    with contextlib.suppress(OSError):
                        self.put("/", pid)
                with contextlib.suppress(OSError):
                    os.rmdir(self.mount.absolute(node.path))
            return not os.path.exists(self.mount.absolute(self.top))

        wait_until(is_removed, PATIENCE_S, f"{self.top} is removed")


@pytest.fixture
def v1(node: Node) -> Iterator[V1]:
    mount = find_v1_mount("freezer")
    if mount is None:
        pytest.skip("host: the freezer of cgroup v1 is not mounted")
    v1 = V1(mount)
    try:
        yield v1
    finally:
        v1.end()
        V1Freezer(mount).tidy()


class Stage:
    """That of the contract, with the kernel behind it."""

    def __init__(self, node: Node, journal: Journal, v1: V1) -> None:
        self.node, self.journal, self.v1, self.mount = node, journal, v1, node.mount
        self.brake = FreezerV1(journal, node.mount, v1.kernel)
        self.workers: dict[str, Worker] = {}
        self.refs: dict[str, CgroupRef] = {}

    def make(self, name: str) -> CgroupRef:
        ref = self.refs[name] = self.node.make(name)
        self.workers[name] = self.node.worker_in(ref)
        self.v1.put(self.v1.make(f"{self.v1.top}/{name}"), self.workers[name].pid)
        return ref

    def is_held(self, name: str) -> bool:
        return self.v1.is_frozen(self.workers[name].pid)

    def pause(self, name: str) -> None:
        self.v1.write(f"{self.v1.top}/{name}", "FROZEN")

    def unpause(self, name: str) -> None:
        self.v1.write(self.v1.group_of(self.workers[name].pid), "THAWED")

    def come_to_rest(self, name: str) -> None:
        """The kernel does."""

    def remove(self, name: str) -> None:
        self.workers[name].end()
        tree.remove(self.mount, self.refs[name])


@pytest.fixture
def stage(node: Node, journal: Journal, v1: V1) -> Iterator[Stage]:
    stage = Stage(node, journal, v1)
    yield stage
    stage.brake.close()


@pytest.fixture
def brake(journal: Journal, node: Node, v1: V1) -> Iterator[FreezerV1]:
    with FreezerV1(journal, node.mount, v1.kernel) as brake:
        yield brake
    assert v1.homes() == []


def start_in(ref: CgroupRef, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-c", program, *arguments]
    return subprocess.Popen(command, preexec_fn=lambda: tree.place(ref))


def hold(brake: FreezerV1, ref: CgroupRef) -> HoldKind:
    return brake.hold(ref, "chat", time.monotonic_ns() + 60 * SECOND_NS, "over_entitlement").kind


def settle(brake: FreezerV1) -> list[HoldKind]:
    """What a daemon does: sleep until the brake has news."""
    poll, seen = select.poll(), list[HoldKind]()
    poll.register(brake.fileno(), select.POLLIN)

    def has_news() -> bool:
        poll.poll(100)
        seen.extend(change.kind for change in brake.settle())
        return bool(seen)

    wait_until(has_news, PATIENCE_S, "the brake has news")
    return seen


def expect_standstill(*workers: Worker) -> None:
    counts = [worker.count() for worker in workers]
    let_run(0.1)
    assert [worker.count() for worker in workers] == counts


def test_a_tenant_in_the_root_and_in_other_groups_is_held_and_nobody_beside_it(
    node: Node, brake: FreezerV1, v1: V1
) -> None:
    ref, other = node.make("a"), node.make("b")
    workers = [node.worker_in(ref) for _ in range(3)]
    innocents = [node.worker_in(other) for _ in range(2)]
    shared, own = v1.make(f"{v1.top}/shared"), v1.make(f"{v1.top}/own")
    v1.put(shared, workers[1].pid)
    v1.put(shared, innocents[1].pid)
    v1.put(own, workers[2].pid)
    for _ in range(3):
        assert hold(brake, ref) is HoldKind.HELD
        assert settle(brake) == [HoldKind.SETTLED]
        expect_standstill(*workers)
        for innocent in innocents:
            innocent.expect_progress()
        assert brake.thaw(ref.id).kind is HoldKind.THAWED
        for worker in workers:
            worker.expect_progress()
    brake.close()
    assert [v1.group_of(worker.pid) for worker in workers] == ["/", shared, own]


def test_who_has_left_the_tenant_is_brought_back_before_anything_is_frozen(
    node: Node, brake: FreezerV1, v1: V1
) -> None:
    ref, other = node.make("a"), node.make("b")
    stays, leaves = node.worker_in(ref), node.worker_in(ref)
    hold(brake, ref)
    brake.thaw(ref.id)
    tree.place(other, leaves.pid)
    hold(brake, ref)
    expect_standstill(stays)
    leaves.expect_progress()
    assert v1.group_of(leaves.pid) == "/"
    tree.place(other, stays.pid)  # in mid-hold: found by a look
    wait_until(lambda: brake.settle() is not None and not v1.is_frozen(stays.pid), PATIENCE_S, "it runs")
    stays.expect_progress()


def test_a_newcomer_is_held_and_so_is_who_was_moved_out(node: Node, brake: FreezerV1, v1: V1) -> None:
    ref = node.make("a")
    first = node.worker_in(ref)
    hold(brake, ref)
    late = node.worker_in(ref)
    v1.put(v1.top, first.pid)

    def are_held() -> bool:
        brake.settle()
        return v1.is_frozen(first.pid) and v1.is_frozen(late.pid)

    wait_until(are_held, PATIENCE_S, "both are held")
    expect_standstill(first, late)
    brake.thaw(ref.id)
    first.expect_progress()
    late.expect_progress()


def test_a_single_thread_that_was_moved_out_is_held_again(node: Node, brake: FreezerV1, v1: V1) -> None:
    ref = node.make("a")
    program = start_in(ref, THREADS)
    tasks = Path(f"/proc/{program.pid}/task")
    try:
        wait_until(lambda: len(list(tasks.iterdir())) == 4, PATIENCE_S, "its threads run")
        hold(brake, ref)
        thread = max(int(task.name) for task in tasks.iterdir())
        (Path(v1.mount.absolute(v1.top)) / "tasks").write_text(str(thread))

        def is_home() -> bool:
            brake.settle()
            return "/fairsched." in (tasks / str(thread) / "cgroup").read_text()

        assert not is_home() or v1.is_frozen(program.pid)
        wait_until(is_home, PATIENCE_S, "the thread is back")
        brake.thaw(ref.id)
    finally:
        program.kill()
        program.wait(PATIENCE_S)


def test_a_program_that_forks_all_the_time_stands_still(node: Node, brake: FreezerV1, tmp_path: Path) -> None:
    ref, file = node.make("a"), tmp_path / "dots"
    file.touch()
    first = start_in(ref, FORKS, str(file), "3")
    try:
        for _ in range(10):
            before = file.stat().st_size
            wait_until(lambda size=before: file.stat().st_size > size + 20, PATIENCE_S, "they fork")
            assert hold(brake, ref) is HoldKind.HELD
            assert settle(brake) == [HoldKind.SETTLED]
            pids, size = tree.read_pids(ref), file.stat().st_size
            let_run(0.1)
            assert (file.stat().st_size, tree.read_pids(ref)) == (size, pids)
            assert brake.thaw(ref.id).kind is HoldKind.THAWED
    finally:
        node.pause(ref)
        for pid in tree.read_pids(ref):
            os.kill(pid, signal.SIGKILL)
        first.wait(PATIENCE_S)
        node.pause(ref, "0")


def test_a_pause_of_the_group_above_in_mid_hold_stays_and_ours_ends(
    node: Node, brake: FreezerV1, v1: V1
) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    group = v1.make(f"{v1.top}/pod")
    v1.put(group, worker.pid)
    hold(brake, ref)
    v1.write(group, "FROZEN")
    assert brake.thaw(ref.id).kind is HoldKind.THAWED
    expect_standstill(worker)
    assert hold(brake, ref) is HoldKind.FOREIGN
    expect_standstill(worker)
    brake.close()
    expect_standstill(worker)
    v1.write(group, "THAWED")
    worker.expect_progress()


def test_one_paused_process_does_not_keep_the_others_from_being_held(
    node: Node, brake: FreezerV1, v1: V1
) -> None:
    ref = node.make("a")
    runs, stands = node.worker_in(ref), node.worker_in(ref)
    group = v1.make(f"{v1.top}/pod")
    v1.put(group, stands.pid)
    v1.write(group, "FROZEN")
    assert hold(brake, ref) is HoldKind.HELD
    expect_standstill(runs, stands)
    brake.thaw(ref.id)
    runs.expect_progress()
    expect_standstill(stands)
    v1.write(group, "THAWED")


def test_what_waits_in_the_kernel_is_told_once_and_thawed_all_the_same(node: Node, brake: FreezerV1) -> None:
    ref = node.make("a")
    program = start_in(ref, VFORK)
    try:
        wait_until(lambda: len(tree.read_pids(ref)) == 2, PATIENCE_S, "it has a child")
        state = Path(f"/proc/{program.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "D", PATIENCE_S, "it waits")
        begin_s = time.monotonic()
        assert hold(brake, ref) is HoldKind.HELD
        assert time.monotonic() - begin_s < 1
        assert settle(brake) == [HoldKind.LATE]
        assert brake.thaw(ref.id).kind is HoldKind.THAWED
    finally:
        for pid in tree.read_pids(ref):
            os.kill(pid, signal.SIGKILL)
        program.wait(PATIENCE_S)


def test_a_kill_acts_when_it_is_thawed(node: Node, brake: FreezerV1, v1: V1) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    hold(brake, ref)
    settle(brake)
    worker.process.kill()
    let_run(0.1)
    assert worker.process.poll() is None
    brake.thaw(ref.id)
    worker.process.wait(PATIENCE_S)


def test_release_finds_a_group_that_was_renamed_and_one_that_is_gone_is_data(
    node: Node, journal: Journal, brake: FreezerV1, v1: V1
) -> None:
    refs = [node.make(name) for name in "ab"]
    workers = [node.worker_in(ref) for ref in refs]
    for name, worker in zip("ab", workers, strict=True):
        v1.put(v1.make(f"{v1.top}/{name}"), worker.pid)
    for ref in refs:
        hold(brake, ref)
    absolute = v1.mount.absolute(v1.top)
    os.rename(f"{absolute}/a", f"{absolute}/renamed")
    v1.put("/", workers[1].pid)
    os.rmdir(f"{absolute}/b/fairsched.{refs[1].id}")
    tree.place(refs[0], workers[1].pid)
    tree.remove(node.mount, refs[1])
    done = release_all(journal, node.mount)
    assert [one.kind for one in done] == [ReleaseKind.THAWED, ReleaseKind.GONE]
    for worker in workers:
        worker.expect_progress()
    assert journal.entries() == []
    v1.kernel.tidy()


def test_what_a_dead_daemon_has_left_is_tidied_by_the_next(node: Node, journal: Journal, v1: V1) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    with FreezerV1(journal, node.mount, v1.kernel) as first:
        hold(first, ref)
        (entry,) = journal.entries()
        assert isinstance(entry, Entry)
        assert [group.path for group in entry.groups] == v1.homes()
        release_all(journal, node.mount)
        assert len(v1.homes()) == 1
        with FreezerV1(journal, node.mount, v1.kernel):
            assert v1.homes() == []
    worker.expect_progress()


@pytest.mark.parametrize("moment", range(5))
def test_a_killed_daemon_leaves_nobody_frozen(node: Node, journal: Journal, v1: V1, moment: int) -> None:
    refs = [node.make(name) for name in ("a", "b", "c")]
    workers = [node.worker_in(ref) for ref in refs]
    daemon = StandIn(journal, refs, brake="freezer_v1")
    try:
        wait_until(lambda: any(v1.is_frozen(one.pid) for one in workers), PATIENCE_S, "one is held")
        until = time.monotonic() + random.Random(moment).uniform(0, 0.08)
        wait_until(lambda: time.monotonic() >= until, PATIENCE_S, "the moment has come")
    finally:
        daemon.kill()
    free = time_until(lambda: not journal.names(), PATIENCE_S, "everything is off the record")
    assert free.own_s < AT_ONCE_S, free
    for worker in workers:
        worker.expect_progress()
    wait_until(lambda: not is_running(daemon.guardian_pid), PATIENCE_S, "the guardian leaves")
    v1.kernel.tidy()
    assert v1.homes() == []


def test_a_daemon_that_hangs_loses_its_holds_at_the_deadline(node: Node, journal: Journal, v1: V1) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    daemon = StandIn(journal, [ref, node.make("b")], hold_ms=300, brake="freezer_v1")
    try:
        for _ in range(3):
            wait_until(lambda: v1.is_frozen(worker.pid), PATIENCE_S, "it is held")
            os.kill(daemon.process.pid, signal.SIGSTOP)
            wait_until(lambda: not v1.is_frozen(worker.pid), PATIENCE_S, "the guardian thaws it")
            worker.expect_progress()
            os.kill(daemon.process.pid, signal.SIGCONT)
    finally:
        daemon.kill()
