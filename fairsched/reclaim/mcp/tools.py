# SPDX-License-Identifier: Apache-2.0
"""The tools, without the protocol: plain data in, plain data out, blocking.

Acting goes by :meth:`Tools.confirm_reclaim` alone. It plans anew and acts only where that plan has exactly the
processes of the old one that have not ended: nobody is added (a child forked since, a client that joined an MPS
server), and nobody is ended who is no longer meant. What is signalled was pinned when the plan was made,
and its pin still holds. Children that are forked from then on end with their parents, as with ``fairsched reclaim``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairsched.base.files import sync_directory
from fairsched.base.text import counted
from fairsched.reclaim.audit import Audit, AuditRefused
from fairsched.reclaim.holder import Holder
from fairsched.reclaim.listing import Lister
from fairsched.reclaim.mcp import shape
from fairsched.reclaim.mcp.arguments import (
    MAX_PIDS,
    Arguments,
    AuditArguments,
    ConfirmArguments,
    ListArguments,
    PlanArguments,
    TenantArguments,
)
from fairsched.reclaim.mcp.host import Caller, CallersAudit, Host
from fairsched.reclaim.mcp.plans import Kept, PlanRefused, Plans, digest_of, new_id
from fairsched.reclaim.plan import Plan
from fairsched.reclaim.session import Prepared
from fairsched.reclaim.who import who

SORTS: Mapping[str, Callable[[Holder], float]] = {
    "time": lambda one: -(one.status.gpu_time_s or 0.0),
    "vram": lambda one: -(one.vram_bytes or 0),
    "age": lambda one: -(one.age_s or 0.0),
    "idle": lambda one: -(one.idle_s or 0.0),
    "pid": lambda one: one.pid,
}
HOW_BY_HAND = (
    "this server only reads; a person ends processes with: sudo fairsched reclaim --pid PID:START_TICKS --yes"
)


class Tools:
    """Safe for several threads. ``may_act``: plans can be confirmed. Call :meth:`close`."""

    def __init__(self, host: Host, plans: Plans | None = None, *, may_act: bool = False) -> None:
        self._host, self._may_act = host, may_act
        self.plans = plans or Plans()
        self._acting = threading.Lock()

    def close(self) -> None:
        self.plans.close()

    # ---- reading ----

    def list_gpu_processes(self, asked: ListArguments, _caller: Caller) -> shape.Plain:
        with self._lister() as lister:
            listing = lister.look(has_openers=False)
        passes = asked.passes(listing.gpus)
        key = SORTS[asked.sort]
        found = sorted(filter(passes, listing.holders), key=lambda one: (key(one), one.pid))
        shown = found[asked.offset : asked.offset + asked.limit]
        return {
            "gpus": [shape.gpu_view(view) for view in listing.gpus[: shape.MAX_ITEMS]],
            "processes": [shape.process(one) for one in shown],
            "total": len(found),
            "offset": asked.offset,
        }

    def gpu_status(self, _asked: Arguments, _caller: Caller) -> shape.Plain:
        report = self._host.status()
        if report is not None:
            return shape.status(report)
        with self._lister() as lister:
            listing = lister.look(has_openers=False)
        gpus = [shape.gpu_view(view) for view in listing.gpus[: shape.MAX_ITEMS]]
        return {
            "is_daemon_running": False,
            "gpus": gpus,
            "processes": len({one.pid for one in listing.holders}),
        }

    def explain_tenant(self, asked: TenantArguments, _caller: Caller) -> shape.Plain:
        records = self._host.explain(asked.tenant)
        return {"window_s": 60, "total": len(records), "untrusted": shape.clean({"decisions": records[-50:]})}

    def audit_entries(self, asked: AuditArguments, _caller: Caller) -> shape.Plain:
        entries = deque(Audit(self._host.audit_directory).entries(), maxlen=asked.last)
        return {"entries": [shape.audit_entry(entry) for entry in entries]}

    # ---- acting, in two steps ----

    def plan_reclaim(self, asked: PlanArguments, caller: Caller) -> shape.Plain:
        """The first step: nothing is done."""
        if asked.is_all:
            raise PlanRefused(
                "nobody_named",
                "say whom",
                remedy="give pids, tenant, container, gpu, filter or name_contains",
            )
        if self._may_act and not self.plans.may_write():
            raise PlanRefused("too_many_plans", "too many plans in this minute", remedy="wait a minute")
        with contextlib.ExitStack() as stack:
            lister = stack.enter_context(self._lister())
            wish = asked.wish(lister.look(has_openers=False))
            prepared = self._host.session(lister).prepare(wish)
            stack.callback(prepared.close)
            found = self._plain(prepared, asked)
            if not prepared.plan.targets or not self._may_act:
                return found
            if len(prepared.plan.targets) > MAX_PIDS:
                raise PlanRefused("too_many", f"more than {MAX_PIDS} processes are meant", remedy="narrow it")
            plan_id = new_id()
            targets = [
                {"pid": one.pid, "start_ticks": one.facts.start_ticks} for one in prepared.plan.targets
            ]
            intent = {
                "who": who(),
                "asked": wish.text,
                "why": asked.reason,
                "is_forced": asked.is_forced,
                "grace_s": asked.grace_s,
                "targets": targets,
            }
            digest = digest_of(plan_id)[:16]
            summary = f"plan {digest} asked={wish.text!r} would end: {[one['pid'] for one in targets]}"
            CallersAudit(self._host.audit_directory, caller, digest).write("plan", intent, summary)
            stack.pop_all()  # the plan owns its pins now
            lister.nvml.close()
            kept = self.plans.keep(plan_id, caller.session, asked, wish, prepared)
            return {**found, **self._offer(plan_id, kept)}

    def confirm_reclaim(self, asked: ConfirmArguments, caller: Caller) -> shape.Plain:
        """The second step: ends exactly the processes of a plan."""
        if not self._may_act:
            raise PlanRefused("not_enabled", "this server only reads", remedy="start it with --allow-reclaim")
        if not self._acting.acquire(blocking=False):
            raise PlanRefused(
                "busy", "another confirmation is being carried out", remedy="wait for its answer"
            )
        try:
            return self._confirm(asked, caller)
        except PlanRefused as error:
            self._note_refusal(asked, caller, error)
            raise
        finally:
            self._acting.release()

    def _confirm(self, asked: ConfirmArguments, caller: Caller) -> shape.Plain:
        kept = self.plans.take(asked.plan_id, caller.session)
        with contextlib.ExitStack() as stack:
            stack.callback(kept.prepared.close)
            if sorted(set(asked.pids)) != kept.pids:
                raise PlanRefused(
                    "other_pids", "these are not the pids of that plan, which is used up", remedy="plan again"
                )
            lister = stack.enter_context(self._lister())
            session = self._host.session(lister)
            now = session.prepare(kept.wish)
            stack.callback(now.close)
            exact = _same(kept, now)
            gone = sorted(set(kept.pids) - {one.pid for one in exact.plan.targets})
            if not exact.plan.targets:
                return {"is_done": False, "is_whole": True, "ended_before": gone, "processes": [], "gpus": []}
            outcome = session.act(
                exact,
                kept.wish,
                CallersAudit(self._host.audit_directory, caller, kept.digest),
                reason=kept.asked.reason,
                is_forced=kept.asked.is_forced,
                grace_s=float(kept.asked.grace_s),
            )
        return {
            "is_done": True,
            "is_whole": outcome.is_whole,
            "ended_before": gone,
            "processes": [shape.ended(one) for one in outcome.ended],
            "gpus": [shape.gpu_check(one) for one in outcome.gpus],
            "untrusted": shape.clean({"warnings": outcome.warnings}),
        }

    def _note_refusal(self, asked: ConfirmArguments, caller: Caller, error: PlanRefused) -> None:
        """In the audit log, so far as it can be written and has not got too many of these in this minute."""
        if not self.plans.may_write():
            return
        audit = CallersAudit(self._host.audit_directory, caller, digest_of(asked.plan_id)[:16])
        entry = {"who": who(), "code": error.code, "pids": asked.pids}
        with contextlib.suppress(AuditRefused):
            audit.write("refused", entry, f"refused confirmation code={error.code}")

    def _plain(self, prepared: Prepared, asked: PlanArguments) -> shape.Plain:
        plan = prepared.plan
        return {
            "plan_id": None,
            "is_done": False,
            "pids": sorted(one.pid for one in plan.targets),
            "vram_bytes": sum(one.vram_bytes for one in plan.targets),
            "targets": [shape.target(one) for one in plan.targets[:MAX_PIDS]],
            "left": [shape.left(one) for one in plan.left[:MAX_PIDS]],
            "is_forced": asked.is_forced,
            "grace_s": asked.grace_s,
            "note": "nothing was done" if self._may_act else f"nothing was done: {HOW_BY_HAND}",
        }

    def _offer(self, plan_id: str, kept: Kept) -> shape.Plain:
        force = ", then SIGKILL" if kept.asked.is_forced else ", and no SIGKILL"
        count = counted(len(kept.pids), "process", "processes")
        return {
            "plan_id": plan_id,
            "expires_in_s": round(self.plans.expiry_s),
            "confirm_with": {"tool": "confirm_reclaim", "plan_id": plan_id, "pids": kept.pids},
            "note": f"nothing was done; confirming sends SIGTERM to {count}{force}; ask a person first",
        }

    @contextlib.contextmanager
    def _lister(self) -> Iterator[Lister]:
        lister = self._host.lister()
        try:
            yield lister
        finally:
            lister.nvml.close()


def check_audit(host: Host) -> None:
    """Raises AuditRefused where the audit log cannot be written: then this server need not start to act."""
    directory = host.audit_directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(directory)
        is_writable = os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise AuditRefused(
            f"{directory}: the audit log cannot be written, so nothing can be reclaimed", remedy="use sudo"
        )


def _same(kept: Kept, now: Prepared) -> Prepared:
    """The new plan, if it has just those of the old one that live. Raises PlanRefused."""
    old = {one.pid: one.facts.start_ticks for one in kept.prepared.plan.targets}
    fresh = {one.pid: one.facts.start_ticks for one in now.plan.targets}
    added = sorted(pid for pid, ticks in fresh.items() if old.get(pid) != ticks)
    # after the new plan: who ends while it is made is nobody that it misses
    living = {pid for pid in old if not kept.prepared.pins[pid].is_over}
    missing = sorted(living - set(fresh))
    if added or missing:
        raise PlanRefused(
            "changed",
            f"it is not the same any more (added: {added[:20]}, no longer meant: {missing[:20]}); nothing was done",
            remedy="plan again",
        )
    targets = tuple(one for one in now.plan.targets if one.pid in living)
    return dataclasses.replace(now, plan=Plan(targets, now.plan.left))


Tool = Callable[[Tools, Any, Caller], dict[str, Any]]
