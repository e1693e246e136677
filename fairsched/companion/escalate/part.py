# SPDX-License-Identifier: Apache-2.0
"""Escalation as a part of the companion: reads the signals, asks the policy, has one thread act.

The round is never held up: an order is carried out in a thread of its own, and the next ``take`` looks whether it
is done. A step that outlasts its time is given up: its order is closed as failed, what it announced counts as in
force, and the thread, should it ever come back, changes nothing more, since a step asks before each change whether its
order is still open. A single change that was on its way is not called back: a request that the API server has, a GPU
that is being split. While one hangs, that step is not tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.companion.escalate import policy
from fairsched.companion.escalate.desk import EscalationDesk
from fairsched.companion.escalate.model import ENFORCE, Order, Outcome, Result, State
from fairsched.companion.escalate.reading import read
from fairsched.companion.escalate.steps import Step, carry_out
from fairsched.companion.part import Finding, Moment
from fairsched.protocol.status import StatusReport

_SHOW_S = 10.0
"""How often the clocks are written out for ``fairsched escalation status``."""


@dataclass
class _Job:
    """An order on its way."""

    order: Order
    began_s: float
    """CLOCK_MONOTONIC, as is `end_s`."""
    end_s: float
    result: Result | None = None
    thread: threading.Thread | None = None
    done: threading.Event = field(default_factory=threading.Event)


class EscalationPart:
    """See companion.part.Part."""

    name = "escalation"
    wants_decisions = False

    def __init__(
        self,
        desk: EscalationDesk,
        steps: Mapping[str, Step],
        *,
        interval_s: float = 2.0,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self._desk = desk
        self._steps = steps
        self._wall = wall
        self._clock = clock
        self._job: _Job | None = None
        self._hung: dict[str, threading.Thread] = {}
        self._shown_s = -_SHOW_S

    def take(self, moment: Moment) -> Finding | None:
        """One round. Raises OSError or StateDamaged when the books cannot be kept; then nothing is done."""
        if self._job is None and not self._desk.store.lock():
            return self._finding("somebody acts by hand: fairsched escalation")
        try:
            self._round(moment.report)
        finally:
            if self._job is None:
                self._desk.store.unlock()
        return self._finding(None)

    def rows(self) -> list[tuple[str, tuple[str, ...], float]]:
        """For the exporter: family, labels, value. Called from its thread."""
        state = self._desk.state
        level = float(policy.level(self._desk.limits, state))
        found: list[tuple[str, tuple[str, ...], float]] = [("fairsched_escalation_level", (), level)]
        for key, count in state.counts.items():
            step, _, outcome = key.partition("/")
            found.append(("fairsched_escalation_steps", (step, outcome), float(count)))
        return found

    def close(self) -> None:
        """An order on its way stays pending on disk: the next companion closes it as interrupted."""
        if self._job is None:
            self._desk.store.unlock()

    def _round(self, report: StatusReport) -> None:
        desk = self._desk
        if self._job is None:
            desk.refresh(self._wall())
        else:
            self._collect(self._job)
        decision = desk.decide(read(report))
        for note in decision.notes:
            desk.note(note, self._wall())
        if decision.order is not None:
            desk.begin(decision.state, decision.order)
            self._start(decision.order, report)
            return
        is_due = self._clock() - self._shown_s >= _SHOW_S and _is_interesting(decision.state)
        if decision.notes or is_due:
            self._shown_s = self._clock()
            desk.show()

    def _start(self, order: Order, report: StatusReport) -> None:
        step = self._steps.get(order.step)
        now_s = self._clock()
        job = _Job(order, now_s, now_s + (step.timeout_s if step is not None else 0.0))
        hung = self._hung.get(order.step)
        self._job = job
        if step is None:
            job.result = Result(Outcome.SKIPPED, f"{order.step} is not configured any more")
            job.done.set()
        elif hung is not None and hung.is_alive():
            job.result = Result(Outcome.SKIPPED, f"{order.step} still hangs from an earlier order")
            job.done.set()
        else:
            job.thread = threading.Thread(
                target=self._carry_out, args=(job, step, report), name=f"escalation-{order.step}", daemon=True
            )
            job.thread.start()

    def _carry_out(self, job: _Job, step: Step, report: StatusReport) -> None:
        def announce(undo: Mapping[str, Any]) -> None:
            self._desk.announce(job.order, undo)

        job.result = carry_out(step, job.order, report, announce, lambda: self._desk.check(job.order))
        job.done.set()

    def _collect(self, job: _Job) -> None:
        """Close the order if it is done, or has taken too long."""
        now_s = self._clock()
        if not job.done.is_set():
            if now_s < job.end_s:
                return
            if job.thread is not None:
                self._hung[job.order.step] = job.thread
            undo = self._desk.announced()
            result = Result(
                Outcome.FAILED,
                f"hangs: no end after {now_s - job.began_s:.0f} s",
                undo=undo,
                is_in_force=undo is not None,
            )
        else:
            assert job.result is not None
            result = job.result
        self._job = None
        self._desk.end(job.order, result, self._wall(), now_s - job.began_s)

    def _finding(self, fault: str | None) -> Finding:
        """What a person must know; shown among the warnings of ``fairsched status``."""
        state, faults = self._desk.state, []
        real = [one.step for one in state.in_force if not one.is_dry_run]
        if fault is not None:
            faults.append(f"escalation: {fault}")
        if real:
            stays = "" if state.mode in (None, ENFORCE) else f", and stays so in mode {state.mode}"
            faults.append(f"escalation: in force: {', '.join(real)}{stays}; see fairsched escalation status")
        if state.rung is not None and state.rung >= len(self._desk.limits.ladder) > 0:
            faults.append("escalation: the end of the ladder is reached, and it is still bad")
        return Finding(faults=faults)


def _is_interesting(state: State) -> bool:
    return bool(state.bad_for_s or state.in_force or state.rung is not None)
