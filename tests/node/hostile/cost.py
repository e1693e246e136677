# SPDX-License-Identifier: Apache-2.0
"""What the daemon may cost while somebody plays, and for how long it may do nothing else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.node.daemon.site import Site

CPU_RATIO = 0.1
"""Of a core, for the daemon alone."""
TICK_NS = 5_000_000
TICKS_RATIO = 0.99
"""Of the ticks, that take no longer."""
_PROGRAM = Path(__file__).with_name("timed_daemon.py")


def time_ticks(site: Site) -> None:
    """Before its daemon is started: have each tick written down."""
    site.command = [sys.executable, str(_PROGRAM)]
    site.daemon.extra_env["TICKS"] = str(_file(site))


@contextmanager
def modest(site: Site) -> Iterator[None]:
    """The daemon is, in the body."""
    daemon = psutil.Process(site.pid)
    before, begun_s, begun = daemon.cpu_times(), time.monotonic(), len(_ticks(site))
    yield
    wall_s, after = time.monotonic() - begun_s, daemon.cpu_times()
    took_ns = sorted(_ticks(site)[begun:])
    assert after.user + after.system - before.user - before.system < wall_s * CPU_RATIO
    assert len(took_ns) > 9 * wall_s, "it looks ten times a second, but for the last look"
    prompt = sum(ns <= TICK_NS for ns in took_ns)
    assert prompt >= TICKS_RATIO * len(took_ns) - 1, took_ns[-20:]


def _file(site: Site) -> Path:
    return site.daemon.directory / "ticks"


def _ticks(site: Site) -> list[int]:
    return [int(line) for line in _file(site).read_text().split()]
