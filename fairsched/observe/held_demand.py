# SPDX-License-Identifier: Apache-2.0
"""Keeps what a held tenant wanted, though whatever wanted it has ended meanwhile.

Problem. A process that is frozen can be killed, by its own timer, too. An account then finds nobody who wants
anything, the hold ends, and the tenant goes on with its debt: who has each of its processes end after 30 ms is held for
30 ms at a time.

Approach. What the others of the tenant would have done meanwhile nobody knows. So it wants what it wanted when it was
held until it is let go, as everybody does who is held, while it has a process at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from fairsched.model import Snapshot, Use


class HeldDemand:
    """Of all tenants that we hold."""

    def __init__(self, is_lived_in: Callable[[str], bool]) -> None:
        """``is_lived_in``: whether a tenant has a process; asked for those of whom something has ended."""
        self._is_lived_in = is_lived_in
        self._wanted: dict[str, dict[str, Use]] = {}
        """By tenant and UUID: what was last wanted before the hold."""
        self._before: tuple[Use, ...] = ()

    def keep(self, snapshot: Snapshot, held: Collection[str]) -> Snapshot:
        """``held``: tenants that are frozen, by us. A dry run's are not, and whoever others pause wants nothing."""
        before, self._before = self._before, snapshot.uses
        new = {tenant: dict[str, Use]() for tenant in held if tenant not in self._wanted}
        for use in before if new else ():
            if use.tenant in new and use.has_demand:
                new[use.tenant][use.gpu] = use
        self._wanted = {tenant: wanted for tenant, wanted in self._wanted.items() if tenant in held} | new
        left = self._left_wanting(snapshot.uses) if held else {}
        if not left:
            return snapshot
        uses = [use._replace(has_demand=True) if _at(use) in left else use for use in snapshot.uses]
        for at in left.keys() - set(map(_at, uses)):
            uses.append(Use(*at, 0, True, 0, left[at].confidence))
        return replace(snapshot, uses=tuple(uses))

    def _left_wanting(self, uses: Collection[Use]) -> Mapping[tuple[str, str], Use]:
        """What was wanted before the hold and nobody wants now, of tenants with a process."""
        wanting = {_at(use) for use in uses if use.tenant in self._wanted and use.has_demand}
        left = {_at(use): use for wanted in self._wanted.values() for use in wanted.values()}
        left = {at: use for at, use in left.items() if at not in wanting}
        lived_in = {tenant for tenant in {tenant for tenant, _ in left} if self._is_lived_in(tenant)}
        return {at: use for at, use in left.items() if at[0] in lived_in}


def _at(use: Use) -> tuple[str, str]:
    return use.tenant, use.gpu
