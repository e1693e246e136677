# SPDX-License-Identifier: Apache-2.0
"""The words of the escalation: what was measured, what is allowed, what was done, what is to be done.

Plain, immutable data and nothing else, so that ``policy`` may be pure. Times ``_s`` are Unix seconds (the state has
to survive a reboot, and CLOCK_MONOTONIC does not), durations are ``_for_s`` or named so; ``_ratio`` is 0..1. What
is not known is absent or None, never 0.

Terms. A *signal* is a measure with a threshold. An *episode* lasts from a signal having been bad for long enough
until all are clear. The *ladder* is the list of steps in the order in which they are tried, a *rung* one of them.
An *action* is one step taken or undone. What was taken and not undone yet is *in force*.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUEUE_DELAY = "queue_delay_p99_ms"
TOKEN_CV = "token_rate_cv_ratio"
SIGNALS = (QUEUE_DELAY, TOKEN_CV)
ENFORCE = "enforce"
"""The only mode of the daemon in which a step is taken for real."""


class Kind(str, enum.Enum):
    """What an order asks for."""

    APPLY = "apply"
    ROLLBACK = "rollback"


class Outcome(str, enum.Enum):
    """How an order ended; the word in the audit, in metrics and on the screen."""

    DONE = "done"
    DRY_RUN = "dry_run"
    """Everything was checked and nothing was changed."""
    SKIPPED = "skipped"
    """A precondition was not met; nothing was changed."""
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True)
class Sufferer:
    """Whom a step is to help."""

    tenant: str
    gpu: str | None = None
    """UUID of the GPU on which it is owed most; None = not known."""


@dataclass(frozen=True)
class Reading:
    """The signals at one moment."""

    at_s: float
    values: Mapping[str, float] = field(default_factory=dict)
    """By signal; absent = not known now."""
    sufferers: Mapping[str, Sufferer] = field(default_factory=dict)
    """By signal: the tenant that is worst off."""
    is_idle: bool = False
    """No tenant has demand: none can suffer."""
    mode: str = ENFORCE
    """The daemon's mode in effect; in any other one orders are dry runs."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """By signal: what it may be although all is fair. A lower threshold counts as this."""


@dataclass(frozen=True)
class Rung:
    """One step of the ladder."""

    step: str
    cool_down_s: float
    """Least time from an action of this step to the next one of it, either way."""
    max_in_force: int = 1
    """It is repeated on the same rung until so many are in force."""
    lapse_s: float | None = None
    """Undone after so long, whatever the signals say; None = when they are clear."""


@dataclass(frozen=True)
class EscalationLimits:
    """What the configuration allows."""

    ladder: tuple[Rung, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """By signal: bad above it, and above its floor. A signal without one is not looked at."""
    clear_ratio: float = 0.8
    """Clear at or below this part of the threshold; between the two the clocks stand still."""
    bad_for_s: float = 180.0
    clear_for_s: float = 300.0
    cool_down_s: float = 300.0
    """Least time between two actions of any kind."""
    max_actions_per_hour: int = 4
    again_s: float = 3600.0
    """The ladder is climbed anew so long after its end was reached, if things are still bad."""
    max_gap_s: float = 30.0
    """Readings further apart than this prove nothing of the time between them."""
    is_dry_run: bool = True
    """As configured; the daemon's mode has its say as well, see Reading.mode."""


@dataclass(frozen=True)
class Cause:
    """Why an order was given, with the numbers."""

    signal: str
    value: float
    threshold: float
    for_s: float


@dataclass(frozen=True)
class Order:
    """One thing to do now."""

    id: int
    kind: Kind
    step: str
    at_s: float
    is_dry_run: bool
    why: str
    """One sentence for people."""
    cause: Cause | None = None
    """APPLY only."""
    tenant: str | None = None
    gpu: str | None = None
    earlier: tuple[Mapping[str, Any], ...] = ()
    """APPLY: what the same step wrote down each time that is in force now, oldest first."""
    undo: Mapping[str, Any] | None = None
    """ROLLBACK: what the step wrote down when it was taken."""
    undoes: int | None = None
    """ROLLBACK: id of the order that is undone."""


@dataclass(frozen=True)
class StepInForce:
    """A step that was taken and not undone."""

    id: int
    step: str
    at_s: float
    is_dry_run: bool
    tenant: str | None = None
    gpu: str | None = None
    undo: Mapping[str, Any] | None = None
    detail: str = ""
    failed_rollbacks: int = 0
    next_try_s: float = 0.0


@dataclass(frozen=True)
class Result:
    """What became of an order."""

    outcome: Outcome
    detail: str
    """What was done, or why not, for people."""
    undo: Mapping[str, Any] | None = None
    is_in_force: bool = False
    """Something may have been changed although it failed: it has to be undone some day."""


@dataclass(frozen=True)
class State:
    """Everything the policy remembers; it is kept on disk."""

    last_s: float | None = None
    """Of the last reading."""
    mode: str | None = None
    """The daemon's, when an order could last have been given; None = never yet."""
    bad_for_s: Mapping[str, float] = field(default_factory=dict)
    """By signal: how long it has been above its threshold without having been clear in between."""
    known_s: Mapping[str, float] = field(default_factory=dict)
    """By signal: when it was known last."""
    clear_for_s: float = 0.0
    """How long all signals have been clear."""
    rung: int | None = None
    """Of the ladder, to be tried next; its length = the end was reached; None = no episode."""
    ended_s: float | None = None
    """When the end of the ladder was reached."""
    in_force: tuple[StepInForce, ...] = ()
    """Oldest first."""
    pending: Order | None = None
    """Given and not settled."""
    pending_undo: Mapping[str, Any] | None = None
    """What the pending step has announced that it will change."""
    actions_s: tuple[float, ...] = ()
    """When the actions of the last hour began."""
    last_action_s: float | None = None
    """When the last action ended."""
    last_by_step: Mapping[str, float] = field(default_factory=dict)
    """The same for each step."""
    relapses: Mapping[str, int] = field(default_factory=dict)
    """By step: how often it had to be taken again soon after it was undone."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """By "step/outcome", since the state was made."""
    serial: int = 0
    """Of the last order."""


@dataclass(frozen=True)
class EscalationDecision:
    """What follows from one reading."""

    state: State
    order: Order | None = None
    notes: tuple[str, ...] = ()
    """What changed and must be said once: an episode began, a rung was passed over, the ladder ended."""
    waiting: str | None = None
    """Why nothing is done although something would be; for the status."""
