# SPDX-License-Identifier: Apache-2.0
"""Finds the libcuda files that processes of this node use, so that each inode gets probes.

Problem: besides the host's libcuda there are copies (cuda-compat images, driver upgrades under running
containers), and a process may load one minutes after it started.

Approach: the paths of the configuration and the dynamic linker's cache are looked at every few seconds; the
mappings of each process are read when it is first seen and then ever more rarely while it has no libcuda, a few
processes per call, so that a node with thousands of processes costs no more per tick than one with ten.

Terms: a *sighting* is (path to open, inode) of one libcuda; paths go through /proc/PID/root, because that is the
file the process means, whatever its mount namespace.
"""

from __future__ import annotations

import heapq
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

NAME = re.compile(r"/libcuda\.so[^/]*$")
_FIRST_RETRY_NS = 100_000_000
_LAST_RETRY_NS = 5_000_000_000
_CONFIGURED_EVERY_NS = 3_000_000_000


@dataclass(frozen=True)
class Sighting:
    """A libcuda file; ``pid`` is the process that has it mapped, None = found on disk."""

    path: str
    device: int
    inode: int
    pid: int | None = None


def linker_cache() -> list[str]:
    """Paths of libcuda.so.1 in the dynamic linker's cache."""
    try:
        out = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.rpartition("=> ")[2] for line in out.stdout.splitlines() if NAME.search(line)]


def mapped_libraries(pid: int, proc: str = "/proc") -> set[str] | None:
    """Paths, as the process sees them, of the libcuda files it has mapped; None when it is gone."""
    found = set()
    try:
        with open(f"{proc}/{pid}/maps") as file:
            for line in file:
                path = line.rstrip("\n").partition("/")[2]
                if path and NAME.search("/" + path):
                    found.add("/" + path.removesuffix(" (deleted)"))
    except OSError:
        return None
    return found


def see(path: str, pid: int | None = None, proc: str = "/proc") -> Sighting | None:
    """The file behind a path, or None when it is gone."""
    full = f"{proc}/{pid}/root{path}" if pid is not None else path
    try:
        stat = os.stat(full)
    except OSError:
        return None
    return Sighting(full, stat.st_dev, stat.st_ino, pid)


class LibraryWatch:
    """Sightings of libcuda over time. ``poll`` does a bounded amount of work."""

    def __init__(self, configured: Iterable[str] = (), *, per_call: int = 8) -> None:
        self._configured = tuple(configured)
        self._per_call = per_call
        self._due: list[tuple[int, int, int]] = []
        """(when, pid, delay) of processes without a libcuda so far."""
        self._watched: set[int] = set()
        self._next_disk_ns = 0
        self._cache: list[str] | None = None

    def watch(self, pids: Iterable[int], now_ns: int) -> None:
        """Processes that exist now; ones not known yet are looked at next, ones gone are forgotten."""
        alive = set(pids)
        for pid in alive - self._watched:
            heapq.heappush(self._due, (now_ns, pid, _FIRST_RETRY_NS))
        self._watched = alive

    def poll(self, now_ns: int) -> list[Sighting]:
        """Sightings since the last call; the same file may be reported again."""
        found: list[Sighting] = []
        if now_ns >= self._next_disk_ns:
            self._next_disk_ns = now_ns + _CONFIGURED_EVERY_NS
            found += self._look_on_disk()
        for _ in range(self._per_call):
            if not self._due or self._due[0][0] > now_ns:
                break
            _, pid, delay_ns = heapq.heappop(self._due)
            if pid not in self._watched:
                continue
            paths = mapped_libraries(pid)
            if paths is None:
                continue
            found += [item for path in paths if (item := see(path, pid)) is not None]
            # A process that has one may still load another (dlopen of a copy): look again, rarely.
            next_ns = _LAST_RETRY_NS if paths else delay_ns
            heapq.heappush(self._due, (now_ns + next_ns, pid, min(2 * delay_ns, _LAST_RETRY_NS)))
        return found

    def _look_on_disk(self) -> list[Sighting]:
        if self._cache is None:
            self._cache = linker_cache()
        return [item for path in (*self._configured, *self._cache) if (item := see(path)) is not None]
