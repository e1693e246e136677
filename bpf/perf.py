# SPDX-License-Identifier: Apache-2.0
"""One uprobe as a perf event with a BPF program on it: what kernels before 6.6 offer.

Closing such an event costs a grace period of up to 100 ms, one after the other, so whoever holds a hundred
of them takes ten seconds to die. That is why the attacher is a process of its own.
Source: perf_event_open(2) and /sys/bus/event_source/devices/uprobe/.
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
_SYSFS = "/sys/bus/event_source/devices/uprobe"
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


def uprobe_type() -> int:
    """The dynamic perf type of uprobes. Raises OSError when the kernel has none."""
    with open(f"{_SYSFS}/type") as file:
        return int(file.read())


def attach_uprobe(prog_fd: int, path: str, offset: int, *, is_return: bool) -> int:
    """Attach a program at a file offset; detached when the returned fd is closed. Raises OSError."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    attr = _Attr(
        type=uprobe_type(),
        size=ctypes.sizeof(_Attr),
        config=int(is_return),
        config1=ctypes.addressof(text),
        config2=offset,
    )
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
