# SPDX-License-Identifier: Apache-2.0
"""Acts on breaches: tells, has tenants slowed down, has processes ended, each written down before it is done.

Problem: what is done to people must be explainable later, must hit nobody else, and must end with its reason.

Approach: once a round the hands are given all breaches of it. Those that are news are told. Holds (slowing.py) follow
the breaches of this very round. An end (ending.py) is begun when the one before is over, and only if this round still
asks for it. What cannot be written in the audit log is not done, and tried again as long as it is asked for. In a dry
run all of it is written down as what would be done, and nothing is done; one is also while the daemon's own mode is
``dry_run``, which promises to touch nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        self._waiting: dict[Cause, None] = {}
        """Ends that were asked for and are not begun, oldest first."""

    def carry_out(self, breaches: Sequence[Breach], moment: Round, mode: str) -> None:
        """All that this round asks for. ``mode``: the daemon's, in effect. Returns soon."""
        is_acting, now_s = self._is_acting and mode != "dry_run", moment.t_s
        for breach in breaches:
            is_told = breach.act is Act.WARN or (breach.act is Act.HOLD and is_acting)
            if breach.is_news and is_told:
                self._records.write_breach("warned", breach, is_dry=not is_acting)
                self._records.deed(breach, now_s, "told", word="done" if is_acting else "dry_run")
        if is_acting:
            self._slowing.step(breaches, mode, now_s)
        else:
            self._slowing.pretend(breaches, now_s)
        self._collect(now_s)
        self._end(breaches, moment, is_dry=not is_acting)

    def _end(self, breaches: Sequence[Breach], moment: Round, *, is_dry: bool) -> None:
        due = {cause_of(one): one for one in breaches if one.act is Act.END and one.processes}
        for cause, breach in due.items():
            if breach.is_news:
                self._waiting.setdefault(cause)
        self._waiting = {cause: None for cause in self._waiting if cause in due}
        self._records.over("end ", {matter_of(cause) for cause in self._waiting})
        if self._ender.is_busy or not self._waiting:
            return
        cause = next(iter(self._waiting))
        del self._waiting[cause]
        breach = due[cause]
        self._ender.start(EndOrder(breach, moment, is_forced=self._is_forced(breach), is_dry=is_dry))

    def _collect(self, now_s: float) -> None:
        result = self._ender.collect()
        if result is None:
            return
        order = result.order
        cause = cause_of(order.breach)
        if result.is_refused:
            self._waiting.setdefault(cause)  # tried again while it is asked for
            self._records.refused(matter_of(cause), f"nobody is ended: {result.text}", order.breach, now_s)
            return
        self._records.trouble(matter_of(cause), None)
        if order.is_dry:
            self._records.write_breach(
                "would end", order.breach, is_dry=True, detail=result.text, **result.plan
            )
        word = "dry_run" if order.is_dry else "done"
        self._records.deed(order.breach, now_s, result.text, word=word, pids=result.pids)


def matter_of(cause: Cause) -> str:
    """Under which what keeps an end from being done stands in the status."""
    limit, subject, what, gpu = cause
    return f"end {limit} {subject.text} {what.value} {gpu or ''}".rstrip()
