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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from fairsched.bpf import served

NAME = re.compile(r"/libcuda\.so[^/]*$")
_DELETED = " (deleted)"
_FIRST_RETRY_NS = 100_000_000
_LAST_RETRY_NS = 5_000_000_000
_CONFIGURED_EVERY_NS = 3_000_000_000
_MARK = b"/libcuda.so"
_PART_BYTES = 1 << 16
"""Of a map at one time: some 600 mappings, half a millisecond. A process may have 65,530 with names of 4,096 bytes."""
_PARTS_AT_ONCE = 32
MOST = 64
"""Files of one process; a tenant has room for fewer (attachments.py)."""


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


class Part(NamedTuple):
    """Of a memory map."""

    found: list[Mapped]
    is_last: bool


def read_map(pid: int, proc: str = "/proc") -> Iterator[Part]:
    """The libcuda files that a process has mapped, each once, by a part of its map at a time; none beyond :data:`MOST`.

    Raises OSError when it is gone.
    """
    known: set[tuple[str, int, int]] = set()
    with open(f"{proc}/{pid}/maps", "rb") as file:
        rest, is_last = b"", False
        while not is_last:
            data = file.read(_PART_BYTES)
            # The kernel escapes \n in the name of a file, and nothing else: \r is no end of a line.
            *lines, rest = (rest + data).split(b"\n")
            found = []
            for line in lines:
                item = _mapped(line) if _MARK in line else None
                if item is not None and (key := (item.path, item.device, item.inode)) not in known:
                    known.add(key)
                    found.append(item)
            is_last = len(data) < _PART_BYTES or len(known) >= MOST
            yield Part(found[: max(0, MOST - len(known) + len(found))], is_last)


def _mapped(line: bytes) -> Mapped | None:
    extent, _, _, device, inode, *rest = os.fsdecode(line).split(None, 5)
    path = rest[0] if rest else ""
    # A program may name memory that is no file as it likes: "[anon:/libcuda.so]".
    if not path.startswith("/") or not NAME.search(path):
        return None
    major, _, minor = device.partition(":")
    return Mapped(path.removesuffix(_DELETED), extent, os.makedev(int(major, 16), int(minor, 16)), int(inode))


def mapped_libraries(pid: int, proc: str = "/proc") -> tuple[Mapped, ...] | None:
    """The libcuda files that a process has mapped, in what is read of its map at one time; None when it is gone."""
    try:
        parts = islice(read_map(pid, proc), _PARTS_AT_ONCE)
        return tuple(item for part in parts for item in part.found)
    except OSError:
        return None


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


@dataclass(frozen=True, order=True)
class _Look:
    when_ns: int
    pid: int
    delay_ns: int = field(compare=False)
    parts: Iterator[Part] | None = field(default=None, compare=False)
    """The rest of a map that is being read."""
    has_one: bool = field(default=False, compare=False)


class LibraryWatch:
    """Finds libcuda files over time. ``poll`` does a bounded amount of work, for each tenant in turn."""

    def __init__(self, configured: Iterable[str] = (), *, per_call: int = 8) -> None:
        self._configured = tuple(configured)
        self._per_call = per_call
        self._due: dict[str, list[_Look]] = {}
        """By tenant; of those served last the last ones."""
        self._watched: Mapping[int, str] = {}
        self._next_disk_ns = 0
        self._cache: list[str] | None = None

    def watch(self, pids: Mapping[int, str], now_ns: int) -> None:
        """Take in which processes exist now, and of which tenants; new ones are read next, gone ones are forgotten."""
        for pid in pids.keys() - self._watched.keys():
            heapq.heappush(self._due.setdefault(pids[pid], []), _Look(now_ns, pid, _FIRST_RETRY_NS))
        self._watched = pids

    def tenant_of(self, pid: int) -> str | None:
        """Of a process that is watched."""
        return self._watched.get(pid)

    def poll(self, now_ns: int) -> list[LibraryFile]:
        """Files found since the last call; the same file may be reported again."""
        found: list[LibraryFile] = []
        if now_ns >= self._next_disk_ns:
            self._next_disk_ns = now_ns + _CONFIGURED_EVERY_NS
            found += self._look_on_disk()
        for _ in range(self._per_call):
            tenant = next((one for one, looks in self._due.items() if looks[0].when_ns <= now_ns), None)
            if tenant is None:
                break
            looks = self._due.pop(tenant)
            found += self._look(heapq.heappop(looks), looks, now_ns)
            if looks:
                self._due[tenant] = looks  # behind the others
        return found

    def _look(self, look: _Look, looks: list[_Look], now_ns: int) -> list[LibraryFile]:
        """Read a part of the map of a process; when it is to be looked at next goes to ``looks``."""
        if look.pid not in self._watched:
            return []
        parts = read_map(look.pid) if look.parts is None else look.parts
        try:
            part = next(parts)
        except OSError:
            return []
        has_one = look.has_one or bool(part.found)
        if not part.is_last:  # before another of this tenant's is begun: each holds a descriptor
            heapq.heappush(looks, _Look(0, look.pid, look.delay_ns, parts, has_one))
        else:
            # A process that has one may still load another (dlopen of a copy): look again, rarely.
            next_ns = _LAST_RETRY_NS if has_one else look.delay_ns
            heapq.heappush(looks, _Look(now_ns + next_ns, look.pid, min(2 * look.delay_ns, _LAST_RETRY_NS)))
        return [item for one in part.found if (item := see_mapped(one, look.pid)) is not None]

    def _look_on_disk(self) -> list[LibraryFile]:
        if self._cache is None:
            self._cache = linker_cache()
        return [item for path in (*self._configured, *self._cache) if (item := see(path)) is not None]
