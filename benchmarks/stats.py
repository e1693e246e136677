# SPDX-License-Identifier: Apache-2.0
"""The arithmetic behind the figures (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from fairsched.simgpu import Step

Window = tuple[int, int]
"""(start_ns, end_ns)"""


def tokens_in(steps: Iterable[Step], start_ns: int, end_ns: int) -> float:
    """Tokens made in the window; a step across an edge counts by the part of its latency inside.

    Whole tokens would make a slow tenant's throughput jump by one token per window, which is rounding and
    nothing else. A step is logged at its end: read the log one step later than the window's end. Of a program that
    waits for each step; one with several in flight is for fair/windows.py, where those that wait do not count.
    """
    total = 0.0
    for step in steps:
        begun_ns = step.end_ns - step.latency_ns
        inside_ns = min(step.end_ns, end_ns) - max(begun_ns, start_ns)
        if step.latency_ns <= 0:
            total += step.tokens if start_ns < step.end_ns <= end_ns else 0.0
        elif inside_ns > 0:
            total += step.tokens * inside_ns / step.latency_ns
    return total


def tokens_per_s(steps: Sequence[Step], windows: Iterable[Window]) -> float:
    """Throughput over several windows together. Raises ValueError when they are empty."""
    made, wall_ns = 0.0, 0
    for start_ns, end_ns in windows:
        made += tokens_in(steps, start_ns, end_ns)
        wall_ns += end_ns - start_ns
    if wall_ns <= 0:
        raise ValueError("no time in the windows")
    return made * 1e9 / wall_ns


def shares(used: Mapping[str, float]) -> dict[str, float]:
    """Each one's part of the sum; all 0 when nothing was used."""
    total = sum(used.values())
    return {name: value / total if total else 0.0 for name, value in used.items()}


def share_errors_points(used: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Percentage points by which each one's share lies above (+) or below its weight's."""
    wanted = shares(weights)
    return {name: 100 * (share - wanted[name]) for name, share in shares(used).items()}


def relative_error(measured: float, truth: float) -> float | None:
    """(measured - truth) / truth; None when there is no truth to compare with."""
    return measured / truth - 1 if truth else None


def added_cost_ratio(base: Sequence[float], cheap: Sequence[float], dear: Sequence[float]) -> float:
    """What ``cheap`` adds to ``base`` in relation to what ``dear`` adds, by medians.

    Raises ValueError when ``dear`` adds nothing: then there was no probe, and no ratio means anything.
    """
    none = statistics.median(base)
    added = statistics.median(dear) - none
    if added <= 0:
        raise ValueError("the dear variant costs nothing")
    return (statistics.median(cheap) - none) / added


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(least, median, greatest)"""
    return min(values), statistics.median(values), max(values)
