# SPDX-License-Identifier: Apache-2.0
"""docs/guards.md names files, functions and tests that there are: whoever renames one keeps the table true."""

from __future__ import annotations

import re

import pytest

from tests.unit.repo.tree import ROOT

TEXT = (ROOT / "docs/guards.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| guard")
]


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 25
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row[0])[:40])
def test_a_row_names_what_there_is(row: list[str]) -> None:
    guard, _, tests = row
    sources = [
        next(path for path in (ROOT / name, ROOT / "fairsched" / name) if path.exists()).read_text()
        for name in re.findall(r"`([\w/.]+\.(?:py|h|c))`", guard)
    ]
    for function in re.findall(r"`(\w+)`", guard):
        assert any(re.search(rf"\b{function}\b", source) for source in sources), function
    named = re.findall(r"`((?:unit/)?\w+/\w+\.py)`", tests)
    files = "".join(
        (ROOT / "tests" / (name if name.startswith("unit/") else f"node/{name}")).read_text()
        for name in named
    )
    for name in re.findall(r"`(test_\w+)", tests):
        if not name.endswith(".py"):
            assert not files or f"def {name}(" in files, name
