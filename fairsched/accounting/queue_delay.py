# SPDX-License-Identifier: Apache-2.0
"""Quantiles of the log2 queue delay histogram (pure). Bucket i counts waits in [2^i, 2^(i+1)) ns."""

from __future__ import annotations

from collections.abc import Sequence


def quantile_ms(buckets: Sequence[int], q: float) -> float | None:
    """The q-quantile in ms, interpolated inside its bucket; None when nothing was counted."""
    total = sum(buckets)
    if not total:
        return None
    wanted, seen = q * total, 0
    for index, count in enumerate(buckets):
        if count and seen + count >= wanted:
            low = 0.0 if index == 0 else float(2**index)
            return (low + (2.0 ** (index + 1) - low) * (wanted - seen) / count) / 1e6
        seen += count
    return None
