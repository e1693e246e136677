# SPDX-License-Identifier: Apache-2.0
"""Identifies a process by its pid and start time (law 5), so that a reused pid is never taken for it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OVER = (b"Z", b"X")


@dataclass(frozen=True)
class ProcessId:
    """A process that can be told from a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: clock ticks after boot at which it started."""

    @classmethod
    def of(cls, pid: int, proc: str = "/proc") -> ProcessId | None:
        """The process with this pid now; None when there is none, or only a zombie.

        One whose first thread has ended goes on with the others, though its state says zombie.
        """
        fields = _stat(f"{proc}/{pid}")
        if not fields or (fields[0] in _OVER and int(fields[17]) <= 1):
            return None
        return cls(pid, int(fields[19]))

    @classmethod
    def me(cls) -> ProcessId:
        """The calling process."""
        me = cls.of(os.getpid())
        assert me is not None, "/proc/<own pid>/stat is readable while we run"
        return me

    @property
    def started_ns(self) -> int:
        """CLOCK_MONOTONIC: not before this; where the machine has slept since it may be later by that long.

        A clock tick begins here: whatever a process makes in its first tick was not made before its start.
        """
        slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        return self.start_ticks * 1_000_000_000 // _TICKS_PER_S - slept_ns

    def is_alive(self, proc: str = "/proc") -> bool:
        return ProcessId.of(self.pid, proc) == self


def started_ns(pid: int) -> int | None:
    """CLOCK_MONOTONIC of a process's start; None = it is gone."""
    owner = ProcessId.of(pid)
    return None if owner is None else owner.started_ns


def has_ended(thread: str) -> bool:
    """Whether the thread with this directory in /proc has ended; that of a process is its first thread's."""
    fields = _stat(thread)
    return not fields or fields[0] in _OVER


def _stat(directory: str) -> list[bytes]:
    """The fields of ``stat`` from the third on, which is the state; [] of who is gone."""
    try:
        with open(f"{directory}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # the command name in parentheses may itself contain blanks and parentheses
    return text[text.rindex(b")") + 2 :].split()
