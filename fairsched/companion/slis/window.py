# SPDX-License-Identifier: Apache-2.0
"""What the daemon's statuses of the last window say: who wanted which GPU, how busy it was, how long work waited
(pure).

Terms. A sample is one status, about one a second. A tenant wanted a GPU in a stretch of time when it had demand there
in (nearly) every sample of it: who pauses now and then gets less because it asks for less, which is no unfairness.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from fairsched.companion.slis.formulas import FEWEST_SECONDS, deviation, grown
from fairsched.model import TenantGpu
from fairsched.protocol.delays import quantile_ms
from fairsched.protocol.status import GpuStatus, StatusReport, TenantState

WANTED_RATIO = 0.95
"""Of the samples: a machine has its hiccups."""


@dataclass(frozen=True)
class Sample:
    """What matters here of one status."""

    t_ns: int
    wanted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tenant -> GPU UUID -> part of it that is its due; where it has demand. Exempt tenants are left out."""
    utilization: Mapping[str, float] = field(default_factory=dict)
    """Of GPUs that somebody has demand on, by UUID."""
    delays: Mapping[TenantGpu, Sequence[int]] = field(default_factory=dict)
    """Queue delay histograms, cumulated."""
    most_tenants: int = 0
    """With demand on one GPU, exempt ones included: they take turns, too."""


def sample_of(report: StatusReport) -> Sample:
    """The part of a status that the service levels are made of."""
    wanted: dict[str, dict[str, float]] = {}
    contended: set[str] = set()
    crowd: Counter[str] = Counter()
    delays: dict[TenantGpu, Sequence[int]] = {}
    for tenant in report.tenants:
        due = {gpu.uuid: gpu.entitled_ratio for gpu in tenant.gpus if gpu.has_demand and gpu.entitled_ratio}
        contended |= due.keys()
        crowd.update(gpu.uuid for gpu in tenant.gpus if gpu.has_demand)
        if due and tenant.state is not TenantState.EXEMPT:
            wanted[tenant.name] = due
        for uuid, histogram in tenant.queue_delays.items():
            delays[tenant.name, uuid] = histogram.buckets()
    utilization = {
        gpu.uuid: busy
        for gpu in report.gpus
        if gpu.uuid in contended and (busy := _utilization(gpu)) is not None
    }
    return Sample(report.t_ns, wanted, utilization, delays, max(crowd.values(), default=0))


def _utilization(gpu: GpuStatus) -> float | None:
    """NVML's, which is not our own account of it; where there is none, the account's."""
    return gpu.busy_ratio if gpu.utilization_ratio is None else gpu.utilization_ratio


class Window:
    """The samples of the last ``length_ns``."""

    def __init__(self, length_ns: int) -> None:
        self.length_ns = length_ns
        self._samples: deque[Sample] = deque()
        self._waits: deque[list[int]] = deque()
        """What all histograms together grew by up to each sample since the one before."""
        self._sum: list[int] = []
        """Of those: adding up the window anew for every status would cost more than all the rest."""
        self._seen: Mapping[TenantGpu, Sequence[int]] = {}

    def add(self, sample: Sample) -> None:
        """One that is not later than the last is the same status, asked for twice."""
        if self._samples and sample.t_ns <= self._samples[-1].t_ns:
            return
        waits: list[int] = []
        if self._samples:  # what was counted before the first sample is older than the window
            for key, buckets in sample.delays.items():
                _add(waits, grown(self._seen.get(key, ()), buckets))
        self._seen = sample.delays
        self._samples.append(sample)
        self._waits.append(waits)
        _add(self._sum, waits)
        while self._samples[0].t_ns < sample.t_ns - self.length_ns:
            self._samples.popleft()
            _add(self._sum, self._waits.popleft(), -1)

    @property
    def last_ns(self) -> int | None:
        """Moment of the last sample."""
        return self._samples[-1].t_ns if self._samples else None

    def queue_delay_p99_ms(self) -> float | None:
        """Of all waits that ended in the window."""
        return quantile_ms(self._sum, 0.99)

    @property
    def most_tenants(self) -> int | None:
        """With demand on one GPU at once; None before the first sample."""
        return max((sample.most_tenants for sample in self._samples), default=None)

    def sm_utilization_stdev_ratio(self) -> float | None:
        """In time, of the GPU where it is largest."""
        values: dict[str, list[float]] = {}
        for sample in self._samples:
            for uuid, busy in sample.utilization.items():
                values.setdefault(uuid, []).append(busy)
        found = [deviation(series) for series in values.values() if len(series) >= FEWEST_SECONDS]
        return max((one for one in found if one is not None), default=None)

    def between(self, start_ns: int, end_ns: int) -> Iterator[Sample]:
        """Samples taken then, both ends included."""
        return (sample for sample in self._samples if start_ns <= sample.t_ns <= end_ns)

    def due(self, tenant: str, start_ns: int, end_ns: int) -> dict[str, float]:
        """GPUs that the tenant wanted all that time, and the mean part of each that was its due."""
        count, total, seen = 0, dict[str, float](), dict[str, int]()
        for sample in self.between(start_ns, end_ns):
            count += 1
            for uuid, part in sample.wanted.get(tenant, {}).items():
                total[uuid] = total.get(uuid, 0.0) + part
                seen[uuid] = seen.get(uuid, 0) + 1
        if count < FEWEST_SECONDS // 2:  # statuses that came late, or a companion that has just begun
            return {}
        return {uuid: total[uuid] / seen[uuid] for uuid in total if seen[uuid] >= WANTED_RATIO * count}

    def demand(self, tenant: str) -> Demand:
        """When it wanted any GPU."""
        return Demand(
            [sample.t_ns for sample in self._samples],
            [0, *accumulate(tenant in sample.wanted for sample in self._samples)],
        )


@dataclass(frozen=True)
class Demand:
    """Of one tenant."""

    t_ns: Sequence[int]
    """Moments of the samples."""
    wanted: Sequence[int]
    """In how many of the first 0, 1, ... samples it had demand."""

    def is_whole(self, start_ns: int, end_ns: int) -> bool:
        """Whether there are samples between the two, and it had demand in all of them."""
        first, after = bisect_left(self.t_ns, start_ns), bisect_right(self.t_ns, end_ns)
        return after > first and self.wanted[after] - self.wanted[first] == after - first


def _add(total: list[int], more: Sequence[int], sign: int = 1) -> None:
    total += [0] * (len(more) - len(total))
    for index, count in enumerate(more):
        total[index] += sign * count
