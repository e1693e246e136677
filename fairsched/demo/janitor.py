# SPDX-License-Identifier: Apache-2.0
"""Removes what a demo made: processes, cgroups, files. Runs as a process of its own, also after kill -9 of the demo.

Problem: the demo can end at any moment and in any way, and somebody has to be left to sweep.

Approach: the demo starts the janitor before anything else and holds the write end of its standard input. End of
file there means that the demo is over or dead; there is one way to clean up, and every run takes it. Tenants die with
the engine, the daemon by its parent-death signal, both on their own; whatever is left after a grace is killed.
Should the janitor be killed as well, the next demo sweeps: the names say which process they belonged to.

Imports little: it must start in no time and never fail for want of a package.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fairsched.base.process import ProcessId
from fairsched.cgroup.path import CgroupRef, Mount, find_mount
from fairsched.cgroup.tree import read_pids_recursive, walk
from fairsched.errors import FairschedError

SLICE = "/gpu.slice"
PREFIX = "fairsched-demo-"
_GRACE_S = 2.0
_NAP_S = 0.01


def name_of(owner: ProcessId) -> str:
    """Of the cgroup and of the directory of the demo that runs, or ran, as this process."""
    return f"{PREFIX}{owner.pid}-{owner.start_ticks}"


def owner_of(name: str) -> ProcessId | None:
    """The inverse; None for a name that is none of ours."""
    pid, _, ticks = name.removeprefix(PREFIX).partition("-")
    is_ours = name.startswith(PREFIX) and pid.isdecimal() and ticks.isdecimal()
    return ProcessId(int(pid), int(ticks)) if is_ours else None


def sweep(mount: Mount, name: str, roots: Sequence[Path], *, grace_s: float = _GRACE_S) -> bool:
    """Remove everything of one demo. True when nothing is left; may be called by several at once.

    ``roots``: what may hold a directory of that name.
    """
    path = f"{SLICE}/{name}"
    works = [root / name for root in roots]
    if not _wait(lambda: not _pids(mount, path), grace_s):
        _wait(lambda: not _kill(mount, path), grace_s)
    # The guardian is not in the cgroup. It needs the journal for as long as there is a hold.
    _wait(lambda: not any(_entries(work / "run/holds") for work in works), 1.0)
    _wait(lambda: _remove_cgroups(mount, path), 1.0)
    for work in works:
        shutil.rmtree(work, ignore_errors=True)
    return not any(place.exists() for place in (Path(mount.absolute(path)), *works))


def sweep_stale(mount: Mount, roots: Sequence[Path]) -> None:
    """Remove what demos left behind that died together with their janitors."""
    places = (Path(mount.absolute(SLICE)), *roots)
    for name in {name for place in places for name in _entries(place)}:
        owner = owner_of(name)
        if owner is not None and not owner.is_alive():
            sweep(mount, name, roots, grace_s=0.5)


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_NAP_S)
    return True


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _pids(mount: Mount, path: str) -> list[int]:
    """Zombies are not among them: they have nothing any more that could be in the way."""
    with contextlib.suppress(FairschedError):
        return [pid for pid in read_pids_recursive(mount, path) if ProcessId.of(pid) is not None]
    return []


def _kill(mount: Mount, path: str) -> list[int]:
    """SIGKILL to whoever is in there, frozen or not; returns who was."""
    pids = _pids(mount, path)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _remove_cgroups(mount: Mount, path: str) -> bool:
    """Children first; True when it is gone. A dead process can keep its cgroup busy for a moment."""
    with contextlib.suppress(FairschedError), CgroupRef.open(mount, path):
        for node in reversed([*walk(mount, path)]):
            with contextlib.suppress(OSError):
                os.rmdir(mount.absolute(node.path))
        with contextlib.suppress(OSError):
            os.rmdir(mount.absolute(path))
    return not os.path.exists(mount.absolute(path))


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m fairsched.demo.janitor``."""
    parser = argparse.ArgumentParser(prog="fairsched.demo.janitor", description="Sweeps after a demo.")
    parser.add_argument("name", help="of the demo's cgroup and directory")
    parser.add_argument("roots", nargs="+", type=Path, help="what holds a directory of that name")
    parser.add_argument("--remove-slice", action="store_true", help=f"the demo made {SLICE}: remove it too")
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    mount = find_mount()
    is_clean = sweep(mount, options.name, options.roots)
    if options.remove_slice:
        with contextlib.suppress(OSError):  # somebody else uses it by now
            os.rmdir(mount.absolute(SLICE))
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
