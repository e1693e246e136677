# SPDX-License-Identifier: Apache-2.0
"""Statuses and token curves as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairsched.base import buckets
from fairsched.companion.slis.curve import Curve
from fairsched.companion.slis.measure import Tokens
from fairsched.companion.slis.window import Sample, Window
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import GpuStatus, StatusReport, TenantGpuStatus, TenantState, TenantStatus
from tests.unit.protocol import fakes

S = 1_000_000_000
GPU, OTHER = "GPU-a", "GPU-b"


def report(second: float, *tenants: TenantStatus, gpus: Sequence[GpuStatus] = ()) -> StatusReport:
    return replace(fakes.status(), t_ns=round(second * S), tenants=tenants, gpus=tuple(gpus))


def tenant(
    name: str,
    due: Mapping[str, float | None],
    *,
    state: TenantState = TenantState.RUN,
    waits: Mapping[str, Sequence[int]] | None = None,
) -> TenantStatus:
    """``due``: its entitlement by GPU, None where it has no demand. ``waits``: buckets by GPU."""
    gpus = tuple(
        TenantGpuStatus(uuid, entitled_ratio=part, has_demand=part is not None) for uuid, part in due.items()
    )
    histograms = {uuid: Histogram.of(counts, 0) for uuid, counts in (waits or {}).items()}
    return TenantStatus(name, state, 1.0, gpus=gpus, queue_delays=histograms)


def waits(*lengths_and_counts: int) -> list[int]:
    """Buckets: of so many ms, so many; and so on."""
    found = [0] * buckets.COUNT
    for ms, count in zip(lengths_and_counts[::2], lengths_and_counts[1::2], strict=True):
        found[buckets.bucket_of(ms * 1_000_000)] += count
    return found


def window(
    seconds: int, wanted: Callable[[int], Mapping[str, Mapping[str, float]]], length_s: int = 60
) -> Window:
    """A sample at each full second, 0 and ``seconds`` included."""
    made = Window(length_s * S)
    for second in range(seconds + 1):
        made.add(Sample(second * S, wanted(second)))
    return made


def tokens(seconds: int, per_s: Callable[[int], float] | float, **other: Any) -> Tokens:
    """Counted once a second, a little after the full one, up to ``seconds``."""
    curve, count = Curve(1000 * S), 0.0
    for second in range(seconds + 1):
        curve.add(second * S + 1, {"a": count})
        count += per_s(second) if callable(per_s) else per_s
    return Tokens(**{"curves": [curve], "kind": "model", **other})
