# SPDX-License-Identifier: Apache-2.0
"""Computes queue delays between two moments (pure).

Histograms count since the start; the difference of two is a histogram, too. A status says what was of the last minute,
a row of the history what was of its interval, a live picture what was of the last seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from fairsched.base.buckets import bound_ns
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import StatusReport, TenantStatus

RECENT_NS = 60_000_000_000
_MARK_NS = 5_000_000_000

Delays = Mapping[str, Histogram]
"""Of one tenant, by GPU."""


def waits_between(before: Delays, now: Delays) -> list[int]:
    """The waits that ended between the two, on all GPUs, by bucket."""
    parts = [waits.since(before.get(gpu, Histogram())).buckets() for gpu, waits in now.items()]
    return [sum(counts) for counts in zip_longest(*parts, fillvalue=0)]


def median_and_p99_ms(before: Delays, now: Delays) -> tuple[float | None, float | None]:
    """Of the waits that ended between the two; None when none did, or nobody counts."""
    waits = waits_between(before, now)
    return quantile_ms(waits, 0.5), quantile_ms(waits, 0.99)


class AMinuteAgo:
    """Remembers what the daemon's histograms were.

    They are only known when somebody asks. Where nobody asked for long, "a minute ago" is when somebody last did.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, Mapping[str, Delays]]] = deque()

    def take(self, now_ns: int, delays: Mapping[str, Delays]) -> Mapping[str, Delays]:
        """By tenant: those of a minute ago. ``delays`` are those of now, to be remembered; they must not change."""
        while len(self._marks) > 1 and self._marks[1][0] <= now_ns - RECENT_NS:
            self._marks.popleft()
        if not self._marks or now_ns - self._marks[-1][0] >= _MARK_NS:
            before = self._marks[0][1] if self._marks else {}
            self._marks.append((now_ns, delays))
            return before
        return self._marks[0][1]


def with_recent_delays(before: StatusReport, now: StatusReport) -> StatusReport:
    """The later report, with the delays of the time between the two. As it is where it is another daemon's."""
    if before.pid != now.pid:
        return now
    earlier = {tenant.name: tenant.queue_delays for tenant in before.tenants}
    return replace(now, tenants=tuple(_recent(earlier.get(one.name, {}), one) for one in now.tenants))


def _recent(before: Delays, tenant: TenantStatus) -> TenantStatus:
    if not tenant.queue_delays:
        return tenant
    median_ms, p99_ms = median_and_p99_ms(before, tenant.queue_delays)
    return replace(tenant, queue_delay_p50_ms=median_ms, queue_delay_p99_ms=p99_ms)


def quantile_ms(buckets: Sequence[int], q: float) -> float | None:
    """The q-quantile in ms, interpolated inside its bucket; None when nothing was counted."""
    total = sum(buckets)
    if not total:
        return None
    wanted, seen = q * total, 0
    for index, count in enumerate(buckets):
        if count and seen + count >= wanted:
            low, high = bound_ns(index), bound_ns(index + 1)
            return (low + (high - low) * (wanted - seen) / count) / 1e6
        seen += count
    return None
