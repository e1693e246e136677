# SPDX-License-Identifier: Apache-2.0
"""Keeps the books of the escalation in step: the state in memory, the state on disk, and the audit.

Whoever acts, the companion or a person at the command line, does so through a desk and while holding the store's lock:

    refresh   what others have saved; an order that is not carried out any more is closed as interrupted
    begin     the order is on disk and in the audit before anything is done
    announce  what will be changed is on disk before it is changed
    check     before each change: is the order still pending?
    end       what became of it

A write that fails raises OSError before the deed, so nothing is done that could not be written down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from fairsched.companion.escalate import policy
from fairsched.companion.escalate.audit import Audit
from fairsched.companion.escalate.model import (
    EscalationDecision,
    EscalationLimits,
    Order,
    Reading,
    Result,
    State,
)
from fairsched.companion.escalate.store import Store
from fairsched.errors import FairschedError
from fairsched.protocol.status import to_plain

logger = logging.getLogger(__name__)


class GivenUp(FairschedError):
    """The order was closed meanwhile: whoever still carries it out must stop."""


class EscalationDesk:
    """Keeps state and audit in step. `by` says in the audit who acts. Safe to use from several threads."""

    def __init__(self, limits: EscalationLimits, store: Store, audit: Audit, by: str) -> None:
        self.limits = limits
        self.store = store
        self.state = State()
        self._audit = audit
        self._by = by
        self._stamp: object = object()
        self._mutex = threading.Lock()

    def refresh(self, now_s: float) -> None:
        """Take in what is on disk. Hold the lock. Raises StateDamaged or OSError."""
        with self._mutex:
            stamp = self.store.stamp()
            if stamp == self._stamp:
                return
            state = self.store.load()
            order = state.pending
            if order is not None:
                result = policy.interrupted(state)
                self._write_result(order, result, now_s, None)
                state = policy.settle(self.limits, state, result, now_s)
            self._save(state)

    def decide(self, reading: Reading) -> EscalationDecision:
        """Ask the policy. Without an order its state is kept, in memory until the next save; with one: see `begin`."""
        with self._mutex:
            decision = policy.decide(self.limits, self.state, reading)
            if decision.order is None:
                self.state = decision.state
            return decision

    def show(self) -> None:
        """Let others see the state now; may be lost in a power cut. Raises OSError."""
        with self._mutex:
            self._save(self.state, is_durable=False)

    def note(self, text: str, now_s: float) -> None:
        """Something that must be said once. Raises OSError."""
        self._audit.write("note", now_s, {"text": text, "by": self._by})
        logger.warning("escalation=note text=%r", text)

    def begin(self, state: State, order: Order) -> None:
        """`state` is the one in which `order` is pending. Raises OSError; then nothing has begun."""
        with self._mutex:
            self._audit.write("order", order.at_s, {**to_plain(order), "by": self._by})
            self._save(state)
        logger.warning(
            "escalation=%s step=%s id=%d dry_run=%s tenant=%s why=%r",
            order.kind.value,
            order.step,
            order.id,
            order.is_dry_run,
            order.tenant,
            order.why,
        )

    def announce(self, order: Order, undo: Mapping[str, Any]) -> None:
        """Raises GivenUp when the order is not pending any more, OSError when it cannot be written down."""
        with self._mutex:
            self._check(order)
            self._save(policy.announce(self.state, undo))

    def check(self, order: Order) -> None:
        """See steps.CheckOrder. Raises GivenUp when the order is not pending any more."""
        with self._mutex:
            self._check(order)

    def end(self, order: Order, result: Result, now_s: float, took_s: float) -> None:
        """Close the pending order. Raises OSError; it is closed in memory all the same."""
        with self._mutex:
            self.state = policy.settle(self.limits, self.state, result, now_s)
            self._save(self.state)
            self._write_result(order, result, now_s, took_s)

    def announced(self) -> Mapping[str, Any] | None:
        """What the pending order said it would change; None = nothing yet."""
        with self._mutex:
            return self.state.pending_undo

    def _check(self, order: Order) -> None:
        if self.state.pending is None or self.state.pending.id != order.id:
            raise GivenUp(f"order {order.id} was given up")

    def _save(self, state: State, *, is_durable: bool = True) -> None:
        self.state = state
        self.store.save(state, is_durable=is_durable)
        self._stamp = self.store.stamp()

    def _write_result(self, order: Order, result: Result, now_s: float, took_s: float | None) -> None:
        logger.warning(
            "escalation=%s step=%s id=%d outcome=%s detail=%r",
            order.kind.value,
            order.step,
            order.id,
            result.outcome.value,
            result.detail,
        )
        entry = {
            "id": order.id,
            "kind": order.kind.value,
            "step": order.step,
            "is_dry_run": order.is_dry_run,
            "tenant": order.tenant,
            "outcome": result.outcome.value,
            "detail": result.detail,
            "undo": result.undo,
            "undoes": order.undoes,
            "took_s": None if took_s is None else round(took_s, 3),
            "by": self._by,
        }
        self._audit.write("result", now_s, entry)
