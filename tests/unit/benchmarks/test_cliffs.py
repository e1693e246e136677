# SPDX-License-Identifier: Apache-2.0
"""The cases that once fell off a cliff (benchmarks/cliffs.py): their files, their figures, their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import cliffs
from benchmarks.fair.scenario import load, shipped


def document(seed: int, points: float, error: float | None = 0.02) -> dict[str, Any]:
    whole = {"share_error_max_points": points, "account_error_max_ratio": error, "busy_ratio": 0.9}
    return {
        "seed": seed,
        "seconds": 20.0,
        "machine": "a machine",
        "kernel": "6",
        "commit": "abc",
        "measures": {"whole": whole},
    }


def test_each_case_is_a_scenario_of_which_the_daemon_is_told_nothing_and_that_no_suite_plays() -> None:
    found = cliffs.cases()
    assert len(found) >= 10
    for path in found.values():
        assert all(gpu.told_slice_us is None for gpu in load(path).scenario.gpus)
    assert not set(found.values()) & set(shipped())
    assert set(cliffs.BARS_POINTS) <= set(found)


def test_a_case_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cliffs.main(["--only", "sevn"]) != 0
    said = capsys.readouterr().err
    assert "'sevn'" in said and "seven" in said
    assert cliffs.main(["--seeds", "0"]) != 0


def test_the_worst_seed_is_held_against_the_bar_and_a_miss_stands_out() -> None:
    summary = cliffs.summary_of(
        {
            "seven": [document(1, 0.5), document(2, 1.4), document(3, 1.6, None)],
            "unequal-30": [document(1, 4.9, 0.12)],
            "slice-10": [],
        }
    )
    traced = cliffs.summary_of({"seven": [document(1, 0.2, 0.01)]})
    seven, unequal = cliffs.rows(summary, traced)
    assert seven[1:] == ["<= 1.5", "1.40", "1.60", "**2 of 3**", "2.0", "0.20", "0.20", "1 of 1", "1.0"]
    assert unequal[1:] == ["<= 5", "4.90", "4.90", "1 of 1", "12.0", "-", "-", "-", "-"]


def test_a_trial_of_few_seeds_does_not_replace_what_is_committed() -> None:
    many, few = ({"seven": {"seeds": dict.fromkeys("1234"[:count])}} for count in (4, 2))
    assert cliffs.kept(many, few) == many
    assert cliffs.kept(few, many) == many
    assert cliffs.kept({}, few) == few


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    copy = tmp_path / cliffs.PAGE.name
    copy.write_text(cliffs.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert not cliffs.write_page(copy), "run: python -m benchmarks.cliffs --write"
