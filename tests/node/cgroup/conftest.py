# SPDX-License-Identifier: Apache-2.0
"""Real cgroups with real processes in them, gone again when the test is over."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.state import read_state
from fairsched.errors import FairschedError
from tests.support import wait_until

COUNTER = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
    n = 0
    while True:
        n += 1
        counter[:] = struct.pack("Q", n)
"""


class Worker:
    """A process that counts in shared memory, so that progress can be seen from outside."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(8))
        with open(file, "r+b") as opened:
            self._counter = mmap.mmap(opened.fileno(), 8)
        self.process = subprocess.Popen([sys.executable, "-S", "-c", COUNTER, str(file)])
        self.pid = self.process.pid
        wait_until(self.count, 30, "the worker counts")

    def count(self) -> int:
        value: int = struct.unpack("Q", self._counter[:])[0]
        return value

    def expect_progress(self) -> None:
        before = self.count()
        wait_until(lambda: self.count() > before, 30, "the worker makes progress")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Node:
    """A subtree of the real cgroup v2 for one test."""

    def __init__(self, mount: Mount, top: str, tmp_path: Path) -> None:
        self.mount = mount
        self.top = top
        self._tmp_path = tmp_path
        self._refs: list[CgroupRef] = []
        self._workers: list[Worker] = []

    def make(self, name: str) -> CgroupRef:
        ref = tree.create(self.mount, f"{self.top}/{name}")
        self._refs.append(ref)
        return ref

    def worker_in(self, ref: CgroupRef) -> Worker:
        worker = Worker(self._tmp_path / f"worker{len(self._workers)}")
        self._workers.append(worker)
        tree.place(ref, worker.pid)
        return worker

    def is_asked(self, ref: CgroupRef) -> bool:
        return read_state(ref).is_asked

    def is_frozen(self, ref: CgroupRef) -> bool:
        return read_state(ref).is_frozen

    def pause(self, ref: CgroupRef, value: str = "1") -> None:
        """What docker pause and an operator do: open by path, write, close."""
        with open(self.mount.absolute(ref.path) + "/cgroup.freeze", "w") as file:
            file.write(value)

    def end(self) -> None:
        for node in [*tree.walk(self.mount, self.top), tree.Node(0, self.top)]:
            with contextlib.suppress(FairschedError), CgroupRef.open(self.mount, node.path) as ref:
                ref.write("cgroup.freeze", "0")
        for worker in self._workers:
            worker.end()
        for pid in tree.read_pids_recursive(self.mount, self.top):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for ref in self._refs:
            ref.close()

        def is_removed() -> bool:
            for node in sorted(tree.walk(self.mount, self.top), key=lambda node: -node.path.count("/")):
                with contextlib.suppress(OSError):
                    os.rmdir(self.mount.absolute(node.path))
            with contextlib.suppress(OSError):
                os.rmdir(self.mount.absolute(self.top))
            return not os.path.exists(self.mount.absolute(self.top))

        wait_until(is_removed, 30, f"{self.top} is removed")


@pytest.fixture
def node(mount: Mount, tmp_path: Path) -> Iterator[Node]:
    top = f"/fairsched-test.{os.getpid()}"
    try:
        probe = tree.create(mount, f"{top}/probe")
    except FairschedError as error:
        pytest.skip(f"{error}: cgroup v2 must be writable (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)")
    node = Node(mount, top, tmp_path)
    try:
        with probe:
            if not os.path.exists(mount.absolute(probe.path) + "/cgroup.freeze"):
                pytest.skip("host: this kernel has no cgroup.freeze")
        yield node
    finally:
        node.end()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(str(tmp_path / "holds"))
    yield journal
    journal.close()


@pytest.fixture
def freezer(journal: Journal) -> Iterator[Freezer]:
    with Freezer(journal) as freezer:
        yield freezer
