# SPDX-License-Identifier: Apache-2.0
"""GPU time of processes of which no call is seen, where the GPU itself names them (turns.py).

Problem. A program with the driver's library inside itself, or one that works in the name of a process that is gone,
passes by the probes. Replaying turns it is an intruder: the others are charged its time, and it nothing.

Approach. The trace names who has the engine. Who has no context in the account is charged like anybody, to the cgroup
that it was in when it was first seen; one whose contexts ended keeps the cgroup that these were in, for the driver
names the process that opened it, and a child may go on in its name. One of which nothing comes for a while is
forgotten. Who wanted the GPU when it was held wants it until it is let go: frozen it has no turns.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from fairsched.accounting.context import DEMAND_LINGER_NS, ProcessUse, ProcessUses
from fairsched.accounting.turns import Turns
from fairsched.model import Confidence

FORGOTTEN_NS = 10_000_000_000
_NEVER_WANTED_NS = -DEMAND_LINGER_NS
_MOST = 4096


@dataclass(slots=True)
class _Stranger:
    cgroup_id: int
    seen_ns: int
    wanted_ns: int = _NEVER_WANTED_NS
    """When it last had a turn that somebody else waited for."""
    is_held_wanting: bool = False


class Strangers:
    """Of one GPU."""

    def __init__(self) -> None:
        self._by_pid: dict[int, _Stranger] = {}

    def leave(self, pid: int, cgroup_id: int, now_ns: int) -> None:
        """Its last context there was is gone; what comes in its name is still of that cgroup."""
        while len(self._by_pid) >= _MOST:
            del self._by_pid[min(self._by_pid, key=lambda pid: self._by_pid[pid].seen_ns)]
        self._by_pid[pid] = _Stranger(cgroup_id, now_ns)

    def hold(self, cgroup_ids: Set[int], now_ns: int, *, by_others: bool) -> None:
        """These cgroups were just frozen. ``by_others``: they want nothing any more."""
        for one in self._by_pid.values():
            if one.cgroup_id in cgroup_ids:
                one.is_held_wanting = not by_others and now_ns - one.wanted_ns <= DEMAND_LINGER_NS

    def thaw(self, cgroup_ids: Set[int], now_ns: int) -> None:
        """These cgroups run again."""
        for one in self._by_pid.values():
            if one.is_held_wanting and one.cgroup_id in cgroup_ids:
                one.is_held_wanting, one.seen_ns, one.wanted_ns = False, now_ns, now_ns

    def read(
        self, gpu: int, turns: Turns, cgroup_of: Callable[[int], int | None], now_ns: int, rows: ProcessUses
    ) -> None:
        """Add what each used since the last time."""
        for pid, used_ns, last_ns in turns.take_strangers():
            one = self._by_pid.get(pid)
            if one is None:
                one = self._by_pid[pid] = _Stranger(cgroup_of(pid) or 0, now_ns)
            one.wanted_ns = max(one.wanted_ns, last_ns)
            one.seen_ns = now_ns if one.is_held_wanting else max(one.seen_ns, last_ns)
            has_demand = one.is_held_wanting or now_ns - one.wanted_ns <= DEMAND_LINGER_NS
            if used_ns or has_demand:
                key = one.cgroup_id, pid, gpu
                row = rows.setdefault(key, ProcessUse(*key, 0, False, 0, Confidence.HIGH, 0))
                row.used_ns += used_ns
                row.has_demand |= has_demand
        for pid in [pid for pid, one in self._by_pid.items() if now_ns - one.seen_ns > FORGOTTEN_NS]:
            del self._by_pid[pid]
            turns.forget_stranger(pid)
