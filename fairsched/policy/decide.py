# SPDX-License-Identifier: Apache-2.0
"""Decides who is held back now, who is let go, and why, in numbers.

Problem. The actuator is coarse: a hold takes milliseconds, cannot stop work already queued, and hurts
if it lasts. So hold seldom, never in vain, and end every hold.

Approach, once per snapshot: book it (lag.py), end holds, then begin holds. With

    margin_i  = lag_i - min(outstanding_i, clamp)              effective lag: the drain is as good as spent
    H_i       = max(floor, factor x freeze latency_i, drain_i / 2) + what chance makes of a sampled account

hold i   when margin_i < -H_i and lag_i < -floor / 2 on some GPU, and somebody unheld with demand there
         has lag > 0
thaw i   when margin_i >= -thaw_ratio x H_i on every contended GPU (CAUGHT_UP), or when
         its deadline has come (DEADLINE), nobody else unheld wants its GPUs (LAST_WITH_DEMAND), its GPU
         stands idle (GPU_IDLE), it wants nothing (NO_DEMAND), or it may not be held (EXEMPT,
         LOW_CONFIDENCE, CONTRADICTED: the account of the GPU was found to be wrong, watchdog.py).

A beneficiary is required for a hold and must itself run, so the last tenant that runs is never held.
Dwell: dwell_latency_factor x freeze latency between two changes; thaws that protect somebody ignore it.
After a DEADLINE thaw the tenant runs at least min_run_ns, so a deadline is a real pause in the hold.

On a sampled account a hold is a pulse: as long as what is owed beyond H_i is worth, then the tenant runs for the rest
of a frame (PolicyParams.sampled). It is longer than was promised only for a debt that promised ones do not repay
(deep.py).

Terms. contended GPU: one where somebody else unheld has demand. gang: a tenant on several GPUs; it is
held as one, for its most overdrawn GPU, and let go when no contended GPU objects. quota: a bucket
(lag.py); a tenant over it is held even if the GPU idles. gap: an unheld tenant shows no work but had
some within demand_grace_ns; an idle GPU in such a gap is confirmed for idle_confirm_ns before a hold is
ended for it (docs/decisions/0002-control-law.md has the measurements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fairsched.model import (
    Action,
    ActionKind,
    Hold,
    PolicyParams,
    ReasonCode,
    ShareView,
    Snapshot,
    TenantSpec,
)
from fairsched.policy import solo
from fairsched.policy.draft import Draft, JudgedUse, by_margin
from fairsched.policy.horizon import quiet_until, wake
from fairsched.policy.lag import Gate, PolicyState, advance
from fairsched.policy.shares import spec_for
from fairsched.policy.views import views


@dataclass(frozen=True)
class Decision:
    """The plan, and the state in which the next decision begins."""

    plan: tuple[Action, ...]
    state: PolicyState
    is_contended: bool = False
    """Several tenants want the same GPU."""
    quiet_until_ns: int | None = None
    """Before this no threshold should be crossed, as the work of those with demand runs now; None = not known."""
    wake_ns: int | None = None
    """Decide again no later than this (a deadline, an idle GPU to confirm, a quota); None = no hurry."""
    draft: Draft | None = field(default=None, repr=False, compare=False)
    """What it was made from."""

    @property
    def shares(self) -> tuple[ShareView, ...]:
        """What is believed of each row of the snapshot. Worked out when asked for: seldom, beside the decisions."""
        return views(self.draft) if self.draft is not None else ()


def decide(
    snapshot: Snapshot, state: PolicyState, specs: Mapping[str, TenantSpec], params: PolicyParams
) -> Decision:
    """Plan holds and thaws from a snapshot. Pure: the same arguments give the same decision."""
    parked = {
        tenant: gate.hold_gpu
        for tenant, gate in state.gates.items()
        if gate.hold_gpu is not None and tenant in snapshot.holds
    }
    books = advance(snapshot, state, parked, specs, params)
    draft = Draft(snapshot, specs, params, books, dict(state.gates))
    draft.sync_gates()
    draft.solos = solo.go_on(draft, state.solos)
    _plan_thaws(draft)
    if snapshot.interval_ns > 0:
        _plan_holds(draft)
        _thaw_stranded(draft)
        draft.solos = solo.begin(draft, draft.solos)
    gates = {tenant: gate for tenant, gate in draft.gates.items() if tenant in draft.rows}
    after = PolicyState(books.accounts, books.gpus, books.quota_level_ns, gates, draft.solos)
    return Decision(tuple(draft.plan), after, draft.is_contended, quiet_until(draft), wake(draft), draft)


def _plan_thaws(draft: Draft) -> None:
    """Most entitled first: whoever is let go first may be the rival that keeps the next one held."""
    ours = [hold for hold in draft.snapshot.holds.values() if hold.is_ours]

    def most_entitled(hold: Hold) -> tuple[bool, float, str]:
        worst = draft.worst(hold.tenant)
        return (draft.is_batch(hold.tenant), -worst.margin_ns if worst else 0.0, hold.tenant)

    ours.sort(key=most_entitled)
    for hold in ours:
        verdict = _thaw_verdict(draft, hold)
        if verdict is not None:
            draft.thaw(hold.tenant, *verdict)
    for gpu in sorted(draft.snapshot.idle_gpus):
        _thaw_for_idle_gpu(draft, gpu, [hold.tenant for hold in ours if hold.tenant in draft.held])


def _thaw_verdict(draft: Draft, hold: Hold) -> tuple[ReasonCode, JudgedUse | None] | None:
    """Why this hold must end now; None = it goes on."""
    tenant, now = hold.tenant, draft.snapshot.now_ns
    worst = draft.worst(tenant)
    if spec_for(tenant, draft.specs).is_exempt:
        return ReasonCode.EXEMPT, worst
    if now >= hold.deadline_ns:
        return ReasonCode.DEADLINE, worst
    rows = draft.rows.get(tenant, [])
    if not any(row.use.has_demand for row in rows):
        return ReasonCode.NO_DEMAND, worst
    if not all(row.use.is_enforced for row in rows):
        return ReasonCode.LOW_CONFIDENCE, worst
    gate = draft.gates.get(tenant, Gate())
    is_quota = gate.is_quota
    if not is_quota and gate.hold_gpu in draft.snapshot.contradicted:
        return ReasonCode.CONTRADICTED, worst
    if is_quota and draft.over_quota(tenant, is_held=True) is not None:
        return None
    contended = draft.contended(tenant)
    if not contended and not is_quota:
        return ReasonCode.LAST_WITH_DEMAND, worst
    if any(draft.solos.on(row.gpu) is not None for row in rows):
        return None
    has_caught_up = all(row.margin_ns >= -draft.params.thaw_ratio * row.threshold_ns for row in contended)
    if has_caught_up and now - hold.since_ns >= draft.dwell_ns(tenant):
        return ReasonCode.CAUGHT_UP, min(contended, key=lambda row: row.margin_ns, default=worst)
    return None


def _thaw_stranded(draft: Draft) -> None:
    """A gang held just now for one GPU may have been the last to run on another where others wait.

    Holds of this very plan that it strands are not begun; letting one go helps the next, so latest first.
    """
    for action in [action for action in reversed(draft.plan) if action.kind is ActionKind.HOLD]:
        gate = draft.gates[action.tenant]
        if not gate.is_quota and not draft.contended(action.tenant):
            draft.plan.remove(action)
            draft.set_held(action.tenant, is_held=False)
            draft.gates[action.tenant] = replace(gate, hold_gpu=None)
    new = {action.tenant for action in draft.plan if action.kind is ActionKind.HOLD}
    for tenant in sorted(draft.held - new):
        hold = draft.snapshot.holds[tenant]
        if hold.is_ours and not draft.gates.get(tenant, Gate()).is_quota and not draft.contended(tenant):
            draft.thaw(tenant, ReasonCode.LAST_WITH_DEMAND, draft.worst(tenant))


def _thaw_for_idle_gpu(draft: Draft, gpu: str, still_held: list[str]) -> None:
    """An idle GPU is given to the most entitled tenant held back on it.

    A gang held for another GPU stays held: its idle GPUs are the price of the fairness there.
    """
    waited = _idle_for_ns(draft, gpu)
    if waited is None or waited < draft.params.idle_confirm_ns:
        return
    for tenant in still_held:
        gate = draft.gates.get(tenant, Gate(hold_gpu=gpu))
        row = next((row for row in draft.rows[tenant] if row.gpu == gpu and row.use.has_demand), None)
        if row is None or gate.hold_gpu != gpu or gate.is_quota:
            continue
        draft.thaw(tenant, ReasonCode.GPU_IDLE, row)
        return


def _idle_for_ns(draft: Draft, gpu: str) -> int | None:
    account = draft.books.gpus.get(gpu)
    if account is None or account.idle_since_ns is None:
        return None
    return draft.snapshot.now_ns - account.idle_since_ns


def _plan_holds(draft: Draft) -> None:
    """Batch before latency, then the most overdrawn first: the earlier ones use up the beneficiaries."""
    thawed = {action.tenant for action in draft.plan}
    candidates: list[tuple[bool, float, str]] = []
    for tenant in draft.rows if draft.books.quota_level_ns else draft.beyond:
        if tenant in draft.held or tenant in thawed:
            continue
        rows = draft.rows[tenant]
        is_over = draft.over_quota(tenant, is_held=False) is not None
        if (is_over or any(_is_overdrawn(draft, row) for row in rows)) and _may_be_held(draft, tenant):
            candidates.append((not draft.is_batch(tenant), min(row.margin_ns for row in rows), tenant))
    for _, _, tenant in sorted(candidates):
        over = draft.over_quota(tenant, is_held=False)
        if over is not None:
            draft.hold(over, ReasonCode.OVER_QUOTA)
            continue
        overdrawn = [row for row in draft.rows[tenant] if _is_overdrawn(draft, row)]
        worst = min((row for row in overdrawn if draft.has_creditor(row)), key=by_margin, default=None)
        if worst is not None:
            draft.hold(worst, ReasonCode.OVER_ENTITLEMENT)


def _may_be_held(draft: Draft, tenant: str) -> bool:
    rows = draft.rows[tenant]
    is_free = draft.snapshot.now_ns >= draft.gates.get(tenant, Gate()).free_ns
    if any(draft.solos.on(row.gpu) == tenant for row in rows):
        return False
    return (
        is_free
        and any(row.use.has_demand for row in rows)
        and all(tenant in draft.books.enforced[row.gpu] for row in rows)
    )


def _is_overdrawn(draft: Draft, row: JudgedUse) -> bool:
    """Whether it has taken so much that it is held if somebody who runs is behind."""
    if row.margin_ns >= -row.threshold_ns or not row.use.has_demand:
        return False
    if row.gpu in draft.snapshot.contradicted:
        return False
    return row.account.lag_ns < draft.lag_limit_ns(row)
