# SPDX-License-Identifier: Apache-2.0
"""Waits, at real-time priority, until a cgroup that was let go has done so much.

Problem. A queue fills within half a millisecond, so looks must be frequent. But each look keeps whoever was thawed, and
whatever else the thaw woke, from this processor; where all are busy it may not have begun after three milliseconds.

Approach. Few looks until it has begun, many from then on, and each phase has its own limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_BEGIN_LOOK_S = 100e-6
_LOOK_S = 20e-6


def await_used(used: Callable[[], float], clock_ns: Callable[[], int], limit_ns: int) -> bool:
    """Whether ``used()``, which is 0 until it has begun, has come to 1: within ``limit_ns`` from then on."""
    end_ns, has_begun = clock_ns() + limit_ns, False
    while (part := used()) < 1:
        now_ns = clock_ns()
        if part and not has_begun:
            end_ns, has_begun = now_ns + limit_ns, True
        if now_ns >= end_ns:
            return False
        time.sleep(_LOOK_S if part else _BEGIN_LOOK_S)
    return True
