# SPDX-License-Identifier: Apache-2.0
"""Acts on breaches: tells, has tenants slowed down, has processes ended, each written down before it is done.

Problem: what is done to people must be explainable later, must hit nobody else, and must end with its reason.

Approach: once a round the hands are given all breaches of it. Those that are news are told. Holds (slowing.py) follow
the breaches of this very round. An end (ending.py) is begun when the one before is over, and only if it is still no
more than is needed. What cannot be written in the audit log is not done, and tried again in the next round. In a dry
run people are warned, and the rest is written down as what would be done; so it is while the daemon's own mode is
``dry_run``, too, which promises to touch nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fairsched.companion.guard.ending import Ender, EndOrder
from fairsched.companion.guard.records import Cause, Records, cause_of
from fairsched.companion.guard.slowing import Slowing
from fairsched.guard.breach import Act, Breach
from fairsched.guard.sample import Round


class Hands:
    """One thread at a time. ``is_acting``: mode act; ``is_forced``: whether SIGKILL may follow."""

    def __init__(
        self,
        records: Records,
        slowing: Slowing,
        ender: Ender,
        *,
        is_acting: bool,
        is_forced: Callable[[Breach], bool],
    ) -> None:
        self._records, self._slowing, self._ender = records, slowing, ender
        self._is_acting, self._is_forced = is_acting, is_forced
        self._waiting: dict[Cause, Breach] = {}
        """Ends that were asked for and are not begun, oldest first."""
        self._is_dry = True
        """So the last round was carried out: what was asked for in a dry run is not done when it is none any more."""

    def carry_out(self, breaches: Sequence[Breach], moment: Round, mode: str) -> None:
        """All that this round asks for. ``mode``: the daemon's, in effect. Returns soon."""
        is_acting, now_s = self._is_acting and mode != "dry_run", moment.t_s
        if is_acting == self._is_dry:
            self._is_dry = not is_acting
            self._waiting.clear()
        for breach in breaches:
            if breach.is_news and breach.act is not Act.END:  # a hold is a warning as well
                self._records.write_breach("warned", breach)
                self._records.deed(replace(breach, act=Act.WARN), now_s, "told")
        if is_acting:
            self._slowing.step(breaches, mode, now_s)
        else:
            self._slowing.pretend(breaches, now_s)
        self._collect(now_s)
        self._end(breaches, moment, is_dry=not is_acting)

    def _end(self, breaches: Sequence[Breach], moment: Round, *, is_dry: bool) -> None:
        now = {cause_of(one): one for one in breaches}
        self._waiting = {
            cause: then for cause, then in self._waiting.items() if cause in now and _is_due(then, now[cause])
        }
        for cause, breach in now.items():
            if breach.act is Act.END and breach.is_news and breach.processes:
                self._waiting[cause] = breach
        self._records.over("end ", {matter_of(cause) for cause in self._waiting})
        if self._ender.is_busy or not self._waiting:
            return
        breach = self._waiting.pop(next(iter(self._waiting)))
        self._ender.start(EndOrder(breach, moment, is_forced=self._is_forced(breach), is_dry=is_dry))

    def _collect(self, now_s: float) -> None:
        result = self._ender.collect()
        if result is None:
            return
        order = result.order
        cause = cause_of(order.breach)
        if result.is_refused:
            if order.is_dry == self._is_dry:
                self._waiting.setdefault(cause, order.breach)  # tried again while it is due
            self._records.refused(matter_of(cause), f"nobody is ended: {result.text}", order.breach, now_s)
            return
        self._records.trouble(matter_of(cause), None)
        if order.is_dry:
            self._records.write_breach(
                "would end", order.breach, is_dry=True, detail=result.text, **result.plan
            )
        word = "dry_run" if order.is_dry else "done"
        self._records.deed(order.breach, now_s, result.text, word=word, pids=result.pids)


def _is_due(then: Breach, now: Breach) -> bool:
    """Whether an end that was asked for a while ago is still no more than is needed: nothing has become less."""
    there = {one.key for one in now.processes}
    is_less = then.used is not None and now.used is not None and now.used < then.used
    return not is_less and all(one.key in there for one in then.processes)


def matter_of(cause: Cause) -> str:
    """Under which what keeps an end from being done stands in the status."""
    limit, subject, what, gpu = cause
    return f"end {limit} {subject.text} {what.value} {gpu or ''}".rstrip()
