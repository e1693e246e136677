# SPDX-License-Identifier: Apache-2.0
"""Status reports as the escalation sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairsched.companion.escalate.desk import GivenUp
from fairsched.companion.escalate.model import Cause, Kind, Order
from fairsched.model import Confidence, Source, TenantClass
from fairsched.protocol.status import (
    GpuStatus,
    SliStatus,
    StatusReport,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
)

GPU = "GPU-5f2c1a90-1111-2222-3333-444455556666"
OTHER_GPU = "GPU-5f2c1a90-1111-2222-3333-444455557777"


def tenant(name: str, *, delay_ms: float | None = None, **more: Any) -> TenantStatus:
    """With demand, entitled to .25 of the GPU and using as much, unless `more` says otherwise."""
    entitled, used = more.pop("entitled", 0.25), more.pop("used", 0.25)
    on = more.pop("on", (GPU,))
    gpus = tuple(TenantGpuStatus(gpu, entitled, used, 1.0, True, Confidence.HIGH) for gpu in on)
    return replace(
        TenantStatus(name, TenantState.RUN, 1.0, entitled_ratio=entitled, used_ratio=used),
        queue_delay_p99_ms=delay_ms,
        gpus=more.pop("gpus", gpus),
        **more,
    )


def cgroup(pod: Mapping[str, Any]) -> str:
    """That of a container of it."""
    return f"/kubepods/burstable/pod{pod['metadata']['uid']}/{'3f' * 32}"


def given_up_after(changes: int) -> Callable[[], None]:
    """A check of an order that is closed after so many changes."""
    left = iter(range(changes))

    def check() -> None:
        if next(left, None) is None:
            raise GivenUp("order 7 was given up")

    return check


def batch(name: str, **more: Any) -> TenantStatus:
    return tenant(name, tenant_class=TenantClass.BATCH, **more)


def report(tenants: Sequence[TenantStatus] = (), *, cv: float | None = None, **more: Any) -> StatusReport:
    known = StatusReport(
        daemon_version="0.1.0",
        pid=7,
        t_ns=1,
        wall_time_s=1_700_000_000.0,
        uptime_s=100.0,
        mode="enforce",
        tick_ms=100,
        window_s=1.0,
        source=Source.EBPF,
        slis=None if cv is None else SliStatus(token_rate_cv_ratio=cv),
        gpus=(GpuStatus(GPU, 0), GpuStatus(OTHER_GPU, 1)),
        tenants=tuple(tenants),
    )
    return replace(known, **more)


def order(step: str, kind: Kind = Kind.APPLY, **more: Any) -> Order:
    """A serious one, for the tenant chat."""
    known = Order(
        id=7,
        kind=kind,
        step=step,
        at_s=1_700_000_000.0,
        is_dry_run=False,
        why="it was told to",
        cause=Cause("queue_delay_p99_ms", 42.0, 20.0, 180.0),
        tenant="chat",
        gpu=GPU,
    )
    return replace(known, **more)
