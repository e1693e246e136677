# SPDX-License-Identifier: Apache-2.0
"""When tenants were held, as the kernel tells it.

Problem. Holds must not be taken from the log of whoever made them. The kernel's notices of cgroup.events come
at most every 10 ms per file, so a short hold would be missed or misdated by as much as it lasts.

Approach. ``frozen_usec`` of cgroup.stat.local (Linux 6.18) counts the time a cgroup was asked to be frozen, to
the microsecond. Looked at often, its growth dates every hold exactly: one that goes on began its length ago,
and one that grew by less than the time since the last look was interrupted for the rest. Older kernels have only
the state itself, dated by the moment we looked.

Terms. look: one reading of all leaves, some 10 ms apart; a hold that came and went between two looks counts
with its right length, ending at the second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.fair.recording import HeldTime

_LEAST_PAUSE_NS = 300_000
"""A shorter one cannot be told from the time between reading the clock and reading the file."""
_PROMPT_NS = 100_000
_TRIES = 5


@dataclass
class _Watched:
    leaf: str
    events_fd: int
    stat_fd: int | None
    frozen_ns: int = 0
    """As the kernel counted at the last look, and when that was."""
    looked_ns: int = 0
    since_ns: int | None = None
    """When the hold that goes on began."""


class HoldWatch:
    """Of cgroup directories by leaf. Close it."""

    def __init__(
        self, directories: dict[str, str], *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock_ns = clock_ns
        self._watched = [self._open(leaf, path) for leaf, path in directories.items()]
        self._held: list[HeldTime] = []

    def _open(self, leaf: str, directory: str) -> _Watched:
        events = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.open(f"{directory}/cgroup.stat.local", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _Watched(leaf, events, None)
        watched = _Watched(leaf, events, stat)
        watched.looked_ns, watched.frozen_ns = self._read(stat)
        return watched

    def look(self) -> None:
        """Take note of what has changed."""
        for one in self._watched:
            try:
                self._look_at(one)
            except OSError:  # the cgroup is gone
                self._end(one, self._clock_ns())

    def _look_at(self, one: _Watched) -> None:
        is_frozen = b"frozen 1" in os.pread(one.events_fd, 256, 0)
        if one.stat_fd is None:
            self._note_state(one, is_frozen, self._clock_ns())
            return
        now_ns, frozen_ns = self._read(one.stat_fd)
        grown_ns, paused_ns = frozen_ns - one.frozen_ns, now_ns - one.looked_ns - (frozen_ns - one.frozen_ns)
        if one.since_ns is None and grown_ns > 0:
            one.since_ns = now_ns - grown_ns
            if not is_frozen:
                self._end(one, now_ns)
        elif one.since_ns is not None and not is_frozen:
            self._end(one, one.looked_ns + grown_ns)
        elif one.since_ns is not None and paused_ns > _LEAST_PAUSE_NS:
            # Where between the two looks is not known: in the middle.
            end_ns = one.looked_ns + grown_ns // 2
            self._end(one, end_ns)
            one.since_ns = end_ns + paused_ns
        one.looked_ns, one.frozen_ns = now_ns, frozen_ns

    def _note_state(self, one: _Watched, is_frozen: bool, now_ns: int) -> None:
        if is_frozen and one.since_ns is None:
            one.since_ns = now_ns
        elif not is_frozen:
            self._end(one, now_ns)

    def _read(self, fd: int) -> tuple[int, int]:
        """The time, and the count of that time."""
        for _ in range(_TRIES):
            before_ns = self._clock_ns()
            text = os.pread(fd, 256, 0)
            after_ns = self._clock_ns()
            if after_ns - before_ns < _PROMPT_NS:
                break
        counts = (int(line.split()[1]) for line in text.splitlines() if line.startswith(b"frozen_usec"))
        return (before_ns + after_ns) // 2, 1000 * next(counts, 0)

    def _end(self, one: _Watched, end_ns: int) -> None:
        if one.since_ns is not None:
            self._held.append(HeldTime(one.leaf, one.since_ns, end_ns))
            one.since_ns = None

    def finish(self) -> tuple[HeldTime, ...]:
        """Every hold, those that go on ending now."""
        self.look()
        for one in self._watched:
            self._end(one, self._clock_ns())
        return tuple(self._held)

    def close(self) -> None:
        for one in self._watched:
            os.close(one.events_fd)
            if one.stat_fd is not None:
                os.close(one.stat_fd)
        self._watched = []
