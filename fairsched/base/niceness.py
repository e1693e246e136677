# SPDX-License-Identifier: Apache-2.0
"""Sets how much of a busy processor a helper of the daemon gets.

Problem. A nice value alone does nothing for a process with a session of its own: where the kernel groups sessions
(``kernel.sched_autogroup_enabled``, the default of most distributions), nice values count within a session, and
sessions share a processor as equals. Our helpers have sessions of their own, so that Ctrl-C does not reach them.

Approach. Give the value to the session, too. Processes in a cgroup with a CPU controller are not grouped by session:
there the first value is the one that counts, and the second does nothing.
"""

from __future__ import annotations

import contextlib
import os


def set_nice(value: int) -> bool:
    """Set the nice value of this process and, when it leads one, of its session: 19 (last to get a processor) to -20.
    True = it was granted.

    Anybody may set a value that is worse than the present one, for a better one it takes CAP_SYS_NICE.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, value)
    except OSError:
        return False
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(value))
    return True
