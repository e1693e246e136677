# SPDX-License-Identifier: Apache-2.0
"""Refuses probes on mapped files that a tenant may serve itself, and asks no such file system for that.

Problem. While the kernel puts a uprobe on a file that is mapped, it reads the instruction from the file and lets no
process of the node fork. Where that file is on a FUSE, its server decides how long that takes: a tenant with a FUSE of
its own could stop every fork of the node. To look at such a file is as bad for whoever looks: once the server has a
request, not even SIGKILL ends the wait for its answer.

Approach. A file is known by what the kernel has of it in memory: the link in /proc/PID/map_files leads to it without a
lookup, O_PATH opens it without a word to the file system, statx with AT_STATX_DONT_SYNC tells what is cached, and the
mount that it is on is in mountinfo. A file that a process chose gets no probes on a FUSE, on an overlay that the host
has not mounted itself (anybody may mount either in a user namespace of his own, the second above the first), or on a
mount that neither its process nor the host has. A container's own overlay is known to the host, because its runtime
made it there. Files of the operator's choice (``gpu.libcuda``, the dynamic linker's cache) are his to trust. What is
called through a file without probes is not seen, and that is said of it as of any work that nobody sees.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from fairsched.errors import FairschedError

_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_MODE_AND_INODE = 0x103
_STATX = struct.Struct("=28xH2xQ96xII112x")
"""struct statx of linux/stat.h: mode, inode, device's major and minor."""


class Served(FairschedError):
    """A file that whoever mapped it may serve itself."""


class Identity(NamedTuple):
    device: int
    inode: int
    mode: int


class _Mount(NamedTuple):
    """See proc_pid_mountinfo(5)."""

    device: str
    file_system: str


def identity(fd: int) -> Identity:
    """Of a file opened with O_PATH, as far as the kernel has it in memory. Raises OSError."""
    buffer = ctypes.create_string_buffer(_STATX.size)
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    if ctypes.CDLL(None, use_errno=True).statx(fd, b"", flags, _STATX_MODE_AND_INODE, buffer):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    mode, inode, major, minor = _STATX.unpack(buffer.raw)
    return Identity(os.makedev(major, minor), inode, mode)


def refuse(name: str, fd: int, pid: int, proc: str = "/proc") -> None:
    """Raises Served where no probe may be put on the open file, OSError where that cannot be found out.

    ``name``: what it is called in errors; ``pid``: a process that has it mapped.
    """
    host = _mounts(f"{proc}/1/mountinfo")
    number = _mount_of(fd)
    mount = _mounts(f"{proc}/{pid}/mountinfo").get(number) or host.get(number)
    if mount is None:
        raise Served(f"{name}: is on a mount that its process does not have", remedy=_REMEDY)
    if mount.file_system.partition(".")[0] in ("fuse", "fuseblk"):
        raise Served(f"{name}: is on a FUSE, whose server could stop the node with it", remedy=_REMEDY)
    if mount.file_system == "overlay" and mount.device not in {one.device for one in host.values()}:
        raise Served(f"{name}: is on an overlay that the host has not mounted", remedy=_REMEDY)


def is_lasting(fd: int, proc: str = "/proc") -> bool:
    """Whether the open file is on a mount of the host's own; False: its mount goes with a container."""
    mount = _mounts(f"{proc}/1/mountinfo").get(_mount_of(fd))
    return mount is not None and mount.file_system != "overlay"


_REMEDY = "put libcuda where the host keeps it, or name the file in gpu.libcuda if you trust its server"


def _mount_of(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(line.split()[1] for line in file if line.startswith("mnt_id:"))


def _mounts(path: str) -> dict[str, _Mount]:
    """By number. Its user names mount points as he likes, in no encoding."""
    found = {}
    with open(path, errors="surrogateescape", newline="\n") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            number, _, device, *_ = before.split(" ")
            found[number] = _Mount(device, after.split(" ")[0])
    return found
