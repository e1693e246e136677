# SPDX-License-Identifier: Apache-2.0
"""Holds by SIGSTOP in real cgroups: programs that fork all the time, threads, and a daemon that is killed."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef
from fairsched.cgroup.sigstop import Sigstop
from tests.node.cgroup.test_guardian import AT_ONCE_S, PATIENCE_S, StandIn, is_running
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

if TYPE_CHECKING:
    from tests.node.cgroup.conftest import Node

pytestmark = pytest.mark.node

SECOND_NS = 1_000_000_000
FORKS = """
import os, sys, time
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        break
while True:
    end_s = time.process_time() + 0.01
    while time.process_time() < end_s:
        pass
    child = os.fork()
    if child:
        os._exit(0)
    with open(sys.argv[1], "ab", buffering=0) as file:
        file.write(b".")
"""
"""Lines of processes, each of which works for 10 ms, forks and ends: many of those listed are gone when they are to be
stopped. Lines that live for less than a look are not caught, and need not be: see sigstop.py."""
THREADS = """
import threading
def spin():
    while True:
        pass
for _ in range(20):
    threading.Thread(target=spin).start()
"""


@pytest.fixture
def brake(journal: Journal, node: Node) -> Iterator[Sigstop]:
    with Sigstop(journal, node.mount) as brake:
        yield brake


def start_in(ref: CgroupRef, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-c", program, *arguments]
    return subprocess.Popen(command, preexec_fn=lambda: tree.place(ref))


@pytest.fixture
def forks(node: Node, tmp_path: Path) -> Iterator[Callable[[CgroupRef, int], Path]]:
    """Starts so many lines of processes in a cgroup; the file grows with each process."""
    started = []

    def start(ref: CgroupRef, lines: int) -> Path:
        file = tmp_path / "dots"
        file.touch()
        started.append((ref, start_in(ref, FORKS, str(file), str(lines))))
        return file

    yield start
    for ref, first in started:
        node.pause(ref)  # nobody else gets hold of all of them
        wait_until(lambda ref=ref: node.is_frozen(ref), PATIENCE_S, "they are frozen")
        for pid in tree.read_pids(ref):
            os.kill(pid, signal.SIGKILL)
        first.wait(PATIENCE_S)
        node.pause(ref, "0")


def hold(brake: Sigstop, ref: CgroupRef) -> HoldKind:
    return brake.hold(ref, "chat", time.monotonic_ns() + 60 * SECOND_NS, "over_entitlement").kind


def settle(brake: Sigstop) -> list[HoldKind]:
    """What a daemon does: sleep until the brake has news."""
    poll, seen = select.poll(), list[HoldKind]()
    poll.register(brake.fileno(), select.POLLIN)

    def has_news() -> bool:
        poll.poll(100)
        seen.extend(change.kind for change in brake.settle())
        return bool(seen)

    wait_until(has_news, PATIENCE_S, "the brake has news")
    return seen


def states(pids: list[int]) -> set[str]:
    """Of all threads of these processes."""
    found = set()
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_a_program_that_forks_all_the_time_stands_still(
    node: Node, brake: Sigstop, forks: Callable[[CgroupRef, int], Path]
) -> None:
    ref = node.make("a")
    file = forks(ref, 3)
    for _ in range(10):
        before = file.stat().st_size
        wait_until(lambda size=before: file.stat().st_size > size + 20, PATIENCE_S, "they fork")
        assert hold(brake, ref) is HoldKind.HELD
        assert settle(brake) == [HoldKind.SETTLED]
        pids = tree.read_pids_recursive(node.mount, ref.path)
        size = file.stat().st_size
        assert states(pids) <= {"T", "Z"}
        let_run(0.1)
        assert file.stat().st_size == size
        assert tree.read_pids_recursive(node.mount, ref.path) == pids
        assert brake.thaw(ref.id).kind is HoldKind.THAWED


def test_all_threads_have_stopped_when_it_is_said_to_rest(node: Node, brake: Sigstop) -> None:
    ref = node.make("a")
    program = start_in(ref, THREADS)
    tasks = Path(f"/proc/{program.pid}/task")
    wait_until(lambda: len(list(tasks.iterdir())) == 21, PATIENCE_S, "its threads run")
    for _ in range(5):
        assert hold(brake, ref) is HoldKind.HELD
        assert settle(brake) == [HoldKind.SETTLED]
        assert states([program.pid]) == {"T"}
        brake.thaw(ref.id)
        wait_until(lambda: "R" in states([program.pid]), PATIENCE_S, "it runs")
    program.kill()
    program.wait()


def test_processes_in_cgroups_below_are_held_and_continued(node: Node, brake: Sigstop) -> None:
    ref, below = node.make("a"), node.make("a/b/c")
    workers = [node.worker_in(ref), node.worker_in(below)]
    assert hold(brake, ref) is HoldKind.HELD
    assert settle(brake) == [HoldKind.SETTLED]
    counts = [worker.count() for worker in workers]
    let_run(0.1)
    assert [worker.count() for worker in workers] == counts
    late = node.worker_in(below)
    wait_until(
        lambda: brake.settle() == [] and states([late.pid]) == {"T"}, PATIENCE_S, "the newcomer is held"
    )
    brake.thaw(ref.id)
    for worker in (*workers, late):
        worker.expect_progress()


def test_a_cgroup_removed_in_mid_hold_is_gone_and_who_moved_on_is_continued(
    node: Node, brake: Sigstop
) -> None:
    ref, elsewhere = node.make("a"), node.make("b")
    worker = node.worker_in(ref)
    hold(brake, ref)
    settle(brake)
    tree.place(elsewhere, worker.pid)
    tree.remove(node.mount, ref)
    assert settle(brake) == [HoldKind.GONE]
    worker.expect_progress()


@pytest.mark.parametrize("moment", range(10))
def test_a_killed_daemon_leaves_nobody_stopped(
    node: Node, journal: Journal, forks: Callable[[CgroupRef, int], Path], moment: int
) -> None:
    refs = [node.make(name) for name in ("a", "b", "c")]
    workers = [node.worker_in(ref) for ref in refs]
    file = forks(refs[2], 1)
    daemon = StandIn(journal, refs, brake="sigstop")
    try:
        wait_until(
            lambda: any(states([worker.pid]) == {"T"} for worker in workers), PATIENCE_S, "one is held"
        )
        until = time.monotonic() + random.Random(moment).uniform(0, 0.08)
        wait_until(lambda: time.monotonic() >= until, PATIENCE_S, "the moment has come")
    finally:
        daemon.kill()
    free = time_until(lambda: not journal.names(), PATIENCE_S, "everything is off the record")
    assert free.own_s < AT_ONCE_S, free
    for worker in workers:
        worker.expect_progress()
    size = file.stat().st_size
    wait_until(lambda: file.stat().st_size > size, PATIENCE_S, "the forks go on")
    wait_until(lambda: not is_running(daemon.guardian_pid), PATIENCE_S, "the guardian leaves")


def test_a_daemon_that_hangs_loses_its_holds_at_the_deadline(node: Node, journal: Journal) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    daemon = StandIn(journal, [ref, node.make("b")], hold_ms=300, brake="sigstop")
    try:
        for _ in range(3):
            wait_until(lambda: states([worker.pid]) == {"T"}, PATIENCE_S, "it is held")
            os.kill(daemon.process.pid, signal.SIGSTOP)
            wait_until(lambda: states([worker.pid]) != {"T"}, PATIENCE_S, "the guardian continues it")
            worker.expect_progress()
            os.kill(daemon.process.pid, signal.SIGCONT)
        assert daemon.process.poll() is None
    finally:
        daemon.kill()
