# SPDX-License-Identifier: Apache-2.0
"""Handles queues that outlast a hold: how much is granted, and how long the hold may be (pure).

Problem. What a frozen tenant has queued runs on, and each thaw lets it queue again. If that is more than its share of
the longest hold, it gets more than its share while being held all the time.

Approach. Such a queue is *deep*. At a thaw its owner is granted a part of what a hold can repay, and held again once
it has queued that (docs/decisions/0007-deep-queues.md). A debt that such holds cannot repay is repaid by a longer one
(0019-longer-holds.md), and one that those cannot repay either, because it queues seconds of work at once, by one that
lasts as long as others need to be given as much (0035-holds-as-long-as-queues.md); unless the operator has limited its
holds.

Terms. owed: its entitlement, a ratio. repayable: what the longest hold that it was promised is worth at that.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairsched.model import PolicyParams, TenantSpec


def grant_ns(refill_ns: float, owed_ratio: float, spec: TenantSpec, params: PolicyParams) -> int | None:
    """How much it may queue before it is held again; None: its queue is not deep.

    ``refill_ns``: the largest queue seen in a long while. Watching one that never queues a whole grant would be in
    vain.
    """
    repayable_ns = owed_ratio * spec.max_freeze_ns
    grant = max(params.threshold_floor_ns, round(params.grant_ratio * repayable_ns))
    return grant if refill_ns > max(params.deep_queue_ratio * repayable_ns, grant) else None


def long_hold_ns(
    owes_ns: float,
    vain_ns: int,
    refill_ns: float,
    owed_ratio: float,
    spec: TenantSpec,
    params: PolicyParams,
) -> int | None:
    """How long it may be held to repay so much; None: as long as its class allows, or the operator.

    ``vain_ns``: how long its last hold was, if that was a long one and did not do; else 0. Among many tenants a single
    step is deep: with its part of the GPU it would not end within the pauses of its class either.

    What a tenant has queued is an estimate, which is set right when it runs again: so each hold is twice as long as the
    last one at most, up to what the others need to be given as much.
    """
    if spec.max_freeze_ms is not None:
        return None
    is_deep = grant_ns(refill_ns, owed_ratio, spec, params) is not None
    is_beyond = vain_ns > 0 or owes_ns > params.deep_debt_ratio * owed_ratio * spec.max_freeze_ns
    if not is_deep or not is_beyond:
        return None
    most_ns = min(2 * vain_ns, params.longest_hold_ns)
    long_ns = max(params.long_hold_ns, min(most_ns, round(refill_ns / owed_ratio)) if owed_ratio > 0 else 0)
    return long_ns if long_ns > spec.max_freeze_ns else None


def clamp_ns(refills_ns: Iterable[float], params: PolicyParams) -> float:
    """The most that anybody on a GPU owes, or is owed: a single overshoot is as large as the deepest queue there."""
    return max(params.lag_clamp_ns, min(max(refills_ns), params.longest_hold_ns))


def longest_pulse_ns(pulse_ns: int, spec: TenantSpec, params: PolicyParams) -> int:
    """How long it may be held where nobody sees queues, and its debt asks for ``pulse_ns``.

    A debt that holds of its class do not repay grows until it asks for more than ``deep_debt_ratio`` of them.
    """
    is_beyond = pulse_ns > params.deep_debt_ratio * spec.max_freeze_ns
    is_long = is_beyond and spec.max_freeze_ms is None
    return max(params.long_hold_ns, spec.max_freeze_ns) if is_long else spec.max_freeze_ns
