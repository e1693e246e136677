# SPDX-License-Identifier: Apache-2.0
"""The contract of every source of GPU time (fairsched/accounting/source.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairsched.accounting.source import GpuTimeSource
from fairsched.model import Source
from tests.unit.accounting.closed_loop import ClosedLoop, Pipeline, Steps
from tests.unit.accounting.sampled_loop import MIXES, MS, S, SampledLoop
from tests.unit.accounting.traced_loop import TracedLoop
from tests.unit.gpu.fake_nvml import FakeNvml
from tests.unit.policy.model_gpu import Simulation, Tenant, TenantSpec

Loop = ClosedLoop | SampledLoop


def probed() -> Loop:
    """The second comes later: until then the first is alone, so that it is learnt what it costs."""
    late = Pipeline(20, MS, 0.1, 4)
    late.start_ns = 2 * S
    tenants = [
        Tenant(TenantSpec("a"), [Steps(20, MS, 0.1, MS // 10)]),
        Tenant(TenantSpec("b"), [late]),
    ]
    return ClosedLoop(tenants, is_enforced=False)


def sampled() -> Loop:
    return SampledLoop(MIXES["3:1"](), seed=1, is_enforced=False)


def accounted() -> Loop:
    """With NVML's accounting mode on."""
    return SampledLoop(MIXES["3:1"](), seed=1, is_enforced=False, nvml_of=FakeNvml)


def sums_only() -> Loop:
    """The same, and no samples are told."""

    def nvml() -> FakeNvml:
        made = FakeNvml()
        made.errors["ProcessesUtilization"] = made.errors["ProcessUtilization"] = (
            made.NVML_ERROR_NOT_SUPPORTED
        )
        return made

    return SampledLoop(MIXES["3:1"](), seed=1, is_enforced=False, nvml_of=nvml)


def traced() -> Loop:
    """By the trace of context switches, and no calls."""
    return TracedLoop(MIXES["3:1"](), seed=1, is_enforced=False)


def trace_refused() -> Loop:
    """The same, and the driver tells none: samples."""
    loop = TracedLoop(MIXES["3:1"](), seed=1, is_enforced=False)
    loop.traced.end(0)
    return loop


@pytest.fixture(params=[probed, sampled, accounted, sums_only, traced, trace_refused])
def loop(request: pytest.FixtureRequest) -> Loop:
    make: Callable[[], Loop] = request.param
    return make()


def read(loop: Loop) -> dict[str, int]:
    rows = loop.account.read(loop.now)
    assert all(row.used_ns >= 0 and row.outstanding_ns >= 0 for row in rows)
    used: dict[str, int] = {}
    for row in rows:
        used[loop.names[row.cgroup_id]] = used.get(loop.names[row.cgroup_id], 0) + row.used_ns
    return used


def until(loop: Loop, end_ns: int) -> dict[str, int]:
    """What is told of the time up to then, read ten times a second as the daemon does."""
    total: dict[str, int] = {}

    def add() -> None:
        for name, used_ns in read(loop).items():
            total[name] = total.get(name, 0) + used_ns
        loop.at(loop.now + 100 * MS, add)

    loop.tick = lambda: None  # type: ignore[method-assign]
    loop.at(100 * MS, add)
    Simulation.run(loop, end_ns)
    return total


def test_it_says_which_it_is_and_how_far_off_it_may_be(loop: Loop) -> None:
    source: GpuTimeSource = loop.account
    points = [source.error_points(window_s) for window_s in (1, 10, 60)]
    assert points == sorted(points, reverse=True)
    assert 0 < points[-1] < 15


def test_no_more_is_told_than_the_time_that_passed_and_all_of_it_within_its_error(loop: Loop) -> None:
    total = until(loop, 40 * S)
    assert sum(total.values()) <= 40 * S
    assert sum(total.values()) >= 0.9 * 40 * S
    truth = loop.shares(0, 40 * S)
    bound = 1.5 * loop.account.error_points(40) / 100  # which holds in 19 of 20 cases
    for name, used_ns in total.items():
        assert used_ns / sum(total.values()) == pytest.approx(truth[name], abs=bound)


def test_a_read_right_after_another_tells_nothing_new(loop: Loop) -> None:
    until(loop, 5 * S)
    read(loop)
    assert sum(read(loop).values()) == 0


def test_holds_of_unknown_cgroups_are_no_error(loop: Loop) -> None:
    source: GpuTimeSource = loop.account
    source.hold([999_999], loop.now)
    source.hold([999_999], loop.now, by_others=True)
    source.thaw([999_999], loop.now)
    source.thaw([999_999], loop.now)
    assert source.queued_since_hold_ns([999_999]) == 0


def test_what_one_tenant_is_charged_has_an_error_of_its_own(loop: Loop) -> None:
    loop.account.tenant_of = loop.names.get
    until(loop, 20 * S)
    error_ratio = loop.account.error_ratio("a", 0)
    if loop.account.source is Source.TRACE:
        assert error_ratio is None, "what the last one on the engine does is not known"
        return
    assert error_ratio is not None
    assert 0 < error_ratio < 2


def test_graphs_are_told_where_they_are_seen_and_of_those_who_launch_them(loop: Loop) -> None:
    loop.account.tenant_of = loop.names.get
    until(loop, 5 * S)
    assert loop.account.graph_work("a", 0) is None
    assert loop.account.graph_work("nobody", 7) is None
