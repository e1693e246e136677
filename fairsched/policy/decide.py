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
from typing import NamedTuple

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
from fairsched.policy import deep
from fairsched.policy.horizon import quiet_until, wake
from fairsched.policy.lag import Account, Books, Gate, PolicyState, advance
from fairsched.policy.shares import ancestors, spec_for
from fairsched.policy.views import entitled_ratio, used_ratio, views

_IN_TURN = (ReasonCode.CAUGHT_UP, ReasonCode.DEADLINE)
"""Thaws after which it competes again; the others are for want of competition, or of a reason to hold."""


@dataclass(frozen=True)
class Decision:
    plan: tuple[Action, ...]
    state: PolicyState
    is_contended: bool = False
    """Several tenants want the same GPU."""
    quiet_until_ns: int | None = None
    """Before this no threshold should be crossed, as the work of those with demand runs now; None = not known."""
    wake_ns: int | None = None
    """Decide again no later than this (a deadline, an idle GPU to confirm, a quota); None = no hurry."""
    desk: Desk | None = field(default=None, repr=False, compare=False)
    """What it was made from."""

    @property
    def shares(self) -> tuple[ShareView, ...]:
        """What is believed of each row of the snapshot. Worked out when asked for: seldom, beside the decisions."""
        return views(self.desk) if self.desk is not None else ()


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
    gates = {tenant: gate for tenant, gate in desk.gates.items() if tenant in desk.rows}
    after = PolicyState(books.accounts, books.gpus, books.quota_level_ns, gates)
    return Decision(tuple(desk.plan), after, desk.is_contended, quiet_until(desk), wake(desk), desk)


class Row(NamedTuple):
    """One use and how it is judged, which nothing in the plan changes."""

    use: Use
    account: Account
    margin_ns: float
    """Effective lag. The drain is bounded, so a wrong estimate cannot outweigh every credit."""
    threshold_ns: float

    @property
    def gpu(self) -> str:
        return self.use.gpu


@dataclass
class Desk:
    """One decision in the making."""

    snapshot: Snapshot
    specs: Mapping[str, TenantSpec]
    params: PolicyParams
    books: Books
    gates: dict[str, Gate]
    plan: list[Action] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By tenant, in the order of the GPUs' UUIDs."""
    is_contended: bool = False
    beyond: set[str] = field(default_factory=set)
    """Tenants with work whose margin is beyond the threshold on some GPU."""
    held: set[str] = field(default_factory=set)
    """Held now or by this plan, by anybody."""
    running: dict[str, set[str]] = field(default_factory=dict)
    """GPU -> who of A is not held."""
    outstanding_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    """By (node, GPU): what the leaves below the node have queued; only where there are quotas."""
    _creditors: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._judge()
        for rows in self.rows.values():
            if len(rows) > 1:
                rows.sort(key=lambda row: row.gpu)
        self.held.update(self.snapshot.holds)
        self.running = {gpu: active.keys() - self.held for gpu, active in self.books.owed.items()}
        if self.books.quota_level_ns:
            for use in self.snapshot.uses:
                for node in ancestors(use.tenant):
                    key = (node, use.gpu)
                    self.outstanding_ns[key] = self.outstanding_ns.get(key, 0) + use.outstanding_ns

    def _judge(self) -> None:
        params, accounts, latency_ns = self.params, self.books.accounts, self.snapshot.freeze_latency_ns
        clamp, floor = params.lag_clamp_ns, float(params.threshold_floor_ns)
        factor, default_ns = params.threshold_latency_factor, params.default_freeze_latency_ns
        wanted: set[str] = set()
        for use in self.snapshot.uses:
            tenant, gpu, queued_ns = use.tenant, use.gpu, use.outstanding_ns
            account = accounts[tenant, gpu]
            slow, drain_ns = factor * latency_ns.get(tenant, default_ns), account.drain_ns
            threshold = slow if slow > floor else floor
            if drain_ns > 2 * threshold:
                threshold = max(threshold, min(drain_ns, clamp) / 2)
            margin = account.lag_ns - (queued_ns if queued_ns < clamp else clamp)
            row = Row(use, account, margin, threshold)
            if tenant in self.rows:
                self.rows[tenant].append(row)
            else:
                self.rows[tenant] = [row]
            if use.has_demand:
                self.is_contended |= gpu in wanted
                wanted.add(gpu)
                if margin < -threshold:
                    self.beyond.add(tenant)

    def sync_gates(self) -> None:
        """Trust the snapshot over memory: a hold may have failed, or been ended by somebody else."""
        now_ns = self.snapshot.now_ns
        for tenant, gate in self.gates.items():
            if gate.hold_gpu is None and gate.free_ns <= now_ns:
                continue  # it forbids nothing
            dwell = self.dwell_ns(tenant)
            # No gate reaches further than this; one that does was saved before a reboot.
            latest = now_ns + max(dwell, self.params.min_run_ns)
            free = min(gate.free_ns, latest)
            if gate.hold_gpu is not None and tenant not in self.snapshot.holds:
                self.gates[tenant] = Gate(free_ns=max(free, now_ns + dwell))
            elif free != gate.free_ns:
                self.gates[tenant] = Gate(gate.hold_gpu, gate.is_quota, free)

    def latency_ns(self, tenant: str) -> int:
        return self.snapshot.freeze_latency_ns.get(tenant, self.params.default_freeze_latency_ns)

    def dwell_ns(self, tenant: str) -> int:
        return self.params.dwell_latency_factor * self.latency_ns(tenant)

    def set_held(self, tenant: str, *, is_held: bool) -> None:
        """By this plan; all its GPUs are held or none."""
        (self.held.add if is_held else self.held.discard)(tenant)
        for row in self.rows.get(tenant, ()):
            if tenant in self.books.owed[row.gpu]:
                running = self.running[row.gpu]
                (running.discard if is_held else running.add)(tenant)

    def has_rival(self, row: Row) -> bool:
        """Whether another in A runs on this GPU."""
        running = self.running[row.gpu]
        return len(running) > (row.use.tenant in running)

    def has_creditor(self, row: Row) -> bool:
        """Whether another who runs on this GPU is behind."""
        gpu = row.gpu
        if gpu not in self._creditors:
            accounts = self.books.accounts
            self._creditors[gpu] = [name for name in self.books.owed[gpu] if accounts[name, gpu].lag_ns > 0]
        running = self.running[gpu]
        return any(name in running and name != row.use.tenant for name in self._creditors[gpu])

    def contended(self, tenant: str) -> list[Row]:
        """Its rows with demand where somebody else runs, too."""
        return [row for row in self.rows[tenant] if row.use.has_demand and self.has_rival(row)]

    def over_quota(self, tenant: str, *, is_held: bool) -> Row | None:
        """The row on which it, or a tenant above it, is over quota. While held: until the debt is paid."""
        if not self.books.quota_level_ns:
            return None
        for row in self.rows[tenant]:
            for node in ancestors(tenant):
                level = self.books.quota_level_ns.get((node, row.gpu))
                quota = self.specs[node].quota_ratio if node in self.specs else None
                if level is None or quota is None:
                    continue
                burst = 0.0 if is_held else self.params.quota_burst_ratio * quota * self.params.window_ns
                if level + self.outstanding_ns[node, row.gpu] > burst:
                    return row
        return None

    def reason(self, code: ReasonCode, row: Row | None, long_ns: int | None = None) -> Reason:
        if row is None:
            return Reason(code)
        use, gpu = row.use, self.books.gpus[row.gpu]
        return Reason(
            code,
            gpu=use.gpu,
            lag_ns=round(row.account.lag_ns),
            entitlement_ratio=entitled_ratio(self.books, use),
            used_ratio=used_ratio(row.account, gpu, code is ReasonCode.OVER_QUOTA),
            outstanding_ns=use.outstanding_ns,
            threshold_ns=round(row.threshold_ns),
            long_hold_ns=long_ns,
        )

    def grant_ns(self, row: Row) -> int | None:
        """How much it may queue before it is held again; None: as much as it likes."""
        if row.account.refill_ns <= self.params.threshold_floor_ns:
            return None  # the least grant; nearly everybody, at every decision
        return deep.grant_ns(*self.queue_arguments(row)) if self.has_rival(row) else None

    def was_long(self, tenant: str) -> bool:
        """Its hold may last longer than it was promised."""
        hold = self.snapshot.holds.get(tenant)
        promised_ns = spec_for(tenant, self.specs).max_freeze_ns
        return hold is not None and hold.deadline_ns - hold.since_ns > promised_ns

    def long_hold_ns(self, row: Row, queues_ns: float = 0.0, *, was_long: bool = False) -> int | None:
        """Of a hold that begins now, or as soon as so much has been queued; None: no longer than it was promised."""
        return deep.long_hold_ns(queues_ns - row.margin_ns, was_long, *self.queue_arguments(row))

    def queue_arguments(self, row: Row) -> tuple[float, float, TenantSpec, PolicyParams]:
        """What deep.py asks about it."""
        tenant = row.use.tenant
        owed = self.books.owed[row.gpu].get(tenant, 0.0)
        return row.account.refill_ns, owed, spec_for(tenant, self.specs), self.params

    def deadline_ns(self, tenant: str, long_ns: int | None) -> int:
        return self.snapshot.now_ns + (long_ns or spec_for(tenant, self.specs).max_freeze_ns)

    def thaw(self, tenant: str, code: ReasonCode, row: Row | None) -> None:
        grant = self.grant_ns(row) if row is not None and code in _IN_TURN else None
        self.set_held(tenant, is_held=False)
        if grant is not None and row is not None:
            did_not_do = code is ReasonCode.DEADLINE and self.was_long(tenant)
            long_ns = self.long_hold_ns(row, grant, was_long=did_not_do)
            reason, deadline_ns = self.reason(code, row, long_ns), self.deadline_ns(tenant, long_ns)
            self.plan.append(Action(ActionKind.THAW, tenant, reason, deadline_ns, grant))
            self.gates[tenant] = Gate(row.gpu)
            return
        self.plan.append(Action(ActionKind.THAW, tenant, self.reason(code, row)))
        run_ns = self.dwell_ns(tenant)
        if code is ReasonCode.DEADLINE:
            run_ns = max(run_ns, self.params.min_run_ns)
        self.gates[tenant] = Gate(free_ns=self.snapshot.now_ns + run_ns)

    def hold(self, row: Row, code: ReasonCode) -> None:
        tenant = row.use.tenant
        # What a quota has lent is not in the lag.
        long_ns = self.long_hold_ns(row) if code is ReasonCode.OVER_ENTITLEMENT else None
        reason, deadline_ns = self.reason(code, row, long_ns), self.deadline_ns(tenant, long_ns)
        self.plan.append(Action(ActionKind.HOLD, tenant, reason, deadline_ns))
        self.set_held(tenant, is_held=True)
        free = self.gates.get(tenant, Gate()).free_ns
        self.gates[tenant] = Gate(row.gpu, code is ReasonCode.OVER_QUOTA, free)

    def lag_limit_ns(self, row: Row) -> float:
        """Its lag, without what it has queued, must be below this for a hold.

        Everybody has something queued: the drain says how early to stop, not whether anything is wrong. But its queue
        drains anyway, so batch work gives way at once, and does not settle first what it owes to other batch work.
        """
        least_ns = self.params.threshold_floor_ns / 2
        return least_ns if self.gives_way(row) else -least_ns

    def gives_way(self, row: Row) -> bool:
        """It is batch work, and somebody with deadlines has just come back to its GPU."""
        back_ns, now_ns = self.books.gpus[row.gpu].back_ns, self.snapshot.now_ns
        is_now = back_ns is not None and 0 <= now_ns - back_ns <= self.params.give_way_ns
        return is_now and self.is_batch(row.use.tenant)

    def is_batch(self, tenant: str) -> bool:
        return spec_for(tenant, self.specs).tenant_class is TenantClass.BATCH

    def worst(self, tenant: str) -> Row | None:
        """The row of its most overdrawn GPU."""
        rows = self.rows.get(tenant, ())
        return rows[0] if len(rows) == 1 else min(rows, key=_by_margin, default=None)


def _by_margin(row: Row) -> tuple[float, str]:
    return (row.margin_ns, row.gpu)


def _plan_thaws(desk: Desk) -> None:
    """Most entitled first: whoever is let go first may be the rival that keeps the next one held."""
    ours = [hold for hold in desk.snapshot.holds.values() if hold.is_ours]

    def most_entitled(hold: Hold) -> tuple[bool, float, str]:
        worst = desk.worst(hold.tenant)
        return (desk.is_batch(hold.tenant), -worst.margin_ns if worst else 0.0, hold.tenant)

    ours.sort(key=most_entitled)
    for hold in ours:
        verdict = _thaw_verdict(desk, hold)
        if verdict is not None:
            desk.thaw(hold.tenant, *verdict)
    for gpu in sorted(desk.snapshot.idle_gpus):
        _thaw_for_idle_gpu(desk, gpu, [hold.tenant for hold in ours if hold.tenant in desk.held])


def _thaw_verdict(desk: Desk, hold: Hold) -> tuple[ReasonCode, Row | None] | None:
    """Why this hold must end now; None = it goes on."""
    tenant, now = hold.tenant, desk.snapshot.now_ns
    worst = desk.worst(tenant)
    if spec_for(tenant, desk.specs).is_exempt:
        return ReasonCode.EXEMPT, worst
    if now >= hold.deadline_ns:
        return ReasonCode.DEADLINE, worst
    rows = desk.rows.get(tenant, [])
    if not any(row.use.has_demand for row in rows):
        return ReasonCode.NO_DEMAND, worst
    if any(row.use.confidence is not Confidence.HIGH for row in rows):
        return ReasonCode.LOW_CONFIDENCE, worst
    is_quota = desk.gates.get(tenant, Gate()).is_quota
    if is_quota and desk.over_quota(tenant, is_held=True) is not None:
        return None
    contended = desk.contended(tenant)
    if not contended and not is_quota:
        return ReasonCode.LAST_WITH_DEMAND, worst
    has_caught_up = all(row.margin_ns >= -desk.params.thaw_ratio * row.threshold_ns for row in contended)
    if has_caught_up and now - hold.since_ns >= desk.dwell_ns(tenant):
        return ReasonCode.CAUGHT_UP, min(contended, key=lambda row: row.margin_ns, default=worst)
    return None


def _thaw_stranded(desk: Desk) -> None:
    """A gang held just now for one GPU may have been the last to run on another where others wait.

    Holds of this very plan that it strands are not begun; letting one go helps the next, so latest first.
    """
    for action in [action for action in reversed(desk.plan) if action.kind is ActionKind.HOLD]:
        gate = desk.gates[action.tenant]
        if not gate.is_quota and not desk.contended(action.tenant):
            desk.plan.remove(action)
            desk.set_held(action.tenant, is_held=False)
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
        row = next((row for row in desk.rows[tenant] if row.gpu == gpu and row.use.has_demand), None)
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
    thawed = {action.tenant for action in desk.plan}
    candidates: list[tuple[bool, float, str]] = []
    for tenant in desk.rows if desk.books.quota_level_ns else desk.beyond:
        if tenant in desk.held or tenant in thawed:
            continue
        rows = desk.rows[tenant]
        is_over = desk.over_quota(tenant, is_held=False) is not None
        if (is_over or any(_is_overdrawn(desk, row) for row in rows)) and _may_be_held(desk, tenant):
            candidates.append((not desk.is_batch(tenant), min(row.margin_ns for row in rows), tenant))
    for _, _, tenant in sorted(candidates):
        over = desk.over_quota(tenant, is_held=False)
        if over is not None:
            desk.hold(over, ReasonCode.OVER_QUOTA)
            continue
        overdrawn = [row for row in desk.rows[tenant] if _is_overdrawn(desk, row)]
        worst = min((row for row in overdrawn if desk.has_creditor(row)), key=_by_margin, default=None)
        if worst is not None:
            desk.hold(worst, ReasonCode.OVER_ENTITLEMENT)


def _may_be_held(desk: Desk, tenant: str) -> bool:
    rows = desk.rows[tenant]
    is_free = desk.snapshot.now_ns >= desk.gates.get(tenant, Gate()).free_ns
    return (
        is_free
        and any(row.use.has_demand for row in rows)
        and all(tenant in desk.books.enforced[row.gpu] for row in rows)
    )


def _is_overdrawn(desk: Desk, row: Row) -> bool:
    """Whether it has taken so much that it is held if somebody who runs is behind."""
    if row.margin_ns >= -row.threshold_ns or not row.use.has_demand:
        return False
    return row.account.lag_ns < desk.lag_limit_ns(row)
