# SPDX-License-Identifier: Apache-2.0
"""Short words for snapshots, so that a test shows its arithmetic and nothing else. Times in ms."""

from __future__ import annotations

from collections.abc import Iterable

from fairsched.model import (
    Action,
    ActionKind,
    Confidence,
    Hold,
    PolicyParams,
    ReasonCode,
    Snapshot,
    TenantSpec,
    Use,
)
from fairsched.policy import Decision, PolicyState, decide
from fairsched.policy.lag import Account

MS = 1_000_000
PARAMS = PolicyParams()


def use(
    tenant: str,
    used: float = 0,
    *,
    queued: float = 0,
    demand: bool = True,
    gpu: str = "gpu0",
    confidence: Confidence = Confidence.HIGH,
    unmeasured: float = 0,
    paused: float = 0,
    idle: float = 0,
) -> Use:
    told = (round(used * MS), demand, round(queued * MS), confidence)
    pauses = {"paused_ns": round(paused * MS), "idle_ns": round(idle * MS)}
    return Use(tenant, gpu, *told, unmeasured_ns=round(unmeasured * MS), **pauses)


def hold(tenant: str, since: float = 0, deadline: float = 10_000, *, ours: bool = True) -> Hold:
    return Hold(tenant, round(since * MS), round(deadline * MS), ours)


def snapshot(
    now: float,
    *uses: Use,
    interval: float = 20,
    holds: Iterable[Hold] = (),
    idle: Iterable[str] = (),
    latency: dict[str, int] | None = None,
    idle_since: float | None = None,
) -> Snapshot:
    return Snapshot(
        round(now * MS),
        round(interval * MS),
        uses,
        {one.tenant: one for one in holds},
        latency or {},
        frozenset(idle),
        {} if idle_since is None else dict.fromkeys(idle, round(idle_since * MS)),
    )


def specs(*given: TenantSpec) -> dict[str, TenantSpec]:
    return {spec.name: spec for spec in given}


def lags(gpu: str = "gpu0", /, *, active: float = 0, **lag: float) -> PolicyState:
    """A state with these lags; everybody was last active at ``active``."""
    return PolicyState(
        {(tenant, gpu): Account(value * MS, round(active * MS)) for tenant, value in lag.items()}
    )


def judge(
    snap: Snapshot,
    state: PolicyState | None = None,
    known: dict[str, TenantSpec] | None = None,
    params: PolicyParams = PARAMS,
) -> Decision:
    return decide(snap, state or PolicyState(), known or {}, params)


def actions(decision: Decision) -> list[tuple[str, str, ReasonCode]]:
    return [(action.kind.value, action.tenant, action.reason.code) for action in decision.plan]


def held(decision: Decision) -> list[str]:
    return [action.tenant for action in decision.plan if action.kind is ActionKind.HOLD]


def only(decision: Decision) -> Action:
    assert len(decision.plan) == 1, actions(decision)
    return decision.plan[0]


def lag_ms(decision: Decision, tenant: str, gpu: str = "gpu0") -> float:
    return decision.state.accounts[tenant, gpu].lag_ns / MS
