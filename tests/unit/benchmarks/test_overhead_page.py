# SPDX-License-Identifier: Apache-2.0
"""docs/overhead.md says what the committed results say, and a bar that is missed is said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import overhead_page
from tests.unit.repo.tree import ROOT


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / overhead_page.PAGE).read_text(encoding="utf-8")
    assert text == overhead_page.page(), "run: python -m benchmarks.overhead_page --write"


def test_a_bar_is_met_or_missed_by_the_figure_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in overhead_page.RESULTS.glob("*.json"):
        document = json.loads(path.read_text())
        if path.stem == "core":
            document |= {"daemon_cpu_ratio": 0.029, "daemon_rss_bytes": 151e6}
        (tmp_path / path.name).write_text(json.dumps(document))
    monkeypatch.setattr(overhead_page, "RESULTS", tmp_path)
    lines = overhead_page.page().splitlines()
    (cpu,) = [line for line in lines if "four tenants in contention" in line]
    (memory,) = [line for line in lines if "memory, with its helpers" in line]
    assert "| 2.90 % | <= 3.00 % | yes |" in cpu
    assert "| 151.0 MB | <= 150.0 MB | **NO** |" in memory


@pytest.mark.parametrize(
    "target", ["bench-core", "bench-scale", "bench-ioctl", "bench-pid-view", "bench-scrape"]
)
def test_every_command_is_one(target: str) -> None:
    assert f"`make {target}`" in overhead_page.page()
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()
