# SPDX-License-Identifier: Apache-2.0
"""Finds processes that have contexts on a GPU and are gone.

Problem. A context whose process is gone counts as busy for ever: a tenant without a living process is charged, and the
living are held for it.

Approach. The kernel tells when a process ends (``on_exit`` in bpf/gpu_time.bpf.c). This is the second look, which does
not depend on the first: once a second each process that has a context is compared with /proc, a portion at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairsched.base.process import ProcessId

ROUND_NS = 1_000_000_000
_PORTION = 64
"""Processes looked at per call: each costs 25 us. The loop calls five times a second: 320 fit into a round."""


class LifeWatch:
    """Remembers which process each pid with a context was."""

    def __init__(self) -> None:
        self._known: dict[int, ProcessId] = {}
        self._left: list[int] = []
        """Of this round."""
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether a round begins: :meth:`begin` wants to know who has a context."""
        return not self._left and now_ns >= self._next_ns

    def begin(self, pids: Iterable[int], now_ns: int) -> None:
        """Begin a round with the processes that have a context now."""
        self._left = sorted(set(pids))
        self._known = {pid: one for pid in self._left if (one := self._known.get(pid)) is not None}
        self._next_ns = now_ns + ROUND_NS

    def gone(self) -> set[int]:
        """Of some of them, those that are gone, though another process may have the pid."""
        portion, self._left = self._left[-_PORTION:], self._left[:-_PORTION]
        found = set()
        for pid in portion:
            now = ProcessId.of(pid)
            if now is None or self._known.setdefault(pid, now) != now:
                found.add(pid)
                self._known.pop(pid, None)
        return found
