# SPDX-License-Identifier: Apache-2.0
"""The support matrix is what the tests under other kernels recorded, and nobody's hand was in between."""

from __future__ import annotations

import runpy
from typing import Any

from tests.unit.repo.tree import ROOT

MATRIX = runpy.run_path(str(ROOT / "scripts/vm/matrix.py"))


def result(kernel: str, **rows: tuple[str, str]) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "rows": {name: {"state": state, "detail": detail} for name, (state, detail) in rows.items()},
        "tests": {"test_a.py::test_it": "passed", "test_a.py::test_other": "skipped: no such thing"},
    }


def test_the_page_is_what_the_results_say() -> None:
    assert MATRIX["PAGE"].read_text() == MATRIX["page"](MATRIX["read_results"](), MATRIX["read_tests"]())


def test_every_kernel_was_run_and_passed() -> None:
    results = MATRIX["read_results"]()
    assert tuple(results) == MATRIX["SERIES"]
    for series, one in results.items():
        assert one["series"] == series
        assert one["kernel"].startswith((f"{series}.", f"{series}+"))
        assert [name for name, outcome in one["tests"].items() if outcome == "failed"] == []


def test_remarks_are_numbered_and_said_once() -> None:
    page = MATRIX["page"](
        {
            "5.10": result("5.10.0-1", gate=("works", ""), ring=("missing", "no ring buffer")),
            "6.1": result("6.1.0-1", gate=("fails", "no ring buffer")),
        },
        {"test_a.py": {"test_it", "test_other"}},
    )
    assert "| gate | works | fails [1] |" in page
    assert "| ring | missing [1] | not tested |" in page
    assert "| tests passed | 1 of 2 | 1 of 2 |" in page
    assert page.count("no ring buffer") == 1
    assert "- 6.1, `test_a.py::test_other`: skipped: no such thing" in page
    assert "test_b.py" not in page and "older than" not in page


def test_what_is_younger_than_the_results_is_named() -> None:
    """A table that is out of date must not pass for what works now."""
    results = {"5.10": result("5.10.0-1"), "6.1": result("6.1.0-1")}
    results["6.1"]["tests"]["test_b.py::test_one[a-1]"] = "passed"
    page = MATRIX["page"](
        results, {"test_a.py": {"test_it"}, "test_b.py": {"test_one"}, "test_c.py": {"test_x"}}
    )
    assert page.endswith("\n\n- `test_b.py`\n- `test_c.py`\n")
