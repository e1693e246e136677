# SPDX-License-Identifier: Apache-2.0
"""Stands in for the daemon: a guardian, and holds made and ended as fast as it can, until it is killed.

Arguments: brake, journal directory, hold length in ms, then cgroup paths. Prints "guardian PID" for each guardian.
"""

from __future__ import annotations

import sys
import time

from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.freezer_v1 import FreezerV1
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import CgroupRef, Mount, find_mount, find_v1_mount
from fairsched.cgroup.sigstop import Sigstop
from fairsched.cgroup.v1 import V1Freezer
from fairsched.guardian.process import Guardian


def make(name: str, journal: Journal, mount: Mount) -> Freezer | FreezerV1 | Sigstop:
    if name == "freezer_v1":
        v1 = find_v1_mount("freezer")
        assert v1 is not None
        return FreezerV1(journal, mount, V1Freezer(v1))
    return Sigstop(journal, mount) if name == "sigstop" else Freezer(journal)


def main() -> None:
    name, directory, hold_ms, *paths = sys.argv[1:]
    mount = find_mount()
    refs = [CgroupRef.open(mount, path) for path in paths]
    journal = Journal(directory)
    brake = make(name, journal, mount)
    with Guardian(directory) as guardian, brake:
        turn = 0
        while True:
            if not guardian.is_alive():
                guardian.start()
                print(f"guardian {guardian.pid}", flush=True)
            deadline_ns = time.monotonic_ns() + int(hold_ms) * 1_000_000
            brake.hold_gang(refs[turn % 2 :], "tenant", deadline_ns, "test")
            brake.settle()
            if turn % 3 == 0:
                for ref in refs:
                    brake.thaw(ref.id)
            brake.thaw_expired(time.monotonic_ns())
            turn += 1


main()
