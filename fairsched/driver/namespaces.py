# SPDX-License-Identifier: Apache-2.0
"""Which number a process has in which PID namespace, from /proc.

``NSpid`` in /proc/PID/status lists its numbers, the initial namespace's first; which namespaces those are is found
by going up from the process' own (ioctl_ns(2)).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
NVIDIA_MAJOR = 195
_INITIAL = 0xEFFFFFFC
"""PROC_PID_INIT_INO: the inode number of the initial PID namespace on every kernel."""
_NS_GET_PARENT = 0xB702
_NSPID = re.compile(rb"^NSpid:\t(.*)$", re.MULTILINE)
"""Bytes: a process names itself as it likes, also in no UTF-8, and in text a carriage return would end a line."""

Place = tuple[int, int]
"""(inode number of a PID namespace, number of the process there)."""


def is_initial(proc: Path = PROC) -> bool:
    """Whether this process is in the initial PID namespace."""
    return (proc / "self/ns/pid").stat().st_ino == _INITIAL


class Places:
    """Remembers what is above a namespace, which never changes while a process is in it."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._above: dict[int, tuple[int, ...]] = {}

    def of(self, pid: int) -> list[Place]:
        """Below the initial namespace, outermost first; empty = it is in that one, or gone."""
        try:
            found = _NSPID.search((self._proc / f"{pid}/status").read_bytes())
            numbers = [int(number) for number in found[1].split()] if found else []
            if len(numbers) < 2:
                return []
            namespaces = self._namespaces(self._proc / f"{pid}/ns/pid")
        except OSError:
            return []
        if len(namespaces) != len(numbers) - 1:
            return []
        return list(zip(namespaces, numbers[1:], strict=True))

    def _namespaces(self, path: Path) -> tuple[int, ...]:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode = os.fstat(fd).st_ino
            if inode not in self._above:
                self._above[inode] = _chain(fd)
            return self._above[inode]
        finally:
            os.close(fd)


def _chain(fd: int) -> tuple[int, ...]:
    """Inode numbers of a namespace and those above it, without the initial one, outermost first."""
    inodes: list[int] = []
    with contextlib.ExitStack() as stack:
        while (inode := os.fstat(fd).st_ino) != _INITIAL:
            inodes.insert(0, inode)
            fd = fcntl.ioctl(fd, _NS_GET_PARENT)
            stack.callback(os.close, fd)
    return tuple(inodes)


def started(pid: int, proc: Path = PROC) -> str | None:
    """Start time in ticks, which with the pid names a process; None = it is gone."""
    try:
        return (proc / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode("ascii")
    except (OSError, IndexError):
        return None


def driver_users(proc: Path = PROC) -> Iterator[int]:
    """Processes that hold a device of the NVIDIA driver open."""
    for entry in proc.iterdir():
        if entry.name.isdigit() and _has_driver_open(entry / "fd"):
            yield int(entry.name)


def _has_driver_open(directory: Path) -> bool:
    try:
        with os.scandir(directory) as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.major(descriptor.stat().st_rdev) == NVIDIA_MAJOR:
                        return True
    except OSError:
        pass
    return False
