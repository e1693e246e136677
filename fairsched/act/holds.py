# SPDX-License-Identifier: Apache-2.0
"""Holds and thaws tenants as the plan says, checks the deadline of each hold, and records what became of it. Dry-run
lives here and nowhere else.

The account is told of each hold and thaw, because a held tenant's queue drains unseen. What others do to our
holds (thaw them, pause the same cgroup, remove it) comes back from the brake as events and ends the hold here.

In a dry run the plan is carried out in the books alone. Holds of it have a tally of their own, last until the plan or
their deadline ends them as others do, and all end when the mode changes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Set
from dataclasses import replace
from typing import Protocol

from fairsched.act.tally import Tally
from fairsched.base.printable import word
from fairsched.base.realtime import at_realtime_priority
from fairsched.cgroup.brake import Brake
from fairsched.cgroup.outcome import HoldKind
from fairsched.errors import FairschedError
from fairsched.model import NEVER_NS, Action, ActionKind, Hold, Reason, ReasonCode
from fairsched.observe.tree import TenantView, Tree
from fairsched.protocol.events import Limiter, decision_fields, logfmt
from fairsched.protocol.status import DecisionRecord

_REMEMBER = 4096
_LOGGED_PER_S = 0.1
_LOGGED_AT_ONCE = 5
"""Lines of a tenant in the log; `fairsched events` has all decisions."""
_GRANT_LIMIT_NS = 3_000_000
"""A queue that fills more slowly than this is seen by the next tick."""
_GRANTS_LIMIT_NS = 6_000_000
"""All queues of one plan together: nothing else is done meanwhile."""
_GRANT_LOOK_NS = 500_000
"""Between looks at who has not used up what it was granted: it may have waited for a processor until now."""

logger = logging.getLogger(__name__)


class DrainAccount(Protocol):
    """The part of an account that must know of holds."""

    def hold(self, cgroup_ids: Iterable[int], now_ns: int) -> None: ...

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None: ...

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int: ...


class Applier:
    """Holds and thaws tenants; remembers the last decisions for ``explain``."""

    def __init__(self, brake: Brake, tree: Tree, account: DrainAccount, *, is_dry_run: bool) -> None:
        self._brake = brake
        self._tree = tree
        self._account = account
        self.is_dry_run = is_dry_run
        self.real, self.dry = Tally(), Tally()
        self.holds = self.real.holds
        """By tenant; ours only, and made."""
        self.reserved: frozenset[str] = frozenset()
        """Tenants whose holds are not the share policy's business now: it sees them as held by somebody else."""
        self.paused: Set[int] = frozenset()
        """Ids of cgroups with GPU work that somebody else has paused: the end of our hold does not let them run."""
        self.records: deque[DecisionRecord] = deque(maxlen=_REMEMBER)
        self.errors = 0
        self._told: dict[str, frozenset[int]] = {}
        """The cgroups that the account was told of when each tenant was held."""
        self._log_limit = Limiter(per_s=_LOGGED_PER_S, burst=_LOGGED_AT_ONCE)
        self._granted_ns = 0
        """Spent in this plan waiting for queues to fill."""
        self._filling: dict[str, tuple[Action, int]] = {}
        """Let go by this plan, and slow to use up what they were granted, which is beside it."""
        self.look_ns = NEVER_NS
        """When :meth:`hold_filled` is due."""
        self._latency_ns: dict[str, int] = {}
        self._latency_of_changes = -1
        self._latency_dirty: set[str] = set()
        """Tenants that were frozen or thawed since their latency was asked for."""

    def apply(self, plan: Iterable[Action], now_ns: int) -> None:
        """Carry out every action; one that fails is recorded and counted, the others go on."""
        self._granted_ns = 0
        self._forget_filling()
        if self.dry.holds:
            self._end_dry(self._foreign() & self.dry.holds.keys(), ReasonCode.FOREIGN, now_ns)
        for action in plan:
            self._carry_out(action, now_ns)

    def _forget_filling(self) -> None:
        self._filling.clear()
        self.look_ns = NEVER_NS

    def _carry_out(self, action: Action, now_ns: int) -> None:
        # a hold of before the dry run, whose thaw was refused, is a real one
        if self.is_dry_run and (action.kind is ActionKind.HOLD or action.tenant not in self.holds):
            self._pretend(action, now_ns)
            return
        error: str | None = None
        held_ns: int | None = None
        try:
            if action.kind is ActionKind.HOLD:
                error = self._hold(action, now_ns)
            elif action.grant_ns is not None and not self.is_dry_run:
                self._grant(action, action.grant_ns, now_ns)
                return
            else:
                held_ns = self.thaw(action.tenant, now_ns)
        except FairschedError as failure:
            self.errors += 1
            error = str(failure)
            if self._log_limit.take((action.tenant, "failed"), now_ns) is not None:
                name = word(action.tenant)
                logger.error("action=%s tenant=%s error=%r", action.kind.value, name, error)
        self._record(action, now_ns, held_ns, error)

    def _hold(self, action: Action, now_ns: int) -> str | None:
        view = self._tree.tenants.get(action.tenant)
        if view is None or not view.refs:
            return "its cgroup is gone"
        self._latency_dirty.add(action.tenant)
        refs = [ref for ref in view.refs.values() if ref.id not in view.foreign]
        if not refs:
            return f"not held: {HoldKind.FOREIGN.value}"
        result = self._brake.hold_gang(refs, action.tenant, action.deadline_ns, action.reason.code.value)
        if result.kind is not HoldKind.HELD:
            if result.kind is HoldKind.FOREIGN:
                view.foreign |= {m.cgroup_id for m in result.members if m.kind is HoldKind.FOREIGN}
            return f"not held: {result.kind.value}"
        self.holds[action.tenant] = Hold(action.tenant, now_ns, action.deadline_ns, is_ours=True)
        self._tell_hold(view, now_ns)
        return None

    def _tell_hold(self, view: TenantView, now_ns: int) -> None:
        self._told[view.name] = self._told.get(view.name, frozenset()) | view.cgroup_ids
        self._account.hold(view.cgroup_ids, now_ns)

    def _grant(self, action: Action, grant_ns: int, now_ns: int) -> None:
        """Let it go until it has queued so much, then hold it again."""
        view = self._tree.tenants.get(action.tenant)
        if view is None or not self._brake.held_for(action.tenant):
            self._record(action, now_ns, self.thaw(action.tenant, now_ns), None)
            return
        try:
            kind = self._pulse(view, action.deadline_ns, grant_ns)
        finally:
            held_ns = self._ended(self.holds.get(action.tenant), now_ns)
        self._record(action, now_ns, held_ns, None)
        again_ns, again = time.monotonic_ns(), _again(action)
        if kind is not HoldKind.HELD:
            self._filling[action.tenant] = (again, grant_ns)
            self.look_ns = again_ns + _GRANT_LOOK_NS
            return
        self.holds[action.tenant] = Hold(action.tenant, again_ns, action.deadline_ns, is_ours=True)
        self._tell_hold(view, again_ns)
        self._record(again, again_ns, None, None)

    def _pulse(self, view: TenantView, deadline_ns: int, grant_ns: int) -> HoldKind:
        """Thaw a held tenant, wait while it queues, hold it again; THAWED where the time for that was over first."""
        begin_ns = time.monotonic_ns()
        left_ns = max(0, _GRANTS_LIMIT_NS - self._granted_ns)
        try:
            with at_realtime_priority():
                return self._brake.pulse(
                    self._brake.held_for(view.name),
                    deadline_ns,
                    ReasonCode.DEEP_QUEUE.value,
                    lambda: self._account.queued_since_hold_ns(view.cgroup_ids) / grant_ns,
                    min(_GRANT_LIMIT_NS, left_ns),
                )
        finally:
            self._granted_ns += time.monotonic_ns() - begin_ns

    def hold_filled(self, now_ns: int) -> None:
        """Hold, between two ticks, the tenants that have used up their grant after we had ceased to wait for it.

        Without it a full queue waits for the next tick.
        """
        filled = []
        for tenant, (again, grant_ns) in list(self._filling.items()):
            view = self._tree.tenants.get(tenant)
            if view is None or tenant in self.reserved:
                del self._filling[tenant]
            elif self._account.queued_since_hold_ns(view.cgroup_ids) >= grant_ns:
                del self._filling[tenant]
                filled.append(again)
        self.look_ns = now_ns + _GRANT_LOOK_NS if self._filling else NEVER_NS
        for again in filled:
            self._carry_out(again, now_ns)

    def thaw(self, tenant: str, now_ns: int) -> int | None:
        """End our hold of a tenant; returns how long it lasted in ns, None when it was not held.

        Raises what the kernel said of the first member that it refused to thaw, after all were tried. Then the hold
        stays, to be tried again: at the deadline at the latest.
        """
        hold = self.holds.get(tenant)
        refusals: list[FairschedError] = []
        for cgroup_id in self._brake.held_for(tenant):
            try:
                self._brake.thaw(cgroup_id)
            except FairschedError as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]
        return self._ended(hold, now_ns)

    def _ended(self, hold: Hold | None, now_ns: int) -> int | None:
        if hold is None:
            return None
        self._latency_dirty.add(hold.tenant)
        view = self._tree.tenants.get(hold.tenant) or TenantView(hold.tenant)
        # a reload may have given them to another tenant meanwhile: their contexts must not stay held for ever
        self._account.thaw((self._told.pop(hold.tenant, frozenset()) | view.cgroup_ids) - self.paused, now_ns)
        return self.real.end(hold.tenant, now_ns)

    def settle(self, now_ns: int) -> None:
        """Take in what the kernel and others did to our holds since the last call. What fails is counted."""
        try:
            changes = self._brake.settle()
        except FairschedError as failure:  # the journal's: who was held is told of by the next thaw
            self.errors += 1
            logger.error("settle=failed error=%s", failure)
            return
        except Exception:  # of whatever thread: nobody may stay held for what nobody understands
            self.errors += 1
            logger.exception("settle=failed")
            self.release_all(now_ns)
            return
        for change in changes:
            self._latency_dirty.add(change.tenant)
            if change.kind is HoldKind.SETTLED:
                continue
            hold = self.holds.get(change.tenant)
            names = (word(change.tenant), word(change.path))
            logger.warning("tenant=%s cgroup=%s hold=%s", *names, change.kind.value)
            if change.kind is HoldKind.LATE:
                self.errors += 1
                continue
            if hold is None:
                continue
            view = self._tree.tenants.get(change.tenant)
            if change.kind is HoldKind.FOREIGN and view is not None:
                view.foreign.add(change.cgroup_id)
            # a gang is held whole or not at all
            self.apply([Action(ActionKind.THAW, change.tenant, Reason(ReasonCode.FOREIGN))], now_ns)

    def thaw_expired(self, now_ns: int) -> None:
        """Thaw every hold past its deadline, should the policy not be asked in time."""
        for tenant in [name for name, hold in self.holds.items() if hold.deadline_ns <= now_ns]:
            self.apply([Action(ActionKind.THAW, tenant, Reason(ReasonCode.DEADLINE))], now_ns)
        expired = {name for name, hold in self.dry.holds.items() if hold.deadline_ns <= now_ns}
        self._end_dry(expired, ReasonCode.DEADLINE, now_ns)
        self._brake.thaw_expired(now_ns)  # also what is left of a gang whose hold was not to be undone

    def release_all(self, now_ns: int) -> None:
        """End all holds, those of a dry run too, and hold no tenant until the next plan says so."""
        self._forget_filling()
        for tenant in list(self.holds):
            self.apply([Action(ActionKind.THAW, tenant, Reason(ReasonCode.SHUTDOWN))], now_ns)
        self._end_dry(set(self.dry.holds), ReasonCode.SHUTDOWN, now_ns)

    def switch(self, *, is_dry_run: bool, now_ns: int) -> None:
        """Go on in another mode: no hold of either kind outlasts the one before."""
        self.release_all(now_ns)
        self.is_dry_run = is_dry_run

    def held_ns(self, now_ns: int) -> dict[str, int]:
        """For how long each tenant has really been held by us since the start, the hold in progress included."""
        total = dict(self.real.held_ns)
        for name, hold in self.holds.items():
            total[name] = total.get(name, 0) + now_ns - hold.since_ns
        return total

    def all_holds(self) -> dict[str, Hold]:
        """Ours, those of a dry run and those of others, by tenant, for the Snapshot."""
        foreign = {name: Hold(name, 0, 0, is_ours=False) for name in self._foreign()}
        return {**self.dry.holds, **self.holds, **foreign}

    def _foreign(self) -> set[str]:
        return {
            name
            for name, view in self._tree.tenants.items()
            if name in self.reserved or (view.is_paused and name not in self.holds)
        }

    def holds_cgroup(self, cgroup_id: int) -> bool:
        """Whether we hold it: by itself, or with the tenant it belongs to."""
        return cgroup_id in self._brake.held or any(cgroup_id in told for told in self._told.values())

    def all_held(self) -> set[str]:
        """Tenants that are frozen now, by us or by others."""
        return {*self.holds, *(name for name, view in self._tree.tenants.items() if view.is_paused)}

    def freeze_latency_ns(self) -> dict[str, int]:
        """Measured cost of holding each tenant; a gang costs what its slowest member does."""
        if self._latency_of_changes != self._tree.changes:
            self._latency_of_changes, self._latency_ns = self._tree.changes, {}
            self._latency_dirty = set(self._tree.tenants)
            self._brake.forget_others({ref for view in self._tree.tenants.values() for ref in view.refs})
        for name in self._latency_dirty & self._tree.tenants.keys():
            refs = self._tree.tenants[name].refs
            known = [ns for ref in refs if (ns := self._brake.latency_ns(ref)) is not None]
            self._latency_ns.pop(name, None)
            if known:
                self._latency_ns[name] = max(known)
        self._latency_dirty = set()
        return dict(self._latency_ns)

    def _pretend(self, action: Action, now_ns: int) -> None:
        """What a dry run makes of an action: nobody is frozen, and the account is not told."""
        tenant, held_ns = action.tenant, None
        if action.kind is ActionKind.THAW:
            held_ns = self.dry.end(tenant, now_ns)
            if held_ns is None:
                return
        elif tenant in self.dry.holds:
            return
        else:
            self.dry.holds[tenant] = Hold(tenant, now_ns, action.deadline_ns, is_ours=True)
        self._record(action, now_ns, held_ns, None, is_dry_run=True)
        if action.grant_ns is not None:
            self._pretend(_again(action), now_ns)

    def _end_dry(self, tenants: Iterable[str], code: ReasonCode, now_ns: int) -> None:
        for tenant in sorted(tenants):
            self._pretend(Action(ActionKind.THAW, tenant, Reason(code)), now_ns)

    def _record(
        self,
        action: Action,
        now_ns: int,
        held_ns: int | None,
        error: str | None,
        *,
        is_dry_run: bool = False,
    ) -> None:
        record = DecisionRecord(
            t_ns=now_ns,
            wall_time_s=time.time(),
            action=action.kind,
            tenant=action.tenant,
            reason=action.reason,
            held_ns=held_ns,
            deadline_ns=action.deadline_ns or None,
            is_dry_run=is_dry_run,
            error=error,
        )
        self.records.append(record)
        if error is None:
            (self.dry if is_dry_run else self.real).count(action)
        self._log(record)

    def remembered_tenants(self) -> set[str]:
        return self.real.remembered_tenants() | self.dry.remembered_tenants()

    def forget_tenants(self, names: Collection[str]) -> None:
        self.real.forget_tenants(names)
        self.dry.forget_tenants(names)

    def _log(self, record: DecisionRecord) -> None:
        """A line for each, but no more than a journal is worth; all of them where somebody debugs."""
        suppressed: int | None = 0
        if not logger.isEnabledFor(logging.DEBUG):
            suppressed = self._log_limit.take((record.tenant, record.error is None), record.t_ns)
        if suppressed is None or not logger.isEnabledFor(logging.INFO):
            return
        fields = decision_fields(record)
        if suppressed:
            fields["suppressed"] = suppressed
        logger.info("%s", logfmt(fields), extra={"fields": fields})


def _again(action: Action) -> Action:
    """The hold that follows a thaw with a grant."""
    reason = replace(action.reason, code=ReasonCode.DEEP_QUEUE)
    return replace(action, kind=ActionKind.HOLD, reason=reason, grant_ns=None)
