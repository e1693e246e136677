# SPDX-License-Identifier: Apache-2.0
"""Who has how much of the tables that all tenants share: the maps of budget.h, and the same for a table of ours.

Each set of programs has budgets of its own, for its own tables; the tenants have the same number in all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import time
import weakref
from collections.abc import Mapping
from typing import Protocol

from fairsched.bpf import abi, budgets, syscall
from fairsched.bpf.mapped import MappedArray


class Rooms(Protocol):
    """The budgets of some tables."""

    @property
    def tables(self) -> tuple[abi.Table, ...]:
        """What is given out here."""
        ...

    @property
    def refusals(self) -> int:
        """How often anybody was refused anything."""
        ...

    def budget(self, owner: int) -> abi.Budget:
        """What a tenant has, by its number (values change under the reader)."""
        ...

    def share(self, owners: int, numbers: int = 0) -> None:
        """Divide the tables among so many tenants, those in none counting as one. ``numbers``: see budgets.write."""
        ...

    def set_owner(self, cgroup_id: int, owner: int) -> None:
        """Whose what is made in a cgroup, and in all below it, is. Raises OSError when there is no room."""
        ...

    def forget_owner(self, cgroup_id: int) -> None:
        """It belongs to whom the cgroups above belong."""
        ...


class MapRooms:
    """Those of programs; ``counts``: the array in which they count what they refuse, at ``over_budget``.

    Can be used when the programs are gone, and then changes nothing.
    """

    def __init__(
        self, fds: Mapping[str, int], tables: Mapping[abi.Table, int], counts: str, over_budget: enum.IntEnum
    ) -> None:
        self._room = tables
        rates = (abi.Table.EDGES,) if abi.Table.CONTEXTS in tables else ()
        self.tables = (*tables, *rates)
        self._budgets = MappedArray(fds["budget_by_owner"], abi.Budget, abi.MAX_OWNERS)
        self._limits = MappedArray(fds["limits_of_all"], abi.Limits, 1)
        self._counts = MappedArray(fds[counts], ctypes.c_uint64, len(type(over_budget)))
        self._over_budget = int(over_budget)
        self._owners = os.dup(fds["owner_by_cgroup"])
        weakref.finalize(self, os.close, self._owners)

    @property
    def limits(self) -> abi.Limits:
        """What each tenant may have now, and how long a turn is taken to be; may be written."""
        return self._limits.items[0]

    def count(self, what: int) -> int:
        """Of the array in which they count."""
        return int(self._counts.items[what])

    @property
    def refusals(self) -> int:
        return self.count(self._over_budget)

    def budget(self, owner: int) -> abi.Budget:
        return self._budgets.items[owner]

    def share(self, owners: int, numbers: int = 0) -> None:
        budgets.write(self.limits, owners, self._room, numbers)

    def set_owner(self, cgroup_id: int, owner: int) -> None:
        syscall.update(self._owners, ctypes.c_uint64(cgroup_id), ctypes.c_uint64(owner))

    def forget_owner(self, cgroup_id: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            syscall.delete(self._owners, ctypes.c_uint64(cgroup_id))


class OwnRooms:
    """Those of a table that user space fills: what take_room() and give_room() of budget.h do."""

    def __init__(self, table: abi.Table, entries: int) -> None:
        self._table, self._room = table, {table: entries}
        self.tables = (table,)
        self.refusals = 0
        self.limits = budgets.write(abi.Limits(), 1, self._room)
        self._budgets: dict[int, abi.Budget] = {}

    def budget(self, owner: int) -> abi.Budget:
        return self._budgets.setdefault(owner, abi.Budget())

    def share(self, owners: int, numbers: int = 0) -> None:
        budgets.write(self.limits, owners, self._room, numbers)

    def set_owner(self, cgroup_id: int, owner: int) -> None:
        """Who takes room says whose it is."""

    def forget_owner(self, cgroup_id: int) -> None:
        """The same."""

    def take(self, owner: int) -> abi.Room:
        """For one more entry of a tenant: where it is from."""
        budget, limits, at = self.budget(owner), self.limits, self._table
        used = budget.used[at]
        if used < limits.reserve[at]:
            budget.used[at] += 1
            return abi.Room.OWN
        if used < limits.ceiling[at] and limits.shared_used[at] < limits.shared[at]:
            budget.used[at] += 1
            limits.shared_used[at] += 1
            return abi.Room.SHARED
        budget.refused[at] += 1
        budget.refused_ns[at] = time.monotonic_ns()
        self.refusals += 1
        return abi.Room.NONE

    def give(self, owner: int, room: abi.Room) -> None:
        """Give one back."""
        if room is not abi.Room.NONE:
            self.budget(owner).used[self._table] -= 1
        if room is abi.Room.SHARED:
            self.limits.shared_used[self._table] -= 1
