# SPDX-License-Identifier: Apache-2.0
"""The exact use of each tenant, from the engine: what no real system has, and what two of the rivals are given.

Contexts are found by their owner tag, whatever cgroup or process they are in. A context that has left the engine's
tables keeps what was counted for it: growth is added up, so a total never falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.rivals.base import RivalError, Tenant
from fairsched.simgpu.reader import ContextTruth, SimReader

Key = tuple[str, int]
"""Leaf and GPU."""


@dataclass(frozen=True)
class Use:
    """Of one tenant on one GPU so far; what counts is how it grows."""

    exec_ns: int = 0
    runnable_ns: int = 0
    """On the GPU, being switched to, or waiting for it; of contexts side by side each counts."""


Uses = Mapping[Key, Use]


class TruthMeter:
    """Reads without asking the engine anything: shared memory only."""

    def __init__(self, reader: SimReader, tenants: Iterable[Tenant]) -> None:
        self._reader = reader
        self._leaf_by_owner: dict[int, str] = {}
        self._uses: dict[Key, Use] = {}
        for tenant in tenants:
            self._leaf_by_owner[tenant.owner] = tenant.leaf
            self._uses.update({(tenant.leaf, gpu): Use() for gpu in tenant.gpus})
        self._gpus = sorted({gpu for _, gpu in self._uses})
        if self._gpus[-1] >= len(reader.uuids()):
            raise RivalError(
                f"SETUP_JSON: gpus: there is no GPU {self._gpus[-1]}, only {len(reader.uuids())}",
                remedy="give indexes of the simulated host",
            )
        self._seen: dict[tuple[int, int], Use] = {}
        """(GPU, context id) -> what was counted so far."""

    def read(self) -> Uses:
        """By leaf and GPU; every pair of the setup is there."""
        seen: dict[tuple[int, int], Use] = {}
        for gpu in self._gpus:
            for truth in self._reader.snapshot(gpu, sync=False)[1]:
                key = (self._leaf_by_owner.get(truth.owner, ""), gpu)
                if key in self._uses:
                    seen[gpu, truth.id] = self._count(key, truth)
        self._seen = seen
        return dict(self._uses)

    def _count(self, key: Key, truth: ContextTruth) -> Use:
        now = Use(truth.exec_ns, truth.exec_ns + truth.switch_ns + truth.wait_ns)
        before, total = self._seen.get((key[1], truth.id), Use()), self._uses[key]
        self._uses[key] = Use(
            total.exec_ns + now.exec_ns - before.exec_ns,
            total.runnable_ns + now.runnable_ns - before.runnable_ns,
        )
        return now
