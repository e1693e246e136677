# SPDX-License-Identifier: Apache-2.0
"""Reports to draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairsched.model import MisbehaviourKind, TenantClass
from fairsched.protocol.status import (
    GpuStatus,
    MisbehaviourStatus,
    SliStatus,
    StatusReport,
    TenantState,
    TenantStatus,
    TokenRate,
    VramStatus,
)
from tests.unit.protocol import fakes

GPU = fakes.GPU


def tenant(name: str, **values: Any) -> TenantStatus:
    return replace(TenantStatus(name=name, state=TenantState.RUN, weight=1), **values)


def node(*tenants: TenantStatus, **values: Any) -> StatusReport:
    return replace(fakes.status(), tenants=tenants, warnings=(), **values)


def crowd(count: int) -> StatusReport:
    """Many of them, with lags -1, -2, ... in the order of their names."""
    return node(*(tenant(f"t{number:03d}", lag_ms=float(-number)) for number in range(count)))


def extreme() -> StatusReport:
    """As large as every number gets, and names that would steer a terminal."""
    bad = MisbehaviourStatus(MisbehaviourKind.ENDLESS, 0.0, GPU, "it does not end", "warn")
    loud = tenant(
        "\x1b[2Jteam/" + "n" * 60,
        weight=999_999.5,
        is_overridden=True,
        tenant_class=TenantClass.BATCH,
        state=TenantState.FOREIGN,
        entitled_ratio=1.0,
        used_ratio=1.0,
        lag_ms=-40_000.0,
        tokens=TokenRate(123_456_789.0),
        queue_delay_p99_ms=1e6,
        held_ms_per_s=1000.0,
        vram_by_gpu_bytes={GPU: 99_999 << 30},
        misbehaviour=bad,
        misbehaviours=(bad,),
    )
    wide = tenant("面" * 30, vram=(VramStatus(GPU, 1, 2, over_since_s=1.0),))
    gpus = tuple(GpuStatus(f"GPU-{n:08x}-0", n, "N" * 60, 1.0, 1.0, 10**13, 10**13) for n in range(16))
    slis = SliStatus(99_999.0, 1.0, 1.0, False)
    return node(loud, wide, tenant("none"), gpus=gpus, slis=slis, uptime_s=1e9, fairness_error_ratio=1.0)
