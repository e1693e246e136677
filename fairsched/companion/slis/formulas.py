# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the service levels (pure). None = too little is known to say.

Terms. CV: coefficient of variation, standard deviation by mean. All deviations are those of a sample (n - 1), the
stricter ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fairsched.base.buckets import WIDEST

FAIR_CV_RATIO = 0.05
"""Below it the token rates count as fair."""
FEWEST_SECONDS = 10
"""Fewer samples or one-second windows than these say nothing of a deviation."""

_ROUNDING_VARIANCE = 1 / 6
"""Of the difference of two counters that show whole tokens only: each is behind by an even 0 to 1, of variance 1/12."""


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def variation(values: Sequence[float]) -> float | None:
    """CV; None for fewer than two values, or when all are 0: nothing was done, fairly or not."""
    found = deviation(values)
    mean = math.fsum(values) / len(values) if values else 0.0
    return None if found is None or mean <= 0 else found / mean


def variation_in_time(tokens: Sequence[float]) -> float | None:
    """CV of token counts in windows of equal length that lie side by side; None for fewer than FEWEST_SECONDS.

    A counter shows whole tokens, so at each edge of a window up to one is missing that is nearly done. 14 even tokens
    a second would show a CV of 3 % for that alone. Its variance is known and taken off (Sheppard's correction): what
    remains is that of fractional tokens.
    """
    if len(tokens) < FEWEST_SECONDS:
        return None
    found, mean = deviation(tokens), math.fsum(tokens) / len(tokens)
    if found is None or mean <= 0:
        return None
    return math.sqrt(max(0.0, found**2 - _ROUNDING_VARIANCE)) / mean


def grown(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """What was counted between two readings of a histogram; all of the later when it began anew in between.

    Buckets that are not there are 0.
    """
    before = [*old, *[0] * (len(new) - len(old))]
    if len(before) > len(new) or any(later < earlier for earlier, later in zip(before, new, strict=True)):
        return list(new)
    return [later - earlier for earlier, later in zip(before, new, strict=True)]


def queue_delay_floor_ms(tenants: int | None, turn_ms: float) -> float | None:
    """What the p99 of queue delays may be where so many tenants share a GPU fairly.

    Each waits for one turn of each other one. A quantile is known to within a bucket, so it may read one bucket more.
    """
    return None if tenants is None else WIDEST * max(0, tenants - 1) * turn_ms


def is_fair(token_rate_cv_ratio: float | None) -> bool | None:
    """The objective; None = not known."""
    return None if token_rate_cv_ratio is None else token_rate_cv_ratio < FAIR_CV_RATIO
