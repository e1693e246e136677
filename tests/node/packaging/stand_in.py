# SPDX-License-Identifier: Apache-2.0
"""The smallest daemon that can be in trouble: holds one cgroup, feeds the watchdog, ends as it is told to.

``stand_in.py run --config FILE``, ``stand_in.py release`` and ``stand_in.py config reload``, as the unit calls
fairsched. It uses the real journal, freezer, guardian and notification; what it lacks is a GPU, a policy and a
configuration. SIGUSR1: hang.
"""

from __future__ import annotations

import signal
import sys
import time

from fairsched.base.sd_notify import Notifier
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import DEFAULT_DIRECTORY, Journal
from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.cli.release import command as release
from fairsched.guardian.process import Guardian

VICTIM = "/gpu.slice/victim"
TICK_S = 0.1
DEADLINE_NS = 600_000_000_000

TOLD = {signal.SIGUSR1, signal.SIGTERM}


def run() -> None:
    notifier = Notifier()
    Guardian(DEFAULT_DIRECTORY).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)  # not before: the guardian would inherit it
    freezer = Freezer(Journal(DEFAULT_DIRECTORY))
    with CgroupRef.open(find_mount(), VICTIM) as victim:
        freezer.hold(victim, "victim", time.monotonic_ns() + DEADLINE_NS, "over_entitlement")
    notifier.ready()
    is_hanging = False
    while (told := signal.sigtimedwait(TOLD, TICK_S)) is None or told.si_signo != signal.SIGTERM:
        is_hanging |= told is not None
        if not is_hanging:
            notifier.watchdog()
    # No thaw on the way out: ExecStopPost and the guardian have to do it.


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run()
    elif sys.argv[1] == "release":
        release.main(args=sys.argv[2:], prog_name="fairsched release")
