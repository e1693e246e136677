# SPDX-License-Identifier: Apache-2.0
"""GPU time of processes on MIG instances, from the load of each instance (pure).

Problem. NVML takes no samples of processes on GPUs in MIG mode. It lists who is on an instance, and DCGM counts the
part of each second in which the instance's engine was active, attributed to nobody.

Approach. What an instance was active for is charged in equal parts to the processes on it that are not held. On an
instance that one tenant has for itself, as device plugins hand them out, that is what it used: confidence SAMPLED.
Where several tenants are on one, the sum is right and each part is a guess: confidence LOW, which nobody is held on.
Where the load is not known, nothing is charged, and who is there is not told.

Terms. load: see gpu/loads.py. held: frozen by us or others; what a held tenant had queued is charged to it while nobody
else is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Protocol

from fairsched.accounting.context import ProcessUse
from fairsched.model import Confidence

IDLE_RATIO = 0.005
"""A load below this is rounding, and nobody's wish."""
_WINDOW_NS = 10_000_000_000
_FORGOTTEN_NS = 1_000_000.0


class Loads(Protocol):
    """Who tells the load, by slot."""

    @property
    def period_s(self) -> float | None:
        """Over which it is told; None: that is not known."""

    def load(self, slot: int) -> float | None:
        """None: it is not known."""


class InstanceUses:
    """Of all MIG instances of this node."""

    def __init__(
        self,
        loads: Loads,
        listed: Callable[[], Mapping[int, Collection[int]]],
        cgroup_of: Callable[[int], int | None],
    ) -> None:
        """``listed``: who is on each instance, by slot."""
        self._loads, self._listed, self._cgroup_of = loads, listed, cgroup_of
        self._wanted: set[tuple[int, int]] = set()
        """(slot, cgroup) that had work when last not held."""
        self._sole_ns: dict[tuple[str | None, int], float] = {}
        """What (tenant, slot) had for itself, over _WINDOW_NS with exponential forgetting."""
        self._rows: list[ProcessUse] = []

    def error_ratio(self, tenant: str, slot: int) -> float | None:
        """How far what a tenant is charged over ten seconds may be off, in parts of it; None: that is not known.

        Of the load's periods the last one is charged late, at either end of the ten seconds.
        """
        period_s = self._loads.period_s
        if period_s is None or (tenant, slot) not in self._sole_ns:
            return None
        return period_s * 1e9 / _WINDOW_NS

    def rows(self) -> Iterator[ProcessUse]:
        """Who is there, as of the last :meth:`read`, and no time."""
        for row in self._rows:
            yield ProcessUse(row.cgroup_id, row.tgid, row.gpu, 0, row.has_demand, 0, row.confidence, 0)

    def read(
        self, elapsed_ns: int, tenant_of: Callable[[int], str | None], held: Set[int], paused: Set[int]
    ) -> list[ProcessUse]:
        """Everything since the previous read, a row per process and instance.

        ``held``: cgroups that do not run; ``paused``: those of them that others have paused: they want nothing.
        """
        kept = math.exp(-elapsed_ns / _WINDOW_NS)
        self._sole_ns = {at: kept * ns for at, ns in self._sole_ns.items() if kept * ns > _FORGOTTEN_NS}
        self._rows, seen = [], set[tuple[int, int]]()
        for slot, pids in self._listed().items():
            load = self._loads.load(slot)
            cgroups = {pid: found for pid in pids if (found := self._cgroup_of(pid)) is not None}
            if load is None or not cgroups:
                continue
            seen |= {(slot, cgroup_id) for cgroup_id in cgroups.values()}
            self._rows += self._shared(slot, cgroups, load, elapsed_ns, tenant_of, held, paused)
        self._wanted &= seen
        return self._rows

    def _shared(
        self,
        slot: int,
        cgroups: Mapping[int, int],
        load: float,
        elapsed_ns: int,
        tenant_of: Callable[[int], str | None],
        held: Set[int],
        paused: Set[int],
    ) -> Iterator[ProcessUse]:
        """Of one instance. ``cgroups`` by process."""
        running = {pid for pid, cgroup_id in cgroups.items() if cgroup_id not in held} or set(cgroups)
        tenants = {tenant_of(cgroup_id) for cgroup_id in cgroups.values()}
        part_ns = int(min(1.0, max(0.0, load)) * elapsed_ns / len(running))
        is_sole = len(tenants) == 1
        if is_sole:
            where = tenants.pop(), slot
            self._sole_ns[where] = self._sole_ns.get(where, 0.0) + part_ns * len(running)
        for pid, cgroup_id in cgroups.items():
            if cgroup_id in paused:
                self._wanted.discard((slot, cgroup_id))
            elif cgroup_id not in held:
                (self._wanted.add if load > IDLE_RATIO else self._wanted.discard)((slot, cgroup_id))
            yield ProcessUse(
                cgroup_id,
                pid,
                slot,
                part_ns if pid in running else 0,
                (slot, cgroup_id) in self._wanted,
                0,
                Confidence.SAMPLED if is_sole else Confidence.LOW,
                0,
            )
