# SPDX-License-Identifier: Apache-2.0
"""What the repository keeps of the runs: every figure, and nothing that takes room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.fair import results, summary
from benchmarks.fair.results import ResultError
from benchmarks.fair.scenario import shipped
from tests.unit.benchmarks.made_results import document
from tests.unit.repo.tree import project_files


def kept(root: Path, *documents: dict[str, Any]) -> list[dict[str, Any]]:
    for given in documents:
        results.write(given, root)
    return summary.update([given["scenario"] for given in documents], root)


def test_it_gives_documents_back_without_their_series(tmp_path: Path) -> None:
    given = document(
        series={"at_s": [0.5]},
        notes=["a warning"],
        code_hash="c0de",
        misbehaviour={"chat": ["hidden"]},
        leaves={"chat": {"gain_points": 1.5}, "code": {}},
    )
    assert kept(tmp_path, given) == [{**given, "series": {}}]
    assert summary.read(tmp_path) == [{**given, "series": {}}]


def test_figures_have_nine_digits_and_unknown_ones_stay_unknown(tmp_path: Path) -> None:
    (run,) = kept(tmp_path, document(whole={"busy_ratio": 1 / 3, "cpu_ratio": None, "take_backs": 7}))
    whole = run["measures"]["whole"]
    assert (whole["busy_ratio"], whole["cpu_ratio"], whole["take_backs"]) == (0.333333333, None, 7)


def test_figures_that_another_program_named_stay_apart(tmp_path: Path) -> None:
    old, new = document(seed=1), document(seed=2, commit="ffffffffffff")
    new["measures"]["whole"]["another_ratio"] = 0.5
    runs = kept(tmp_path, old, new)
    assert [("another_ratio" in run["measures"]["whole"], run["commit"]) for run in runs] == [
        (False, "0123456789ab"),
        (True, "ffffffffffff"),
    ]


def test_what_one_tenant_lacks_is_unknown_of_it(tmp_path: Path) -> None:
    (run,) = kept(tmp_path, document(leaves={"chat": {"step_p99_solo_ms": 3.0}, "code": {}}))
    assert [leaf["step_p99_solo_ms"] for leaf in run["measures"]["leaves"].values()] == [3.0, None]


def test_only_runs_of_which_a_document_lies_there_are_replaced(tmp_path: Path) -> None:
    kept(tmp_path, document(), document(seed=2), document("equal-4"))
    results.path_of("seed-4", "fairsched", 2, tmp_path).unlink()
    results.write(document("equal-4", seconds=7.0), tmp_path)
    runs = kept(tmp_path, document(seconds=5.0))
    assert [(run["scenario"], run["seed"], run["seconds"]) for run in runs] == [
        ("equal-4", 1, 20.0),
        ("seed-4", 1, 5.0),
        ("seed-4", 2, 20.0),
    ], "equal-4 was not asked for, and of seed 2 there is no document any more"


def test_the_same_runs_are_the_same_file(tmp_path: Path) -> None:
    runs = [document(policy=policy, seed=seed) for policy in ("token", "none") for seed in (10, 2)]
    order = [(run["policy"], run["seed"]) for run in kept(tmp_path / "a", *runs)]
    assert order == [("none", 2), ("none", 10), ("token", 2), ("token", 10)]
    kept(tmp_path / "b", *runs[::-1])
    assert summary.path_of(tmp_path / "a").read_bytes() == summary.path_of(tmp_path / "b").read_bytes()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scenarios": {"seed-4": {"none-seed1": {}}}}'])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = summary.path_of(tmp_path)
    path.write_text(text)
    with pytest.raises(ResultError, match=str(path)) as caught:
        summary.read(tmp_path)
    assert "git" in caught.value.remedy


def test_where_nothing_was_measured_there_is_nothing(tmp_path: Path) -> None:
    assert summary.read(tmp_path / "absent") == []


def test_the_repository_has_every_shipped_scenario_in_it_and_no_document_of_a_run() -> None:
    committed = summary.read()
    assert {file.stem for file in shipped()} <= {run["scenario"] for run in committed}
    assert all(run["code_hash"] and run["commit"] for run in committed)
    assert not [str(file) for file in project_files() if "-seed" in file.stem and file.suffix == ".json"]
    assert summary.path_of().stat().st_size < 1_500_000
