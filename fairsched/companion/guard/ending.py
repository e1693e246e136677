# SPDX-License-Identifier: Apache-2.0
"""Ends the processes that a breach names, by the means of ``fairsched reclaim``, in a thread beside the rounds.

Problem: to end a process takes a grace of half a minute, and meanwhile others come under their limits and want their
quota back. And a plan of reclaim ends descendants, too, of which a limit may know nothing.

Approach: one end at a time, in a thread of its own, through a session of reclaim: pins, a plan, the audit log before
the first signal, SIGTERM, grace, SIGKILL where the limit is forced, a look whether the memory is back. From the plan
everybody is taken out who is not named by the breach and is of another user, is allowed, or holds a GPU and was not in
the round: what is not known of somebody is no reason to end it.

Terms: *named* are the processes of the breach, by pid and start time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fairsched.base.text import counted
from fairsched.companion.guard.records import text_of
from fairsched.errors import FairschedError
from fairsched.guard.allow import Allow
from fairsched.guard.breach import Breach
from fairsched.guard.sample import Process, Round
from fairsched.reclaim.audit import Audit
from fairsched.reclaim.end import GRACE_S
from fairsched.reclaim.holder import Holder, Listing
from fairsched.reclaim.plan import Left, Plan, Target
from fairsched.reclaim.session import Outcome, Prepared, Session, Wish

Key = tuple[int, int]
"""Pid, start time in ticks."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EndOrder:
    """An end that is due."""

    breach: Breach
    moment: Round
    """In which it is."""
    is_forced: bool = False
    is_dry: bool = False


@dataclass(frozen=True)
class EndResult:
    """What came of it, or would."""

    order: EndOrder
    text: str
    """A sentence."""
    is_refused: bool = False
    """Nothing was done, and it may be tried again: it could not be written down, or nobody could be looked at."""
    pids: tuple[int, ...] = ()
    """Of those that were signalled, or would be."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Targets and those left, for the audit log of a dry run."""


class Ender(Protocol):
    """Carries out one order at a time."""

    @property
    def is_busy(self) -> bool:
        """It is at it, or its result was not collected."""

    def start(self, order: EndOrder) -> None:
        """Begin; not while it is busy."""

    def collect(self) -> EndResult | None:
        """What came of the last order, once; None = it is not over, or there is none."""


class Reclaimer:
    """An :class:`Ender`. ``session``: a new one for each order; raises FairschedError where nobody can be looked at."""

    def __init__(
        self, session: Callable[[], Session], audit: Audit, allow: Allow, grace_s: float = GRACE_S
    ) -> None:
        self._session, self._audit, self._allow, self._grace_s = session, audit, allow, grace_s
        self._thread: threading.Thread | None = None
        self._result: EndResult | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def start(self, order: EndOrder) -> None:
        self._thread = threading.Thread(target=self._run, args=(order,), name="guard-end", daemon=True)
        self._thread.start()

    def collect(self) -> EndResult | None:
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        result, self._result = self._result, None
        return result

    def _run(self, order: EndOrder) -> None:
        try:
            self._result = self.carry_out(order)
        except FairschedError as error:
            self._result = EndResult(order, text_of(error), is_refused=True)
        except Exception as error:
            logger.exception("guard end failed")
            self._result = EndResult(order, f"{type(error).__name__}: {error}", is_refused=True)

    def carry_out(self, order: EndOrder) -> EndResult:
        """From the look to the check. Raises FairschedError when nothing was done."""
        breach, session = order.breach, self._session()
        wish = wish_of(breach)
        with contextlib.closing(session.prepare(wish)) as prepared:
            spared = spare(prepared, order, self._allow)
            pids = tuple(one.pid for one in spared.plan.targets)
            if not pids:
                return EndResult(order, f"nobody is ended: {_why_nobody(spared.plan)}")
            if order.is_dry:
                plan = {
                    "targets": [one.plain() for one in spared.plan.targets],
                    "left": [vars(one) for one in spared.plan.left],
                }
                return EndResult(order, f"would end {_named(spared.plan)}", pids=pids, plan=plan)
            outcome = session.act(
                spared,
                wish,
                self._audit,
                reason=breach.text,
                is_forced=order.is_forced,
                grace_s=self._grace_s,
            )
        return EndResult(order, text_of_outcome(outcome, spared.plan), pids=pids)


def wish_of(breach: Breach) -> Wish:
    """What is asked of reclaim: the processes that are named, and only those that hold a GPU now."""
    named = {(one.pid, one.start_ticks) for one in breach.processes}

    def choose(listing: Listing) -> list[Holder]:
        return [
            one
            for one in listing.holders
            if one.facts is not None and (one.facts.pid, one.facts.start_ticks) in named
        ]

    asked = f"guard: limit {breach.limit}, {breach.what.value} of {breach.subject.text}"
    return Wish(choose, asked)


def spare(prepared: Prepared, order: EndOrder, allow: Allow) -> Prepared:
    """The plan without those who are none of the breach's business."""
    named = {(one.pid, one.start_ticks): one for one in order.breach.processes}
    uids = {one.uid for one in named.values()}
    seen = {(one.process.pid, one.process.start_ticks): one.process for one in order.moment.samples}
    kept, left = list[Target](), list[Left]()
    for target in prepared.plan.targets:
        why = _why_spared(target, named, uids, seen, allow)
        if why is None:
            kept.append(target)
        else:
            left.append(Left(target.pid, target.facts.name, why))
    plan = Plan(tuple(kept), (*prepared.plan.left, *left))
    # Who is left is protected as well: the end looks for descendants again, until all have ended.
    never = {**prepared.protected, **{one.pid: one.why for one in left}}
    return replace(prepared, plan=plan, protected=never)


def _why_spared(
    target: Target,
    named: Mapping[Key, Process],
    uids: set[int | None],
    seen: Mapping[Key, Process],
    allow: Allow,
) -> str | None:
    key = (target.facts.pid, target.facts.start_ticks)
    process = named.get(key) or seen.get(key)
    if process is not None:
        by = allow.why(process)
        if by is not None:
            return f"allowed by {by}"
    if key in named:
        return None
    if target.facts.uid not in uids:
        return "a descendant of another user"
    if target.holds and process is None:
        return "a descendant that came to the GPU after the limit was looked at"
    return None


def text_of_outcome(outcome: Outcome, plan: Plan) -> str:
    """``2 of 2 ended: 4711 (python) ended, ...``."""
    over = sum(one.fate.is_over for one in outcome.ended)
    whom = ", ".join(
        f"{one.target.pid} ({one.target.facts.name}) {one.fate.value}{f': {one.why}' if one.why else ''}"
        for one in outcome.ended[:8]
    )
    refused = [one for one in plan.left if one.is_refused]
    rest = f"; {counted(len(refused), 'process', 'processes')} left with a reason" if refused else ""
    return f"{over} of {len(outcome.ended)} ended: {whom}{rest}"


def _named(plan: Plan) -> str:
    return ", ".join(f"{one.pid} ({one.facts.name})" for one in plan.targets[:8])


def _why_nobody(plan: Plan) -> str:
    if not plan.left:
        return "those that are meant hold no GPU any more"
    return "; ".join(f"{one.pid} ({one.name}): {one.why}" for one in plan.left[:4])
