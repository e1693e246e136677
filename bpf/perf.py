# SPDX-License-Identifier: Apache-2.0
"""Puts a BPF program on a uprobe, kprobe or tracepoint, as a perf event.

Closing the event of a probe costs a grace period of up to 100 ms, one after the other, so whoever holds a hundred
of them takes ten seconds to die. That is why the attacher of the uprobes is a process of its own.
Source: perf_event_open(2) and /sys/bus/event_source/devices/{uprobe,kprobe}/.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform

_NR_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(platform.machine(), 298)
_FD_CLOEXEC = 8
_IOC_ENABLE = 0x2400
_IOC_SET_BPF = 0x40042408
_TYPE_TRACEPOINT = 2
_SYSFS = "/sys/bus/event_source/devices"
_libc = ctypes.CDLL(None, use_errno=True)


class _Attr(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
    )


def probe_type(kind: str) -> int:
    """The dynamic perf type of ``uprobe`` or ``kprobe``. Raises OSError when the kernel has none."""
    with open(f"{_SYSFS}/{kind}/type") as file:
        return int(file.read())


def uprobe_type() -> int:
    """The dynamic perf type of uprobes. Raises OSError when the kernel has none."""
    return probe_type("uprobe")


def attach_uprobe(prog_fd: int, path: str, offset: int, *, is_return: bool) -> int:
    """Attach a program at a file offset; detached when the returned fd is closed. Raises OSError."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    return _attach(
        prog_fd,
        _Attr(type=uprobe_type(), config=int(is_return), config1=ctypes.addressof(text), config2=offset),
    )


def attach_kprobe(prog_fd: int, symbol: str, *, is_return: bool) -> int:
    """Attach a program to a kernel function, a module's too; detached when the returned fd is closed.

    Raises OSError: FileNotFoundError when there is no such function, EINVAL when it may not be probed.
    """
    text = ctypes.create_string_buffer(symbol.encode())
    return _attach(
        prog_fd, _Attr(type=probe_type("kprobe"), config=int(is_return), config1=ctypes.addressof(text))
    )


def attach_tracepoint(prog_fd: int, number: int) -> int:
    """Attach a program to the tracepoint with this id (tracefs.py). Raises OSError."""
    return _attach(prog_fd, _Attr(type=_TYPE_TRACEPOINT, config=number))


def _attach(prog_fd: int, attr: _Attr) -> int:
    attr.size = ctypes.sizeof(_Attr)
    fd = int(_libc.syscall(_NR_PERF_EVENT_OPEN, ctypes.byref(attr), -1, 0, -1, _FD_CLOEXEC))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        fcntl.ioctl(fd, _IOC_SET_BPF, prog_fd)
        fcntl.ioctl(fd, _IOC_ENABLE, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd
