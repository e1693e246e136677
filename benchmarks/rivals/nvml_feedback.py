# SPDX-License-Identifier: Apache-2.0
"""``nvml-feedback``: a cap by feedback on the driver's samples of utilisation, as HAMi has it.

Every 120 ms the utilisation of each tenant's processes over the last second is compared with its limit, and its rate is
raised or lowered by a step that grows with the difference (from five points up; faster beyond half the limit). It is a
cap for everybody, also when nobody else works; a tenant with a limit of 1 is left alone.

The meter is real: NVML names one process per sample, some seven of them in a second, so a tenant that shares the GPU
is seen by lot, and the answer describes the second before. That delay and that noise are what this design lives with,
so it gets no better ones. An entry is a mean over that second, or one of its samples, which stands for the time between
two (fairsched/gpu/sampler.py says how they are told apart); processes are found by their cgroup.

Ours: the original spends a bucket of grids per launch, from within; here the rate is a duty cycle: the part of each
period in which the cgroup is not frozen, starting at the limit itself (the original starts at nothing). A full
bucket is a duty of 1, so a step is the same part of the whole. The periods of the tenants are spread evenly, since the
originals' watchers do not run in step either. Per GPU one duty; a tenant on several is run by the least.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.rivals.base import Action, RivalError, Tenant, next_tick_ns
from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount, find_mount
from fairsched.gpu.sampler import SHORTEST_WINDOW_US, NvmlReader, Sample, is_each

PERIOD_NS = 120_000_000
LEAST_DUTY_RATIO = 0.02
SECOND_US = 1_000_000
SHORTEST_HOLD_NS = 1_000_000
"""Freezing takes as long."""
_LEAST_DIFFERENCE_POINTS = 5.0
_STEP_RATIO_PER_POINT = 108 / (2560 * 32)
"""Of a full bucket on a GPU with 108 multiprocessors: its step is SM^2 x threads x points / 2560, its bucket
SM x threads x 32."""

Key = tuple[str, int]
"""Leaf and GPU."""
Points = Mapping[Key, float]
"""Utilisation, 0 to 100; who is absent was not seen."""


def next_duty_ratio(duty_ratio: float, limit_points: float, used_points: float) -> float:
    """One turn of the feedback."""
    difference_points = max(_LEAST_DIFFERENCE_POINTS, abs(limit_points - used_points))
    step_ratio = difference_points * _STEP_RATIO_PER_POINT
    if difference_points > limit_points / 2:
        step_ratio *= 2 * difference_points / (limit_points + 1)
    wanted_ratio = duty_ratio + (step_ratio if used_points <= limit_points else -step_ratio)
    return min(1.0, max(LEAST_DUTY_RATIO, wanted_ratio))


class FeedbackLaw:
    """Who runs how much of each period."""

    def __init__(self, tenants: Iterable[Tenant], start_ns: int) -> None:
        self._tenants = [tenant for tenant in tenants if tenant.limit_ratio < 1]
        self._start_ns = start_ns
        self._tick_ns = start_ns
        self._is_held = {tenant.leaf: False for tenant in self._tenants}
        self._phase_ns = {
            tenant.leaf: number * PERIOD_NS // len(self._tenants)
            for number, tenant in enumerate(self._tenants)
        }
        self._duty_ratio = {
            (tenant.leaf, gpu): max(LEAST_DUTY_RATIO, tenant.limit_ratio)
            for tenant in self._tenants
            for gpu in tenant.gpus
        }
        self.next_ns = start_ns

    def needs_reading(self, now_ns: int) -> bool:
        return now_ns >= self._tick_ns

    def duty_ratio(self, tenant: Tenant) -> float:
        """The part of the period in which it may run."""
        return min(self._duty_ratio[tenant.leaf, gpu] for gpu in tenant.gpus)

    def step(self, now_ns: int, reading: Points | None) -> list[Action]:
        if now_ns >= self._tick_ns:
            assert reading is not None
            self._adjust(reading)
            self._tick_ns = next_tick_ns(self._start_ns, PERIOD_NS, now_ns)
        self.next_ns = self._tick_ns
        actions = []
        for tenant in self._tenants:
            is_held, edge_ns = self._at(tenant, now_ns)
            self.next_ns = min(self.next_ns, edge_ns)
            if is_held != self._is_held[tenant.leaf]:
                self._is_held[tenant.leaf] = is_held
                actions.append(Action(tenant.leaf, is_held))
        return actions

    def _adjust(self, points: Points) -> None:
        for tenant in self._tenants:
            for gpu in tenant.gpus:
                key = (tenant.leaf, gpu)
                used_points = points.get(key, 0.0)
                self._duty_ratio[key] = next_duty_ratio(
                    self._duty_ratio[key], 100 * tenant.limit_ratio, used_points
                )

    def _at(self, tenant: Tenant, now_ns: int) -> tuple[bool, int]:
        """Whether it is held at this moment, and until when that stays so. The hold comes first."""
        hold_ns = round((1 - self.duty_ratio(tenant)) * PERIOD_NS)
        if hold_ns < SHORTEST_HOLD_NS:
            return False, self._tick_ns
        into_ns = (now_ns - self._start_ns - self._phase_ns[tenant.leaf]) % PERIOD_NS
        if into_ns < hold_ns:
            return True, now_ns + hold_ns - into_ns
        return False, now_ns + PERIOD_NS - into_ns


class UtilisationMeter:
    """What NVML says about the last second of each tenant."""

    def __init__(self, readers: Mapping[int, NvmlReader], tenants: Iterable[Tenant], mount: Mount) -> None:
        self._readers = readers
        self._mount = mount
        self._leaf_by_cgroup = {tenant.cgroup.rstrip("/"): tenant.leaf for tenant in tenants}
        self._between_us: dict[int, int] = {}
        """GPU -> shortest time between two samples so far."""
        self._is_each: dict[int, bool] = {}
        """GPU -> whether its answers have an entry per sample."""

    def read(self) -> Points:
        """As of now."""
        after_us = time.time_ns() // 1000 - SECOND_US
        points: dict[Key, float] = {}
        for gpu, reader in self._readers.items():
            samples = [sample for sample in reader.read(after_us) if sample.busy_ratio <= 1.0]
            between_us = shortest_gap_us(samples, self._between_us.get(gpu, SECOND_US))
            self._between_us[gpu] = between_us
            leaf_by_pid = {pid: self._leaf_of(pid) for pid in {sample.pid for sample in samples}}
            self._is_each[gpu] = self._is_each.get(gpu, False) or is_each(samples)
            part_ratio = between_us / SECOND_US if self._is_each[gpu] else 1.0  # of the second, or its mean
            for sample in samples:
                leaf = leaf_by_pid[sample.pid]
                if leaf is not None:
                    share_points = 100 * sample.busy_ratio * part_ratio
                    points[leaf, gpu] = points.get((leaf, gpu), 0.0) + share_points
        return points

    def _leaf_of(self, pid: int) -> str | None:
        path = tree.cgroup_path_of(pid, self._mount) if pid else None
        if path is None:
            return None
        where = self._mount.absolute(path)
        while len(where) > 1:
            if where in self._leaf_by_cgroup:
                return self._leaf_by_cgroup[where]
            where = where.rpartition("/")[0]
        return None


def shortest_gap_us(samples: Sequence[Sample], before_us: int) -> int:
    """Time between two samples; they are missing where the GPU idled, so the shortest is the right one."""
    times = sorted({sample.time_us for sample in samples})
    gaps = [later - time_us for time_us, later in itertools.pairwise(times)]
    return min([before_us, *(gap for gap in gaps if gap >= SHORTEST_WINDOW_US)])


def open_meter(tenants: Sequence[Tenant]) -> UtilisationMeter:
    """Raises RivalError where NVML, or a GPU of the tenants, is missing."""
    import pynvml

    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handles = {
            gpu: nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in {g for one in tenants for g in one.gpus}
        }
    except nvml.NVMLError as error:
        remedy = "LD_LIBRARY_PATH and FAIRSCHED_SIM_DIR must lead to the simulated GPU"
        raise RivalError(f"NVML: {error}", remedy=remedy) from error
    readers = {gpu: NvmlReader(nvml, handle) for gpu, handle in handles.items()}
    return UtilisationMeter(readers, tenants, find_mount())
