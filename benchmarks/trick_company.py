# SPDX-License-Identifier: Apache-2.0
"""The processes and cgroups of a trick, all gone when it ends: the tools the tricks are made of.

Every process asks the kernel to be killed when the trick's main process ends, so SIGKILL leaves none either.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from fairsched.cgroup import tree
from fairsched.cgroup.path import find_mount

_PR_SET_PDEATHSIG = 1
_REMOVE_S = 5.0
_LOG = "--log"


class Company:
    """A context manager. SIGTERM ends the program from inside of it, with everything undone."""

    def __init__(self, load: Path, arguments: Sequence[str]) -> None:
        self.load = load
        self.arguments = list(arguments)
        self.undo = contextlib.ExitStack()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.home = _own_cgroup()
        """Directory of the tenant's cgroup."""

    def __enter__(self) -> Company:
        signal.signal(signal.SIGTERM, _end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.undo.close()

    # ---- processes ----

    def spawn(self, *more: str, cgroup: Path | None = None, has_log: bool = True) -> subprocess.Popen[bytes]:
        """A process that does the load; ``more`` overrides its arguments. One at a time may write the log."""
        enter = [str(self.load), "--enter", "--die-with-parent"]  # first of all, not after it has moved
        if cgroup is not None:
            enter += ["--cgroup", str(cgroup)]
        arguments = self.arguments if has_log else without_log(self.arguments)
        return subprocess.Popen([*enter, "--", str(self.load), *arguments, *more])

    def start_worker(
        self, *more: str, cgroup: Path | None = None, has_log: bool = True
    ) -> subprocess.Popen[bytes]:
        """One that is to live as long as the trick."""
        worker = self.spawn(*more, cgroup=cgroup, has_log=has_log)
        self.workers.append(worker)
        self.undo.callback(kill, worker)
        return worker

    def start_helper(self, run: Callable[[], None], *, aside: bool = False) -> int:
        """A process that calls ``run``, outside of the tenant's cgroup if it is to be ``aside``; returns its pid."""
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _be_helper(run, parent, self.home.parent if aside else None)
        self.undo.callback(_kill_helper, pid)
        return pid

    def beats(self, period_s: float) -> Iterator[int]:
        """0, 1, ... every ``period_s`` for as long as all workers live. Who was held makes up for none."""
        for number in itertools.count():
            if any(worker.poll() is not None for worker in self.workers):
                return
            next_s = time.monotonic() + period_s
            yield number
            time.sleep(max(0.0, next_s - time.monotonic()))

    def wait(self) -> None:
        """Until a worker has ended by itself."""
        for _ in self.beats(0.1):
            pass

    def libcuda(self) -> Path:
        """The file the workers would load."""
        for directory in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
            if directory and (found := Path(directory, "libcuda.so.1")).exists():
                return found
        sys.exit("tricks: no libcuda.so.1 in LD_LIBRARY_PATH; start it with SimHost.popen")

    # ---- cgroups ----

    def make_cgroup(self, name: str, parent: Path | None = None) -> Path:
        """Below the tenant's, or below one of ours."""
        directory = (parent or self.home) / f"trick-{os.getpid()}-{name}"
        directory.mkdir()
        self.undo.callback(_remove_cgroup, directory)
        return directory


def without_log(arguments: Sequence[str]) -> list[str]:
    """Of simload, less ``--log PATH``."""
    if _LOG not in arguments:
        return list(arguments)
    at = list(arguments).index(_LOG)
    return [*arguments[:at], *arguments[at + 2 :]]


def move_to(cgroup: Path, pid: int) -> bool:
    """Whether it could be done."""
    try:
        (cgroup / "cgroup.procs").write_text(f"{pid}\n")
    except OSError:
        return False
    return True


def _own_cgroup() -> Path:
    mount = find_mount()
    path = tree.cgroup_path_of("self", mount)
    if path is None:
        sys.exit("tricks: this process is in no cgroup of the cgroup v2 mount it sees")
    return Path(mount.absolute(path))


def _be_helper(run: Callable[[], None], parent: int, cgroup: Path | None) -> NoReturn:
    """Ends with its parent, and without the parent's cleaning up, whatever happens."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:  # else it ended before we asked
            if cgroup is not None:
                move_to(cgroup, os.getpid())
            run()
    except Exception as error:
        print(f"tricks: {run.__qualname__}: {error!r}", file=sys.stderr)
    finally:
        os._exit(1)


def _end(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def kill(worker: subprocess.Popen[bytes]) -> None:
    """And wait for its end."""
    worker.kill()
    worker.wait()


def _kill_helper(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _remove_cgroup(directory: Path) -> None:
    with contextlib.suppress(OSError):
        (directory / "cgroup.kill").write_text("1")
    end_s = time.monotonic() + _REMOVE_S
    while directory.exists() and time.monotonic() < end_s:
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.005)  # the last process leaves a moment after it was reaped
