# SPDX-License-Identifier: Apache-2.0
"""Pins a process by a descriptor, so that no signal reaches another one that has its pid.

Problem: between a list of pids and a signal a process can end and its pid be another's. Start times tell the two apart
unless both started within one clock tick of 10 ms.

Approach: a pidfd is opened, and only then is it looked at who the process is. While the pidfd says that it has not
ended, everything that is read about this pid is about it. Signals go through the descriptor and reach it or nobody.
"""

from __future__ import annotations

import errno
import os
import signal

from fairsched.base.process import ProcessId
from fairsched.base.wait import is_readable
from fairsched.errors import FairschedError, HostUnsupported


class Pin:
    """One process; call :meth:`close`."""

    def __init__(self, fd: int, pid: int, start_ticks: int) -> None:
        """Takes over ``fd``. Most callers want :meth:`open`."""
        self._fd, self.pid, self.start_ticks = fd, pid, start_ticks

    @classmethod
    def open(cls, pid: int, start_ticks: int) -> Pin | None:
        """The process with this pid and start time; None: it is gone, or is another.

        Raises HostUnsupported; FairschedError where no more descriptors can be had: nobody is taken for gone by that.
        """
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EPERM):
                raise HostUnsupported(
                    "the kernel has no pidfd_open, or a filter forbids it", remedy="use Linux 5.3 or later"
                ) from None
            if error.errno not in (errno.ESRCH, errno.EINVAL):
                raise FairschedError(
                    f"process {pid} cannot be pinned: {error.strerror}",
                    remedy="choose fewer processes at once, or raise the limit of open files: ulimit -n",
                ) from None
            return None
        if ProcessId.of(pid) != ProcessId(pid, start_ticks):
            os.close(fd)
            return None
        return cls(fd, pid, start_ticks)

    def fileno(self) -> int:
        return self._fd

    @property
    def is_over(self) -> bool:
        """It has ended, with all its threads."""
        return self._fd < 0 or is_readable(self._fd)

    def send(self, number: signal.Signals) -> str | None:
        """None: it was sent. Otherwise why not; ``gone`` where it has ended."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return "gone"
        except OSError as error:
            return (
                "not yours to end: use sudo" if error.errno == errno.EPERM else error.strerror or str(error)
            )
        return None

    def close(self) -> None:
        """Give the descriptor back; harmless when called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
