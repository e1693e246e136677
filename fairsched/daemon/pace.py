# SPDX-License-Identifier: Apache-2.0
"""Chooses when the daemon ticks next.

Problem: a tick costs a cold processor most of a millisecond, and most moments decide nothing.

Approach: often while tenants compete, seldom otherwise, never before anything is likely to be decided, and at the
moments that matter. That a GPU fell idle is one of them only if it stays so: the GPU of a closed loop is idle for a
moment after each step, and nobody is let go for less than ``idle_confirm_ns``. So an idle edge costs a look at one
word of memory, not a tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairsched.config import Config
from fairsched.model import NEVER_NS
from fairsched.policy.decide import Decision

LEAST_INTERVAL_NS = 500_000
"""Between two ticks."""


def next_tick_ns(
    now_ns: int, decision: Decision | None, config: Config, has_holds: bool, drain_end_ns: int | None
) -> int:
    """When to tick next, after a tick at ``now_ns``.

    ``drain_end_ns``: when a GPU falls idle that only a drain keeps busy.
    """
    is_contended = has_holds or (decision is not None and decision.is_contended)
    latest_ns = due_ns = now_ns + config.tick_ms * 1_000_000
    if is_contended:
        due_ns = min(due_ns, now_ns + config.inner_tick_ms * 1_000_000)
    if decision is not None:
        due_ns = max(due_ns, min(decision.quiet_until_ns or 0, latest_ns))
        due_ns = min(due_ns, decision.wake_ns or due_ns)
    if has_holds:
        due_ns = min(due_ns, drain_end_ns or due_ns)
    return max(due_ns, now_ns + LEAST_INTERVAL_NS)


class IdleWatch:
    """Watches the GPUs, by slot, that fell idle since the last tick and may stay so."""

    def __init__(self, confirm_ns: int) -> None:
        self._confirm_ns = confirm_ns
        self.due_ns = NEVER_NS
        """When :meth:`is_confirmed` is worth asking."""
        self._since_ns: dict[int, int] = {}

    def note(self, since_ns: Mapping[int, int]) -> None:
        """Add GPUs that fell idle, and when."""
        self._since_ns.update(since_ns)
        self._set_due()

    def is_confirmed(self, now_ns: int, is_idle: Callable[[int], bool]) -> bool:
        """Whether one has been idle for long enough; those that are busy again are forgotten."""
        self._since_ns = {slot: since for slot, since in self._since_ns.items() if is_idle(slot)}
        self._set_due()
        return self.due_ns <= now_ns

    def take(self) -> dict[int, int]:
        """Since when each is idle, for the tick that comes now; from then on the policy remembers it."""
        taken, self._since_ns, self.due_ns = self._since_ns, {}, NEVER_NS
        return taken

    def _set_due(self) -> None:
        earliest = min(self._since_ns.values(), default=None)
        self.due_ns = NEVER_NS if earliest is None else earliest + self._confirm_ns
