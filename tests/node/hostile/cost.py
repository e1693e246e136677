# SPDX-License-Identifier: Apache-2.0
"""What the daemon may cost while somebody plays, and for how long it may do nothing else.

A machine that other work has slowed down is slower for a tick without a play, too, by half from one minute to the next.
So what a play costs, and how long its ticks take, is compared with what the same daemon took just before it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.node.daemon.site import STEADY, Site
from tests.support import let_run

_BEFORE_S = 6.0
_CLOCK = 2
"""Of a process, of all its threads: CPUCLOCK_SCHED in the kernel's include/linux/posix-timers.h."""
_TICKS_RATIO = 0.95
"""Of the ticks, that take no longer."""
_TICK_NS = 5_000_000
"""And a tick that is as short as this is short enough, whatever it took before."""
_PROGRAM = Path(__file__).with_name("timed_daemon.py")


def time_ticks(site: Site) -> None:
    """Before its daemon is started: have each tick written down."""
    site.command = [sys.executable, str(_PROGRAM)]
    site.daemon.extra_env["TICKS"] = str(_file(site))


class Cost(NamedTuple):
    """Of the daemon, in some time."""

    core: float
    """Of a core, with all its threads."""
    tick_ns: int
    """What most ticks take at most (_TICKS_RATIO), but for waits for a processor."""
    ticks: int
    wall_s: float

    def __str__(self) -> str:
        return f"{self.core:.3f} of a core, ticks of {self.tick_ns / 1e6:.2f} ms"


def cost_before(site: Site) -> Cost:
    """What the daemon takes now, while two tenants share the GPU and nobody plays."""
    with _measured(site) as found:
        let_run(_BEFORE_S)
    return found[0]


def cost_of_two(site: Site, *tenants: str) -> Cost:
    """The same, of tenants that come for it and go again."""
    workers = [site.spawn(name, STEADY) for name in tenants]
    let_run(1)
    try:
        return cost_before(site)
    finally:
        for worker in workers:
            worker.kill()


@contextmanager
def modest(site: Site, before: Cost, most_times: float = 3.0, tick_times: float = 3.5) -> Iterator[None]:
    """The daemon is, in the body. ``before``: what it took when nobody played; it may take ``most_times`` that.

    ``tick_times``: the same for its ticks, which take .6 to 2.7 times as long: some take in a part of a flood as well.
    """
    with _measured(site) as found:
        yield
    (now,) = found
    print(f"{now}; before: {before}")
    assert now.core < before.core * most_times, f"{now}; when nobody plays: {before}"
    assert now.ticks > 9 * now.wall_s, "it looks ten times a second, but for the last look"
    assert now.tick_ns < max(_TICK_NS, before.tick_ns * tick_times), f"{now}; when nobody plays: {before}"


@contextmanager
def _measured(site: Site) -> Iterator[list[Cost]]:
    """What the body cost is there after it."""
    found: list[Cost] = []
    spent_s, begun_s, begun = _cpu_s(site), time.monotonic(), len(_ticks(site))
    yield found
    wall_s = time.monotonic() - begun_s
    core = (_cpu_s(site) - spent_s) / wall_s
    took_ns = sorted(_ticks(site)[begun:])
    assert took_ns, "it ticks"
    found.append(Cost(core, took_ns[int((len(took_ns) - 1) * _TICKS_RATIO)], len(took_ns), wall_s))


def _cpu_s(site: Site) -> float:
    return time.clock_gettime(~site.pid << 3 | _CLOCK)


def _file(site: Site) -> Path:
    return site.daemon.directory / "ticks"


def _ticks(site: Site) -> list[int]:
    return [int(line) for line in _file(site).read_text().split()]
