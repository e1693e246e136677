# SPDX-License-Identifier: Apache-2.0
"""Figures from samples. Pure: samples in, figures out."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.simgpu import Step

SETTLE_S = 5.0
"""Left out at the beginning of each half: queues fill, tenants are measured alone for a moment, and who was held for
that is paid back. A window that begins in the middle of this shows one half of a debt: up to 2.5 points in 13 s."""
WINDOW_S = 0.5
"""Of the timeline."""
_MIN_CV_WINDOWS = 3


@dataclass(frozen=True)
class Sample:
    """The engine's accounts at one moment."""

    t_ns: int
    exec_ns: Mapping[str, int]
    busy_ns: int
    switch_ns: int


@dataclass(frozen=True)
class AccountSample:
    """GPU time by tenant: as the daemon says, and in truth."""

    t_ns: int
    account_ns: Mapping[str, float]
    truth_ns: Mapping[str, int]


@dataclass(frozen=True)
class Recording:
    """Everything that was seen, in order of time."""

    samples: Sequence[Sample]
    steps: Mapping[str, Sequence[Step]]
    accounts: Sequence[AccountSample]


@dataclass(frozen=True)
class TenantFigures:
    """One tenant in one half."""

    share_ratio: float
    """Of the GPU time that all tenants got."""
    error_ratio: float
    """Share minus entitlement."""
    steps_per_s: float
    """Tokens, or training steps."""
    steps_cv_ratio: float | None
    """Standard deviation over mean of 1 s windows; None with fewer than three."""
    account_error_ratio: float | None
    """The daemon's account against the truth; None when there was nothing to compare."""


@dataclass(frozen=True)
class HalfFigures:
    """One half without its settling time."""

    seconds: float
    busy_ratio: float
    """Part of the time in which the GPU was not idle; context switches are part of it."""
    switch_ratio: float
    largest_error_ratio: float
    tenants: Mapping[str, TenantFigures]


@dataclass(frozen=True)
class DaemonFigures:
    """What the daemon and its helpers cost while scheduling."""

    cpu_ratio: float
    rss_bytes: int
    """Of the daemon itself."""
    helpers_rss_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Both halves in windows of WINDOW_S; time 0 is the beginning of the first half."""

    t_s: Sequence[float]
    """Beginnings of the windows."""
    switched_s: float
    """When scheduling began."""
    share_ratio: Mapping[str, Sequence[float]]
    steps_per_s: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Result:
    """What the demo has to tell."""

    seconds: float
    """Length of each half."""
    settle_s: float
    entitlement_ratio: Mapping[str, float]
    unscheduled: HalfFigures
    scheduled: HalfFigures
    daemon: DaemonFigures
    warnings: Sequence[str]
    """The daemon's own, at the end."""
    timeline: Timeline = field(repr=False)


def settle_s(seconds: float) -> float:
    """Left out of a half of this length: less where the half is short."""
    return min(SETTLE_S, seconds / 3)


def judge_half(
    recording: Recording, start_ns: int, end_ns: int, entitlement: Mapping[str, float]
) -> HalfFigures:
    """The figures of [start_ns, end_ns]."""
    wall_ns = end_ns - start_ns
    first, last = _at(recording.samples, start_ns), _at(recording.samples, end_ns)
    got = {name: last.exec_ns[name] - first.exec_ns[name] for name in entitlement}
    total = sum(got.values()) or 1
    switch_ns = last.switch_ns - first.switch_ns
    tenants = {}
    for name, due in entitlement.items():
        share = got[name] / total
        steps = recording.steps[name]
        tenants[name] = TenantFigures(
            share_ratio=share,
            error_ratio=share - due,
            steps_per_s=sum(spread(steps, (start_ns, end_ns))) * 1e9 / wall_ns,
            steps_cv_ratio=_cv(steps, start_ns, end_ns),
            account_error_ratio=_account_error(recording.accounts, name, start_ns, end_ns),
        )
    return HalfFigures(
        seconds=wall_ns / 1e9,
        busy_ratio=(last.busy_ns - first.busy_ns + switch_ns) / wall_ns,
        switch_ratio=switch_ns / wall_ns,
        largest_error_ratio=max(abs(tenant.error_ratio) for tenant in tenants.values()),
        tenants=tenants,
    )


def make_timeline(
    recording: Recording, start_ns: int, switched_ns: int, end_ns: int, names: Iterable[str]
) -> Timeline:
    window_ns = round(WINDOW_S * 1e9)
    edges = list(range(start_ns, end_ns + 1, window_ns))
    marks = [_at(recording.samples, edge) for edge in edges]
    names = list(names)
    share: dict[str, list[float]] = {name: [] for name in names}
    for before, after in itertools.pairwise(marks):
        got = {name: after.exec_ns[name] - before.exec_ns[name] for name in names}
        total = sum(got.values()) or 1
        for name in names:
            share[name].append(got[name] / total)
    rates = {name: [n / WINDOW_S for n in spread(recording.steps[name], edges)] for name in names}
    begins = [(edge - start_ns) / 1e9 for edge in edges[:-1]]
    return Timeline(begins, (switched_ns - start_ns) / 1e9, share, rates)


def spread(steps: Sequence[Step], edges: Sequence[int]) -> list[float]:
    """Steps per window between ``edges``; one that spans several counts in each for its part.

    Whole steps alone would make a tenant of 14 token/s look 7 % uneven for nothing but rounding.
    """
    found = [0.0] * (len(edges) - 1)
    for step in steps:
        begin_ns = step.end_ns - step.latency_ns
        window = max(0, bisect.bisect_right(edges, begin_ns) - 1)
        while window < len(found) and edges[window] < step.end_ns:
            inside_ns = min(step.end_ns, edges[window + 1]) - max(begin_ns, edges[window])
            found[window] += step.tokens * max(0, inside_ns) / max(1, step.latency_ns)
            window += 1
    return found


def _cv(steps: Sequence[Step], start_ns: int, end_ns: int) -> float | None:
    edges = list(range(start_ns, end_ns + 1, 1_000_000_000))
    counts = spread(steps, edges) if len(edges) > 1 else []
    if len(counts) < _MIN_CV_WINDOWS or not any(counts):
        return None
    return statistics.pstdev(counts) / statistics.fmean(counts)


def _account_error(accounts: Sequence[AccountSample], name: str, start_ns: int, end_ns: int) -> float | None:
    """How much faster than the truth the account grew, by least squares over all samples of the half.

    The daemon's figure is up to a tick old when it is read. Over the half that is noise of a percent for a
    small tenant if only the first and the last sample are compared, and next to none if all are.
    """
    points = [
        (float(sample.truth_ns[name]), sample.account_ns[name])
        for sample in accounts
        if start_ns <= sample.t_ns <= end_ns and name in sample.account_ns
    ]
    if len(points) < 2 or points[-1][0] == points[0][0]:
        return None
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    return None if math.isnan(slope) else slope - 1


def _at(samples: Sequence[Sample], t_ns: int) -> Sample:
    """The accounts at a moment between two samples: they grow evenly in a tenth of a second."""
    index = bisect.bisect_left(samples, t_ns, key=lambda sample: sample.t_ns)
    if index == 0 or index == len(samples):
        return samples[min(index, len(samples) - 1)]
    before, after = samples[index - 1], samples[index]
    part = (t_ns - before.t_ns) / (after.t_ns - before.t_ns)

    def between(low: int, high: int) -> int:
        return round(low + (high - low) * part)

    return Sample(
        t_ns,
        {name: between(before.exec_ns[name], after.exec_ns[name]) for name in before.exec_ns},
        between(before.busy_ns, after.busy_ns),
        between(before.switch_ns, after.switch_ns),
    )
