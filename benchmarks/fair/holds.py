# SPDX-License-Identifier: Apache-2.0
"""When tenants were held, as the kernel tells it.

Problem. Holds must not be taken from the log of whoever made them. The kernel's notices of cgroup.events come
at most every 10 ms per file, so a short hold would be missed or misdated by as much as it lasts.

Approach. ``frozen_usec`` of cgroup.stat.local (Linux 6.18) counts the time a cgroup was asked to be frozen, to
the microsecond. Looked at often, its growth dates every hold exactly: one that goes on began its length ago,
and one that grew by less than the time since the last look was interrupted for the rest. An interruption may be
shorter than what that can tell (a grant: .2 ms): then inotify has told of a write to cgroup.freeze meanwhile. Older
kernels have only the state itself, dated by the moment we looked.

Terms. look: one reading of all leaves, some 10 ms apart; a hold that came and went between two looks counts
with its right length, ending at the second.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.fair.recording import HeldTime
from fairsched.cgroup.watch import IN_MODIFY, Watch

_LEAST_PAUSE_NS = 300_000
"""A shorter one cannot be told from the time between reading the clock and reading the file."""
_PROMPT_NS = 100_000
_TRIES = 5


@dataclass
class _Watched:
    leaf: str
    events_fd: int
    stat_fd: int | None
    number: int | None = None
    """Of the watch on its cgroup.freeze."""
    frozen_ns: int = 0
    """As the kernel counted at the last look, and when that was."""
    looked_ns: int = 0
    since_ns: int | None = None
    """When the hold that goes on began."""


class StateWatch:
    """The same where no cgroup says it: by the state of each leaf's first process, T (SIGSTOP) or D (the freezer of
    cgroup v1), as dated as a look is: to 10 ms."""

    def __init__(
        self, directories: dict[str, str], states: bytes, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock_ns, self._states = clock_ns, states
        self._directories = dict(directories)
        self._since_ns: dict[str, int] = {}
        self._held: list[HeldTime] = []

    def look(self) -> None:
        """Take note of what has changed."""
        for leaf, directory in self._directories.items():
            is_held, now_ns = self._is_held(directory), self._clock_ns()
            if is_held:
                self._since_ns.setdefault(leaf, now_ns)
            elif leaf in self._since_ns:
                self._held.append(HeldTime(leaf, self._since_ns.pop(leaf), now_ns))

    def _is_held(self, directory: str) -> bool:
        try:
            with open(f"{directory}/cgroup.procs", "rb") as procs:
                pid = procs.readline().strip().decode()
            with open(f"/proc/{pid}/stat", "rb") as stat:
                return stat.read().rpartition(b") ")[2][:1] in self._states
        except OSError:  # nobody is there, or it has just ended
            return False

    def finish(self) -> tuple[HeldTime, ...]:
        """Every hold, those that go on ending now."""
        self.look()
        now_ns = self._clock_ns()
        self._held += [HeldTime(leaf, since_ns, now_ns) for leaf, since_ns in self._since_ns.items()]
        self._since_ns.clear()
        return tuple(self._held)

    def close(self) -> None:
        """As HoldWatch has it; nothing is open."""


class HoldWatch:
    """Of cgroup directories by leaf. Close it."""

    def __init__(
        self, directories: dict[str, str], *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock_ns = clock_ns
        self._writes = Watch()
        self._watched = [self._open(leaf, path) for leaf, path in directories.items()]
        self._held: list[HeldTime] = []

    def _open(self, leaf: str, directory: str) -> _Watched:
        events = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.open(f"{directory}/cgroup.stat.local", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _Watched(leaf, events, None)
        watched = _Watched(leaf, events, stat)
        with contextlib.suppress(FileNotFoundError):
            freeze = os.open(f"{directory}/cgroup.freeze", os.O_RDONLY | os.O_CLOEXEC)
            try:
                watched.number = self._writes.add(freeze, IN_MODIFY)
            finally:
                os.close(freeze)
        watched.looked_ns, watched.frozen_ns = self._read(stat)
        return watched

    def look(self) -> None:
        """Take note of what has changed."""
        states: list[tuple[_Watched, tuple[bool, int, int]]] = []
        for one in self._watched:
            try:
                states.append((one, self._state(one)))
            except OSError:  # the cgroup is gone
                self._end(one, self._clock_ns())
        # Read last: a write that the states do not show yet is then that of a hold which the next look sees begin.
        written = {number for number, mask in self._writes.read() if mask & IN_MODIFY}
        for one, state in states:
            self._note(one, *state, was_written=one.number in written)

    def _state(self, one: _Watched) -> tuple[bool, int, int]:
        """Whether it is frozen, when that was read, and the kernel's count then."""
        is_frozen = b"frozen 1" in os.pread(one.events_fd, 256, 0)
        return is_frozen, *(self._read(one.stat_fd) if one.stat_fd is not None else (self._clock_ns(), 0))

    def _note(
        self, one: _Watched, is_frozen: bool, now_ns: int, frozen_ns: int, *, was_written: bool
    ) -> None:
        if one.stat_fd is None:
            self._note_state(one, is_frozen, now_ns)
            return
        grown_ns, paused_ns = frozen_ns - one.frozen_ns, now_ns - one.looked_ns - (frozen_ns - one.frozen_ns)
        if one.since_ns is None and grown_ns > 0:
            one.since_ns = now_ns - grown_ns
            if not is_frozen:
                self._end(one, now_ns)
        elif one.since_ns is not None and not is_frozen:
            self._end(one, one.looked_ns + grown_ns)
        elif one.since_ns is not None and (was_written or paused_ns > _LEAST_PAUSE_NS):
            # Where between the two looks is not known: in the middle.
            end_ns = one.looked_ns + grown_ns // 2
            self._end(one, end_ns)
            one.since_ns = end_ns + max(0, paused_ns)
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
        self._writes.close()
