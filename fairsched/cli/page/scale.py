# SPDX-License-Identifier: Apache-2.0
"""Axes: round numbers in the right density, and times as a person writes them. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

_TIME_STEPS_S = (10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten of which at most `count` fit into `span`."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * count >= span * 0.999999)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from at most `low` to at least `high`, some `count` of them."""
    step = nice_step(high - low, count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from at most `low` to at least `high`, both above 0; two at least."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def log_ticks(values: Iterable[float]) -> list[float]:
    """The decades of a logarithmic axis. Six at most: one that hardly waits would flatten the rest."""
    above = [value for value in values if value > 0] or [1.0]
    return decades(max(min(above), max(above) / 1e4), max(above))


def time_ticks(begin_s: float, end_s: float, count: int) -> list[tuple[float, str]]:
    """(Unix time, label) at round local times between the two."""
    step = next((one for one in _TIME_STEPS_S if (end_s - begin_s) / one <= count), _TIME_STEPS_S[-1])
    offset = time.localtime(begin_s).tm_gmtoff or 0
    first = math.ceil((begin_s + offset) / step) * step - offset
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%d %b"
    found: list[tuple[float, str]] = []
    t = float(first)
    while t <= end_s:
        is_midnight = step < 86400 and time.strftime("%H:%M:%S", time.localtime(t)) == "00:00:00"
        found.append((t, time.strftime("%d %b" if is_midnight else form, time.localtime(t))))
        t += step
    return found


def number_text(value: float) -> str:
    """An axis label: no more digits than it needs."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.10g}"
