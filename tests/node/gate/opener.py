# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup that opens device nodes when asked, and one that does nothing but try."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from fairsched.cgroup.path import CgroupRef
from fairsched.cgroup.tree import place

DENIED, NO_DRIVER = "EPERM", "ENXIO"
"""An open that the gate lets through finds nobody behind a node of major 195 on a machine without a GPU."""

_OPENER = """
import errno, os, sys
for line in sys.stdin:
    what, _, rest = line.rstrip("\\n").partition(" ")
    try:
        if what == "open":
            flags, _, path = rest.partition(" ")
            os.close(os.open(path, int(flags)))
        elif what == "mknod":
            major, minor, path = rest.split(" ", 2)
            os.mknod(path, 0o20666, os.makedev(int(major), int(minor)))
        elif what == "enter":
            os.makedirs(rest, exist_ok=True)
            with open(rest + "/cgroup.procs", "w") as file:
                file.write("0")
        print("ok", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""

_TRIER = """
import errno, os, signal, sys
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
path, count, let_through = sys.argv[1], 0, 0
while not stop:
    count += 1
    try:
        os.close(os.open(path, os.O_RDWR))
        let_through += 1
    except OSError as error:
        let_through += error.errno != errno.EPERM
    if count == 1:
        print("tried", flush=True)
print(count, let_through, flush=True)
"""


class Opener:
    """Lives in ``ref``."""

    def __init__(self, ref: CgroupRef) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _OPENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        place(ref, self.process.pid)

    def open(self, path: Path | str, flags: int = os.O_RDWR) -> str:
        """``ok`` or the name of the errno."""
        return self._ask(f"open {flags} {path}")

    def mknod(self, major: int, minor: int, path: Path) -> str:
        return self._ask(f"mknod {major} {minor} {path}")

    def enter(self, directory: str) -> str:
        """Make a cgroup and go there, at once."""
        return self._ask(f"enter {directory}")

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Trier:
    """Opens ``path`` for read and write without pause, and counts what was not refused with EPERM."""

    def __init__(self, ref: CgroupRef, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import os; os.read(0, 1); exec({_TRIER!r})", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        place(ref, self.process.pid)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("x")
        self.process.stdin.close()
        assert self.process.stdout.readline().strip() == "tried"

    def end(self) -> tuple[int, int]:
        """(opens tried, opens let through)."""
        assert self.process.stdout is not None
        self.process.terminate()
        count, let_through = self.process.stdout.read().split()
        self.process.wait()
        return int(count), int(let_through)


class Nodes:
    """Device nodes of one's own: the real ones are none of a test's business."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def char(self, major: int, minor: int) -> Path:
        return self._make(0o20666, major, minor)

    def block(self, major: int, minor: int) -> Path:
        return self._make(0o60666, major, minor)

    def _make(self, mode: int, major: int, minor: int) -> Path:
        path = self._directory / f"{mode:o}.{major}.{minor}"
        if not path.exists():
            os.mknod(path, mode, os.makedev(major, minor))
            path.chmod(0o666)
        return path


def can_open(path: Path) -> str:
    """What this very process gets."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"
