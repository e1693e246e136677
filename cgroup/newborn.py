# SPDX-License-Identifier: Apache-2.0
"""Reports at once that a cgroup was made below certain others, without walking the tree (inotify on the
directories)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.watch import IN_CREATE, Watch
from fairsched.errors import CgroupGone, HostUnsupported, KernelRefused


class Newborn:
    """Watches directories by cgroup id. What cannot be watched is found by the next walk, a second later."""

    def __init__(self, mount: Mount, limit: int = 1024) -> None:
        self._mount = mount
        self._limit = limit
        self._watch = Watch()
        self._numbers: dict[int, int] = {}
        self._path_of: dict[int, str] = {}

    def fileno(self) -> int:
        """Readable when :meth:`read` has something."""
        return self._watch.fileno()

    def watch(self, wanted: Mapping[int, str]) -> None:
        """Watch these directories (path by cgroup id) and no other."""
        for cgroup_id in self._numbers.keys() - wanted.keys():
            number = self._numbers.pop(cgroup_id)
            self._path_of.pop(number, None)
            self._watch.remove(number)
        for cgroup_id, path in wanted.items():
            if cgroup_id in self._numbers or len(self._numbers) >= self._limit:
                continue
            with contextlib.suppress(CgroupGone, KernelRefused, FileNotFoundError, HostUnsupported):
                self._add(cgroup_id, path)

    def _add(self, cgroup_id: int, path: str) -> None:
        with CgroupRef.open(self._mount, path) as ref:
            if ref.id == cgroup_id:
                number = self._watch.add(ref.fileno(), IN_CREATE)
                self._numbers[cgroup_id], self._path_of[number] = number, path

    def read(self) -> set[str]:
        """Paths below which something was made since the last call."""
        numbers = {number for number, mask in self._watch.read() if mask & IN_CREATE}
        return {self._path_of[number] for number in numbers if number in self._path_of}

    def close(self) -> None:
        """Idempotent."""
        self._watch.close()
