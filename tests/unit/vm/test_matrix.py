# SPDX-License-Identifier: Apache-2.0
"""The support matrix is what the tests under other kernels recorded, and nobody's hand was in between."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.repo.tree import ROOT

MATRIX = runpy.run_path(str(ROOT / "scripts/vm/matrix.py"))


def result(kernel: str, **rows: tuple[str, str]) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "rows": {name: {"state": state, "detail": detail} for name, (state, detail) in rows.items()},
        "tests": {"test_a.py::test_it": "passed", "test_a.py::test_other": "skipped: no such thing"},
    }


def test_the_page_is_what_the_results_say() -> None:
    read = (MATRIX["read_results"](), MATRIX["read_tests"](), MATRIX["read_rungs"]())
    assert MATRIX["PAGE"].read_text() == MATRIX["page"](*read)


def test_every_rung_was_played_and_holds_what_it_promises() -> None:
    rungs = MATRIX["read_rungs"]()
    assert rungs.keys() <= {*MATRIX["BOOTS"]}
    for boot, result in rungs.items():
        series, _, kind = boot.partition("+")
        assert (result["series"], result["boot"]) == (series, kind or "v2")
        assert "failed" not in result["tests"].values()
        assert result["rungs"]
        for rung in result["rungs"]:
            assert rung["error_with"] <= min(rung["promised"], rung["error_without"] / 2), (boot, rung)


def rung(eyes: str, hands: str, points: float) -> dict[str, Any]:
    """As a guest writes it."""
    errors = {"error_without": 25.0, "error_with": points, "promised": 11.6}
    return {"eyes": eyes, "hands": hands, **errors, "end": "killed"}


def test_a_rung_is_a_row_and_what_did_not_pass_is_named() -> None:
    rungs = {
        "5.10": {
            "kernel": "k",
            "rungs": [rung("nvml", "sigstop", 3.25)],
            "refusals": [],
            "tests": {"a": "failed"},
        },
    }
    page = MATRIX["page"]({"5.10": result("k")}, {}, rungs)
    assert "| 5.10 | `k` | nvml | sigstop | 25.0 | 3.2 | 11.6 | killed |" in page
    others = ", ".join(f"`{boot}`" for boot in MATRIX["BOOTS"] if boot != "5.10")
    assert f"- 5.10, failed: `a`\n- without results: {others}\n\n## Vendors" in page


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
    assert "- 6.1, skipped: no such thing\n  - `test_a.py::test_other`" in page
    assert "test_b.py" not in page and "older than" not in page


def test_what_is_younger_than_the_results_is_named() -> None:
    """A table that is out of date must not pass for what works now."""
    results = {"5.10": result("5.10.0-1"), "6.1": result("6.1.0-1")}
    results["6.1"]["tests"]["test_b.py::test_one[a-1]"] = "passed"
    page = MATRIX["page"](
        results, {"test_a.py": {"test_it"}, "test_b.py": {"test_one"}, "test_c.py": {"test_x"}}
    )
    assert "\n\n- `test_b.py`\n- `test_c.py`\n\n## Vendors" in page


class Guests:
    """Runs that end as they are told to, with results or without."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results, self.page = directory / "results", directory / "page.md"
        self.results.mkdir()
        self.status: dict[str, int] = {}
        self.kernel = "new"
        self.dies: set[str] = set()
        names = MATRIX["main"].__globals__
        for name, value in (("RESULTS", self.results), ("PAGE", self.page)):
            monkeypatch.setitem(names, name, value)
        self.played: list[str] = []
        monkeypatch.setattr(names["subprocess"], "run", self.run)
        for series in MATRIX["SERIES"]:
            self.write(series, "old")

    def write(self, series: str, kernel: str) -> None:
        (self.results / f"{series}.json").write_text(json.dumps(result(f"{series}-{kernel}")))

    def run(self, words: list[Any], *, check: bool) -> Any:
        series, to = words[2], Path(words[4])
        self.played.append(series)
        if series not in self.dies:
            rungs = {"rungs": [rung("nvml", "freezer", 1)]}
            to.write_text(json.dumps({**result(f"{series}-{self.kernel}"), **rungs}))
        return subprocess.CompletedProcess(words, self.status.get(series, 0))


@pytest.fixture
def guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guests:
    return Guests(tmp_path, monkeypatch)


def test_a_run_that_a_signal_killed_is_a_failure(guests: Guests) -> None:
    assert MATRIX["main"](["--run"]) == 0
    guests.status = {"6.1": -9}
    assert MATRIX["main"](["--run"]) == 9


def test_a_guest_that_died_does_not_pass_with_its_last_results(guests: Guests) -> None:
    guests.status, guests.dies = {"6.1": 125}, {"6.1"}
    assert MATRIX["main"](["--run"]) == 125
    page = guests.page.read_text()
    assert "`6.12-new`" in page and "`6.1-" not in page


def test_the_page_alone_is_made_of_what_is_there(guests: Guests, capsys: pytest.CaptureFixture[str]) -> None:
    assert MATRIX["main"]([]) == 0
    assert "`6.1-old`" in guests.page.read_text()
    assert "# Support matrix" not in capsys.readouterr().out
    MATRIX["main"](["--run"])
    assert guests.page.read_text() in capsys.readouterr().out, "who ran it sees the table"


def test_a_run_plays_every_kernel_and_every_boot(guests: Guests) -> None:
    assert MATRIX["main"](["--run"]) == 0
    assert guests.played == [*MATRIX["SERIES"], *MATRIX["BOOTS"]]
    assert {path.stem for path in (guests.results / "rungs").iterdir()} == {*MATRIX["BOOTS"]}


def test_rungs_can_be_played_alone(guests: Guests) -> None:
    guests.status = {"6.12+lockdown": 1}
    assert MATRIX["main"](["--rungs", "5.10", "6.12+lockdown"]) == 1
    assert guests.played == ["5.10", "6.12+lockdown"]
    assert "`6.1-old`" in guests.page.read_text()


def test_what_one_file_found_takes_its_place_in_the_results(guests: Guests) -> None:
    guests.kernel = "old"
    known = guests.results / "6.1.json"
    older = result("6.1-old", gate=("works", ""))
    older["tests"] = {"test_a.py::test_gone": "failed", "test_b.py::test_it": "passed"}
    known.write_text(json.dumps(older))
    assert MATRIX["main"](["--add", "6.1", "tests/vm/test_a.py"]) == 0
    now = json.loads(known.read_text())
    assert now["tests"].keys() == {"test_a.py::test_it", "test_a.py::test_other", "test_b.py::test_it"}
    assert now["rows"].keys() == {"gate"}


def test_results_of_two_kernels_are_not_mixed(guests: Guests) -> None:
    before = (guests.results / "6.1.json").read_text()
    assert MATRIX["main"](["--add", "6.1", "tests/vm/test_a.py"]) == 1
    assert (guests.results / "6.1.json").read_text() == before
