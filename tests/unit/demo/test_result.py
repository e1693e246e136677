# SPDX-License-Identifier: Apache-2.0
"""Figures from samples whose truth is known."""

from __future__ import annotations

import pytest

from fairsched.demo.result import (
    AccountSample,
    Recording,
    Sample,
    judge_half,
    make_timeline,
    settle_s,
    spread,
)
from fairsched.simgpu import Step

S = 1_000_000_000
DUE = {"big": 0.75, "small": 0.25}


def recording(end_s: int = 10, account_bias: float = 1.0, lag_ns: int = 0) -> Recording:
    """big gets 60 %, small 20 %, a tenth is switching, a tenth idle; 20 and 4 steps per second."""
    times = range(0, end_s * S + 1, S // 10)
    samples = [
        Sample(t, {"big": 6 * t // 10, "small": 2 * t // 10}, busy_ns=8 * t // 10, switch_ns=t // 10)
        for t in times
    ]
    accounts = [
        AccountSample(
            sample.t_ns,
            # as old as a tick now and then, as the daemon's figures are
            {name: ns * account_bias - lag_ns * (index % 2) for name, ns in sample.exec_ns.items()},
            sample.exec_ns,
        )
        for index, sample in enumerate(samples)
    ]
    steps = {name: even_steps(rate, end_s) for name, rate in (("big", 20), ("small", 4))}
    return Recording(samples, steps, accounts)


def even_steps(rate: int, end_s: int) -> list[Step]:
    return [Step(n * S // rate, 1.0, S // rate) for n in range(1, rate * end_s + 1)]


def test_shares_are_of_what_the_tenants_got_and_errors_are_against_the_due() -> None:
    half = judge_half(recording(), 2 * S, 9 * S, DUE)
    assert half.tenants["big"].share_ratio == pytest.approx(0.75)
    assert half.tenants["small"].error_ratio == pytest.approx(0.0)
    assert half.largest_error_ratio == pytest.approx(0.0)
    uneven = judge_half(recording(), 2 * S, 9 * S, {"big": 0.5, "small": 0.5})
    assert uneven.largest_error_ratio == pytest.approx(0.25)


def test_context_switches_are_busy_but_not_useful() -> None:
    half = judge_half(recording(), 2 * S, 9 * S, DUE)
    assert half.busy_ratio == pytest.approx(0.9)
    assert half.switch_ratio == pytest.approx(0.1)


def test_even_steps_have_an_even_rate_wherever_the_windows_begin() -> None:
    half = judge_half(recording(), 2 * S + 123_456_789, 9 * S + 123_456_789, DUE)
    assert half.tenants["small"].steps_per_s == pytest.approx(4.0)
    assert half.tenants["small"].steps_cv_ratio == pytest.approx(0.0, abs=1e-9)


def test_a_short_half_has_no_cv_rather_than_a_wrong_one() -> None:
    assert judge_half(recording(), 2 * S, 4 * S, DUE).tenants["big"].steps_cv_ratio is None


def test_a_biased_account_is_found_out() -> None:
    half = judge_half(recording(account_bias=1.03), 2 * S, 9 * S, DUE)
    assert half.tenants["small"].account_error_ratio == pytest.approx(0.03)


def test_an_account_that_is_a_tick_old_is_no_error() -> None:
    half = judge_half(recording(lag_ns=20_000_000), 2 * S, 9 * S, DUE)
    assert half.tenants["small"].account_error_ratio == pytest.approx(0.0, abs=0.002)


def test_without_an_account_its_error_is_not_known() -> None:
    bare = Recording(recording().samples, recording().steps, [])
    assert judge_half(bare, 2 * S, 9 * S, DUE).tenants["big"].account_error_ratio is None


def test_a_step_counts_in_each_window_for_its_part() -> None:
    assert spread([Step(15, 1.0, 10)], [0, 10, 20, 30]) == [0.5, 0.5, 0.0]
    assert spread([Step(5, 1.0, 10)], [0, 10]) == [0.5]
    assert spread([Step(40, 2.0, 20)], [0, 10, 30]) == [0.0, 1.0]


def test_the_timeline_covers_both_halves() -> None:
    line = make_timeline(recording(), 0, 5 * S, 10 * S, DUE)
    assert len(line.t_s) == 20
    assert line.switched_s == 5.0
    assert line.share_ratio["big"] == pytest.approx([0.75] * 20)
    assert line.steps_per_s["big"] == pytest.approx([20.0] * 20)


def test_short_halves_settle_for_less() -> None:
    assert settle_s(15.0) == 5.0
    assert settle_s(3.0) == 1.0
