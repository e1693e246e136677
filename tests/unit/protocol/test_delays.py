# SPDX-License-Identifier: Apache-2.0
"""Delays between two moments, from counts since the start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.base.buckets import bound_ns, bucket_of
from fairsched.cli.top.feed import RECENT_NS, Feed, News
from fairsched.protocol.delays import RECENT_NS as MINUTE_NS
from fairsched.protocol.delays import AMinuteAgo, quantile_ms, waits_between, with_recent_delays
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import TenantState, TenantStatus
from tests.unit.protocol import fakes

COUNTS = st.lists(st.integers(0, 50), max_size=12)


@given(COUNTS, COUNTS)
def test_what_was_and_what_came_is_what_is(was: list[int], came: list[int]) -> None:
    width = max(len(was), len(came))
    before, grown = was + [0] * (width - len(was)), came + [0] * (width - len(came))
    now = Histogram.of([a + b for a, b in zip(before, grown, strict=True)], 7)
    found = now.since(Histogram.of(was, 3)).buckets()
    assert found + [0] * (width - len(found)) == grown


def test_counts_from_another_beginning_are_all_new() -> None:
    now = Histogram(3, (5,), 1.0)
    assert now.since(Histogram(3, (6,), 1.0)) == now
    assert now.since(Histogram(7, (1,), 1.0)) == now
    assert Histogram().since(Histogram()).total == 0


def tenant(*waits: Histogram) -> TenantStatus:
    delays = {f"GPU-{number}": one for number, one in enumerate(waits)}
    return TenantStatus("chat", TenantState.RUN, 1, queue_delay_p99_ms=99.0, queue_delays=delays)


def test_waits_on_all_gpus_count() -> None:
    before = {"GPU-0": Histogram(20, (1000,)), "GPU-1": Histogram()}
    now = {"GPU-0": Histogram(20, (1000, 9)), "GPU-1": Histogram(25, (1,))}
    low, high = bound_ns(21), bound_ns(22)
    assert quantile_ms(waits_between(before, now), 0.5) == pytest.approx((low + (high - low) * 5 / 9) / 1e6)
    assert quantile_ms(waits_between(before, now), 1.0) == pytest.approx(bound_ns(26) / 1e6)
    assert quantile_ms(waits_between(before, before), 0.99) is None
    first, width = bound_ns(20), bound_ns(21) - bound_ns(20)
    assert quantile_ms(waits_between({}, now), 0.5) == pytest.approx((first + width * 505 / 1000) / 1e6)


def test_a_minute_ago_is_as_far_as_somebody_asked() -> None:
    memory, s = AMinuteAgo(), 10**9
    asked = {at: {"chat": {"GPU-0": Histogram(20, (at,))}} for at in (0, 30, 61, 91, 900, 960)}
    before = {at: memory.take(at * s, delays) for at, delays in asked.items()}
    assert before == {
        0: {},
        30: asked[0],
        61: asked[0],
        91: asked[30],
        900: asked[91],
        960: asked[900],
    }


def test_who_asks_often_is_not_remembered_often() -> None:
    memory, step_ns = AMinuteAgo(), 200_000_000
    moments: dict[int, dict[str, dict[str, Histogram]]] = {}
    for now_ns in range(0, 600 * 10**9, step_ns):
        moments[now_ns] = {str(now_ns): {}}
        before = memory.take(now_ns, moments[now_ns])
        if now_ns >= 2 * MINUTE_NS:
            (then,) = before
            assert MINUTE_NS <= now_ns - int(then) < MINUTE_NS + 6 * 10**9
    assert len(memory._marks) <= 14


def test_a_report_says_what_came_since_another_of_the_same_daemon() -> None:
    first = bucket_of(6_000_000) - 2
    before = replace(fakes.status(), tenants=(tenant(Histogram(first, (10,))),))
    now = replace(before, tenants=(tenant(Histogram(first, (10, 0, 4))),))
    (found,) = with_recent_delays(before, now).tenants
    assert 4.1 < (found.queue_delay_p99_ms or 0) < 8.4
    assert with_recent_delays(replace(before, pid=1), now) is now
    bare = replace(now, tenants=(replace(tenant(), queue_delay_p99_ms=5.0),))
    assert with_recent_delays(before, bare).tenants[0].queue_delay_p99_ms == 5.0, (
        "an older daemon has no counts"
    )


def test_top_shows_the_delays_of_ten_seconds() -> None:
    """A bad second is seen for ten, and not until the daemon is restarted."""
    feed = Feed(lambda: None, 1.0)
    seen = []
    for second in range(25):
        waits = Histogram(bucket_of(12_000_000) - 4, (100 * second + 1, 0, 0, 0, 50 * (second > 2)))
        report = replace(fakes.status(), t_ns=second * 10**9, tenants=(tenant(waits),))
        news = feed._recent(News(report))
        assert news.report is not None
        seen.append(news.report.tenants[0].queue_delay_p99_ms or 0)
    bad = [second for second, delay_ms in enumerate(seen) if delay_ms > 10]
    assert bad == [0, *range(3, 3 + RECENT_NS // 10**9)], (
        "the first has nothing to compare with: since the start"
    )
    assert feed._recent(News(None, "away")) == News(None, "away")
