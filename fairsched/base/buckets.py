# SPDX-License-Identifier: Apache-2.0
"""The buckets that durations are counted in: four to each power of two.

Problem: buckets that double cannot tell 17 ms from 33, and a limit lies at 20.

Approach: durations are counted in units of 1024 ns. The first eight buckets are one unit wide; from there on each
power of two is cut into four equal parts, so that a bound is 1.14 to 1.25 times the one before. Shifting finds the
bucket, so BPF programs count in the same ones (bpf/delay.h; a test compares the two).
"""

from __future__ import annotations

COUNT = 100
"""The last one begins at 60 s and has no end."""
WIDEST = 1.25
"""The end of a bucket by its beginning, from the fifth bucket on."""
_UNIT_SHIFT = 10


def bucket_of(ns: int) -> int:
    """The bucket of a duration."""
    units = ns >> _UNIT_SHIFT
    shift = max(0, units.bit_length() - 3)
    return min(4 * shift + (units >> shift), COUNT - 1)


def bound_ns(bucket: int) -> int:
    """The shortest duration of a bucket; of the one after the last, where that would end."""
    shift = max(0, bucket // 4 - 1)
    return (bucket - 4 * shift) << shift + _UNIT_SHIFT
