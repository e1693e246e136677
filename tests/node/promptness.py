# SPDX-License-Identifier: Apache-2.0
"""How long something took, told apart from how long this machine's processors were busy with something else.

A promise in seconds is one of the product, not of the machine: with more to run than there are processors (compilers,
other tests, other guests of the same host) whoever shall act in a moment may wait for seconds before it runs at all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.rig import cpu_pressure_s, cpu_stolen_s
from tests.support import wait_until


@dataclass(frozen=True)
class Took:
    """Wall time, and the part of it in which some process waited for a processor or a processor was taken away."""

    wall_s: float
    waited_s: float
    """At most: the two may have been at once. 0 where the kernel does not tell."""

    @property
    def own_s(self) -> float:
        """What no wait explains."""
        return max(0.0, self.wall_s - self.waited_s)


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._begun_s, self._lost_s = time.monotonic(), _lost_s()

    def read(self) -> Took:
        wall_s = time.monotonic() - self._begun_s
        return Took(wall_s, min(wall_s, _lost_s() - self._lost_s))


def _lost_s() -> float:
    return (cpu_pressure_s() or 0.0) + cpu_stolen_s()


def time_until(condition: Callable[[], object], patience_s: float, claim: str) -> Took:
    watch = Stopwatch()
    wait_until(condition, patience_s, claim)
    return watch.read()


def expect_within(times: Sequence[Took], limit_s: float, cap_s: float) -> None:
    """Half of them on the clock, and each of them but for waits for a processor.

    Where some process always waits for one, that says nothing of a single time: none may be longer than ``cap_s``.
    """
    assert statistics.median(one.wall_s for one in times) < limit_s, times
    assert max(one.own_s for one in times) < limit_s, times
    assert max(one.wall_s for one in times) < cap_s, times
