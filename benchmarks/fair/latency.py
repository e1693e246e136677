# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a leaf took (pure).

Problem. A step is logged at its end. A tenant that waits eight seconds for one token would have a better 99th
percentile than one that got its tokens late.

Approach. The steps that ended in the measured part, and those under way at its end. Of the latter a log knows some
by now, with their whole latency. Of the others it knows nothing: each counts as old as it is at least. In a closed
loop a process without a younger step is at one, since its last one and the pause after it. Where steps arrive by
a clock, one of the leaf's processes is, since the last step of any, while the leaf wants the GPU (reference.py).
"""

from __future__ import annotations

import numpy as np

from benchmarks.fair.recording import Recording
from benchmarks.fair.reference import GRACE_NS, Truth
from benchmarks.fair.windows import MS, Array


def finished_ms(recording: Recording, leaf: str) -> Array:
    """Of the steps that ended in the measured part."""
    start, end = recording.start_ns, recording.end_ns
    steps = (step for log in recording.steps.get(leaf, ()) for step in log)
    return np.array([step.latency_ns / MS for step in steps if start < step.end_ns <= end], dtype=np.float64)


def latencies_ms(truth: Truth, leaf: str) -> Array:
    """Of those, and of the steps under way at its end."""
    pending = np.array([ns / MS for ns in _pending_ns(truth, leaf)], dtype=np.float64)
    return np.concatenate([finished_ms(truth.recording, leaf), pending])


def _pending_ns(truth: Truth, leaf: str) -> list[float]:
    recording, end = truth.recording, truth.recording.end_ns
    begun, gone = recording.present_ns.get(leaf, (end, 0))
    if gone < end:
        return []
    logs = recording.steps.get(leaf, ())
    known = [
        step.latency_ns for log in logs for step in log if step.end_ns - step.latency_ns < end < step.end_ns
    ]
    thinks = recording.think_ns.get(leaf, (None,) * len(logs))
    last = [max((step.end_ns for step in log), default=begun) for log in logs]
    ages = [end - at - think for at, think in zip(last, thinks, strict=True) if think is not None]
    if not known and None in thinks:
        ages.append(end - max(*last, _wanting_since_ns(truth, leaf)))
    return [*known, *(age for age in ages if age > 0)]


def _wanting_since_ns(truth: Truth, leaf: str) -> int:
    """The end, if it does not want the GPU then."""
    end = truth.recording.end_ns
    return next((int(first) for first, last in truth.demand[leaf][::-1] if last >= end - GRACE_NS), end)
