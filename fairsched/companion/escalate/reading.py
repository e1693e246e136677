# SPDX-License-Identifier: Apache-2.0
"""The signals of the escalation, from the daemon's status (pure).

Queue delay: the largest p99 of a tenant of class ``latency``. That of a ``batch`` tenant is long by design, since
it is held first. Its floor is what tenants that share a GPU fairly must wait. Token CV: the SLI of the whole node; who
suffers most then is the tenant furthest below its entitlement. One that is ``exempt`` never counts: nobody is held for
it either.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairsched.companion.escalate.model import QUEUE_DELAY, TOKEN_CV, Reading, Sufferer
from fairsched.model import TenantClass
from fairsched.protocol.status import StatusReport, TenantState, TenantStatus

_WITH_DEMAND = frozenset({TenantState.RUN, TenantState.HELD})
_WITHOUT_DEMAND = frozenset({TenantState.IDLE, TenantState.AWAY, TenantState.FOREIGN})


def read(report: StatusReport) -> Reading:
    """What `report` says; without a source of GPU time nothing is known."""
    values: dict[str, float] = {}
    sufferers: dict[str, Sufferer] = {}
    waiting = [
        (tenant.queue_delay_p99_ms, tenant)
        for tenant in report.tenants
        if tenant.queue_delay_p99_ms is not None
        and tenant.tenant_class is TenantClass.LATENCY
        and tenant.state in _WITH_DEMAND
    ]
    if waiting:
        delay_ms, worst = max(waiting, key=lambda pair: pair[0])
        values[QUEUE_DELAY] = delay_ms
        sufferers[QUEUE_DELAY] = Sufferer(worst.name, gpu_of(worst))
    floors = {}
    if report.slis is not None and report.slis.queue_delay_floor_ms is not None:
        floors[QUEUE_DELAY] = report.slis.queue_delay_floor_ms
    if report.slis is not None and report.slis.token_rate_cv_ratio is not None:
        values[TOKEN_CV] = report.slis.token_rate_cv_ratio
        behind = _furthest_behind(report.tenants)
        if behind is not None:
            sufferers[TOKEN_CV] = Sufferer(behind.name, gpu_of(behind))
    return Reading(report.wall_time_s, values, sufferers, _is_idle(report), report.mode, floors)


def gpu_of(tenant: TenantStatus) -> str | None:
    """The GPU on which `tenant` is owed most, of those where it has demand."""
    wanted = [gpu for gpu in tenant.gpus if gpu.has_demand and gpu.lag_ms is not None]
    if wanted:
        return max(wanted, key=lambda gpu: gpu.lag_ms or 0.0).uuid
    return tenant.gpus[0].uuid if len(tenant.gpus) == 1 else None


def _furthest_behind(tenants: Sequence[TenantStatus]) -> TenantStatus | None:
    missing = [
        (tenant.entitled_ratio - tenant.used_ratio, tenant)
        for tenant in tenants
        if tenant.entitled_ratio is not None
        and tenant.used_ratio is not None
        and tenant.state in (TenantState.RUN, TenantState.HELD)
    ]
    return max(missing, key=lambda pair: pair[0])[1] if missing else None


def _is_idle(report: StatusReport) -> bool:
    """Nobody wants the GPU, as far as somebody looks: without an account that is not known."""
    return report.source is not None and not any(map(_wants_gpu, report.tenants))


def _wants_gpu(tenant: TenantStatus) -> bool:
    if tenant.state is TenantState.EXEMPT:  # so it is called whether it works or not
        return any(gpu.has_demand for gpu in tenant.gpus)
    return tenant.state not in _WITHOUT_DEMAND
