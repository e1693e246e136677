# SPDX-License-Identifier: Apache-2.0
"""Finds the libcuda files that processes of this node use, so that each inode gets probes.

Problem: besides the host's libcuda there are copies (cuda-compat images, driver upgrades under running
containers), and a process may load one minutes after it started.

Approach: the paths of the configuration and the dynamic linker's cache are looked at every few seconds; the
mappings of each process are read when it is first seen and then ever more rarely while it has no libcuda, a few
processes per call, so that a node with thousands of processes costs no more per tick than one with ten.

Terms: a *library file* is (path to open, inode) of one libcuda. The file that a process has mapped is the one behind
/proc/PID/map_files: an upgrade may have removed its name since, or given it to another file, and to follow the name
would be to ask file systems that its user may serve himself (bpf/served.py).
"""

from __future__ import annotations

import heapq
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fairsched.bpf import served

NAME = re.compile(r"/libcuda\.so[^/]*$")
_DELETED = " (deleted)"
_FIRST_RETRY_NS = 100_000_000
_LAST_RETRY_NS = 5_000_000_000
_CONFIGURED_EVERY_NS = 3_000_000_000


@dataclass(frozen=True)
class LibraryFile:
    """A libcuda file; ``pid`` is the process that has it mapped, None = found on disk."""

    path: str
    device: int
    inode: int
    pid: int | None = None
    name: str = ""
    """What the process called it when it mapped it, below the root that it has; for people."""


def linker_cache() -> list[str]:
    """Paths of libcuda.so.1 in the dynamic linker's cache."""
    try:
        out = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.rpartition("=> ")[2] for line in out.stdout.splitlines() if NAME.search(line)]


class Mapped(NamedTuple):
    """A libcuda in the memory map of a process."""

    path: str
    """As the process named it; it may be gone, or be another file by now."""
    extent: str
    """START-END of one of its mappings, as /proc/PID/map_files names them."""
    device: int
    inode: int
    """As the kernel's map says. On an overlay or btrfs the device, and sometimes both, are not what stat says."""


def mapped_libraries(pid: int, proc: str = "/proc") -> tuple[Mapped, ...] | None:
    """The libcuda files that a process has mapped, each once; None when it is gone."""
    found: dict[tuple[str, str, str], Mapped] = {}
    try:
        # The kernel escapes \n in the name of a file, and nothing else: \r is no end of a line.
        with open(f"{proc}/{pid}/maps", errors="surrogateescape", newline="\n") as file:
            for line in file:
                # A program may name memory that is no file as it likes: "[anon:/libcuda.so]".
                extent, _, _, device, inode, *rest = line.rstrip("\n").split(None, 5)
                path = rest[0] if rest else ""
                if path.startswith("/") and NAME.search(path):
                    major, _, minor = device.partition(":")
                    item = Mapped(
                        path.removesuffix(_DELETED),
                        extent,
                        os.makedev(int(major, 16), int(minor, 16)),
                        int(inode),
                    )
                    found.setdefault((path, device, inode), item)
    except OSError:
        return None
    return tuple(found.values())


def see(path: str) -> LibraryFile | None:
    """The file behind a path, or None when it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return LibraryFile(path, status.st_dev, status.st_ino)


def see_mapped(item: Mapped, pid: int, proc: str = "/proc") -> LibraryFile | None:
    """The file that a process has mapped; None when the mapping is gone, most often with its process."""
    named, link = f"{proc}/{pid}/root{item.path}", f"{proc}/{pid}/map_files/{_link_name(item.extent)}"
    try:
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
        try:
            found = served.identity(fd)
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        # No CAP_SYS_ADMIN in the initial user namespace, or a FUSE for its user alone: what the map says has to do.
        # Nobody can open it, which the attacher will say.
        return LibraryFile(link, item.device, item.inode, pid, named)
    return LibraryFile(link, found.device, found.inode, pid, named)


def _link_name(extent: str) -> str:
    """map_files has no leading zeros, which the map has below 4 GiB."""
    return "-".join(f"{int(end, 16):x}" for end in extent.split("-"))


class LibraryWatch:
    """Finds libcuda files over time. ``poll`` does a bounded amount of work."""

    def __init__(self, configured: Iterable[str] = (), *, per_call: int = 8) -> None:
        self._configured = tuple(configured)
        self._per_call = per_call
        self._due: list[tuple[int, int, int]] = []
        """(when, pid, delay) of processes without a libcuda so far."""
        self._watched: set[int] = set()
        self._next_disk_ns = 0
        self._cache: list[str] | None = None

    def watch(self, pids: Iterable[int], now_ns: int) -> None:
        """Take in which processes exist now; new ones are read next, gone ones are forgotten."""
        alive = set(pids)
        for pid in alive - self._watched:
            heapq.heappush(self._due, (now_ns, pid, _FIRST_RETRY_NS))
        self._watched = alive

    def poll(self, now_ns: int) -> list[LibraryFile]:
        """Files found since the last call; the same file may be reported again."""
        found: list[LibraryFile] = []
        if now_ns >= self._next_disk_ns:
            self._next_disk_ns = now_ns + _CONFIGURED_EVERY_NS
            found += self._look_on_disk()
        for _ in range(self._per_call):
            if not self._due or self._due[0][0] > now_ns:
                break
            _, pid, delay_ns = heapq.heappop(self._due)
            if pid not in self._watched:
                continue
            mapped = mapped_libraries(pid)
            if mapped is None:
                continue
            found += [item for one in mapped if (item := see_mapped(one, pid)) is not None]
            # A process that has one may still load another (dlopen of a copy): look again, rarely.
            next_ns = _LAST_RETRY_NS if mapped else delay_ns
            heapq.heappush(self._due, (now_ns + next_ns, pid, min(2 * delay_ns, _LAST_RETRY_NS)))
        return found

    def _look_on_disk(self) -> list[LibraryFile]:
        if self._cache is None:
            self._cache = linker_cache()
        return [item for path in (*self._configured, *self._cache) if (item := see(path)) is not None]
