# SPDX-License-Identifier: Apache-2.0
"""The measurement of the told error tells what it is shown."""

from __future__ import annotations

import math

import pytest

from tests.unit.accounting.error_bound import Draw, Window, play, quantile, report

MS = 1_000_000


def test_an_error_is_in_parts_of_what_was_charged() -> None:
    assert Window(100, 80, 0.1).error == pytest.approx(0.2)
    assert Window(80, 100, 0.1).error == pytest.approx(0.25)
    assert Window(0, 0, 0.1).error == 0.0
    assert Window(0, 1, 9.0).error == math.inf
    assert [Window(100, had, 0.1).is_within for had in (89, 90, 110, 111)] == [False, True, True, False]


def test_a_quantile_is_a_value_that_so_many_are_not_above() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [quantile(values, part) for part in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1.0, 1.0, 2.0, 3.0, 4.0]


def test_the_report_says_how_many_windows_held() -> None:
    windows = (Window(100, 100, 0.1), Window(100, 95, 0.1), Window(100, 50, 0.1), Window(100, 80, 0.3))
    points = {2: ((1.0, 9.0), (2.0, 2.0)), 10: ((1.0, 1.0),), 26: ((0.5, 0.5),)}
    text = "\n".join(report("seed 1", [Draw(windows, points)]))
    assert "seed 1: 4 windows of 2 s, 75.0 % within their bound" in text
    assert "error  median 0.050" in text
    assert "share over  2 s: p95  9.0 points, of the one furthest off  9.0; 75.0 % of all" in text


def test_windows_add_up_to_the_truth_and_a_bound_that_is_too_small_is_found_out() -> None:
    told = play(77, 0)
    assert len(told.windows) % 13 == 0
    assert sum(window.had_ns for window in told.windows) == pytest.approx(26_000 * MS, rel=0.15)
    assert {len(told.points[seconds]) for seconds in (2, 10, 26)} == {13, 2, 1}
    assert sum(window.is_within for window in told.windows) > 0.8 * len(told.windows)
    assert not any(window.is_within for window in play(77, 0, lambda _loop, _name: -1.0).windows)
