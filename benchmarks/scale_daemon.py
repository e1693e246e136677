# SPDX-License-Identifier: Apache-2.0
"""``fairsched run`` with a stopwatch: ``python -m benchmarks.scale_daemon TIMES CONFIG``.

The daemon does not tell how long its ticks take. This program is the daemon, nothing left out; the parts of its loop
are wrapped so that each call leaves four numbers in memory, which are written to TIMES at the end. Two readings of two
clocks cost about a microsecond per part.
"""

from __future__ import annotations

import functools
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PARTS = ("tick", "read", "walk", "snapshot", "decide", "apply", "housekeep", "library", "pids", "status")
"""Of the loop; a tick contains those from ``read`` to ``apply``, housekeeping ``library`` and ``pids``."""
LATE, ACTIONS = "late", "actions"
"""Not parts: how long after it was due a tick began, and how many holds and thaws it decided."""
_KINDS = (*PARTS, LATE, ACTIONS)


class Lap(NamedTuple):
    """One call of one part; for LATE and ACTIONS ``wall_ns`` is the value."""

    kind: str
    begin_ns: int
    wall_ns: int
    cpu_ns: int


class Stopwatch:
    """Laps of wrapped functions."""

    def __init__(self) -> None:
        self._laps = array("q")

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """From now on each call of ``owner.name`` is a lap."""
        original: Callable[..., Any] = getattr(owner, name)
        number, laps = _KINDS.index(part), self._laps

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                spent_ns = time.thread_time_ns() - cpu_ns
                laps.extend((number, begin_ns, time.monotonic_ns() - begin_ns, spent_ns))

        setattr(owner, name, timed)

    def note(self, kind: str, value: int) -> None:
        """A value and the time."""
        self._laps.extend((_KINDS.index(kind), time.monotonic_ns(), value, 0))

    def write(self, path: Path) -> None:
        """For :func:`read_laps`."""
        path.write_bytes(self._laps.tobytes())


def read_laps(path: Path) -> list[Lap]:
    """What a daemon that has ended wrote."""
    numbers = array("q", path.read_bytes())
    rows = (numbers[i : i + 4] for i in range(0, len(numbers), 4))
    return [Lap(_KINDS[kind], begin_ns, wall_ns, cpu_ns) for kind, begin_ns, wall_ns, cpu_ns in rows]


def instrument(watch: Stopwatch) -> None:
    """Put the stopwatch on the daemon's loop."""
    from fairsched.act.holds import Applier
    from fairsched.daemon import loop as daemon
    from fairsched.daemon.answers import Answers
    from fairsched.observe.sensors import Sensors
    from fairsched.observe.tree import Tree

    watch.wrap(Sensors, "read", "read")
    watch.wrap(Tree, "refresh", "walk")
    watch.wrap(daemon, "build_snapshot", "snapshot")
    watch.wrap(daemon, "decide", "decide")
    watch.wrap(Applier, "apply", "apply")
    watch.wrap(Sensors, "look_for_libraries", "library")
    watch.wrap(Tree, "pids", "pids")
    watch.wrap(daemon.Daemon, "_housekeep", "housekeep")
    watch.wrap(Answers, "status", "status")
    watch.wrap(daemon.Daemon, "_tick", "tick")
    _note_lateness(watch, daemon.Daemon)
    _note_actions(watch, Applier)


def _note_lateness(watch: Stopwatch, daemon: Any) -> None:
    tick = daemon._tick

    def noted(self: Any, now_ns: int) -> None:
        watch.note(LATE, now_ns - self._next_tick_ns)
        tick(self, now_ns)

    daemon._tick = noted


def _note_actions(watch: Stopwatch, applier: Any) -> None:
    apply = applier.apply

    def noted(self: Any, plan: Any, now_ns: int) -> None:
        actions = tuple(plan)
        watch.note(ACTIONS, len(actions))
        apply(self, actions, now_ns)

    applier.apply = noted


def main(argv: list[str]) -> int:
    times, config = Path(argv[0]), Path(argv[1])
    watch = Stopwatch()
    instrument(watch)
    from fairsched.daemon.main import run_daemon

    try:
        return run_daemon(config, dry_run=False, once=False)
    finally:
        watch.write(times)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
