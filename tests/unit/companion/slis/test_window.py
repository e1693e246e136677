# SPDX-License-Identifier: Apache-2.0
"""What a row of statuses says: who wanted what, how evenly the GPU was busy, how long work waited."""

from __future__ import annotations

import random

import pytest

from fairsched.companion.slis.window import Sample, Window, sample_of
from fairsched.protocol.delays import quantile_ms
from fairsched.protocol.status import GpuStatus, TenantState
from tests.unit.companion.slis.made import GPU, OTHER, S, report, tenant, waits, window


def test_only_demand_counts_and_only_of_tenants_that_may_be_held() -> None:
    sample = sample_of(
        report(
            7,
            tenant("chat", {GPU: 0.75, OTHER: None}),
            tenant("batch", {GPU: 0.25}),
            tenant("monitor", {GPU: 0.5}, state=TenantState.EXEMPT),
            tenant("away", {GPU: None}),
        )
    )
    assert sample.t_ns == 7 * S
    assert sample.wanted == {"chat": {GPU: 0.75}, "batch": {GPU: 0.25}}


def test_nvml_says_how_busy_a_gpu_is_and_the_account_where_nvml_does_not() -> None:
    gpus = [
        GpuStatus(GPU, busy_ratio=0.5, utilization_ratio=0.9),
        GpuStatus(OTHER, busy_ratio=0.4),
        GpuStatus("GPU-idle", busy_ratio=0.1, utilization_ratio=0.1),
        GpuStatus("GPU-dark"),
    ]
    wanted = tenant("chat", {GPU: 1.0, OTHER: 1.0, "GPU-idle": None, "GPU-dark": 1.0})
    assert sample_of(report(0, wanted, gpus=gpus)).utilization == {GPU: 0.9, OTHER: 0.4}


def test_the_deviation_of_utilization_is_that_of_the_worst_gpu_in_time() -> None:
    made = Window(60 * S)
    assert made.sm_utilization_stdev_ratio() is None
    for second in range(20):
        made.add(Sample(second * S, utilization={GPU: 0.9, OTHER: 0.9 if second % 2 else 0.7}))
        assert (made.sm_utilization_stdev_ratio() is None) == (second < 9), "ten samples say something"
    # between two even GPUs of unlike load nothing varies; in time one of them does
    assert made.sm_utilization_stdev_ratio() == pytest.approx(0.1, rel=0.03)


def test_p99_is_that_of_all_waits_together_not_a_mean_of_p99s() -> None:
    made = Window(60 * S)
    many, few = waits(1, 990), waits(1000, 10)
    made.add(sample_of(report(0)))
    made.add(sample_of(report(1, tenant("a", {}, waits={GPU: many}), tenant("b", {}, waits={GPU: few}))))
    p99 = made.queue_delay_p99_ms()
    assert p99 == pytest.approx(quantile_ms(waits(1, 990, 1000, 10), 0.99))
    assert p99 is not None and p99 < 2.2


def test_p99_is_that_of_the_window_not_of_all_time() -> None:
    made = Window(10 * S)
    for second in range(40):
        long = 250 if second >= 5 else 50 * second
        counts = waits(1, 1000 * second, 1100, long)
        made.add(sample_of(report(second, tenant("a", {}, waits={GPU: counts}))))
        p99 = made.queue_delay_p99_ms()
        if second == 0:
            assert p99 is None, "what was counted before the first status is not of the window"
        elif 1 <= second <= 10:
            assert p99 is not None and p99 > 1000
        elif second > 20:
            assert p99 is not None and p99 < 2.2


def test_p99_survives_a_daemon_that_counts_from_0_again() -> None:
    made = Window(60 * S)
    for second, count in enumerate([100, 150, 30, 40]):
        made.add(sample_of(report(second, tenant("a", {}, waits={GPU: waits(1, count)}))))
    assert sum(made._sum) == 50 + 30 + 10


def test_a_window_that_slides_adds_up_what_is_in_it() -> None:
    """The running sum is the sum, whatever comes and goes."""
    chance, made, counts = random.Random(3), Window(5 * S), [0] * 8
    grown: list[list[int]] = []
    for second in range(50):
        more = [chance.randrange(5) for _ in counts]
        counts = [count + one for count, one in zip(counts, more, strict=True)]
        made.add(Sample(second * S, delays={("a", GPU): tuple(counts)}))
        grown.append(more)
        first = max(1, second - 5)
        assert made._sum[:8] == [sum(column) for column in zip(*grown[first:], strict=True)] or second == 0


def test_the_same_status_twice_is_one_sample() -> None:
    made = Window(60 * S)
    for _ in range(20):
        made.add(Sample(S, utilization={GPU: 0.5}))
    assert made.sm_utilization_stdev_ratio() is None


def test_due_is_the_mean_of_gpus_that_were_wanted_all_the_time() -> None:
    made = window(
        20,
        lambda second: {
            "chat": {GPU: 0.5 if second < 10 else 0.8, **({OTHER: 1.0} if second % 2 else {})},
            "shy": {GPU: 0.5} if second < 15 else {},
        },
    )
    assert made.due("chat", 0, 9 * S) == {GPU: 0.5}
    assert made.due("chat", 5 * S, 14 * S) == {GPU: pytest.approx(0.65)}
    assert made.due("shy", 0, 10 * S) == {GPU: 0.5}
    assert made.due("shy", 10 * S, 20 * S) == {}
    assert made.due("nobody", 0, 20 * S) == {}
    assert made.due("chat", 30 * S, 40 * S) == {}, "no sample, no demand"
    assert made.due("chat", 0, 3 * S) == {}, "nor in a few"


def test_one_hiccup_in_a_minute_is_no_pause() -> None:
    made = window(59, lambda second: {"chat": {GPU: 0.5}} if second != 30 else {})
    assert made.due("chat", 0, 59 * S) == {GPU: 0.5}
    assert made.due("chat", 25 * S, 35 * S) == {}


def test_demand_is_whole_where_every_sample_says_so() -> None:
    demand = window(10, lambda second: {"chat": {GPU: 0.5}} if second != 5 else {}).demand("chat")
    assert demand.is_whole(0, 4 * S)
    assert not demand.is_whole(4 * S, 5 * S)
    assert not demand.is_whole(round(3.1 * S), round(3.9 * S)), "nobody looked"
