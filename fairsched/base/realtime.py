# SPDX-License-Identifier: Apache-2.0
"""Runs a block at real-time priority, for a few milliseconds.

Problem. Thawing a tenant wakes its threads. On a busy node they take the processor from the very thread that
thawed them, and run for milliseconds before it can do its next step: hold them again.

Approach. The lowest real-time priority for as long as the block lasts. Nothing of ordinary priority delays it,
everything of real-time priority still does, and the block bounds itself. Where that is refused (a container, a
service with RestrictRealtime) the block runs as it is: late on a busy node, and nothing worse.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def at_realtime_priority() -> Iterator[bool]:
    """Run the block at real-time priority 1; yields whether it does."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, parameters)
