# SPDX-License-Identifier: Apache-2.0
"""What the daemon may cost while somebody plays, and for how long it may do nothing else.

A machine that other work has slowed down is slower for a tick without a play, too, by half from one minute to the next.
So what a play costs is compared with what the same daemon took just before it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.node.daemon.site import STEADY, Site
from tests.support import let_run

_BEFORE_S = 6.0
_CLOCK = 2
"""Of a process, of all its threads: CPUCLOCK_SCHED in the kernel's include/linux/posix-timers.h."""
TICK_NS = 5_000_000
TICKS_RATIO = 0.99
"""Of the ticks, that take no longer."""
_PROGRAM = Path(__file__).with_name("timed_daemon.py")


def time_ticks(site: Site) -> None:
    """Before its daemon is started: have each tick written down."""
    site.command = [sys.executable, str(_PROGRAM)]
    site.daemon.extra_env["TICKS"] = str(_file(site))


def cost_before(site: Site) -> float:
    """Of a core: what the daemon takes now, while two tenants share the GPU and nobody plays."""
    spent_s, begun_s = _cpu_s(site), time.monotonic()
    let_run(_BEFORE_S)
    return (_cpu_s(site) - spent_s) / (time.monotonic() - begun_s)


def cost_of_two(site: Site, *tenants: str) -> float:
    """The same, of tenants that come for it and go again."""
    workers = [site.spawn(name, STEADY) for name in tenants]
    let_run(1)
    try:
        return cost_before(site)
    finally:
        for worker in workers:
            worker.kill()


@contextmanager
def modest(site: Site, before: float, most_times: float = 3.0) -> Iterator[None]:
    """The daemon is, in the body. ``before``: what it took when nobody played; it may take ``most_times`` that."""
    spent_s, begun_s, begun = _cpu_s(site), time.monotonic(), len(_ticks(site))
    yield
    wall_s = time.monotonic() - begun_s
    cost = (_cpu_s(site) - spent_s) / wall_s
    took_ns = sorted(_ticks(site)[begun:])
    print(f"{cost:.3f} of a core, {before:.3f} before")
    assert cost < before * most_times, f"{cost:.3f} of a core, and {before:.3f} when nobody plays"
    assert len(took_ns) > 9 * wall_s, "it looks ten times a second, but for the last look"
    prompt = sum(ns <= TICK_NS for ns in took_ns)
    assert prompt >= TICKS_RATIO * len(took_ns) - 1, took_ns[-20:]


def _cpu_s(site: Site) -> float:
    return time.clock_gettime(~site.pid << 3 | _CLOCK)


def _file(site: Site) -> Path:
    return site.daemon.directory / "ticks"


def _ticks(site: Site) -> list[int]:
    return [int(line) for line in _file(site).read_text().split()]
