# SPDX-License-Identifier: Apache-2.0
"""When tenants were held, as the kernel tells it.

Problem. Holds must not be taken from the log of whoever made them. The kernel's notices of cgroup.events come
at most every 10 ms per file, so a short hold would be missed or misdated by as much as it lasts.

Approach. ``frozen_usec`` of cgroup.stat.local (Linux 6.18) counts the time a cgroup was asked to be frozen, to
the microsecond. Looked at often, its growth dates every hold exactly: one that goes on began its length ago.
Older kernels have only the state itself, dated by the moment we looked.

Terms. look: one reading of all leaves, some 10 ms apart; a hold that came and went between two looks counts
with its right length, ending at the second.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.fair.recording import HeldTime


@dataclass
class _Watched:
    leaf: str
    events_fd: int
    stat_fd: int | None
    frozen_ns: int = 0
    """As of the end of the last hold."""
    since_ns: int | None = None


class HoldWatch:
    """Of cgroup directories by leaf. Close it."""

    def __init__(self, directories: dict[str, str]) -> None:
        self._watched = [self._open(leaf, path) for leaf, path in directories.items()]
        self._held: list[HeldTime] = []

    @staticmethod
    def _open(leaf: str, directory: str) -> _Watched:
        events = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.open(f"{directory}/cgroup.stat.local", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _Watched(leaf, events, None)
        watched = _Watched(leaf, events, stat)
        watched.frozen_ns = _frozen_ns(stat)
        return watched

    def look(self, now_ns: int) -> None:
        """Take note of what has changed."""
        for one in self._watched:
            try:
                self._look_at(one, now_ns)
            except OSError:  # the cgroup is gone
                self._end(one, now_ns)

    def _look_at(self, one: _Watched, now_ns: int) -> None:
        is_frozen = b"frozen 1" in os.pread(one.events_fd, 256, 0)
        if one.stat_fd is None:
            if is_frozen and one.since_ns is None:
                one.since_ns = now_ns
            elif not is_frozen and one.since_ns is not None:
                self._end(one, now_ns)
            return
        grown_ns = _frozen_ns(one.stat_fd) - one.frozen_ns
        if grown_ns <= 0:
            return
        if one.since_ns is None:
            one.since_ns = now_ns - grown_ns
        if not is_frozen:
            one.frozen_ns += grown_ns
            self._end(one, one.since_ns + grown_ns)

    def _end(self, one: _Watched, end_ns: int) -> None:
        if one.since_ns is not None:
            self._held.append(HeldTime(one.leaf, one.since_ns, end_ns))
            one.since_ns = None

    def finish(self, now_ns: int) -> tuple[HeldTime, ...]:
        """Every hold, those that go on ending now."""
        self.look(now_ns)
        for one in self._watched:
            self._end(one, now_ns)
        return tuple(self._held)

    def close(self) -> None:
        for one in self._watched:
            os.close(one.events_fd)
            if one.stat_fd is not None:
                os.close(one.stat_fd)
        self._watched = []


def _frozen_ns(fd: int) -> int:
    for line in os.pread(fd, 256, 0).splitlines():
        if line.startswith(b"frozen_usec"):
            return int(line.split()[1]) * 1000
    return 0
