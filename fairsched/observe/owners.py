# SPDX-License-Identifier: Apache-2.0
"""Tells BPF which cgroups are whose, so that room in its tables is charged to a tenant, and who had more than its part.

A tenant over its budget has work that nobody sees. That hurts nobody else's account, and is no offence: it is said, and
the policy charges the tenant for the most it may have used meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.observe.tree import TenantView

_RECENT_NS = 5_000_000_000
"""What was refused so long ago says nothing of now. Work in what has no room is refused at each launch; but a tenant
that is held launches nothing, so this is longer than most holds."""

logger = logging.getLogger(__name__)


class Owners:
    """The tenants' numbers in the budgets."""

    def __init__(self, probe: GpuTimeProbe) -> None:
        self._probe = probe
        self._number_of: dict[str, int] = {}
        self._told: dict[int, int] = {}
        """Number by cgroup, as BPF has it."""
        self._counted = 0
        self._seen: dict[str, dict[abi.Table, int]] = {}
        """When each tenant was last refused room, by table."""
        self.over: Mapping[str, tuple[abi.Table, ...]] = {}
        """Tenants that wanted more than their part of a table lately."""
        self.hidden: frozenset[str] = frozenset()
        """Of these, the ones that may have work now which nobody sees: for want of an entry as long as they are over;
        for want of events between the last two looks only, because those that come later are told again."""
        self._kept: frozenset[str] = frozenset()
        """What :meth:`hidden_beside` said last."""

    def refresh(self, tenants: Mapping[str, TenantView]) -> None:
        """Take in which tenants there are, and their cgroups."""
        self._number(tenants)
        wanted = {
            cgroup_id: self._number_of[name]
            for name, view in tenants.items()
            if name in self._number_of
            for cgroup_id in (view.refs if view.is_leaf else view.cgroup_ids)
        }
        for cgroup_id in self._told.keys() - wanted.keys():
            self._probe.forget_owner(cgroup_id)
            del self._told[cgroup_id]
        try:
            for cgroup_id, number in wanted.items():
                if self._told.get(cgroup_id) != number:
                    self._probe.set_owner(cgroup_id, number)
                    self._told[cgroup_id] = number
        except OSError as error:  # the others share the room of those who are in no tenant
            logger.warning("budgets=incomplete tenants=%d error=%r", len(tenants), error.strerror)
        self._probe.share_room(1 + len(self._number_of))

    def _number(self, tenants: Mapping[str, TenantView]) -> None:
        """A number is given to another tenant when nothing is charged to it any more."""
        for name, number in list(self._number_of.items()):
            if name not in tenants and not any(self._probe.budget(number).used):
                del self._number_of[name]
        taken = set(self._number_of.values())
        free = (number for number in range(abi.STRANGERS + 1, abi.MAX_OWNERS) if number not in taken)
        for name in tenants:
            if name not in self._number_of:
                new = next(free, None)
                if new is None:
                    return
                self._number_of[name] = new

    def hidden_beside(self, held: Collection[str]) -> frozenset[str]:
        """``hidden``, and who was so when it was held: that it is silent now is our doing, and says nothing."""
        self._kept = self.hidden | self._kept.intersection(held)
        return self._kept

    def look(self, now_ns: int) -> None:
        """Find who was refused room since the look before."""
        counted, muted = self._probe.count(abi.Count.OVER_BUDGET), set()
        if counted != self._counted:
            self._counted = counted
            for name, number in self._number_of.items():
                for table, refused_ns in zip(abi.Table, self._probe.budget(number).refused_ns, strict=True):
                    if now_ns - refused_ns < _RECENT_NS:
                        before_ns = self._seen.setdefault(name, {}).get(table)
                        self._seen[name][table] = refused_ns
                        if table is abi.Table.EDGES and refused_ns != before_ns:
                            muted.add(name)
        if not self._seen:
            self.hidden = frozenset()
            return
        before, self.over = self.over, {
            name: tables
            for name, seen in self._seen.items()
            if (tables := tuple(table for table, ns in sorted(seen.items()) if now_ns - ns < _RECENT_NS))
        }  # fmt: skip
        self._seen = {name: seen for name, seen in self._seen.items() if name in self.over}
        lacking = {name for name, tables in self.over.items() if set(tables) - {abi.Table.EDGES}}
        self.hidden = frozenset(lacking | muted)
        for name, tables in self.over.items():
            if not set(tables) <= set(before.get(name, ())):
                logger.warning("budget=exceeded tenant=%s tables=%s", name, ",".join(tables_of(tables)))
        for name in before.keys() - self.over.keys():
            logger.info("budget=kept tenant=%s", name)


def tables_of(tables: tuple[abi.Table, ...]) -> list[str]:
    """As people read them."""
    return [table.name.lower() for table in tables]
