# SPDX-License-Identifier: Apache-2.0
"""Counts holds of one kind: those that last, and how often and for how long each tenant was held, by why (pure).

There are two: of holds that are made, and of those that a dry run would make. Nothing adds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairsched.model import Action, ActionKind, Hold, ReasonCode


@dataclass
class Tally:
    """Times in ns and numbers since the start, by tenant."""

    holds: dict[str, Hold] = field(default_factory=dict)
    """Those that last. One of a tenant at most, so that it is never held for longer than time passed."""
    held_ns: dict[str, int] = field(default_factory=dict)
    """Finished holds only."""
    held_count: dict[str, int] = field(default_factory=dict)
    held_by_reason_ns: dict[str, dict[ReasonCode, int]] = field(default_factory=dict)
    """The same as ``held_ns``, by why each hold began."""
    done: dict[str, dict[tuple[ActionKind, ReasonCode], int]] = field(default_factory=dict)
    """What was carried out: how often, and why."""
    _reasons: dict[str, ReasonCode] = field(default_factory=dict)
    """Why each tenant that is held was last held."""

    def count(self, action: Action) -> None:
        """Note that it was carried out."""
        kind, reason = action.kind, action.reason.code
        if kind is ActionKind.HOLD:
            self._reasons[action.tenant] = reason
        done = self.done.setdefault(action.tenant, {})
        done[kind, reason] = done.get((kind, reason), 0) + 1

    def end(self, tenant: str, now_ns: int) -> int | None:
        """Note that its hold is over; returns how long that lasted, None where there was none."""
        hold = self.holds.pop(tenant, None)
        if hold is None:
            return None
        lasted_ns = now_ns - hold.since_ns
        reason = self._reasons.pop(tenant, ReasonCode.OVER_ENTITLEMENT)
        by_reason = self.held_by_reason_ns.setdefault(tenant, {})
        by_reason[reason] = by_reason.get(reason, 0) + lasted_ns
        self.held_ns[tenant] = self.held_ns.get(tenant, 0) + lasted_ns
        self.held_count[tenant] = self.held_count.get(tenant, 0) + 1
        return lasted_ns

    def held_for_ns(self, tenant: str, now_ns: int) -> dict[ReasonCode, int]:
        """Time held, by why each hold began, the one in progress included."""
        found = dict(self.held_by_reason_ns.get(tenant, {}))
        hold = self.holds.get(tenant)
        if hold is not None:
            reason = self._reasons.get(tenant, ReasonCode.OVER_ENTITLEMENT)
            found[reason] = found.get(reason, 0) + now_ns - hold.since_ns
        return found

    def remembered_tenants(self) -> set[str]:
        counted = (self.held_ns, self.held_count, self.held_by_reason_ns, self.done)
        return {name for table in counted for name in table}

    def forget_tenants(self, names: Iterable[str]) -> None:
        """Drop what is over; a hold that lasts stays."""
        for name in names:
            self.held_ns.pop(name, None)
            self.held_count.pop(name, None)
            self.held_by_reason_ns.pop(name, None)
            self.done.pop(name, None)
