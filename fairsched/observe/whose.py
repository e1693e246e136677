# SPDX-License-Identifier: Apache-2.0
"""Tells whose a cgroup or a process is, also in a cgroup that no look at the tree has found.

Problem: a process may go to a new cgroup, and remove the one before, a hundred times a second. None of them is in any
list of ours, and it would be nobody's.

Approach: one rule (:func:`fairsched.cgroup.tree.innermost_known`): who is in a cgroup that is not known is in the
innermost known one around it, and the cgroup that a tenant is held by, its *home*, is always known. Which home that is
says the path of a process here; of work it is said by the kernel, which knew it when it saw the work
(``charged_id``, accounting/contexts.py). One question costs a file of /proc and one stat, however deep a tenant nests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount
from fairsched.cgroup.state import is_populated


class Whose:
    """As of the last look at the tree. Any thread may ask."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self._tenant_of: dict[int, str] = {}
        self._homes: Mapping[str, int] = {}
        """By path."""
        self._depth = 0
        """Of the deepest home."""
        self.version = 0
        """Another one when :meth:`tenant_of` may have other answers."""

    def tenant_of(self, cgroup_id: int) -> str | None:
        """The leaf tenant a cgroup belongs to; None = no tenant's, or not known yet."""
        return self._tenant_of.get(cgroup_id)

    def cgroup_of(self, pid: int) -> int | None:
        """The cgroup a process is in; its tenant's home while its own is not known. None: it is gone."""
        path = tree.cgroup_path_of(pid, self.mount)
        return None if path is None else tree.innermost_known(self._around(path), self.tenant_of)

    def tenant_of_process(self, pid: int) -> str | None:
        """The leaf tenant a process belongs to now; None = no tenant's, or gone."""
        cgroup_id = self.cgroup_of(pid)
        return None if cgroup_id is None else self.tenant_of(cgroup_id)

    def is_lived_in(self, tenant: str) -> bool:
        """Whether a leaf tenant has a process."""
        homes = (path for path, home in self._homes.items() if self.tenant_of(home) == tenant)
        return any(is_populated(self.mount, path) for path in homes)

    def _around(self, path: str) -> Iterator[int]:
        own = tree.id_at(self.mount, path)
        if own is not None:
            yield own
        home = self._home_around(path)
        if home is not None:
            yield home

    def _home_around(self, path: str) -> int | None:
        found, end = None, 0
        for _ in range(self._depth):
            end = path.find("/", end + 1)
            found = self._homes.get(path if end < 0 else path[:end], found)
            if end < 0:
                break
        return found

    def _set(self, tenant_of: dict[int, str], homes: Mapping[str, int]) -> None:
        """All of it anew, and never in part: other threads ask meanwhile."""
        self._homes, self._depth = homes, max((path.count("/") for path in homes), default=0)
        self._tenant_of = tenant_of
        self.version += 1

    def _add(self, cgroup_id: int, tenant: str) -> None:
        self._tenant_of[cgroup_id] = tenant
        self.version += 1

    def _remove(self, cgroup_id: int) -> str | None:
        """Whose it was."""
        self.version += 1
        return self._tenant_of.pop(cgroup_id, None)
