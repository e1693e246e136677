# SPDX-License-Identifier: Apache-2.0
"""The stages on which brakes are asked for their promises: a tree of plain files, and what others may do to it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from unittest import mock

from fairsched.cgroup.brake import Brake
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.freezer_v1 import FreezerV1
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.sigstop import Sigstop
from fairsched.cgroup.v1 import V1Freezer
from tests.support import FakeTree, wait_until

PENDING = re.compile(r"^(?:SigPnd|ShdPnd):\s+(\w+)", re.MULTILINE)


class Stage(ABC):
    """One brake and its world. ``end`` undoes what the test has left of it."""

    def __init__(self, fake: FakeTree, journal: Journal) -> None:
        self.fake, self.journal, self.mount = fake, journal, fake.mount
        self.brake = self.make_brake()
        self._refs: list[CgroupRef] = []

    @abstractmethod
    def make_brake(self) -> Brake: ...

    @abstractmethod
    def is_held(self, name: str) -> bool:
        """Whether it stands still, whoever made it."""

    @abstractmethod
    def pause(self, name: str) -> None:
        """What somebody else does to stop it."""

    @abstractmethod
    def unpause(self, name: str) -> None:
        """What somebody else does to let it go."""

    def make(self, name: str) -> CgroupRef:
        """A cgroup with something in it that can be held."""
        ref = self.fake.make(name)
        self._refs.append(ref)
        return ref

    @abstractmethod
    def come_to_rest(self, name: str) -> None:
        """Do what the missing kernel would do when the processes have stopped."""

    def remove(self, name: str) -> None:
        shutil.rmtree(self.fake.root / name)

    def end(self) -> None:
        self.brake.close()
        for ref in self._refs:
            ref.close()


class FreezerStage(Stage):
    def make_brake(self) -> Brake:
        return Freezer(self.journal)

    def is_held(self, name: str) -> bool:
        return self.fake.is_asked(name)

    def pause(self, name: str) -> None:
        self.fake.write_freeze(name, "1")

    def unpause(self, name: str) -> None:
        self.fake.write_freeze(name, "0")
        (self.fake.root / name / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    def come_to_rest(self, name: str) -> None:
        self.fake.settle(name)


def stands_still(pid: int) -> bool:
    """Whether it is stopped, or will be before it runs another instruction."""
    status = Path(f"/proc/{pid}/status").read_text()
    is_pending = any(int(mask, 16) >> (signal.SIGSTOP - 1) & 1 for mask in PENDING.findall(status))
    return is_pending or "State:\tT" in status


class SigstopStage(Stage):
    """In each cgroup there is a real process; the tree is one of plain files."""

    def __init__(self, fake: FakeTree, journal: Journal) -> None:
        super().__init__(fake, journal)
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}

    def make_brake(self) -> Brake:
        return Sigstop(self.journal, self.mount)

    def make(self, name: str) -> CgroupRef:
        ref = super().make(name)
        self.add(name)
        return ref

    def add(self, name: str) -> int:
        """One more process enters."""
        process = subprocess.Popen(["sleep", "600"])
        wait_until(
            lambda: "sleep" in Path(f"/proc/{process.pid}/comm").read_text(), 30, "the program has started"
        )
        self.processes.setdefault(name, []).append(process)
        self.list(name)
        return process.pid

    def list(self, name: str) -> None:
        """Write the cgroup's list of processes."""
        pids = "".join(f"{process.pid}\n" for process in self.processes[name])
        (self.fake.root / name / "cgroup.procs").write_text(pids)

    def is_held(self, name: str) -> bool:
        return all(stands_still(process.pid) for process in self.processes[name])

    def pause(self, name: str) -> None:
        for process in self.processes[name]:
            process.send_signal(signal.SIGSTOP)
        wait_until(lambda: self.is_held(name), 30, "it is stopped")

    def unpause(self, name: str) -> None:
        for process in self.processes[name]:
            process.send_signal(signal.SIGCONT)

    def come_to_rest(self, name: str) -> None:
        wait_until(lambda: self.is_held(name), 30, "it is stopped")

    def remove(self, name: str) -> None:
        self.kill(name)
        super().remove(name)

    def kill(self, name: str) -> None:
        for process in self.processes.pop(name):
            process.kill()
            process.wait()

    def end(self) -> None:
        super().end()
        for name in list(self.processes):
            self.kill(name)


class FakeV1(V1Freezer):
    """Plain files laid out like the freezer hierarchy of cgroup v1. What the kernel would do to them is done here."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        super().__init__(Mount(str(root), v1="freezer"))
        self.root = root
        self.groups: dict[int, str] = {}
        """Where each process is."""
        for name in ("cgroup.procs", "tasks"):
            (root / name).write_text("")

    def make(self, path: str) -> None:
        where = self.root / path.strip("/")
        where.mkdir(exist_ok=True)
        if not (where / "tasks").exists():
            self._list(path)
            self.put(path, "0")
            (where / "freezer.parent_freezing").write_text("0\n")

    def put(self, path: str, value: str) -> None:
        """The state of a group, and what those below say of it."""
        where = self.root / path.strip("/")
        (where / "freezer.self_freezing").write_text(f"{value}\n")
        (where / "freezer.state").write_text("FROZEN\n" if value == "1" else "THAWED\n")
        for below in where.glob("*/freezer.parent_freezing"):
            below.write_text(f"{value}\n")

    def is_stopped(self, pid: int) -> bool:
        path = self.groups[pid]
        return path != "/" and self.is_paused(path)

    def add(self, path: str, pid: int) -> None:
        before = self.groups.get(pid)
        self.groups[pid] = path
        for one in {path, before} - {None}:
            self._list(one)

    def _list(self, path: str) -> None:
        pids = "".join(f"{pid}\n" for pid, one in self.groups.items() if one == path)
        for name in ("cgroup.procs", "tasks"):
            (self.root / path.strip("/") / name).write_text(pids)

    def group_of(self, pid: int) -> str | None:
        path = self.groups.get(pid)
        return None if path is None else re.sub(r"/fairsched\.\d+$", "", path) or "/"

    def make_home(self, group: str, cgroup_id: int) -> str:
        path = f"{group.rstrip('/')}/fairsched.{cgroup_id}"
        self.make(path)
        return path

    def place(self, group: CgroupRef, pid: int) -> bool:
        self.add(group.path, pid)
        return True

    def write(self, group: CgroupRef, is_frozen: bool) -> None:
        super().write(group, is_frozen)
        self.put(group.path, str(int(is_frozen)))


class FreezerV1Stage(SigstopStage):
    """In each cgroup there is a real process, in a group of the same name below the v1 freezer."""

    def __init__(self, fake: FakeTree, journal: Journal) -> None:
        self.v1 = FakeV1(fake.root.parent / "freezer")
        self._patch = mock.patch("fairsched.cgroup.v1.V1Freezer", lambda _mount: self.v1)
        self._patch.start()
        super().__init__(fake, journal)

    def make_brake(self) -> Brake:
        return FreezerV1(self.journal, self.mount, self.v1)

    def add(self, name: str) -> int:
        self.v1.make(f"/{name}")
        pid = super().add(name)
        self.v1.add(f"/{name}", pid)
        return pid

    def is_held(self, name: str) -> bool:
        return all(self.v1.is_stopped(process.pid) for process in self.processes[name])

    def pause(self, name: str) -> None:
        self.v1.put(f"/{name}", "1")

    def unpause(self, name: str) -> None:
        for process in self.processes[name]:
            self.v1.put(self.v1.groups[process.pid], "0")

    def come_to_rest(self, name: str) -> None:
        """It has, at once."""

    def end(self) -> None:
        super().end()
        self._patch.stop()


STAGES: dict[str, type[Stage]] = {
    "freezer": FreezerStage,
    "freezer_v1": FreezerV1Stage,
    "sigstop": SigstopStage,
}
