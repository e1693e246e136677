# SPDX-License-Identifier: Apache-2.0
"""The arithmetic behind the figures."""

from __future__ import annotations

import math

import pytest

from benchmarks import stats
from fairsched.simgpu import Step

MS = 1_000_000


def steps(*ends_ms: int, latency_ms: int = 100) -> list[Step]:
    return [Step(end * MS, 1.0, latency_ms * MS) for end in ends_ms]


def test_a_step_across_an_edge_counts_by_the_part_inside() -> None:
    log = steps(100, 200, 300, 400)
    assert stats.tokens_in(log, 150 * MS, 350 * MS) == pytest.approx(2.0)
    assert stats.tokens_in(log, 125 * MS, 175 * MS) == pytest.approx(0.5)


def test_windows_side_by_side_count_every_token_once() -> None:
    log = steps(*range(70, 1000, 70), latency_ms=70)
    whole = stats.tokens_in(log, 0, 1000 * MS)
    parts = [stats.tokens_in(log, start * MS, (start + 130) * MS) for start in range(0, 1040, 130)]
    assert sum(parts) == pytest.approx(whole) == pytest.approx(len(log))


def test_equal_windows_of_an_even_tenant_hold_equal_tokens() -> None:
    """14 tokens/s counted whole would be 14 in one second and 15 in the next."""
    log = steps(*(round(1000 * n / 14.3) for n in range(1, 60)), latency_ms=70)
    counts = [stats.tokens_in(log, s * 1000 * MS, (s + 1) * 1000 * MS) for s in range(1, 4)]
    assert max(counts) - min(counts) < 0.02


def test_a_step_without_latency_belongs_to_the_window_of_its_end() -> None:
    log = steps(100, latency_ms=0)
    assert stats.tokens_in(log, 0, 100 * MS) == 1
    assert stats.tokens_in(log, 100 * MS, 200 * MS) == 0


def test_throughput_is_over_all_windows_together() -> None:
    log = steps(*range(100, 1100, 100))
    assert stats.tokens_per_s(log, [(0, 200 * MS), (500 * MS, 800 * MS)]) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="no time"):
        stats.tokens_per_s(log, [])


def test_share_errors_are_in_points_of_the_whole() -> None:
    errors = stats.share_errors_points({"a": 48.0, "b": 52.0}, {"a": 2, "b": 2})
    assert errors == pytest.approx({"a": -2.0, "b": 2.0})


def test_shares_of_nothing_are_nothing() -> None:
    assert stats.shares({"a": 0.0, "b": 0.0}) == {"a": 0.0, "b": 0.0}


def test_an_error_without_a_truth_is_unknown() -> None:
    assert stats.relative_error(5.0, 0.0) is None
    assert stats.relative_error(98.0, 100.0) == pytest.approx(-0.02)


def test_only_what_a_probe_adds_is_compared() -> None:
    assert stats.added_cost_ratio([100.0] * 3, [200.0, 200.0, 9000.0], [500.0] * 3) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="costs nothing"):
        stats.added_cost_ratio([100.0], [100.0], [100.0])


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 201)]
    assert (stats.percentile(values, 0.5), stats.percentile(values, 0.99), stats.percentile(values, 1.0)) == (
        100.0,
        198.0,
        200.0,
    )
    assert stats.percentile([4.0], 0.99) == 4.0


def test_a_spread_has_mean_ends_and_the_interval_of_student() -> None:
    found = stats.spread([1.0, None, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.min, found.max, found.seeds) == (2.0, 1.0, 3.0, 3)
    assert found.ci95 == pytest.approx(4.303 / math.sqrt(3))
    assert stats.spread([None]) is None
    (single,) = [stats.spread([4.0])]
    assert single is not None and single.ci95 is None
    many = stats.spread([0.0, 1.0] * 50)
    assert many is not None and many.ci95 == pytest.approx(1.96 * 0.50252 / 10, rel=1e-3)


def test_a_percentile_may_also_lie_between_two_values() -> None:
    assert stats.interpolated([1.0, 2.0], 50) == 1.5
    assert stats.interpolated([], 50) is None
    assert stats.extremes([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
