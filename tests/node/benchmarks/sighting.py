# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a hostile tenant while its trick is played: in the engine's truth and in /proc.

The trick may be held for most of the time, so what is sampled is sampled twice a second and added up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.node.benchmarks.plays import SeenRig, cgroup_of, pids_of

HOSTILE = "hostile"
"""The leaf's name in every shipped scenario."""
OWNER = 3
"""Its tag in the engine: it is the third of the leaves."""


@dataclass
class Sighting:
    """What could be seen of the hostile tenant, at any time."""

    contexts: set[tuple[int, int]] = field(default_factory=set)
    """(pid, number), of contexts that lived."""
    together: int = 0
    """Most of them at once."""
    pids_together: int = 0
    """Most of them in its cgroup at once."""
    cgroups: set[str] = field(default_factory=set)
    """Of its GPU processes, below its own."""
    ran_in: set[str] = field(default_factory=set)
    """Names of cgroups below its own in which a processor has been used."""
    libraries: set[str] = field(default_factory=set)
    """Files named libcuda, or as the trick dlopen_copy calls it, that its GPU processes have mapped."""
    arguments: set[str] = field(default_factory=set)
    """Of its GPU processes, joined by blanks."""
    naps: int = 0
    """Most often that one of them has given the processor up."""
    reaped_faults: int = 0
    """Page faults of the children that one of its processes has waited for: who is frozen most of the time has but few
    of them alive at a moment."""
    traced: set[int] = field(default_factory=set)
    strays: set[int] = field(default_factory=set)
    """Processes of it outside of its cgroup."""
    kernels: int = 0
    exec_ns: int = 0
    libcuda: str = ""
    """The file that everybody else has."""

    def was_told(self, words: str) -> bool:
        return any(words in arguments for arguments in self.arguments)

    def look(self, rig: SeenRig, _done: float) -> None:
        self.libcuda = os.path.realpath(rig.libcuda)
        home = rig.cgroup_path(HOSTILE)
        mine = [truth for truth in rig.host.truth(sync=False) if truth.owner == OWNER]
        alive = [truth for truth in mine if truth.is_alive]
        self.kernels, self.exec_ns = sum(t.kernels for t in mine), sum(t.exec_ns for t in mine)
        self.contexts |= {(truth.pid, truth.id) for truth in mine}
        self.together = max(self.together, len(alive))
        pids = set(pids_of(rig.mount.absolute(home)))
        self.reaped_faults = max([self.reaped_faults, *map(_reaped_faults, pids)])
        self.ran_in |= set(_used(Path(rig.mount.absolute(home))))
        self.pids_together = max(self.pids_together, len(pids))
        for pid in {truth.pid for truth in alive}:
            path = cgroup_of(pid)
            if path is not None and path.startswith(home):
                self.cgroups.add(path.removeprefix(home))
            self.libraries |= set(_mapped(pid))
            self.arguments.add(" ".join(_read(pid, "cmdline").split("\0")))
            self.naps = max(self.naps, sum(_status(pid, "voluntary_ctxt_switches")))
            if any(_status(pid, "TracerPid")):
                self.traced.add(pid)
        self.strays |= {pid for pid in _owned() if pid not in pids and not _is_below(pid, home)}


def _read(pid: int, file: str) -> str:
    """Nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""


def _mapped(pid: int) -> Iterator[str]:
    for line in _read(pid, "maps").splitlines():
        if "libcuda" in line or "libcompute" in line:
            yield line.split()[-1]


def _used(home: Path) -> Iterator[str]:
    for file in home.glob("*/cpu.stat"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if not file.read_text().startswith("usage_usec 0\n"):
                yield file.parent.name


def _status(pid: int, key: str) -> Iterator[int]:
    """Of each thread."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for line in _read(pid, f"task/{task.name}/status").splitlines():
            if line.startswith(f"{key}:"):
                yield int(line.split()[1])


def _reaped_faults(pid: int) -> int:
    """The field ``cminflt`` of proc_pid_stat(5)."""
    _, _, fields = _read(pid, "stat").rpartition(") ")
    return int(fields.split()[8]) if fields else 0


def _owned() -> Iterator[int]:
    """Processes that have inherited its tag."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FAIRSCHED_SIM_OWNER={OWNER}".encode() in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:
            continue


def _is_below(pid: int, home: str) -> bool:
    path = cgroup_of(pid)
    return path is None or path.startswith(home)
