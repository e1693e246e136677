# SPDX-License-Identifier: Apache-2.0
"""The moments of an interval, summed up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.base.buckets import bound_ns
from fairsched.companion.history.collect import Collector, DecisionRow, Rows
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import TenantState
from tests.unit.companion.history.days import GPU, HOLDS, T0, report, tenant


def one(collector: Collector, *seconds: float) -> Rows:
    """The rows that the last of these moments, and none before it, brings."""
    found = [collector.add(report(second)) for second in seconds]
    assert found[:-1] == [None] * (len(seconds) - 1)
    assert found[-1] is not None
    return found[-1]


def test_an_interval_ends_when_its_time_is_over_and_the_next_one_begins_there() -> None:
    collector = Collector(10)
    rows = one(collector, 0, 2, 4, 6, 8, 10)
    assert (rows.t, rows.node.span_s) == (T0 + 10, 10)
    rows = one(collector, 12, 21)
    assert (rows.t, rows.node.span_s) == (T0 + 21, 11)


def test_counters_are_differences_and_levels_are_means() -> None:
    rows = one(Collector(10), 0, 5, 10)
    chat = next(row for row in rows.shares if row.tenant == "chat")
    assert chat.gpu_time_s == pytest.approx(6.0)
    assert chat.used_ratio == pytest.approx(0.6)
    assert chat.entitled_ratio == pytest.approx(2 / 3)
    row = rows.tenants[0]
    assert (row.held_s, row.tokens_per_s, row.weight) == (pytest.approx(1.0), 30.0, 2)
    assert rows.gpus[0].busy_ratio == 0.9
    assert rows.node.queue_delay_p99_ms == 7.0


def test_without_demand_nothing_was_due_and_what_is_not_known_is_none() -> None:
    collector = Collector(10)
    idle = tenant("chat", 0, 0.5, None)
    blind = replace(idle, gpus=(replace(idle.gpus[0], used_ratio=None, has_demand=None, lag_ms=None),))
    collector.add(report(0, idle, blind))
    collector.add(report(5, tenant("chat", 5, 0.5, 0.8), replace(blind, name="blind")))
    rows = collector.add(report(10, idle, replace(blind, name="blind", tokens=None)))
    assert rows is not None
    chat, unknown = rows.shares
    assert chat.entitled_ratio == pytest.approx(0.4), "half of the time .8, half of it nothing"
    assert (unknown.used_ratio, unknown.entitled_ratio, unknown.lag_ms) == (None, None, None)


def test_delays_are_those_of_the_interval_and_a_lag_is_the_furthest() -> None:
    collector = Collector(10)
    collector.add(report(0))
    for second, lag_ms in ((5, -300.0), (10, 40.0)):
        chat = tenant("chat", second, 0.5, 0.5)
        quiet = replace(chat, name="batch", queue_delays={GPU: Histogram(20, (100,), 1.0)})
        rows = collector.add(
            report(second, replace(chat, gpus=(replace(chat.gpus[0], lag_ms=lag_ms),)), quiet)
        )
    assert rows is not None
    chat_row, quiet_row = rows.tenants
    # a hundred waits of the bucket before are from before; the ten of the interval are of the next
    low_ms, high_ms = bound_ns(21) / 1e6, bound_ns(22) / 1e6
    assert chat_row.queue_delay_p50_ms == pytest.approx((low_ms + high_ms) / 2)
    assert low_ms < (chat_row.queue_delay_p99_ms or 0) <= high_ms
    assert quiet_row.queue_delay_p99_ms is None, "none of its work came to an end, which is not 0"
    assert rows.shares[0].lag_ms == -300.0


def test_decisions_are_counted_by_reason() -> None:
    collector = Collector(10)
    collector.add(report(0))
    rows = collector.add(report(10), HOLDS)
    assert rows is not None
    assert rows.decisions == (
        DecisionRow("batch", "hold", "over_entitlement", False, 3, 1, None),
        DecisionRow("batch", "thaw", "caught_up", False, 1, 0, 0.04),
        DecisionRow("batch", "thaw", "gpu_idle", False, 1, 0, 0.06),
    )


def test_another_daemon_begins_anew_and_the_gap_is_known() -> None:
    collector = Collector(10)
    collector.add(report(0))
    collector.add(report(5))
    assert collector.add(report(30, pid=8)) is None, "its counters began at 0: no row across the two"
    rows = collector.add(report(40, pid=8))
    assert rows is not None
    assert not rows.node.is_gapless
    again = collector.add(report(50, pid=8))
    assert again is not None
    assert again.node.is_gapless


def test_a_counter_that_began_anew_and_a_tenant_that_came_are_no_leaps() -> None:
    collector = Collector(10)
    collector.add(report(0, tenant("chat", 900, 1.0, 0.5)))
    collector.add(report(5, tenant("chat", 5, 1.0, 0.5), tenant("late", 5, 1.0, 0.5)))
    rows = collector.add(report(10, tenant("chat", 10, 1.0, 0.5), tenant("late", 10, 1.0, 0.5)))
    assert rows is not None
    chat, late = rows.shares
    assert chat.gpu_time_s == 510, "smaller than before: all of it is new"
    assert late.gpu_time_s == 5, "counted from its first moment, not from the beginning of the world"


def test_the_state_is_the_one_it_was_in_most() -> None:
    collector = Collector(10)
    collector.add(report(0))
    for second in (2, 4, 6, 8, 10):
        state = TenantState.HELD if second in (4, 6, 8) else TenantState.RUN
        rows = collector.add(report(second, tenant("chat", second, 0.5, 0.5, state=state)))
    assert rows is not None
    assert rows.tenants[0].state == "held"
    assert rows.shares[0].gpu == GPU
