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
from fairsched.protocol.status import StatusReport

RECENT_NS = 60_000_000_000
_MARK_NS = 5_000_000_000

Delays = Mapping[str, Histogram]
"""Of one tenant, by GPU."""


def delay_between_ms(before: Delays, now: Delays, q: float) -> float | None:
    """The q-quantile of the waits that ended between the two, on all GPUs; None when none did, or nobody counts."""
    parts = [waits.since(before.get(gpu, Histogram())).buckets() for gpu, waits in now.items()]
    return quantile_ms([sum(counts) for counts in zip_longest(*parts, fillvalue=0)], q)


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
    return replace(
        now,
        tenants=tuple(
            replace(
                tenant,
                queue_delay_p50_ms=delay_between_ms(earlier.get(tenant.name, {}), tenant.queue_delays, 0.5),
                queue_delay_p99_ms=delay_between_ms(earlier.get(tenant.name, {}), tenant.queue_delays, 0.99),
            )
            if tenant.queue_delays
            else tenant
            for tenant in now.tenants
        ),
    )


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
