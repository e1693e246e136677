# SPDX-License-Identifier: Apache-2.0
"""What a run looked like over time, for pictures (pure).

Windows of 1 s that slide; a run of many leaves gets fewer of them, so that a document stays some 40 KB. All
series have one point per entry of ``at_s``, the end of its window. None: nothing to tell in that window.
The Jain index is that of the GPU where it is worst, busy the mean of all GPUs, a share that of the leaf's own GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.fair.windows import SLIDE_NS, Array, Curve, S, sliding

WINDOW_NS = 1 * S
CDF_POINTS = 101
_MOST_NUMBERS = 4000
_DIGITS = 4


def grid(start_ns: int, end_ns: int, leaves: int) -> tuple[Array, Array]:
    """(starts, ends) of the windows."""
    numbers = (end_ns - start_ns) / SLIDE_NS * (3 * leaves + 2)
    step = SLIDE_NS * max(1, math.ceil(numbers / _MOST_NUMBERS))
    return sliding(start_ns, end_ns, WINDOW_NS, step)


def series(
    windows: tuple[Array, Array],
    parts: Mapping[str, tuple[Curve, Curve, Curve]],
    tokens: Mapping[str, Curve],
    busy: Curve,
    jain_1s: Array,
    latencies_ms: Mapping[str, Array],
) -> dict[str, Any]:
    """JSON-ready. ``parts``: what each leaf received, was owed, and of what that are parts."""
    starts, ends = windows
    shares, owed = {}, {}
    for leaf, (received, due, pie) in parts.items():
        whole = pie.grown(starts, ends)
        shares[leaf] = rounded(_part(received.grown(starts, ends), whole))
        owed[leaf] = rounded(_part(due.grown(starts, ends), whole))
    origin = starts[0] if len(starts) else 0.0
    return {
        "at_s": [round((end - origin) / S, 3) for end in ends.tolist()],
        "share": shares,
        "entitlement": owed,
        "tokens_per_s": {
            leaf: rounded(curve.grown(starts, ends) * S / WINDOW_NS) for leaf, curve in tokens.items()
        },
        "jain_1s": rounded(jain_1s),
        "busy": rounded(busy.grown(starts, ends) / WINDOW_NS),
        "latency_cdf_ms": {
            leaf: rounded(np.percentile(values, np.linspace(0, 100, CDF_POINTS)))
            for leaf, values in latencies_ms.items()
            if len(values)
        },
    }


def _part(some: Array, whole: Array) -> Array:
    return np.where(whole > 0, some / np.where(whole > 0, whole, 1.0), np.nan)


def rounded(values: Array | Sequence[float]) -> list[float | None]:
    """To four significant digits; NaN is None."""
    return [None if math.isnan(value) else float(f"{value:.{_DIGITS}g}") for value in np.asarray(values)]
