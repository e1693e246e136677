# SPDX-License-Identifier: Apache-2.0
"""Tells BPF which cgroups are whose, so that room in its tables is charged to a tenant, and who had more than its part.

A tenant over its budget has work or memory that nobody sees. That hurts nobody else's account, and is no offence: it is
said, and the policy charges the tenant for the most it may have used meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from fairsched.bpf import abi
from fairsched.bpf.rooms import Rooms
from fairsched.observe.tree import TenantView

_RECENT_NS = 5_000_000_000
"""What was refused so long ago says nothing of now. Work in what has no room is refused at each launch; but a tenant
that is held launches nothing, so this is longer than most holds."""
MOST_NUMBERS = 128
"""Of one tenant of the file and its children, who may be any cgroups that it makes: each number makes everybody's part
smaller, and those beyond share one. Beside a tenant that makes them without end each keeps 7 contexts: 15 with half as
many numbers, 3 with twice as many. A tenant makes no pods on its node: each has a number."""
_OF_WORK = frozenset({abi.Table.CONTEXTS, abi.Table.PROCESSES, abi.Table.EDGES})
"""Without room there GPU time is not seen. The other tables are of memory, calls and numbers."""

logger = logging.getLogger(__name__)


class _Told:
    """What the programs of one set know."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self.number_of: dict[int, int] = {}
        """By cgroup."""
        self.refusals = 0

    def tell(self, wanted: Mapping[int, int], owners: int) -> None:
        """Raises OSError where there is no room for all of them."""
        for cgroup_id in self.number_of.keys() - wanted.keys():
            self.rooms.forget_owner(cgroup_id)
            del self.number_of[cgroup_id]
        self.rooms.share(owners, 1 + max(wanted.values(), default=0))
        for cgroup_id, number in wanted.items():
            if self.number_of.get(cgroup_id) != number:
                self.rooms.set_owner(cgroup_id, number)
                self.number_of[cgroup_id] = number


class Owners:
    """The tenants' numbers in the budgets."""

    def __init__(self) -> None:
        self._told: list[_Told] = []
        self._number_of: dict[str, int] = {}
        self._wanted: dict[int, int] = {}
        """Number by cgroup, as every set of programs is to have it."""
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
        self._wanted = {
            cgroup_id: self._number_of[name]
            for name, view in tenants.items()
            if name in self._number_of
            for cgroup_id in (view.refs if view.is_leaf else view.cgroup_ids)
        }
        for one in self._told:
            self._tell(one)

    def follow(self, rooms: Iterable[Rooms]) -> None:
        """These are the budgets there are now: programs may have been loaded, or loaded anew."""
        found = list(rooms)
        if [one.rooms for one in self._told] == found:
            return
        known = {id(one.rooms): one for one in self._told}
        self._told = [known.get(id(one)) or _Told(one) for one in found]
        for one in self._told:
            if id(one.rooms) not in known:
                self._tell(one)

    @property
    def _parts(self) -> int:
        """Tenants that have one, and those who are in none."""
        return 1 + len(set(self._number_of.values()))

    def _tell(self, one: _Told) -> None:
        try:
            one.tell(self._wanted, self._parts)
        except OSError as error:  # the others share the room of those who are in no tenant
            logger.warning("budgets=incomplete tenants=%d error=%r", len(self._number_of), error.strerror)

    def _number(self, tenants: Mapping[str, TenantView]) -> None:
        """A number is given to another tenant when nothing is charged to it any more."""
        for name, number in list(self._number_of.items()):
            if name not in tenants and not any(any(one.rooms.budget(number).used) for one in self._told):
                del self._number_of[name]
        taken, mine = set(self._number_of.values()), dict[str, set[int]]()
        for name, number in self._number_of.items():
            mine.setdefault(_top(name), set()).add(number)
        free = (number for number in range(abi.STRANGERS + 1, abi.MAX_OWNERS) if number not in taken)
        for name, view in tenants.items():
            if name not in self._number_of:
                numbers = mine.setdefault(_top(name), set())
                is_beyond = len(numbers) >= MOST_NUMBERS and not view.is_pod
                new = max(numbers) if is_beyond else next(free, None)
                if new is None:
                    return
                self._number_of[name] = new
                numbers.add(new)

    def number(self, tenant: str | None) -> int:
        """Under which a tenant is charged."""
        return abi.STRANGERS if tenant is None else self._number_of.get(tenant, abi.STRANGERS)

    def hidden_beside(self, held: Collection[str]) -> frozenset[str]:
        """``hidden``, and who was so when it was held: that it is silent now is our doing, and says nothing."""
        self._kept = self.hidden | self._kept.intersection(held)
        return self._kept

    @property
    def over_work(self) -> frozenset[str]:
        """Tenants that may have had GPU time lately which nobody sees."""
        return frozenset(name for name, tables in self.over.items() if not _OF_WORK.isdisjoint(tables))

    def look(self, now_ns: int) -> None:
        """Find who was refused room since the look before."""
        muted: set[str] = set()
        for one in self._told:
            refusals = one.rooms.refusals
            if refusals != one.refusals:
                one.refusals = refusals
                self._look_at(one.rooms, now_ns, muted)
        if not self._seen:
            self.hidden = frozenset()
            return
        before, self.over = self.over, {
            name: tables
            for name, seen in self._seen.items()
            if (tables := tuple(table for table, ns in sorted(seen.items()) if now_ns - ns < _RECENT_NS))
        }  # fmt: skip
        self._seen = {name: seen for name, seen in self._seen.items() if name in self.over}
        lacking = {
            name for name, tables in self.over.items() if _OF_WORK.intersection(tables) - {abi.Table.EDGES}
        }
        self.hidden = frozenset(lacking | muted)
        for name, tables in self.over.items():
            if not set(tables) <= set(before.get(name, ())):
                logger.warning("budget=exceeded tenant=%s tables=%s", name, ",".join(tables_of(tables)))
        for name in before.keys() - self.over.keys():
            logger.info("budget=kept tenant=%s", name)

    def _look_at(self, rooms: Rooms, now_ns: int, muted: set[str]) -> None:
        """At all tenants' budgets of one set; ``muted``: who was refused events since the look before."""
        for name, number in self._number_of.items():
            refused_ns = rooms.budget(number).refused_ns
            for table in rooms.tables:
                if now_ns - refused_ns[table] < _RECENT_NS:
                    before_ns = self._seen.setdefault(name, {}).get(table)
                    self._seen[name][table] = refused_ns[table]
                    if table is abi.Table.EDGES and refused_ns[table] != before_ns:
                        muted.add(name)


def _top(name: str) -> str:
    """The tenant of the file that one is, or is a child of."""
    return name.partition("/")[0]


def tables_of(tables: Iterable[abi.Table]) -> list[str]:
    """As people read them."""
    return [table.name.lower() for table in tables]


def follows_of(tables: Collection[abi.Table]) -> str:
    """What it means to be over one's budget of these."""
    if not _OF_WORK.isdisjoint(tables):
        return "work beyond that is not seen, so it is charged for all it may have used"
    if tables == (abi.Table.ORDINALS,):
        return "which GPUs its older processes mean is forgotten"
    if {abi.Table.PIDS, abi.Table.CALLS}.issuperset(tables):
        return "process lists show it the driver's own numbers"
    return "contexts, VRAM and calls beyond that are not seen; NVML's figures are taken where there are any"
