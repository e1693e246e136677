# SPDX-License-Identifier: Apache-2.0
"""README is one page, and it and the pages beside it say what the committed results say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import robustness
from benchmarks.fair import front_page, quoted, results, summary
from benchmarks.fair.results import ResultError
from tests.unit.benchmarks.made_results import document

README = front_page.REPOSITORY / "README.md"
LINES = 110


def limits() -> list[str]:
    text = README.read_text(encoding="utf-8")
    return text.partition("## What it is not\n")[2].partition("\n## ")[0].strip().splitlines()


@pytest.mark.parametrize("name", front_page.DOCUMENTS, ids=str)
def test_the_tables_are_up_to_date(name: Path) -> None:
    text = (front_page.REPOSITORY / name).read_text(encoding="utf-8")
    assert "<!-- figures: " in text
    assert text == front_page.filled(text, name=str(name)), "run: python -m benchmarks.fair.table --write"


def test_readme_is_one_page_with_one_table_of_four_rows_and_five_limits() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2 + 4
    assert len(limits()) == 5 and all(line.startswith("* ") for line in limits())
    assert len(re.findall(r"^!\[", text, flags=re.MULTILINE)) == 1


def test_numbers_in_the_limits_are_measured_and_name_their_command() -> None:
    traced, replayed = (
        [
            f"{summary[key]:.1f}".removeprefix("0")
            for key in ("share_error_median_points", "share_error_worst_points")
        ]
        for summary in (
            [one for one in robustness.committed() if bool(one.get("trace")) is has_trace][-1]
            for has_trace in (True, False)
        )
    )
    (drawn,) = [line for line in limits() if "`sudo make bench-robust`" in line]
    assert f"{replayed[0]} points off in the median, {replayed[1]} at worst" in drawn
    assert f"with the GPU's trace {traced[0]} and {traced[1]}." in drawn
    scale = json.loads((results.ROOT / "scale.json").read_text(encoding="utf-8"))
    (many,) = [line for line in limits() if "% of a core" in line]
    assert f"{100 * scale['cpu_ratio_8x64']:.1f} % of a core (`sudo make bench-scale`" in many


def test_the_commands_that_make_the_table_are_there() -> None:
    text = README.read_text(encoding="utf-8")
    (command,) = re.findall(r"`sudo make bench ARGS=\"([^\"]+)\"`", text)
    words = command.split()
    assert words[0::2] == ["--scenario", "--scenario", "--policy", "--policy"]
    assert words[1::2] == [*front_page.SCENARIOS, front_page.BASELINE, front_page.OURS]
    assert "two seeds" in text
    for name in front_page.SCENARIOS:
        runs = front_page.runs_of(name)
        assert all(len(runs[policy]) == 2 for policy in (front_page.BASELINE, front_page.OURS))


def kept(root: Path) -> Path:
    """Results of both headline scenarios: the greedy tenant of each has the longest steps."""
    names = {"seed-4": ("a", "d"), "weights-4211": ("bronze", "greedy")}
    for scenario, (honest, greedy) in names.items():
        for policy in ("none", "fairsched"):
            for seed in (1, 2):
                figures = {honest: {"step_p99_ms": 100.0 + 10 * seed}, greedy: {"step_p99_ms": 9000.0}}
                cpu = None if policy == "none" else 0.04
                run = document(scenario, policy, seed, leaves=figures, whole={"cpu_ratio": cpu})
                results.write(run, root)
    summary.update(names, root)
    return root


def test_the_headline_is_made_from_summaries_and_leaves_out_the_greedy(tmp_path: Path) -> None:
    root = kept(tmp_path)
    for path in root.glob("*/*-seed*.json"):
        path.unlink()
    lines = front_page.headline(root).splitlines()
    assert (
        lines[0]
        == "|  | `seed-4`, none | `seed-4`, fairsched | `weights-4211`, none | `weights-4211`, fairsched |"
    )
    assert lines[3] == "| p99 step, worst honest tenant, ms | 115.0 | 115.0 | 115.0 | 115.0 |"
    assert lines[5] == "| CPU of fairsched, % of one core | - | 4.00 | - | 4.00 |"
    assert len(lines) == 2 + 4


def test_a_nature_is_unfair_by_the_mean_of_its_seeds(tmp_path: Path) -> None:
    for name, second in (("nature-copy", 10.1), ("nature-jitter", 9.9)):
        for seed, value in ((1, 0.0), (2, second)):
            results.write(document(name, seed=seed, whole={"share_error_max_points": value}), tmp_path)
        summary.update([name], tmp_path)
    assert quoted.unfair_natures(summary.read(tmp_path)) == ["nature-copy"]


def test_writing_changes_what_is_between_the_markers_only(tmp_path: Path) -> None:
    root = kept(tmp_path / "results")
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- figures: headline -->\nstale\n<!-- figures: end -->\nb\n", encoding="utf-8")
    assert front_page.write_documents(tmp_path, root) == [page]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("a\n<!-- figures: headline -->\n\n|  |")
    assert text.endswith("|\n\n<!-- figures: end -->\nb\n")
    assert front_page.write_documents(tmp_path, root) == []
    with pytest.raises(ResultError, match="poem"):
        front_page.filled("<!-- figures: poem -->\n<!-- figures: end -->\n", root)


def test_a_bar_that_is_missed_is_said_to_be(tmp_path: Path) -> None:
    core = json.loads((results.ROOT / "core.json").read_text(encoding="utf-8"))
    (tmp_path / "core.json").write_text(json.dumps(core | {"account_error_max": 0.019, "busy_ratio": 0.9}))
    lines = front_page.core(tmp_path).splitlines()
    assert "| account, largest error of a tenant | 1.90 % | <= 2.00 % | yes |" in lines
    assert "| GPU busy, scheduled / not | 0.900 | >= 0.980 | **NO** |" in lines
