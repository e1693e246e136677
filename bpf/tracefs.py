# SPDX-License-Identifier: Apache-2.0
"""Reads the numbers of tracepoints and of probes on returns, also where nobody has mounted tracefs.

Then it is mounted for this process alone, attached to no directory, and gone with the descriptor: fsopen(2),
fsmount(2), Linux 5.2. The system call numbers are the same on every architecture.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable, Iterator

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CMD_CREATE = 6
_CLOEXEC = 1
MOUNTS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *args: object) -> int:
    result = int(_libc.syscall(number, *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _mount_apart() -> int:
    """A descriptor of the root of a tracefs that is attached nowhere. Raises OSError."""
    filesystem = _call(_FSOPEN, b"tracefs", _CLOEXEC)
    try:
        _call(_FSCONFIG, filesystem, _CMD_CREATE, None, None, 0)
        return _call(_FSMOUNT, filesystem, _CLOEXEC, 0)
    finally:
        os.close(filesystem)


@contextlib.contextmanager
def _root(mounts: Iterable[str]) -> Iterator[int]:
    """A descriptor of the root of tracefs, mounted anywhere or apart. Raises OSError."""
    for mount in mounts:
        if os.path.isdir(f"{mount}/events"):
            root = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            break
    else:
        root = _mount_apart()
    try:
        yield root
    finally:
        os.close(root)


def _read(root: int, path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root), encoding="ascii") as file:
        return file.read()


def _append(root: int, path: str, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, dir_fd=root)
    try:
        os.write(fd, line.encode() + b"\n")
    finally:
        os.close(fd)


def tracepoint_id(name: str, mounts: Iterable[str] = MOUNTS) -> int:
    """Of ``syscalls/sys_enter_ioctl`` and the like. Raises OSError: FileNotFoundError when there is no such one."""
    with _root(mounts) as root:
        return int(_read(root, f"events/{name}/id"))


# ---- probes on returns, with room for many calls at once ----

_GROUP = "fairsched"
_EVENT = re.compile(rf"^r\d*:{_GROUP}/(return_(\d+)_\w+) ", re.MULTILINE)
MAX_ACTIVE = 1024
"""Calls inside a probed function at one time. A probe made by perf_event_open(2) has room for twice the number of
processors, and loses the return of each call beyond."""


def add_return_probe(symbol: str) -> int:
    """Define a probe on the returns of a kernel function and return its tracepoint's number. Raises OSError.

    The definition outlives this process, and costs nothing when nobody is attached: :func:`remove_return_probes`
    deletes those of this process and of dead ones.
    """
    name = f"return_{os.getpid()}_{symbol}"
    with _root(MOUNTS) as root:
        _append(root, "kprobe_events", f"r{MAX_ACTIVE}:{_GROUP}/{name} {symbol}")
        return int(_read(root, f"events/{_GROUP}/{name}/id"))


def remove_return_probes(*, own: bool) -> None:
    """Delete definitions of processes that are gone, and with ``own`` those of this one; in use, they stay."""
    with contextlib.suppress(OSError), _root(MOUNTS) as root:
        for name, pid in _EVENT.findall(_read(root, "kprobe_events")):
            if (own and int(pid) == os.getpid()) or not os.path.exists(f"/proc/{pid}"):
                with contextlib.suppress(OSError):
                    _append(root, "kprobe_events", f"-:{_GROUP}/{name}")
