# SPDX-License-Identifier: Apache-2.0
"""Finds the processes that have a GPU's device file open: also those that NVML does not list.

Problem: memory of a GPU can be held by a process that NVML does not name: a child that inherited the descriptors, one
that is on its way out. It has the device file open all the same.

Approach: every descriptor in /proc/PID/fd is compared by device number, so the name in a container does not matter. A
device file that is none (of the simulated GPU) is compared by its inode.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path


def open_devices(
    device_dir: Path, minors: Mapping[int, str], proc: str = "/proc"
) -> dict[int, frozenset[str]]:
    """By pid, the GPUs whose device file it has open. ``minors``: UUIDs by number of the file ``nvidiaN``.

    Without privilege only the caller's own processes are seen. Processes that end meanwhile are left out.
    """
    wanted = {
        identity: uuid
        for minor, uuid in minors.items()
        if (identity := _identity(f"{device_dir}/nvidia{minor}")) is not None
    }
    found: dict[int, frozenset[str]] = {}
    if not wanted:
        return found
    for name in os.listdir(proc):
        if name.isdecimal():
            uuids = frozenset(wanted[one] for one in _opened(f"{proc}/{name}/fd") if one in wanted)
            if uuids:
                found[int(name)] = uuids
    return found


def _opened(directory: str) -> set[tuple[str, int, int]]:
    try:
        names = os.listdir(directory)
    except OSError:
        return set()
    return {one for name in names if (one := _identity(f"{directory}/{name}")) is not None}


def _identity(path: str) -> tuple[str, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return ("device", os.major(found.st_rdev), os.minor(found.st_rdev))
    return ("file", found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
