# SPDX-License-Identifier: Apache-2.0
"""A past to write down: reports of a node with two tenants on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fairsched.companion.history.collect import Collector, Rows
from fairsched.model import ActionKind, Reason, ReasonCode
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import (
    DecisionRecord,
    GpuStatus,
    SliStatus,
    StatusReport,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
    TokenRate,
)
from tests.unit.protocol import fakes

GPU = fakes.GPU
T0 = 1_700_000_000
NAMES = ("chat", "batch")


def tenant(name: str, second: float, used: float, entitled: float | None, **values: object) -> TenantStatus:
    share = TenantGpuStatus(
        GPU, entitled, used, lag_ms=-10.0 if name == "batch" else 4.0, has_demand=entitled is not None
    )
    known = TenantStatus(
        name,
        TenantState.RUN,
        weight=2 if name == "chat" else 1,
        gpus=(share,),
        gpu_time_by_gpu_s={GPU: 500 + used * second},
        queue_delays={GPU: Histogram(20, (100, round(max(0.0, second))), 1.0)},
        held_s=0.1 * second,
        tokens=TokenRate(50.0 * used),
        vram_by_gpu_bytes={GPU: 2**30},
    )
    return replace(known, **values)


def report(second: float, *tenants: TenantStatus, pid: int = 7, **values: object) -> StatusReport:
    """At `second` after T0; without tenants it has the usual two."""
    those = tenants or (tenant("chat", second, 0.6, 2 / 3), tenant("batch", second, 0.4, 1 / 3))
    known = replace(
        fakes.status(),
        pid=pid,
        t_ns=10**9 + round(second * 1e9),
        wall_time_s=T0 + second,
        tenants=those,
        slis=SliStatus(7.0, 0.02, 0.03, True),
        gpus=(GpuStatus(GPU, 0, "NVIDIA L40S", 0.9, 0.1, 2**30, 2**34),),
        fairness_error_ratio=0.07,
    )
    return replace(known, **values)


def decision(
    action: ActionKind, code: ReasonCode, held_ms: int | None = None, error: str | None = None
) -> DecisionRecord:
    held_ns = None if held_ms is None else held_ms * 10**6
    return DecisionRecord(1, T0 + 1.0, action, "batch", Reason(code, GPU), held_ns, None, False, error)


HOLDS = [
    decision(ActionKind.HOLD, ReasonCode.OVER_ENTITLEMENT),
    decision(ActionKind.THAW, ReasonCode.CAUGHT_UP, 40),
    decision(ActionKind.HOLD, ReasonCode.OVER_ENTITLEMENT),
    decision(ActionKind.THAW, ReasonCode.GPU_IDLE, 60),
    decision(ActionKind.HOLD, ReasonCode.OVER_ENTITLEMENT, error="no space"),
]


def collected(seconds: Sequence[float], interval_s: float = 10.0) -> Iterator[Rows]:
    collector = Collector(interval_s)
    for second in seconds:
        rows = collector.add(report(second), HOLDS)
        if rows is not None:
            yield rows


def rows_at(t: float, tenants: int = 2) -> Rows:
    """One interval of ten seconds that ends at `t`; with as many tenants as one likes, to fill a disk."""
    names = [f"tenant-{number}" for number in range(tenants)] if tenants != 2 else NAMES
    second = t - T0

    def at(moment: float) -> StatusReport:
        return report(moment, *(tenant(name, moment, 1 / len(names), 1 / len(names)) for name in names))

    collector = Collector(10)
    collector.add(at(second - 10))
    rows = collector.add(at(second), HOLDS)
    assert rows is not None
    return rows
