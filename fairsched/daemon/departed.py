# SPDX-License-Identifier: Apache-2.0
"""Forgets tenants that are gone, a day after they went.

Problem: a name that comes back within a while must go on from its totals, as a counter does; but where any cgroup may
be a tenant, names come without end, and what is kept by name would grow with them, in memory and on disk.

Approach: every table that is kept by tenant says which names it knows. A name that is in no configuration and has no
cgroup is departed; after KEPT_NS of that all tables forget it. Of very many, those that left first go before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from fairsched.policy.shares import ancestors

KEPT_NS = 86_400_000_000_000
MOST = 2000
"""Departed names that are kept: a cgroup is made faster than a day goes by."""


class Table(Protocol):
    """Something that is kept by tenant."""

    def remembered_tenants(self) -> set[str]: ...

    def forget_tenants(self, names: Collection[str]) -> None: ...


class Departed:
    """Knows which tenants are gone and since when (CLOCK_MONOTONIC), and has the tables forget them."""

    def __init__(self) -> None:
        self.since_ns: dict[str, int] = {}

    def see(self, living: Iterable[str]) -> None:
        """Keep what is known of these tenants: they are there."""
        for name in living:
            for above in ancestors(name):
                self.since_ns.pop(above, None)

    def refresh(self, living: Collection[str], tables: Collection[Table], now_ns: int) -> None:
        """Have the tables forget the tenants that have been gone for too long."""
        known = {name for table in tables for name in table.remembered_tenants()}
        known -= {above for name in living for above in ancestors(name)}
        since_ns = {name: self.since_ns.get(name, now_ns) for name in known}
        by_age = sorted(since_ns, key=lambda name: since_ns[name], reverse=True)
        forgotten = {
            name for rank, name in enumerate(by_age) if rank >= MOST or now_ns - since_ns[name] >= KEPT_NS
        }
        self.since_ns = {name: ns for name, ns in since_ns.items() if name not in forgotten}
        if forgotten:
            for table in tables:
                table.forget_tenants(forgotten)
