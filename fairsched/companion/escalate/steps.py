# SPDX-License-Identifier: Apache-2.0
"""What a step of the escalation is, and how an order is carried out.

A step looks first (:meth:`Step.prepare`, which changes nothing), says what it will change and how that is taken
back, and only then does it. So a dry run is everything but the last part, and a process that dies in the middle
leaves behind what has to be undone. Steps wait for other machines: they run in a thread of the companion, with
timeouts of their own. One that is given up as hung may wake up later: so a step asks right before each change whether
its order is still open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairsched.companion.escalate.model import Kind, Order, Outcome, Result
from fairsched.errors import FairschedError
from fairsched.protocol.status import StatusReport

logger = logging.getLogger(__name__)


CheckOrder = Callable[[], None]
"""Called by a step right before each change; raises desk.GivenUp when its order was closed meanwhile."""


class NotNow(FairschedError):
    """A precondition is not met: nothing was changed, and it may be another time."""


class StepFailed(FairschedError):
    """It was tried and did not work."""

    def __init__(self, message: str, *, remedy: str = "", is_changed: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.is_changed = is_changed
        """Something was changed and not put back: it stays in force until it is taken back."""


@dataclass(frozen=True)
class Plan:
    """What a step would do now."""

    detail: str
    """For people, in the infinitive: "raise min of chat from 25 % to 27 %"."""
    undo: Mapping[str, Any] = field(default_factory=dict)
    """What :meth:`Step.rollback` needs, as JSON."""
    data: Any = None
    """The step's own."""


class Step(Protocol):
    """One means of the ladder."""

    name: str
    timeout_s: float
    """Longer than all its own timeouts together; after it the step is given up as hung."""

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        """Look, and change nothing. Raises NotNow or StepFailed."""

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        """Do it and say what was done. Raises NotNow when nothing was changed after all, or StepFailed."""

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        """Take back what ``order.undo`` describes, as far as it is still as we left it; may be called again."""


def carry_out(
    step: Step,
    order: Order,
    report: StatusReport | None,
    announce: Callable[[Mapping[str, Any]], None],
    check_order: CheckOrder = lambda: None,
) -> Result:
    """Carry `order` out. Never raises; `announce` is told what will be changed just before it is.

    Without `check_order` the order is one that nobody else can close.
    """
    undo: Mapping[str, Any] | None = None
    try:
        if order.kind is Kind.ROLLBACK:
            if order.is_dry_run:
                return Result(Outcome.DRY_RUN, "would be taken back")
            return Result(Outcome.ROLLED_BACK, step.rollback(order, report, check_order))
        plan = step.prepare(order, report)
        if order.is_dry_run:
            return Result(Outcome.DRY_RUN, f"would {plan.detail}", plan.undo)
        announce(plan.undo)
        undo = plan.undo
        return Result(Outcome.DONE, step.apply(order, plan, check_order), undo)
    except NotNow as error:
        return Result(Outcome.SKIPPED, error.with_remedy())
    except StepFailed as error:
        return Result(
            Outcome.FAILED, error.with_remedy(), undo, is_in_force=error.is_changed and undo is not None
        )
    except FairschedError as error:
        return Result(Outcome.FAILED, error.with_remedy(), undo, is_in_force=undo is not None)
    except Exception as error:
        logger.exception("escalation step=%s failed", step.name)
        return Result(Outcome.FAILED, f"{type(error).__name__}: {error}", undo, is_in_force=undo is not None)
