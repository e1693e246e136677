# SPDX-License-Identifier: Apache-2.0
"""What the daemon may cost while somebody plays, and how long it may be busy with one look at the world."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.node.daemon.site import Site

CPU_RATIO = 0.1
"""Of a core, for the daemon alone."""
TICK_LOG2 = 24
TICKS_RATIO = 0.97
"""Of the ticks take less than 17 ms on the clock. The bar is 5 ms, and 99 of 100; a machine of two processors on which
the play, its neighbours and other tests run has a tick wait for 2 to 13 ms until it runs at all."""


@contextmanager
def modest(site: Site) -> Iterator[None]:
    """The daemon is, in the body."""
    daemon = psutil.Process(site.pid)
    before, begun_s, ticks = daemon.cpu_times(), time.monotonic(), _ticks(site)
    yield
    wall_s, after = time.monotonic() - begun_s, daemon.cpu_times()
    took = {bucket: count - ticks.get(bucket, 0) for bucket, count in _ticks(site).items()}
    assert after.user + after.system - before.user - before.system < wall_s * CPU_RATIO
    prompt = sum(count for bucket, count in took.items() if bucket < TICK_LOG2)
    assert prompt >= TICKS_RATIO * sum(took.values()), took


def _ticks(site: Site) -> dict[int, int]:
    """How many there were so far, by the logarithm of how long they took in ns."""
    told = site.status()["own"]["ticks"]
    return {told["first"] + index: count for index, count in enumerate(told["counts"])}
