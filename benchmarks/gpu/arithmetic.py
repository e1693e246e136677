# SPDX-License-Identifier: Apache-2.0
"""What the GPU checks compute (pure).

*Work* of a tenant is what stands in for the truth on a real GPU: its steps in a window times the GPU time of one
step, measured by events while it was alone. It comes from the tenants' own logs, never from the account.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.stats import Window, shares, tokens_in
from fairsched.simgpu import Step

NVML_SIGMAS = 3.0


def steps_in(logs: Sequence[Sequence[Step]], window: Window) -> float:
    """Steps of all processes of a tenant, those across an edge by the part of their latency inside."""
    return sum(tokens_in(log, *window) for log in logs)


def begun_in(logs: Sequence[Sequence[Step]], window: Window) -> int:
    """Steps begun in the window: a step's launches are made in one go when it begins."""
    start_ns, end_ns = window
    return sum(start_ns < step.end_ns - step.latency_ns <= end_ns for log in logs for step in log)


def mean_latency_ns(logs: Sequence[Sequence[Step]], window: Window) -> float | None:
    """Of the steps that lie wholly in the window; None when there is none."""
    start_ns, end_ns = window
    inside = [
        step.latency_ns
        for log in logs
        for step in log
        if step.end_ns <= end_ns and step.end_ns - step.latency_ns >= start_ns
    ]
    return statistics.fmean(inside) if inside else None


def coverage_error(counted: int, steps: float, launches_per_step: float) -> float | None:
    """How far BPF's count is from the launches made; None when nothing was launched."""
    made = steps * launches_per_step
    return abs(counted / made - 1) if made > 0 else None


def share_errors(measured: Mapping[str, float], wanted: Mapping[str, float]) -> dict[str, float]:
    """Relative error of each one's share of the sum.

    Shares and not amounts: side by side a context pays for switches and cold caches, which its cost alone does not
    know; what all pay alike cancels out.
    """
    got, due = shares(measured), shares(wanted)
    return {name: got[name] / due[name] - 1 for name in due if due[name] > 0}


def worst(errors: Mapping[str, float]) -> tuple[str, float]:
    """The name with the largest error, and its size. Raises ValueError when there is none."""
    name = max(errors, key=lambda key: abs(errors[key]))
    return name, abs(errors[name])


def nvml_limit_points(share_ratios: Mapping[str, float], seconds: float, period_us: int) -> float:
    """How far a share by NVML's samples may be from the true one by chance alone: each names one process, whether NVML
    tells them one by one or as means. ``period_us``: between two of them."""
    p = max(share_ratios.values(), key=lambda share: share * (1 - share))
    return 100 * NVML_SIGMAS * math.sqrt(max(p * (1 - p), 0.01) / (seconds * 1e6 / period_us))


def cv_in_time(logs: Sequence[Sequence[Step]], window: Window, width_ns: int = 1_000_000_000) -> float | None:
    """Coefficient of variation of the throughput in windows of a second; None with fewer than three."""
    start_ns, end_ns = window
    rates = [
        steps_in(logs, (edge, edge + width_ns)) for edge in range(start_ns, end_ns - width_ns + 1, width_ns)
    ]
    mean = statistics.fmean(rates) if rates else 0.0
    return statistics.pstdev(rates) / mean if len(rates) >= 3 and mean > 0 else None
