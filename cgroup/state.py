# SPDX-License-Identifier: Apache-2.0
"""Reads what cgroup.freeze and cgroup.events say, once for all who need it.

``cgroup.freeze`` is the wish written to this cgroup (0 or 1). ``cgroup.events`` says ``frozen 1`` once
every process in the cgroup has stopped, also when an ancestor is what was frozen. Both are answered
from memory; reading them never blocks. Source: Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from fairsched.cgroup.path import CgroupRef, Mount

CGROUP_FREEZE = "cgroup.freeze"
CGROUP_EVENTS = "cgroup.events"


@dataclass(frozen=True)
class FreezeState:
    """One look at one cgroup."""

    is_asked: bool
    """Its own cgroup.freeze is 1."""
    is_frozen: bool
    """All its processes are stopped, by itself or by an ancestor."""

    @property
    def is_paused(self) -> bool:
        """Somebody pauses it, here or above."""
        return self.is_asked or self.is_frozen


def read_state(ref: CgroupRef) -> FreezeState:
    """One look. Raises CgroupGone, or KernelRefused where cgroup.freeze does not exist."""
    return FreezeState(
        is_asked=parse_freeze(ref.read(CGROUP_FREEZE).encode()),
        is_frozen=parse_frozen(ref.read(CGROUP_EVENTS).encode()),
    )


def read_asked(freeze_fd: int) -> bool:
    """cgroup.freeze through an open descriptor. Raises OSError (ENODEV: the cgroup is gone)."""
    return parse_freeze(os.pread(freeze_fd, 16, 0))


def read_frozen(events_fd: int) -> bool:
    """``frozen`` of cgroup.events through an open descriptor. Raises OSError."""
    return parse_frozen(os.pread(events_fd, 256, 0))


def is_populated(mount: Mount, path: str) -> bool:
    """Whether there is a process in a cgroup, or in one below it. Not where it is gone."""
    try:
        with open(f"{mount.absolute(path)}/{CGROUP_EVENTS}") as file:
            return "populated 1" in file.read().splitlines()
    except OSError:
        return False


def parse_freeze(text: bytes) -> bool:
    return text.strip() == b"1"


def parse_frozen(text: bytes) -> bool:
    return b"frozen 1" in text.splitlines()
