# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the freezer hierarchy of cgroup v1: which group a process is in, and groups of our own.

Facts, of Linux 6.18. ``freezer.state`` takes FROZEN and THAWED and says FREEZING until all processes have stopped.
``freezer.self_freezing`` is what was written to this very group, ``freezer.parent_freezing`` whether one above is
frozen. The root has none of these files. A child forked in a frozen group is frozen; a process that leaves one runs
again; a new group below a frozen one is frozen. Frozen processes are in state D, and SIGKILL waits for the thaw.

Terms: a *home* is a group of ours, a child of the group in which a tenant's processes were found, with the id of the
tenant's cgroup in its name. Whoever pauses the group above stops it as before, and our own state is nobody else's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re

from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.errors import CgroupGone, KernelRefused

FREEZER = "freezer"
STATE = "freezer.state"
SELF_FREEZING = "freezer.self_freezing"
PARENT_FREEZING = "freezer.parent_freezing"
TASKS = "tasks"

_HOME = re.compile(r"fairsched\.\d+")
_ROUNDS = 8
"""Of bringing processes back: children may be forked meanwhile, and who forks faster than that keeps nobody waiting."""


class V1Freezer:
    """The hierarchy at one mount. Paths are those of /proc/<pid>/cgroup; errors are CgroupGone and KernelRefused."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount

    def group_of(self, pid: int) -> str | None:
        """The group a process is in, or that above its home; None when it is gone or out of sight."""
        path = tree.cgroup_path_of(pid, self.mount)
        return None if path is None else _above(path) if _is_home(path) else path

    def make_home(self, group: str, cgroup_id: int) -> str:
        """The path of the home of a cgroup's processes in this group, made where it is missing."""
        path = f"{group.rstrip('/')}/fairsched.{cgroup_id}"
        absolute = self.mount.absolute(path)
        try:
            os.mkdir(absolute, 0o755)
        except FileExistsError:
            pass
        except FileNotFoundError as error:
            raise CgroupGone(group) from error
        except OSError as error:
            raise KernelRefused(absolute, error.errno or 0, "cannot make a freezer group") from error
        return path

    def place(self, group: CgroupRef, pid: int) -> bool:
        """Move a process and all its threads; False when it has ended."""
        try:
            tree.place(group, pid)
        except KernelRefused as error:
            if error.errno != errno.ESRCH:
                raise
            return False
        return True

    def write(self, group: CgroupRef, is_frozen: bool) -> None:
        """Ask for it; see ``is_asked`` and ``is_at_rest`` for what came of it."""
        group.write(STATE, "FROZEN" if is_frozen else "THAWED")

    def thaw(self, group: CgroupRef) -> bool:
        """Thaw, verified; False when there was nothing to thaw. One above may keep its processes frozen."""
        if not self.is_asked(group):
            return False
        self.write(group, False)
        if self.is_asked(group):
            raise KernelRefused(
                f"{group.path}/{STATE}", errno.EAGAIN, "still FROZEN after THAWED was written"
            )
        return True

    def is_asked(self, group: CgroupRef) -> bool:
        """This very group was told to freeze."""
        return group.read(SELF_FREEZING).strip() == "1"

    def is_at_rest(self, group: CgroupRef) -> bool:
        """All its processes have stopped."""
        return group.read(STATE).strip() == "FROZEN"

    def is_paused(self, path: str) -> bool:
        """Somebody has frozen the group at this path, or one above."""
        if path == "/":
            return False
        with CgroupRef.open(self.mount, path) as group:
            return self.is_asked(group) or group.read(PARENT_FREEZING).strip() == "1"

    def procs(self, group: CgroupRef) -> set[int]:
        """The processes with a thread in the group; those of another pid namespace are left out."""
        return set(tree.read_pids(group)) - {0}

    def tasks(self, group: CgroupRef) -> set[int]:
        """The threads in the group."""
        return set(map(int, group.read(TASKS).split()))

    def tidy(self) -> None:
        """Bring processes back from all homes there are, and remove those. Frozen ones stay."""
        for path in reversed(self.homes_of(None)):
            with contextlib.suppress(CgroupGone, KernelRefused), CgroupRef.open(self.mount, path) as home:
                self.bring_back(home)

    def homes_of(self, cgroup_id: int | None) -> list[str]:
        """The paths of the homes of a cgroup, or of all, parents before children."""
        paths = (node.path for node in tree.walk(self.mount))
        end = "" if cgroup_id is None else f"/fairsched.{cgroup_id}"
        return [path for path in paths if _is_home(path) and path.endswith(end)]

    def bring_back(self, home: CgroupRef) -> None:
        """Move the processes of a home to the group above and remove it. One that is frozen stays."""
        with contextlib.suppress(CgroupGone, KernelRefused), self.open_above(home) as above:
            if self.is_asked(home):
                return
            for _ in range(_ROUNDS):
                if not any([self.place(above, pid) for pid in self.procs(home)]):
                    break
            tree.remove(self.mount, home)

    def open_above(self, home: CgroupRef) -> CgroupRef:
        return CgroupRef.open(self.mount, _above(home.path))


def _is_home(path: str) -> bool:
    return _HOME.fullmatch(path.rpartition("/")[2]) is not None


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"
