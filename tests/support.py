# SPDX-License-Identifier: Apache-2.0
"""What several tests need: waiting for a claim to become true, and trees that look like cgroup v2."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairsched.cgroup.glob import Globs
from fairsched.cgroup.path import CgroupRef, Mount


def wait_until(condition: Callable[[], object], deadline_s: float, what: str) -> None:
    """Return as soon as ``condition()`` is true; fail with ``what`` when it is not by the deadline.

    The fixture of the same name in conftest.py calls it; this one is for helpers and processes.
    """
    end = time.monotonic() + deadline_s
    nap_s = 0.0005
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(nap_s)
        nap_s = min(nap_s * 2, 0.02)


def let_run(seconds: float) -> None:
    """Let the world go on for a while: what is measured is what it does in that time."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 60, "time passes")


def end_child(process: subprocess.Popen[Any], number: int = signal.SIGINT, patience_s: float = 30.0) -> int:
    """Ask it to end with a signal; returns its status. It has ended in any case, and what had to be killed fails."""
    try:
        process.send_signal(number)
        return process.wait(patience_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def open_descriptors() -> dict[int, str]:
    """Those of this process, and what each is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def is_matched(globs: Globs, path: str) -> bool:
    """Whether a walk to ``path`` ends on a cgroup that a pattern matches."""
    state = globs.start
    for name in path.strip("/").split("/"):
        state = globs.step(state, name)
    return globs.is_match(state)


class FakeTree:
    """Plain files laid out like cgroup v2: reads, writes and inotify are real, the kernel behind is missing.

    ``cgroup.events`` does not follow ``cgroup.freeze``; tests say what it says.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.mount = Mount(str(root))
        (root / "cgroup.procs").write_text("")

    def make(
        self, path: str, *, frozen: bool = False, parent_frozen: bool = False, pids: Sequence[int] = ()
    ) -> CgroupRef:
        """A cgroup (and its ancestors); ``frozen`` = somebody paused it, ``parent_frozen`` = an ancestor."""
        where = self.root
        for part in path.strip("/").split("/"):
            where = where / part
            if not where.exists():
                where.mkdir()
                self._files(where, False, False, ())
        self._files(where, frozen, frozen or parent_frozen, pids)
        return CgroupRef.open(self.mount, path)

    def _files(self, where: Path, is_asked: bool, is_frozen: bool, pids: Sequence[int]) -> None:
        (where / "cgroup.freeze").write_text(f"{int(is_asked)}\n")
        (where / "cgroup.events").write_text(f"populated {int(bool(pids))}\nfrozen {int(is_frozen)}\n")
        (where / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def freeze_file(self, path: str) -> Path:
        return self.root / path.strip("/") / "cgroup.freeze"

    def is_asked(self, path: str) -> bool:
        """What cgroup.freeze says."""
        return self.freeze_file(path).read_text().strip() == "1"

    def write_freeze(self, path: str, value: str) -> None:
        """What docker pause, systemctl freeze and an operator do: open, write, close."""
        with open(self.freeze_file(path), "r+b", buffering=0) as file:
            file.write(value.encode())

    def settle(self, path: str) -> None:
        """The processes have stopped."""
        (self.root / path.strip("/") / "cgroup.events").write_text("populated 1\nfrozen 1\n")
