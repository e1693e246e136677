# SPDX-License-Identifier: Apache-2.0
"""Stands in for the daemon: a guardian, and holds made and ended as fast as it can, until it is killed.

Arguments: journal directory, hold length in ms, then cgroup paths. Prints "guardian PID" for each guardian.
"""

from __future__ import annotations

import sys
import time

from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.guardian.process import Guardian


def main() -> None:
    directory, hold_ms, *paths = sys.argv[1:]
    mount = find_mount()
    refs = [CgroupRef.open(mount, path) for path in paths]
    with Guardian(directory) as guardian, Freezer(Journal(directory)) as freezer:
        turn = 0
        while True:
            if not guardian.is_alive():
                guardian.start()
                print(f"guardian {guardian.pid}", flush=True)
            deadline_ns = time.monotonic_ns() + int(hold_ms) * 1_000_000
            freezer.hold_gang(refs[turn % 2 :], "tenant", deadline_ns, "test")
            freezer.settle()
            if turn % 3 == 0:
                for ref in refs:
                    freezer.thaw(ref.id)
            freezer.thaw_expired(time.monotonic_ns())
            turn += 1


main()
