# SPDX-License-Identifier: Apache-2.0
"""What a run of the model amounted to: shares, busy time, fairness. Mixed into ``Simulation``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairsched.model import TenantSpec
from fairsched.policy.shares import entitlements

MS = 1_000_000
TICK_NS = 100 * MS


class Results:
    """Reads the samples a simulation took every ``TICK_NS``."""

    tenants: Mapping[str, Any]
    specs: Mapping[str, TenantSpec]
    records: list[Any]
    samples: list[tuple[int, dict[tuple[str, str], int], dict[str, int]]]

    def got(self, name: str, start_ns: int, stop_ns: int, gpu: str = "gpu0") -> int:
        first, last = self.samples[start_ns // TICK_NS][1], self.samples[stop_ns // TICK_NS][1]
        return last.get((name, gpu), 0) - first.get((name, gpu), 0)

    def shares(self, start_ns: int, stop_ns: int, gpu: str = "gpu0") -> dict[str, float]:
        got = {name: self.got(name, start_ns, stop_ns, gpu) for name in self.tenants}
        total = sum(got.values())
        return {name: value / total for name, value in got.items()}

    def delivered_ratio(self, start_ns: int, stop_ns: int, gpu: str = "gpu0") -> float:
        """Useful part of the wall time."""
        got = sum(self.got(name, start_ns, stop_ns, gpu) for name in self.tenants)
        return got / (stop_ns - start_ns)

    def busy_ratio(self, start_ns: int, stop_ns: int, gpu: str = "gpu0") -> float:
        """Part of the wall time with work on the GPU, switching included: what NVML would call busy."""
        first, last = self.samples[start_ns // TICK_NS][2], self.samples[stop_ns // TICK_NS][2]
        return (last[gpu] - first[gpu]) / (stop_ns - start_ns)

    def jain(self, start_ns: int, stop_ns: int, gpu: str = "gpu0") -> list[float]:
        """Jain's index of received / entitled over each whole second, of the tenants on this GPU."""
        owed = entitlements([name for name, one in self.tenants.items() if gpu in one.gpus()], self.specs)
        values = []
        for second in range(start_ns, stop_ns, 1000 * MS):
            per = [self.got(name, second, second + 1000 * MS, gpu) / part for name, part in owed.items()]
            values.append(sum(per) ** 2 / (len(per) * sum(x * x for x in per)))
        return values

    def longest_hold_ns(self, name: str) -> int:
        return max((r.until_ns - r.since_ns for r in self.records if r.tenant == name), default=0)
