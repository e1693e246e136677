# SPDX-License-Identifier: Apache-2.0
"""What the account in force says of itself: which it is, how far off it may be, and which law goes with it."""

from __future__ import annotations

from dataclasses import replace

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.nvml import NvmlAccount
from fairsched.accounting.source import GpuTimeSource
from fairsched.accounting.traced import TracedAccount
from fairsched.gpu.loads import LoadWatch
from fairsched.gpu.nvml import Gpu
from fairsched.gpu.watch import GpuWatch
from fairsched.model import GraphWork, PolicyParams, Source
from fairsched.observe.traces import Following

_WINDOWS_S = (1, 10, 60)


class Told:
    """Base of :class:`fairsched.observe.sensors.Sensors`, which sets all of these."""

    account: EbpfAccount | None
    traced: TracedAccount | None
    sampled: NvmlAccount | None
    loads: LoadWatch | None
    gpu_watch: GpuWatch | None
    gpus: tuple[Gpu, ...]
    _is_exact: bool | None = None
    """Of the law that was last asked for by :meth:`has_switched`."""

    @property
    def following(self) -> Following | None:
        """Who reads traces, if anybody."""
        return self.traced if self.account is None else self.account.following

    @property
    def in_use(self) -> GpuTimeSource | None:
        """The account that is in force; None: there is none now."""
        return self.account or self.traced or self.sampled

    @property
    def source(self) -> Source | None:
        """Where GPU time comes from now."""
        source = None if self.in_use is None else self.in_use.source
        if source is Source.NVML and self.loads is not None and self.loads.is_live:
            return Source.DCGM
        return source

    def error_points(self) -> dict[str, float]:
        """By seconds: how far a share of the account in force may be off over such a window, in points of a GPU."""
        account = self.in_use
        return {} if account is None else {str(one): account.error_points(one) for one in _WINDOWS_S}

    def error_ratio(self, tenant: str, gpu: str) -> float | None:
        """How far what a tenant is charged on a GPU (UUID) may be off, in parts of it; see :class:`GpuTimeSource`."""
        slot = self._slot(gpu)
        return None if self.in_use is None or slot is None else self.in_use.error_ratio(tenant, slot)

    def graph_work(self, tenant: str, gpu: str) -> GraphWork | None:
        """The graphs that a tenant launches on a GPU (UUID); see :class:`GpuTimeSource`."""
        slot = self._slot(gpu)
        return None if self.in_use is None or slot is None else self.in_use.graph_work(tenant, slot)

    def _slot(self, gpu: str) -> int | None:
        slots = [slot for slot, one in enumerate(self.gpus) if one.uuid == gpu]
        return slots[0] if slots else None if self.gpus else 0

    def law(self, params: PolicyParams) -> PolicyParams:
        """The tunables of the control law, as the source that is in force allows."""
        if self.sampled is None:
            return params
        if self.source is Source.TRACE:
            return replace(params, sees_queues=False)
        return params.sampled(self.sampled.period_ns)

    def has_switched(self) -> bool:
        """Whether since the last question the trace became the account, or samples in its place: what was owed by the
        one is nothing to the other."""
        before, self._is_exact = self._is_exact, self.source is not None and not self.source.is_sampled
        return before not in (None, self._is_exact)

    def trace_told(self, slot: int) -> bool | None:
        """Whether the GPU itself tells whose turn it is; None: nobody asks."""
        if self.account is not None:
            return slot in self.account.traced_gpus()
        return None if self.traced is None else slot in self.traced.gpus
