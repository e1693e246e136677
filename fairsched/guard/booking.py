# SPDX-License-Identifier: Apache-2.0
"""Books the GPU time of a round to the ledger: of processes, and of tenants what their processes did not show (pure).

A process that is shorter than a round is in none, but its tenant's counter has it. So a tenant's counter is compared
with what was booked of its processes since it was read last; what it has beyond that is booked to the tenant.

Terms: *lead* is what processes have shown beyond their tenant's counter, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairsched.guard.breach import Per, Subject
from fairsched.guard.ledger import KEEP_S, Ledger, grown
from fairsched.guard.subjects import SubjectKey, Subjects
from fairsched.guard.tally import TIME, Bucket, Sum

Counters = Mapping[str, Mapping[str, float]]
"""GPU seconds by tenant and GPU."""


class Booking:
    """``sum_of``: of a subject."""

    def __init__(
        self, ledger: Ledger, subjects: Subjects, sum_of: Callable[[Subject], Sum], has_gpus: bool
    ) -> None:
        """``has_gpus``: some bound is of GPUs."""
        self._ledger, self._subjects, self._sum, self._gpu_sums = ledger, subjects, sum_of, has_gpus
        self._tenants: dict[tuple[str, str], list[float]] = {}
        """By tenant and GPU: its counter, when it was read, and the lead."""
        self._keys: dict[str, list[SubjectKey]] = {}
        """By tenant: whose days are counted."""
        self._gpu_keys: dict[str, list[SubjectKey]] = {}

    def forget_subjects(self) -> None:
        """Bounds may be others now."""
        self._keys.clear()
        self._gpu_keys.clear()

    def set_back(self, t_s: float) -> None:
        """The clock shows less than before."""
        for known in self._tenants.values():
            known[1] = min(known[1], t_s)

    def prune(self, t_s: float) -> None:
        """Forget tenants that were not told of for long."""
        self._tenants = {key: known for key, known in self._tenants.items() if t_s - known[1] <= KEEP_S}
        there = {tenant for tenant, _ in self._tenants}
        self._keys = {tenant: keys for tenant, keys in self._keys.items() if tenant in there}

    def state(self) -> list[list[Any]]:
        return [[*key, *known] for key, known in self._tenants.items()]

    def restore(self, rows: Iterable[Any]) -> None:
        """Raises ValueError or TypeError for what is none."""
        for tenant, gpu, counter, read_s, lead_s in rows:
            self._tenants[str(tenant), str(gpu)] = [float(counter), float(read_s), float(lead_s)]

    def late(self, bucket: Bucket, gpu: str, seconds: float, begin_s: float, end_s: float) -> None:
        """A difference that began before the last round."""
        if self._ledger.is_needed:
            span = self._ledger.span(begin_s, end_s)
            self._ledger.book(span, self._booked(bucket, gpu), gpu, seconds)
            self._lead(bucket.tenant, gpu, seconds)

    def book(self, active: Iterable[Bucket], tenants: Counters, t_s: float, last_s: float | None) -> None:
        """Of a round at `t_s`; ``last_s``: when the one before was."""
        if not self._ledger.is_needed:
            return
        begin_s = t_s if last_s is None else min(last_s, t_s)
        span = self._ledger.span(begin_s, t_s)
        for bucket in active:
            for gpu, cell in bucket.cells.items():
                if cell[TIME] > 0:
                    self._ledger.book(span, self._booked(bucket, gpu), gpu, cell[TIME])
                    self._lead(bucket.tenant, gpu, cell[TIME])
        for tenant, by_gpu in tenants.items():
            for gpu, counter in by_gpu.items():
                self._top_up(tenant, gpu, counter, t_s, last_s)

    def _booked(self, bucket: Bucket, gpu: str) -> list[SubjectKey]:
        """Whose days are counted."""
        if not self._gpu_sums:
            return bucket.day_keys
        keys = self._gpu_keys.get(gpu)
        if keys is None:
            one = self._sum(Subject(Per.GPU, gpu))
            keys = self._gpu_keys[gpu] = [one.key] if one.days else []
        return bucket.day_keys + keys if keys else bucket.day_keys

    def _lead(self, tenant: str | None, gpu: str, seconds: float) -> None:
        known = None if tenant is None else self._tenants.get((tenant, gpu))
        if known is not None:
            known[2] += seconds

    def _top_up(self, tenant: str, gpu: str, counter: float, t_s: float, last_s: float | None) -> None:
        """Book what a tenant's processes did not show: those that were shorter than a round."""
        known = self._tenants.get((tenant, gpu))
        if known is None or (last_s is not None and last_s - known[1] > KEEP_S):
            self._tenants[tenant, gpu] = [counter, t_s, 0.0]
            return
        rest = grown(known[0], counter, t_s - known[1]) - known[2]
        if rest > 0:
            keys = self._keys.get(tenant)
            if keys is None:
                sums = map(self._sum, self._subjects.of_tenant(tenant))
                keys = self._keys[tenant] = [one.key for one in sums if one.days]
            self._ledger.book(self._ledger.span(known[1], t_s), keys, gpu, rest)
        known[0], known[1], known[2] = counter, t_s, max(0.0, -rest)
