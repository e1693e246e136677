# SPDX-License-Identifier: Apache-2.0
"""Reports that say something of everything, and as many tenants as one likes."""

from __future__ import annotations

from dataclasses import replace

from fairsched.model import Confidence, MisbehaviourKind
from fairsched.protocol.own import BpfMap, Histogram, OwnStatus, ProcessCost
from fairsched.protocol.status import (
    CompanionStatus,
    DriverCallsStatus,
    GpuStatus,
    MisbehaviourStatus,
    SliStatus,
    StatusReport,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
    TokenRate,
    VramStatus,
)
from tests.unit.protocol import fakes

DELAYS = Histogram(first=10, counts=(3, 0, *(17 * n for n in range(1, 29))), sum_s=12.345)


def uuid(number: int) -> str:
    return f"GPU-5f2c1a90-1111-2222-3333-{number:012d}"


def tenant(name: str, gpus: int = 1) -> TenantStatus:
    """One of whom everything is known."""
    uuids = [uuid(number) for number in range(gpus)]
    episodes = tuple(
        MisbehaviourStatus(kind, 1_700_000_000.0, one, "4 contexts", "warn")
        for kind, one in zip(MisbehaviourKind, uuids, strict=False)
    )
    return TenantStatus(
        name=name,
        state=TenantState.RUN,
        weight=4.0,
        quota_ratio=0.5,
        gpu_time_by_gpu_s={one: 7980.123456 for one in uuids},
        confidence=Confidence.HIGH,
        queue_delays={one: DELAYS for one in uuids},
        gpus=tuple(
            TenantGpuStatus(one, 0.25, 0.24, -8.25, True, Confidence.HIGH, 12.5, 0.16) for one in uuids
        ),
        held_by_reason_s={"over_entitlement": 118.4, "over_quota": 2.0},
        holds={"over_entitlement": 1200, "over_quota": 3},
        thaws={"caught_up": 1100, "gpu_idle": 100, "deadline": 3},
        hold_age_s=0.04,
        hold_limit_s=0.5,
        misbehaviour=episodes[0],
        misbehaviours=episodes,
        terminations={"endless": 2},
        contexts_by_gpu=dict.fromkeys(uuids, 2),
        vram_by_gpu_bytes=dict.fromkeys(uuids, 18 << 30),
        driver_calls=DriverCallsStatus(9000, 1, 0.5, 3),
        vram_limit_bytes=20 << 30,
        vram=tuple(VramStatus(one, 20 << 30, 18 << 30, "ioctls", True, 2) for one in uuids),
        tokens=TokenRate(51.5, 0.02),
    )


def full(tenants: int = 2, gpus: int = 2) -> StatusReport:
    """Everything is known of everybody."""
    return replace(
        fakes.status(),
        tenants=tuple(tenant(f"tenant-{number:04d}", gpus) for number in range(tenants)),
        gpus=tuple(
            GpuStatus(
                uuid(number),
                number,
                "NVIDIA L40S",
                *(0.99, 0.01, 1 << 30, 45 << 30, True, 1.0, 61.0, 0.998, 3),
                *("GPU-whole", 1, 0, "3g.20gb"),
                *(310.5, 700.0, {"to_gpu": 1.5e9, "from_gpu": 0.0}, True),
            )
            for number in range(gpus)
        ),
        cpu_ratio=0.031,
        late_ticks_total=7,
        driver_hook="kprobe",
        driver_counts={"call_lost": 4, "bad_read": 1},
        bpf_counts={"edge_dropped": 5, "clock_race": 6},
        nvml_counts={"fallen_sum": 2},
        trace_counts={"holes": 3},
        gate=fakes.gate(),
        pid_view={"is_on": True, "reason": "r", "counts": {"lists": 9, "book_full": 1}},
        slis=SliStatus(12.5, 0.03, 0.012, True, queue_delay_floor_ms=8.5),
        companion=CompanionStatus(4242, 2),
        own=OwnStatus(
            processes=(ProcessCost("daemon", 7, 12.5, 70 << 20), ProcessCost("guardian", 8, 0.1, 9 << 20)),
            ticks=Histogram(20, (5, 4, 1), 0.02),
            errors={"tick": 1, "freezer": 0},
            maps=(BpfMap("delay_by_key", 4096, 64, 1 << 21), BpfMap("edges", 1 << 20)),
            control={"answered": 10, "refused": 1, "dropped": 0, "fault": 0},
        ),
    )
