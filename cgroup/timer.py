# SPDX-License-Identifier: Apache-2.0
"""A timer that a daemon can wait for beside its other descriptors (timerfd_create(2)).

Python has it from 3.13 on; until then the C library is asked. A timer that was not set never becomes readable.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from fairsched.errors import HostUnsupported


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Readable once, so long after it was set."""

    def __init__(self) -> None:
        """Raises HostUnsupported when no descriptor is left."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise HostUnsupported(
                f"cannot make a timer: {os.strerror(ctypes.get_errno())}", remedy="raise LimitNOFILE"
            )

    def fileno(self) -> int:
        return self._fd

    def set(self, after_ns: int | None) -> None:
        """From now; None: never. Whatever was readable is no more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        spec = _Spec(0, 0, *divmod(0 if after_ns is None else max(1, after_ns), 1_000_000_000))
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
