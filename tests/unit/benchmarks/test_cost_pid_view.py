# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of what the pid view costs a call, and that docs/pid-view.md says what was measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.cost import pid_view
from tests.unit.repo.tree import ROOT


def test_what_is_added_is_told_from_what_the_programs_take() -> None:
    times = {"without": [100.0, 110.0, 500.0], "with": [3100.0, 3110.0, 9000.0], "inside": [900.0, 1200.0]}
    result = pid_view.summarise({"list, 3 own of 8": times})
    row = result["calls"]["list, 3 own of 8"]
    assert row["added_on_uprobes_ns"] == 3000
    assert row["inside_ns"] == [900, 1050, 1200]
    assert "0.90       1.05              3.00" in pid_view.render({**result, "writes": True})


def test_what_is_asked_about_is_numbers_of_the_callers_namespace() -> None:
    info, of_eight = pid_view.Case("info", 3, 0), pid_view.Case("list", 3, 5)
    assert pid_view.named(info) == [2, 3, 4]
    assert len(pid_view.named(of_eight)) == 8


@pytest.mark.skipif(not pid_view.OUTPUT.exists(), reason="no result is kept: sudo make bench-pid-view")
def test_the_page_says_what_was_measured() -> None:
    kept = json.loads(pid_view.OUTPUT.read_text())
    page = (ROOT / "docs/pid-view.md").read_text()
    assert list(kept["calls"]) == [case.name for case in pid_view.CASES]
    for name, row in kept["calls"].items():
        least, median, _ = (value / 1e3 for value in row["inside_ns"])
        assert f"| {name} | {least:.1f} | {median:.1f} |" in page
