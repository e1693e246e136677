# SPDX-License-Identifier: Apache-2.0
"""The table of figures and bars."""

from __future__ import annotations

import pytest

from benchmarks import bars
from benchmarks.bars import Bar
from benchmarks.core import BARS

KEYS = {bar.key for bar in BARS}
ISSUE_KEYS = {
    "account_error_max",
    "share_error_max_points",
    "busy_ratio",
    "probe_ratio",
    "observe_throughput_ratio",
    "daemon_cpu_ratio",
    "daemon_rss_bytes",
}


def test_every_figure_that_was_asked_for_has_a_bar() -> None:
    assert ISSUE_KEYS <= KEYS


@pytest.mark.parametrize(("is_upper", "below", "above"), [(True, True, False), (False, False, True)])
def test_a_bar_is_met_on_its_side_and_on_the_line(is_upper: bool, below: bool, above: bool) -> None:
    bar = Bar("x", "", 1.0, is_upper)
    assert (bar.is_met(0.9), bar.is_met(1.0), bar.is_met(1.1)) == (below, True, above)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    values: dict[str, float | None] = {key: None for key in KEYS}
    assert bars.missed(BARS, values) == []
    assert all(" NO" not in line and " yes" not in line for line in bars.render(BARS, values, {}))


def test_a_missed_bar_is_shown() -> None:
    values = {"busy_ratio": 0.5, "probe_ratio": 0.1}
    assert bars.missed(BARS, values) == ["busy_ratio"]
    lines = bars.render(BARS, values, {"busy_ratio": "half of it"})
    (busy,) = (line for line in lines if line.startswith("busy_ratio"))
    assert busy.split() == ["busy_ratio", "0.500", ">=", "0.980", "NO"]
    assert any("half of it" in line for line in lines)


def test_the_table_fits_the_screen() -> None:
    values = dict.fromkeys(KEYS, 123456.789)
    notes = dict.fromkeys(KEYS, "a long story " * 20)
    assert max(map(len, bars.render(BARS, values, notes))) <= bars.WIDTH


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "percent", "n/a"),
        (0.0123, "percent", "1.23 %"),
        (1.5, "points", "1.50 pt"),
        (150e6, "bytes", "150.0 MB"),
        (0.98, "ratio", "0.980"),
        (0, "count", "0"),
        (2.345, "ms", "2.35 ms"),
    ],
)
def test_values_are_shown_with_their_unit(value: float | None, unit: str, shown: str) -> None:
    assert bars.show(value, unit) == shown


def test_rows_line_up_and_the_long_name_gives_way() -> None:
    lines = bars.render_rows(("name", "where", "n"), [("a", "x" * 200, "1"), ("bb", "y", "22")])
    assert max(map(len, lines)) == bars.WIDTH
    assert lines[1].endswith("~   1")
    assert lines[2].startswith("bb    y  ")
    assert lines[2].endswith("  22")
