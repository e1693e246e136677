# SPDX-License-Identifier: Apache-2.0
"""The statistics behind all figures (pure).

Sections: tokens and shares; one list of values; a figure over several seeds.

numpy comes with the extra `bench`: only what is given arrays imports it, for core and gpu run without.

Terms. window: (start_ns, end_ns). extremes: least, median, greatest. variation: standard deviation / mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fairsched.simgpu import Step

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.float64]

Window = tuple[int, int]
"""(start_ns, end_ns)"""
# Student's t, two-sided 95 %, by degrees of freedom; beyond them the normal distribution is near enough.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
_T_95_MANY = 1.96


# ---- tokens and shares ----


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


# ---- one list of values ----


def extremes(values: Sequence[float]) -> tuple[float, float, float]:
    """(least, median, greatest)"""
    return min(values), statistics.median(values), max(values)


def percentile(values: Iterable[float], ratio: float) -> float:
    """The smallest value that ``ratio`` of all do not exceed. Raises ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)]


def interpolated(values: Sequence[float] | Array, percent: float) -> float | None:
    """The percentile, on the line between the two values beside it; None for none."""
    import numpy as np

    return float(np.percentile(values, percent)) if len(values) else None


def jain(received: Array, owed: Array, counts: npt.NDArray[np.bool_]) -> Array:
    """Jain's index of received / owed for each row over the columns that count; NaN for fewer than two.

    1 when everybody got the same part of what was owed, 1/n when one got all. The weights are in what is owed.
    """
    import numpy as np

    counts = counts & (owed > 0)
    part = np.where(counts, received / np.where(owed > 0, owed, 1.0), 0.0)
    number = counts.sum(axis=1)
    squares = (part**2).sum(axis=1)
    index = part.sum(axis=1) ** 2 / np.where(squares > 0, number * squares, 1.0)
    return np.asarray(np.where((number >= 2) & (squares > 0), index, np.nan), dtype=np.float64)


def variation(values: Sequence[float] | Array) -> float | None:
    """Coefficient of variation, with n - 1 (the stricter one); None for fewer than two or a mean of 0."""
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2 or not array.mean():
        return None
    return float(array.std(ddof=1) / array.mean())


# ---- over the seeds ----


@dataclass(frozen=True)
class Spread:
    """A figure over several seeds."""

    mean: float
    min: float
    max: float
    ci95: float | None
    """Half the width of the 95 % confidence interval of the mean; None with a single seed or without an end."""
    seeds: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """None when it was never measured; seeds in which it was not do not count."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    half = None
    if len(known) > 1 and all(map(math.isfinite, known)):
        freedom = len(known) - 1
        t = _T_95[freedom - 1] if freedom <= len(_T_95) else _T_95_MANY
        half = t * statistics.stdev(known) / math.sqrt(len(known))
    return Spread(statistics.fmean(known), min(known), max(known), half, len(known))
