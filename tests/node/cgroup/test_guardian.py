# SPDX-License-Identifier: Apache-2.0
"""The guardian against a daemon that dies, hangs, or loses its guardian."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairsched.base.wait import is_readable
from fairsched.cgroup import tree
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef, find_v1_roots
from fairsched.guardian.process import Guardian
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

if TYPE_CHECKING:
    from tests.node.cgroup.conftest import Node

pytestmark = pytest.mark.node

ROOT = Path(__file__).resolve().parents[3]
MAX_RSS_KB = 24 * 1024
"""It takes 15 MB, the interpreter among them; with the daemon's modules it would be 40."""
AT_ONCE_S = 1.0
"""The promise: thawed after a kill. It takes milliseconds."""
PATIENCE_S = 30.0
"""For what takes a moment where nothing else runs. Holds last longer, unless the test is about their end."""
SECOND_NS = 1_000_000_000


def started(journal: Journal) -> Guardian:
    """One for this process."""
    guardian = Guardian(journal.directory)
    guardian.start()
    return guardian


class StandIn:
    """The daemon stand-in as a child process."""

    def __init__(
        self, journal: Journal, refs: list[CgroupRef], hold_ms: int = 600_000, brake: str = "freezer"
    ) -> None:
        command = [sys.executable, "-m", "tests.node.cgroup.standin", brake, journal.directory, str(hold_ms)]
        command += [ref.path for ref in refs]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.guardian_pid = self.read_guardian_pid()

    def read_guardian_pid(self) -> int:
        assert self.process.stdout is not None
        assert is_readable(self.process.stdout, PATIENCE_S), "no guardian was started"
        word, pid = self.process.stdout.readline().split()
        assert word == "guardian"
        return int(pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def watches(guardian: Guardian, ref: CgroupRef) -> bool:
    """Whether it has an inotify watch on the cgroup's cgroup.freeze: it knows of the hold."""
    number = os.stat("cgroup.freeze", dir_fd=ref.fileno()).st_ino
    infos = [path.read_text() for path in Path(f"/proc/{guardian.pid}/fdinfo").iterdir()]
    return any(f" ino:{number:x} " in info for info in infos)


@pytest.mark.parametrize("moment", range(20))
def test_killed_daemon_leaves_nothing_frozen(node: Node, journal: Journal, moment: int) -> None:
    refs = [node.make(name) for name in ("a", "b", "c")]
    daemon = StandIn(journal, refs)
    try:
        wait_until(lambda: any(map(node.is_asked, refs)), PATIENCE_S, "something is held")
        until = time.monotonic() + random.Random(moment).uniform(0, 0.08)
        wait_until(lambda: time.monotonic() >= until, PATIENCE_S, "the moment has come")
    finally:
        daemon.kill()
    thawed = time_until(lambda: not any(map(node.is_asked, refs)), PATIENCE_S, "everything is thawed")
    assert thawed.own_s < AT_ONCE_S, thawed
    wait_until(lambda: not journal.names(), PATIENCE_S, "and off the record")
    wait_until(lambda: not is_running(daemon.guardian_pid), PATIENCE_S, "the guardian leaves")


def test_killed_guardian_is_replaced_and_the_new_one_guards(node: Node, journal: Journal) -> None:
    refs = [node.make(name) for name in ("a", "b")]
    daemon = StandIn(journal, refs)
    try:
        os.kill(daemon.guardian_pid, signal.SIGKILL)
        second_pid = daemon.read_guardian_pid()
        assert second_pid != daemon.guardian_pid
        assert daemon.process.poll() is None
        wait_until(lambda: any(map(node.is_asked, refs)), PATIENCE_S, "something is held")
    finally:
        daemon.kill()
    wait_until(lambda: not any(map(node.is_asked, refs)), PATIENCE_S, "everything is thawed")


def test_hung_daemon_loses_its_holds_at_the_deadline(node: Node, journal: Journal) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    daemon = StandIn(journal, [ref, node.make("b")], hold_ms=300)
    try:
        for _ in range(5):
            wait_until(lambda: node.is_asked(ref), PATIENCE_S, "it is held")
            daemon.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: not node.is_asked(ref), PATIENCE_S, "the guardian thaws it")
            worker.expect_progress()
            daemon.process.send_signal(signal.SIGCONT)
        assert daemon.process.poll() is None
    finally:
        daemon.kill()


def test_foreign_pause_outlives_a_hung_and_then_killed_daemon(node: Node, journal: Journal) -> None:
    ref = node.make("a")
    with started(journal) as guardian, Freezer(journal) as freezer:
        freezer.hold(ref, "a", time.monotonic_ns() + 3 * SECOND_NS, "x")
        wait_until(lambda: watches(guardian, ref), PATIENCE_S, "the guardian has read the journal")
        node.pause(ref)
        # we hang: nobody calls settle()
        wait_until(lambda: not journal.names(), PATIENCE_S, "the guardian hands the hold over")
        assert node.is_asked(ref)
        assert freezer.thaw(ref.id).kind is HoldKind.FOREIGN
        assert node.is_asked(ref)


def test_hold_thawed_by_the_guardian_is_seen_as_released(node: Node, journal: Journal) -> None:
    ref = node.make("a")
    with started(journal), Freezer(journal) as freezer:
        freezer.hold(ref, "a", time.monotonic_ns() + SECOND_NS // 20, "x")
        wait_until(lambda: not node.is_asked(ref), PATIENCE_S, "the guardian thaws it")
        seen: list[HoldKind] = []

        def is_released() -> bool:
            """The file says so a moment before inotify does."""
            seen.extend(change.kind for change in freezer.settle())
            return HoldKind.RELEASED in seen

        wait_until(is_released, PATIENCE_S, "we learn of it")


def test_guardian_is_small_idle_and_on_its_own(journal: Journal) -> None:
    with started(journal) as guardian:
        assert guardian.pid is not None
        status = Path(f"/proc/{guardian.pid}/status").read_text()
        rss_kb = int(status.split("VmRSS:")[1].split()[0])
        assert rss_kb < MAX_RSS_KB
        assert os.getsid(guardian.pid) == guardian.pid
        assert "0::/\n" in Path(f"/proc/{guardian.pid}/cgroup").read_text()

        def switches() -> str:
            return Path(f"/proc/{guardian.pid}/status").read_text().split("\nvoluntary_ctxt_switches:")[1]

        def is_idle() -> bool:
            before = switches()
            let_run(0.5)
            return switches() == before

        wait_until(is_idle, PATIENCE_S, "it sleeps while nothing happens")


def test_a_runtime_that_ends_a_container_by_cgroup_v1_leaves_the_guardian(journal: Journal) -> None:
    """Who is born in a container's v1 groups is killed with it: also whoever is in the root of cgroup v2."""
    if not find_v1_roots():
        pytest.skip("host: it has no cgroup v1")
    mount = find_v1_roots()[0]
    path = f"/fairsched-test.{os.getpid()}"
    with tree.create(mount, path) as group, CgroupRef.open(mount, "/") as root:
        try:
            tree.place(group)
            with started(journal) as guardian:
                lines = Path(f"/proc/{guardian.pid}/cgroup").read_text().splitlines()
                assert path in Path("/proc/self/cgroup").read_text()
        finally:
            tree.place(root)
            tree.remove(mount, group)
    assert {line.split(":", 2)[2] for line in lines} == {"/"}


def test_terminal_signals_do_not_end_the_guardian_and_term_does(journal: Journal) -> None:
    with started(journal) as guardian:
        assert guardian.pid is not None
        os.kill(guardian.pid, signal.SIGINT)
        os.kill(guardian.pid, signal.SIGHUP)
        assert guardian.is_alive()
        os.kill(guardian.pid, signal.SIGTERM)
        assert is_readable(guardian, PATIENCE_S), "its pidfd tells that it left"
        assert not guardian.is_alive()
        guardian.start()
        assert guardian.starts == 2


def test_stopped_guardian_is_replaced(journal: Journal) -> None:
    with started(journal) as guardian:
        assert guardian.pid is not None
        os.kill(guardian.pid, signal.SIGSTOP)
        wait_until(lambda: not guardian.is_alive(), PATIENCE_S, "a stopped guardian counts as dead")
        guardian.start()
        assert guardian.is_alive()


def test_guardian_that_cannot_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="did not start") as caught:
        Guardian(str(tmp_path / "file")).start()
    assert "stderr" in getattr(caught.value, "remedy", "")
