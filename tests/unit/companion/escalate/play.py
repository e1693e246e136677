# SPDX-License-Identifier: Apache-2.0
"""Plays the policy against a world: readings in, orders out, results back, and a record of what happened when.

After every round the state goes through the file's format, as if the process had been started anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fairsched.companion.escalate import policy
from fairsched.companion.escalate.model import (
    QUEUE_DELAY,
    EscalationDecision,
    EscalationLimits,
    Kind,
    Order,
    Outcome,
    Reading,
    Result,
    Rung,
    State,
    Sufferer,
)
from fairsched.companion.escalate.store import decode, encode

START_S = 1_700_000_000.0
LIMITS = EscalationLimits(
    ladder=(Rung("quota", 300.0, 3), Rung("evict", 900.0), Rung("mig", 1800.0)),
    thresholds={QUEUE_DELAY: 20.0},
    max_gap_s=60.0,
    is_dry_run=False,
)


def reading(at_s: float, value: float | None = None, signal: str = QUEUE_DELAY, **more: object) -> Reading:
    values = {} if value is None else {signal: value}
    return replace(Reading(at_s, values, {signal: Sufferer("chat", "GPU-a")}), **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Action:
    """An order and its end, in true time."""

    order: Order
    began_s: float
    ended_s: float
    result: Result
    state_before: State

    @property
    def is_taken(self) -> bool:
        return self.result.outcome in (Outcome.DONE, Outcome.DRY_RUN, Outcome.ROLLED_BACK) or (
            self.result.is_in_force or (self.order.kind is Kind.ROLLBACK and not self.is_skipped)
        )

    @property
    def is_skipped(self) -> bool:
        return self.result.outcome is Outcome.SKIPPED


def succeed(order: Order) -> Result:
    outcome = Outcome.DONE if order.kind is Kind.APPLY else Outcome.ROLLED_BACK
    return Result(Outcome.DRY_RUN if order.is_dry_run else outcome, "did it", {"id": order.id})


@dataclass
class Play:
    """`wall_s` is what the node's clock says, `true_s` what time it is."""

    limits: EscalationLimits = LIMITS
    answer: Callable[[Order], Result] = succeed
    takes_s: float = 1.0
    is_restarting: bool = True
    """After every round."""
    mode: str = "enforce"
    """The daemon's."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """Of all readings."""
    state: State = field(default_factory=State)
    wall_s: float = START_S
    true_s: float = 0.0
    readings: list[tuple[float, Reading]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    last: EscalationDecision | None = None

    def see(self, value: float | None, *, after_s: float = 30.0, is_idle: bool = False) -> Order | None:
        """One reading, `after_s` after the last one; an order is carried out at once."""
        self.pass_by(after_s)
        seen = reading(self.wall_s, value, is_idle=is_idle, mode=self.mode, floors=self.floors)
        self.readings.append((self.true_s, seen))
        before = self.state
        self.last = policy.decide(self.limits, self.state, seen)
        self.notes += self.last.notes
        self.state = self.last.state
        order = self.last.order
        if order is not None:
            result = self.answer(order)
            began_s = self.true_s
            self.pass_by(self.takes_s)
            self.state = policy.settle(self.limits, self.state, result, self.wall_s)
            self.actions.append(Action(order, began_s, self.true_s, result, before))
        if self.is_restarting:
            restored = decode(encode(self.state))
            assert restored == self.state
            self.state = restored
        return order

    def see_for(self, value: float | None, for_s: float, *, every_s: float = 30.0) -> list[Order]:
        """The same reading for a while; the orders it led to."""
        count = round(for_s / every_s)
        return [
            order for order in (self.see(value, after_s=every_s) for _ in range(count)) if order is not None
        ]

    def pass_by(self, for_s: float) -> None:
        self.wall_s += for_s
        self.true_s += for_s

    def orders(self, kind: Kind | None = None) -> list[tuple[str, str]]:
        """(kind, step) of all actions so far."""
        return [(a.order.kind.value, a.order.step) for a in self.actions if kind in (None, a.order.kind)]
