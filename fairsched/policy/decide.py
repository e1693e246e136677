# SPDX-License-Identifier: Apache-2.0
"""The plan: who is held back now, who is let go, and why, in numbers.

Problem. The actuator is coarse: a hold takes milliseconds, cannot stop work already queued, and hurts
if it lasts. So hold seldom, never in vain, and end every hold.

Approach, once per snapshot: book it (lag.py), end holds, then begin holds. With

    margin_i  = lag_i - min(outstanding_i, clamp)              effective lag: the drain is as good as spent
    H_i       = max(floor, factor x freeze latency_i, drain_i / 2)

hold i   when margin_i < -H_i and lag_i < -floor / 2 on some GPU, and somebody unheld with demand there
         has lag > 0
thaw i   when margin_i >= -thaw_ratio x H_i on every contended GPU (CAUGHT_UP), or when
         its deadline has come (DEADLINE), nobody else unheld wants its GPUs (LAST_WITH_DEMAND), its GPU
         stands idle (GPU_IDLE), it wants nothing (NO_DEMAND), or it may not be held (EXEMPT,
         LOW_CONFIDENCE).

A beneficiary is required for a hold and must itself run, so the last tenant that runs is never held.
Dwell: dwell_latency_factor x freeze latency between two changes; thaws that protect somebody ignore it.
After a DEADLINE thaw the tenant runs at least min_run_ns, so a deadline is a real pause in the hold.

Terms. contended GPU: one where somebody else unheld has demand. gang: a tenant on several GPUs; it is
held as one, for its most overdrawn GPU, and let go when no contended GPU objects. quota: a bucket
(lag.py); a tenant over it is held even if the GPU idles. gap: an unheld tenant shows no work but had
some within demand_grace_ns; an idle GPU in such a gap is confirmed for idle_confirm_ns before a hold is
ended for it (docs/decisions/0002-control-law.md has the measurements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairsched.model import (
    Action,
    ActionKind,
    Confidence,
    Hold,
    PolicyParams,
    Reason,
    ReasonCode,
    ShareView,
    Snapshot,
    TenantClass,
    TenantSpec,
    Use,
)
from fairsched.policy.horizon import quiet_until, wake
from fairsched.policy.lag import Account, Books, Gate, GpuAccount, PolicyState, advance, is_enforced
from fairsched.policy.shares import ancestors, entitlements, spec_for

_IN_TURN = (ReasonCode.CAUGHT_UP, ReasonCode.DEADLINE)
"""Thaws after which it competes again; the others are for want of competition, or of a reason to hold."""


@dataclass(frozen=True)
class Decision:
    plan: tuple[Action, ...]
    state: PolicyState
    shares: tuple[ShareView, ...]
    quiet_until_ns: int | None = None
    """Before this no threshold should be crossed, as the work of those with demand runs now; None = not known."""
    wake_ns: int | None = None
    """Decide again no later than this (a deadline, an idle GPU to confirm, a quota); None = no hurry."""


def decide(
    snapshot: Snapshot, state: PolicyState, specs: Mapping[str, TenantSpec], params: PolicyParams
) -> Decision:
    """Pure: the same arguments give the same decision."""
    parked = {
        tenant: gate.hold_gpu
        for tenant, gate in state.gates.items()
        if gate.hold_gpu is not None and tenant in snapshot.holds
    }
    books = advance(snapshot, state.accounts, state.gpus, state.quota_level_ns, parked, specs, params)
    desk = Desk(snapshot, specs, params, books, dict(state.gates))
    desk.sync_gates()
    _plan_thaws(desk)
    if snapshot.interval_ns > 0:
        _plan_holds(desk)
        _thaw_stranded(desk)
    gates = {tenant: gate for tenant, gate in desk.gates.items() if tenant in desk.uses}
    after = PolicyState(books.accounts, books.gpus, books.quota_level_ns, gates)
    return Decision(tuple(desk.plan), after, _views(desk), quiet_until(desk), wake(desk))


@dataclass
class Desk:
    """One decision in the making."""

    snapshot: Snapshot
    specs: Mapping[str, TenantSpec]
    params: PolicyParams
    books: Books
    gates: dict[str, Gate]
    plan: list[Action] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    """Held now or by this plan, by anybody."""
    outstanding_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    """By (node, GPU): what the leaves below the node have queued."""
    _of_use: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for use in sorted(self.snapshot.uses, key=lambda use: (use.tenant, use.gpu)):
            self.uses.setdefault(use.tenant, []).append(use)
            for node in ancestors(use.tenant):
                key = (node, use.gpu)
                self.outstanding_ns[key] = self.outstanding_ns.get(key, 0) + use.outstanding_ns
        self.held.update(self.snapshot.holds)

    def sync_gates(self) -> None:
        """Trust the snapshot over memory: a hold may have failed, or been ended by somebody else."""
        for tenant, gate in self.gates.items():
            dwell = self.dwell_ns(tenant)
            # No gate reaches further than this; one that does was saved before a reboot.
            latest = self.snapshot.now_ns + max(dwell, self.params.min_run_ns)
            free = min(gate.free_ns, latest)
            if gate.hold_gpu is not None and tenant not in self.snapshot.holds:
                self.gates[tenant] = Gate(free_ns=max(free, self.snapshot.now_ns + dwell))
            elif free != gate.free_ns:
                self.gates[tenant] = Gate(gate.hold_gpu, gate.is_quota, free)

    def account(self, tenant: str, gpu: str) -> Account:
        return self.books.accounts[tenant, gpu]

    def latency_ns(self, tenant: str) -> int:
        return self.snapshot.freeze_latency_ns.get(tenant, self.params.default_freeze_latency_ns)

    def dwell_ns(self, tenant: str) -> int:
        return self.params.dwell_latency_factor * self.latency_ns(tenant)

    def threshold_ns(self, use: Use) -> float:
        return self._judged(use)[1]

    def margin_ns(self, use: Use) -> float:
        """Effective lag. The drain is bounded, so a wrong estimate cannot outweigh every credit."""
        return self._judged(use)[0]

    def _judged(self, use: Use) -> tuple[float, float]:
        """Margin and threshold: asked for many times in one decision, in which neither changes."""
        key = (use.tenant, use.gpu)
        known = self._of_use.get(key)
        if known is None:
            account, clamp = self.books.accounts[key], self.params.lag_clamp_ns
            latency = self.params.threshold_latency_factor * self.latency_ns(use.tenant)
            threshold = max(
                float(self.params.threshold_floor_ns), float(latency), min(account.drain_ns, clamp) / 2
            )
            known = self._of_use[key] = (account.lag_ns - min(use.outstanding_ns, clamp), threshold)
        return known

    def rivals(self, use: Use) -> list[str]:
        """Others in A on this GPU that run."""
        active = self.books.owed[use.gpu]
        return [name for name in active if name != use.tenant and name not in self.held]

    def contended(self, tenant: str) -> list[Use]:
        return [use for use in self.uses[tenant] if use.has_demand and self.rivals(use)]

    def over_quota(self, tenant: str, *, is_held: bool) -> Use | None:
        """The row on which it, or a tenant above it, is over quota. While held: until the debt is paid."""
        for use in self.uses[tenant]:
            for node in ancestors(tenant):
                level = self.books.quota_level_ns.get((node, use.gpu))
                quota = self.specs[node].quota_ratio if node in self.specs else None
                if level is None or quota is None:
                    continue
                burst = 0.0 if is_held else self.params.quota_burst_ratio * quota * self.params.window_ns
                if level + self.outstanding_ns[node, use.gpu] > burst:
                    return use
        return None

    def reason(self, code: ReasonCode, use: Use | None) -> Reason:
        if use is None:
            return Reason(code)
        account, gpu = self.account(use.tenant, use.gpu), self.books.gpus[use.gpu]
        return Reason(
            code,
            gpu=use.gpu,
            lag_ns=round(account.lag_ns),
            entitlement_ratio=self.books.owed[use.gpu].get(use.tenant, 0.0),
            used_ratio=_used_ratio(account, gpu, code is ReasonCode.OVER_QUOTA),
            outstanding_ns=use.outstanding_ns,
            threshold_ns=round(self.threshold_ns(use)),
        )

    def grant_ns(self, use: Use) -> int | None:
        """How much it may queue before it is held again; None: as much as it likes."""
        longest_ns = spec_for(use.tenant, self.specs).max_freeze_ns
        repaid_ns = self.books.owed[use.gpu].get(use.tenant, 0.0) * longest_ns
        if self.account(use.tenant, use.gpu).refill_ns <= self.params.deep_queue_ratio * repaid_ns:
            return None
        grant = max(self.params.threshold_floor_ns, round(self.params.grant_ratio * repaid_ns))
        return grant if self.rivals(use) else None

    def thaw(self, tenant: str, code: ReasonCode, use: Use | None) -> None:
        grant = self.grant_ns(use) if use is not None and code in _IN_TURN else None
        self.held.discard(tenant)
        if grant is not None and use is not None:
            deadline = self.snapshot.now_ns + spec_for(tenant, self.specs).max_freeze_ns
            self.plan.append(Action(ActionKind.THAW, tenant, self.reason(code, use), deadline, grant))
            self.gates[tenant] = Gate(use.gpu)
            return
        self.plan.append(Action(ActionKind.THAW, tenant, self.reason(code, use)))
        run_ns = self.dwell_ns(tenant)
        if code is ReasonCode.DEADLINE:
            run_ns = max(run_ns, self.params.min_run_ns)
        self.gates[tenant] = Gate(free_ns=self.snapshot.now_ns + run_ns)

    def hold(self, use: Use, code: ReasonCode) -> None:
        deadline = self.snapshot.now_ns + spec_for(use.tenant, self.specs).max_freeze_ns
        self.plan.append(Action(ActionKind.HOLD, use.tenant, self.reason(code, use), deadline))
        self.held.add(use.tenant)
        free = self.gates.get(use.tenant, Gate()).free_ns
        self.gates[use.tenant] = Gate(use.gpu, code is ReasonCode.OVER_QUOTA, free)

    def is_batch(self, tenant: str) -> bool:
        return spec_for(tenant, self.specs).tenant_class is TenantClass.BATCH

    def worst(self, tenant: str) -> Use | None:
        """The row of its most overdrawn GPU."""
        rows = self.uses.get(tenant, [])
        return min(rows, key=lambda use: (self.margin_ns(use), use.gpu), default=None)


def _plan_thaws(desk: Desk) -> None:
    """Most entitled first: whoever is let go first may be the rival that keeps the next one held."""
    ours = [hold for hold in desk.snapshot.holds.values() if hold.is_ours]

    def most_entitled(hold: Hold) -> tuple[bool, float, str]:
        worst = desk.worst(hold.tenant)
        return (desk.is_batch(hold.tenant), -desk.margin_ns(worst) if worst else 0.0, hold.tenant)

    ours.sort(key=most_entitled)
    for hold in ours:
        verdict = _thaw_verdict(desk, hold)
        if verdict is not None:
            desk.thaw(hold.tenant, *verdict)
    for gpu in sorted(desk.snapshot.idle_gpus):
        _thaw_for_idle_gpu(desk, gpu, [hold.tenant for hold in ours if hold.tenant in desk.held])


def _thaw_verdict(desk: Desk, hold: Hold) -> tuple[ReasonCode, Use | None] | None:
    """Why this hold must end now; None = it goes on."""
    tenant, now = hold.tenant, desk.snapshot.now_ns
    worst = desk.worst(tenant)
    if spec_for(tenant, desk.specs).is_exempt:
        return ReasonCode.EXEMPT, worst
    if now >= hold.deadline_ns:
        return ReasonCode.DEADLINE, worst
    rows = desk.uses.get(tenant, [])
    if not any(use.has_demand for use in rows):
        return ReasonCode.NO_DEMAND, worst
    if any(use.confidence is not Confidence.HIGH for use in rows):
        return ReasonCode.LOW_CONFIDENCE, worst
    is_quota = desk.gates.get(tenant, Gate()).is_quota
    if is_quota and desk.over_quota(tenant, is_held=True) is not None:
        return None
    contended = desk.contended(tenant)
    if not contended and not is_quota:
        return ReasonCode.LAST_WITH_DEMAND, worst
    has_caught_up = all(
        desk.margin_ns(use) >= -desk.params.thaw_ratio * desk.threshold_ns(use) for use in contended
    )
    if has_caught_up and now - hold.since_ns >= desk.dwell_ns(tenant):
        return ReasonCode.CAUGHT_UP, min(contended, key=desk.margin_ns, default=worst)
    return None


def _thaw_stranded(desk: Desk) -> None:
    """A gang held just now for one GPU may have been the last to run on another where others wait.

    Holds of this very plan that it strands are not begun; letting one go helps the next, so latest first.
    """
    for action in [action for action in reversed(desk.plan) if action.kind is ActionKind.HOLD]:
        gate = desk.gates[action.tenant]
        if not gate.is_quota and not desk.contended(action.tenant):
            desk.plan.remove(action)
            desk.held.discard(action.tenant)
            desk.gates[action.tenant] = Gate(free_ns=gate.free_ns)
    new = {action.tenant for action in desk.plan if action.kind is ActionKind.HOLD}
    for tenant in sorted(desk.held - new):
        hold = desk.snapshot.holds[tenant]
        if hold.is_ours and not desk.gates.get(tenant, Gate()).is_quota and not desk.contended(tenant):
            desk.thaw(tenant, ReasonCode.LAST_WITH_DEMAND, desk.worst(tenant))


def _thaw_for_idle_gpu(desk: Desk, gpu: str, still_held: list[str]) -> None:
    """An idle GPU is given to the most entitled tenant held back on it.

    A gang held for another GPU stays held: its idle GPUs are the price of the fairness there.
    """
    waited = _idle_for_ns(desk, gpu)
    if waited is None or waited < desk.params.idle_confirm_ns:
        return
    for tenant in still_held:
        gate = desk.gates.get(tenant, Gate(hold_gpu=gpu))
        row = next((use for use in desk.uses[tenant] if use.gpu == gpu and use.has_demand), None)
        if row is None or gate.hold_gpu != gpu or gate.is_quota:
            continue
        desk.thaw(tenant, ReasonCode.GPU_IDLE, row)
        return


def _idle_for_ns(desk: Desk, gpu: str) -> int | None:
    account = desk.books.gpus.get(gpu)
    if account is None or account.idle_since_ns is None:
        return None
    return desk.snapshot.now_ns - account.idle_since_ns


def _plan_holds(desk: Desk) -> None:
    """Batch before latency, then the most overdrawn first: the earlier ones use up the beneficiaries."""

    def first_to_go(tenant: str) -> tuple[bool, float, str]:
        worst = desk.worst(tenant)
        return (not desk.is_batch(tenant), desk.margin_ns(worst) if worst else 0.0, tenant)

    thawed = {action.tenant for action in desk.plan}
    for tenant in sorted(desk.uses, key=first_to_go):
        if tenant in desk.held or tenant in thawed or not _may_be_held(desk, tenant):
            continue
        over = desk.over_quota(tenant, is_held=False)
        if over is not None:
            desk.hold(over, ReasonCode.OVER_QUOTA)
            continue
        overdrawn = [use for use in desk.uses[tenant] if _is_overdrawn(desk, use)]
        if overdrawn:
            worst = min(overdrawn, key=lambda use: (desk.margin_ns(use), use.gpu))
            desk.hold(worst, ReasonCode.OVER_ENTITLEMENT)


def _may_be_held(desk: Desk, tenant: str) -> bool:
    rows = desk.uses[tenant]
    is_free = desk.snapshot.now_ns >= desk.gates.get(tenant, Gate()).free_ns
    return (
        is_free and any(use.has_demand for use in rows) and all(is_enforced(use, desk.specs) for use in rows)
    )


def _is_overdrawn(desk: Desk, use: Use) -> bool:
    if not use.has_demand or desk.margin_ns(use) >= -desk.threshold_ns(use):
        return False
    # Everybody has something queued: the drain says how early to stop, not whether anything is wrong.
    if desk.account(use.tenant, use.gpu).lag_ns >= -desk.params.threshold_floor_ns / 2:
        return False
    return any(desk.account(rival, use.gpu).lag_ns > 0 for rival in desk.rivals(use))


def _used_ratio(account: Account, gpu: GpuAccount, of_wall: bool) -> float:
    whole = gpu.wall_window_ns if of_wall else gpu.delivered_window_ns
    return account.used_window_ns / whole if whole > 0 else 0.0


def _views(desk: Desk) -> tuple[ShareView, ...]:
    """What is believed of each row; one that is not enforced shows what its weight would be worth."""
    nominal: dict[str, dict[str, float]] = {}
    views = []
    for use in desk.snapshot.uses:
        owed = desk.books.owed[use.gpu]
        if not is_enforced(use, desk.specs):
            if use.gpu not in nominal:
                rows = (one for one in desk.snapshot.uses if one.gpu == use.gpu)
                nominal[use.gpu] = entitlements((one.tenant for one in rows if one.has_demand), desk.specs)
            owed = nominal[use.gpu]
        account = desk.account(use.tenant, use.gpu)
        views.append(
            ShareView(
                tenant=use.tenant,
                gpu=use.gpu,
                entitlement_ratio=owed.get(use.tenant, 0.0),
                used_ratio=_used_ratio(account, desk.books.gpus[use.gpu], False),
                lag_ns=round(account.lag_ns),
                has_demand=use.has_demand,
                confidence=use.confidence,
            )
        )
    return tuple(views)
