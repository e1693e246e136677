# SPDX-License-Identifier: Apache-2.0
"""Holds one decision in the making: what each tenant uses, how that is judged, and the plan so far (pure).

Terms as in :mod:`fairsched.policy.decide`, which fills it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairsched.model import (
    Action,
    ActionKind,
    PolicyParams,
    Reason,
    ReasonCode,
    Snapshot,
    TenantClass,
    TenantSpec,
    Use,
)
from fairsched.policy import deep
from fairsched.policy.lag import Account, Books, Gate, GpuAccount, Solos
from fairsched.policy.shares import ancestors, spec_for

IN_TURN = (ReasonCode.CAUGHT_UP, ReasonCode.DEADLINE)
"""Thaws after which it competes again; the others are for want of competition, or of a reason to hold."""


class JudgedUse(NamedTuple):
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
class Draft:
    """One decision in the making."""

    snapshot: Snapshot
    specs: Mapping[str, TenantSpec]
    params: PolicyParams
    books: Books
    gates: dict[str, Gate]
    plan: list[Action] = field(default_factory=list)
    solos: Solos = field(default_factory=Solos)
    rows: dict[str, list[JudgedUse]] = field(default_factory=dict)
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
        clamps, floor = self.books.clamp_ns, float(params.threshold_floor_ns)
        factor, default_ns = params.threshold_latency_factor, params.default_freeze_latency_ns
        wanted: set[str] = set()
        for use in self.snapshot.uses:
            tenant, gpu, queued_ns = use.tenant, use.gpu, use.outstanding_ns
            account, clamp = accounts[tenant, gpu], clamps[gpu]
            slow, drain_ns = factor * latency_ns.get(tenant, default_ns), account.drain_ns
            threshold = slow if slow > floor else floor
            if drain_ns > 2 * threshold:
                threshold = max(threshold, min(drain_ns, clamp) / 2)
            if params.chance_ns:
                owed = self.books.owed[gpu].get(tenant, 0.0)
                threshold += params.chance_ns * 2 * math.sqrt(owed * (1 - owed))
            margin = account.lag_ns - (queued_ns if queued_ns < clamp else clamp)
            row = JudgedUse(use, account, margin, threshold)
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
            latest = now_ns + max(dwell, self.params.min_run_ns, self.params.frame_ns)
            free = min(gate.free_ns, latest)
            if gate.hold_gpu is not None and tenant not in self.snapshot.holds:
                self.gates[tenant] = Gate(free_ns=max(free, now_ns + dwell), vain_ns=gate.vain_ns)
            elif free != gate.free_ns:
                self.gates[tenant] = replace(gate, free_ns=free)

    def latency_ns(self, tenant: str) -> int:
        return self.snapshot.freeze_latency_ns.get(tenant, self.params.default_freeze_latency_ns)

    def dwell_ns(self, tenant: str) -> int:
        return self.params.dwell_latency_factor * self.latency_ns(tenant)

    def set_held(self, tenant: str, *, is_held: bool) -> None:
        """Note that this plan holds the tenant, on all its GPUs, or lets it run."""
        if is_held:
            self.held.add(tenant)
        else:
            self.held.discard(tenant)
        for row in self.rows.get(tenant, ()):
            if tenant not in self.books.owed[row.gpu]:
                continue
            if is_held:
                self.running[row.gpu].discard(tenant)
            else:
                self.running[row.gpu].add(tenant)

    def has_rival(self, row: JudgedUse) -> bool:
        """Whether another in A runs on this GPU."""
        running = self.running[row.gpu]
        return len(running) > (row.use.tenant in running)

    def has_creditor(self, row: JudgedUse) -> bool:
        """Whether another who runs on this GPU is behind."""
        gpu = row.gpu
        if gpu not in self._creditors:
            accounts = self.books.accounts
            self._creditors[gpu] = [name for name in self.books.owed[gpu] if accounts[name, gpu].lag_ns > 0]
        running = self.running[gpu]
        return any(name in running and name != row.use.tenant for name in self._creditors[gpu])

    def contended(self, tenant: str) -> list[JudgedUse]:
        """The rows of a tenant with demand on GPUs where another tenant runs, too."""
        return [row for row in self.rows[tenant] if row.use.has_demand and self.has_rival(row)]

    def over_quota(self, tenant: str, *, is_held: bool) -> JudgedUse | None:
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

    def reason(self, code: ReasonCode, row: JudgedUse | None, long_ns: int | None = None) -> Reason:
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

    def grant_ns(self, row: JudgedUse) -> int | None:
        """How much it may queue before it is held again; None: as much as it likes."""
        if not self.params.sees_queues:
            return None
        if self.params.frame_ns or row.account.refill_ns <= self.params.threshold_floor_ns:
            return None  # nobody sees queues fill, or the least grant; nearly everybody, at every decision
        if not row.use.may_be_owed:
            return None  # nobody sees this one fill, and a look for it would be in vain thirty times a second
        return deep.grant_ns(*self.queue_arguments(row)) if self.has_rival(row) else None

    def vain_ns(self, tenant: str, code: ReasonCode) -> int:
        """How long the hold is that ends so, if it is a long one that did not do. One for a quota is of its class."""
        hold = self.snapshot.holds.get(tenant)
        if hold is None or code is not ReasonCode.DEADLINE or self.gates_quota(tenant):
            return 0
        length_ns = hold.deadline_ns - hold.since_ns
        # One after a grant is shorter by as long as that took to queue.
        return length_ns if 2 * length_ns > self.params.long_hold_ns else 0

    def long_hold_ns(self, row: JudgedUse, vain_ns: int, queues_ns: float = 0.0) -> int | None:
        """Of a hold that begins now, or as soon as so much has been queued; None: no longer than it was promised."""
        return deep.long_hold_ns(queues_ns - row.margin_ns, vain_ns, *self.queue_arguments(row))

    def queue_arguments(self, row: JudgedUse) -> tuple[float, float, TenantSpec, PolicyParams]:
        """What the functions of deep.py are asked about a tenant."""
        tenant = row.use.tenant
        owed = self.books.owed[row.gpu].get(tenant, 0.0)
        return row.account.refill_ns, owed, spec_for(tenant, self.specs), self.params

    def deadline_ns(self, tenant: str, long_ns: int | None) -> int:
        return self.snapshot.now_ns + (long_ns or spec_for(tenant, self.specs).max_freeze_ns)

    def pulse_ns(self, row: JudgedUse) -> int:
        """Of a hold for what it owes that begins now, where holds are pulses.

        A queue that outlasts a pulse makes it vain, and the debt grows: so pulses grow faster than debts.
        """
        params = self.params
        owed_part = (-row.margin_ns - row.threshold_ns) / params.frame_lag_ns
        pulse_ns = round(max(owed_part, owed_part**2) * params.frame_ns)
        pulse_ns = max(pulse_ns, params.frame_ns // 5)
        return min(pulse_ns, deep.longest_pulse_ns(pulse_ns, spec_for(row.use.tenant, self.specs), params))

    def thaw(self, tenant: str, code: ReasonCode, row: JudgedUse | None) -> None:
        grant = self.grant_ns(row) if row is not None and code in IN_TURN else None
        vain_ns = self.vain_ns(tenant, code)
        self.set_held(tenant, is_held=False)
        if grant is not None and row is not None:
            long_ns = self.long_hold_ns(row, vain_ns, grant)
            reason, deadline_ns = self.reason(code, row, long_ns), self.deadline_ns(tenant, long_ns)
            self.plan.append(Action(ActionKind.THAW, tenant, reason, deadline_ns, grant))
            self.gates[tenant] = Gate(row.gpu, vain_ns=vain_ns)
            return
        self.plan.append(Action(ActionKind.THAW, tenant, self.reason(code, row)))
        run_ns = self.dwell_ns(tenant)
        if code is ReasonCode.DEADLINE:
            hold = self.snapshot.holds[tenant]
            rest_ns = self.params.frame_ns - (self.snapshot.now_ns - hold.since_ns)
            run_ns = max(run_ns, self.params.min_run_ns, rest_ns)
        self.gates[tenant] = Gate(free_ns=self.snapshot.now_ns + run_ns, vain_ns=vain_ns)

    def hold(self, row: JudgedUse, code: ReasonCode) -> None:
        tenant = row.use.tenant
        gate = self.gates.get(tenant, Gate())
        # What a quota has lent is not in the lag.
        long_ns = self.long_hold_ns(row, gate.vain_ns) if code is ReasonCode.OVER_ENTITLEMENT else None
        deadline_ns = self.deadline_ns(tenant, long_ns)
        if self.params.frame_ns and code is ReasonCode.OVER_ENTITLEMENT:
            pulse_ns = self.pulse_ns(row)
            deadline_ns = self.snapshot.now_ns + pulse_ns
            long_ns = pulse_ns if pulse_ns > spec_for(tenant, self.specs).max_freeze_ns else None
        reason = self.reason(code, row, long_ns)
        self.plan.append(Action(ActionKind.HOLD, tenant, reason, deadline_ns))
        self.set_held(tenant, is_held=True)
        self.gates[tenant] = replace(gate, hold_gpu=row.gpu, is_quota=code is ReasonCode.OVER_QUOTA)

    def lag_limit_ns(self, row: JudgedUse) -> float:
        """Its lag, without what it has queued, must be below this for a hold.

        Everybody has something queued: the drain says how early to stop, not whether anything is wrong. But its queue
        drains anyway, so batch work gives way at once, and does not settle first what it owes to other batch work.
        """
        least_ns = self.params.threshold_floor_ns / 2
        return least_ns if self.gives_way(row) else -least_ns

    def gives_way(self, row: JudgedUse) -> bool:
        """Whether it is batch work, and a tenant of class latency has just come back to its GPU."""
        back_ns, now_ns = self.books.gpus[row.gpu].back_ns, self.snapshot.now_ns
        is_now = back_ns is not None and 0 <= now_ns - back_ns <= self.params.give_way_ns
        return is_now and self.is_batch(row.use.tenant)

    def gates_quota(self, tenant: str) -> bool:
        """Whether it is held for its quota."""
        return tenant in self.held and self.gates.get(tenant, Gate()).is_quota

    def is_batch(self, tenant: str) -> bool:
        return spec_for(tenant, self.specs).tenant_class is TenantClass.BATCH

    def worst(self, tenant: str) -> JudgedUse | None:
        """The row of its most overdrawn GPU."""
        rows = self.rows.get(tenant, ())
        return rows[0] if len(rows) == 1 else min(rows, key=by_margin, default=None)


def by_margin(row: JudgedUse) -> tuple[float, str]:
    return (row.margin_ns, row.gpu)


def used_ratio(account: Account, gpu: GpuAccount, of_wall: bool) -> float:
    """Of what the GPU delivered over the window, or of the window itself."""
    whole = gpu.wall_window_ns if of_wall else gpu.delivered_window_ns
    return account.used_window_ns / whole if whole > 0 else 0.0


def entitled_ratio(books: Books, use: Use) -> float:
    """Of what the GPU delivered, as `used_ratio` is: what was taken off the top is due to no tenant. 0 outside of A."""
    return books.owed[use.gpu].get(use.tenant, 0.0) * books.left_ratio[use.gpu]
