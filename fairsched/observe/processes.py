# SPDX-License-Identifier: Apache-2.0
"""Lists the processes of all tenants, some cgroups at a time.

Problem: a tenant may have thousands of cgroups, and each has to be asked for its processes.

Approach: in a round of all tenants each has a turn of _TURN cgroups, new ones first; a call asks _PORTION of them. What
the others had at their last turn is still taken for true. So a tenant of many cgroups is listed late, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount

_PORTION = 128
_TURN = 64


class ProcessLists:
    """Call :meth:`step` again and again."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._left: list[tuple[str, int]] | None = None
        """(tenant, cgroup) of the round that goes on; None = none does."""
        self._turns: dict[str, list[int]] = {}
        """Of each tenant, cgroups that have not had their turn yet."""
        self._listed: dict[str, dict[int, list[int]]] = {}
        """The processes of each cgroup of a tenant when it had its turn."""

    def step(
        self, own: Mapping[str, Set[int]], path_of: Callable[[int], str | None], *, begin: bool
    ) -> dict[int, str] | None:
        """The tenant of each process, at the end of a round; None before. ``begin``: another one, if it is over.

        ``own``: the cgroups of each tenant, by id.
        """
        if begin and self._left is None:
            self._left = list(self._round(own))
        if self._left is None:
            return None
        portion, rest = self._left[:_PORTION], self._left[_PORTION:]
        for tenant, cgroup_id in portion:
            path = path_of(cgroup_id)
            if path is not None:
                self._listed.setdefault(tenant, {})[cgroup_id] = tree.read_pids_at(self._mount, path)
        self._left = rest or None
        return None if rest else self._known(own)

    def _round(self, own: Mapping[str, Set[int]]) -> Iterator[tuple[str, int]]:
        for tenant, cgroup_ids in own.items():
            new = cgroup_ids - self._listed.get(tenant, {}).keys()
            left = self._turns.get(tenant) or list(cgroup_ids)
            left = [*new, *(one for one in left if one not in new)]
            self._turns[tenant] = left[_TURN:]
            for cgroup_id in left[:_TURN]:
                yield tenant, cgroup_id

    def _known(self, own: Mapping[str, Set[int]]) -> dict[int, str]:
        found: dict[int, str] = {}
        for tenant in self._listed.keys() - own.keys():
            del self._listed[tenant]
            self._turns.pop(tenant, None)
        for tenant, listed in self._listed.items():
            for cgroup_id in listed.keys() - own[tenant]:
                del listed[cgroup_id]
            for pids in listed.values():
                found |= dict.fromkeys(pids, tenant)
        return found
