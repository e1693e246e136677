# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run, and found again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fair import results
from benchmarks.fair.results import ResultError
from tests.unit.benchmarks.made_results import document

HASH = "0123456789abcdef"


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    given = document(series={"at_s": [0.5, 1.0], "share": {"chat": [0.25, None]}})
    path = results.write(given, tmp_path)
    assert path == tmp_path / "seed-4" / "fairsched-seed1.json"
    assert results.read(path) == given
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_document_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = results.write(document(), tmp_path)
    before = path.read_bytes()

    def full_disk(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(ResultError, match="No space left") as caught:
        results.write(document(seconds=5.0), tmp_path)
    assert caught.value.remedy
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_who_reads_while_a_document_is_replaced_reads_the_old_one_to_its_end(tmp_path: Path) -> None:
    path = results.write(document(), tmp_path)
    with path.open(encoding="utf-8") as reader:
        results.write(document(seconds=5.0), tmp_path)
        assert json.load(reader)["seconds"] == 20.0
    assert results.read(path)["seconds"] == 5.0


def test_what_is_no_number_is_written_as_unknown_and_series_are_short(tmp_path: Path) -> None:
    given = document(
        whole={"busy_ratio": math.nan, "cpu_ratio": 0.123456789}, series={"at_s": [1 / 3, math.inf]}
    )
    kept = results.read(results.write(given, tmp_path))
    assert kept["measures"]["whole"]["busy_ratio"] is None
    assert kept["measures"]["whole"]["cpu_ratio"] == 0.123456789
    assert kept["series"]["at_s"] == [0.333333, None]


def test_each_leaf_and_each_series_has_a_line_of_its_own(tmp_path: Path) -> None:
    given = document(series={"share": {"chat": [0.1] * 50, "code": [0.2] * 50}})
    lines = results.write(given, tmp_path).read_text().splitlines()
    assert sum(line.lstrip().startswith('"chat": ') for line in lines) == 2
    assert len(lines) < 60


def test_a_run_is_found_by_its_settings_only(tmp_path: Path) -> None:
    results.write(document(), tmp_path)
    assert results.find("seed-4", "fairsched", 1, HASH, tmp_path) == document()
    assert results.find("seed-4", "fairsched", 1, "another", tmp_path) is None
    assert results.find("seed-4", "fairsched", 2, HASH, tmp_path) is None
    assert results.find("seed-4", "none", 1, HASH, tmp_path) is None


def test_another_commit_does_not_make_a_result_old(tmp_path: Path) -> None:
    results.write(document(commit="ffffffffffff"), tmp_path)
    assert results.find("seed-4", "fairsched", 1, HASH, tmp_path) is not None


@pytest.mark.parametrize("text", ["", '{"scenario": "seed-4"', "[]", "{}", '{"scenario": "seed-4"}'])
def test_a_damaged_file_is_an_error_to_readers_and_no_result_to_a_run(tmp_path: Path, text: str) -> None:
    path = results.write(document(), tmp_path)
    path.write_text(text)
    assert results.find("seed-4", "fairsched", 1, HASH, tmp_path) is None
    with pytest.raises(ResultError, match=str(path)) as caught:
        results.load("seed-4", tmp_path)
    assert "measure again" in caught.value.remedy


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seconds": "20"}, "seconds"),
        ({"seed": True}, "seed"),
        ({"measures": {"whole": {}}}, "measures.leaves"),
        ({"measures": {"whole": {"busy_ratio": "much"}, "leaves": {}}}, "measures.whole.busy_ratio"),
        ({"measures": {"whole": {}, "leaves": {"chat": 1}}}, "measures.leaves.chat"),
    ],
)
def test_what_does_not_fit_is_not_written(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ResultError, match=said):
        results.write({**document(), **changed}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_renamed_does_not_pass_for_another_run(tmp_path: Path) -> None:
    path = results.write(document(), tmp_path)
    path.rename(path.with_name("none-seed1.json"))
    with pytest.raises(ResultError, match="its name does not say"):
        results.load("seed-4", tmp_path)


@pytest.mark.parametrize("name", ["../x", "A b", "", ".hidden"])
def test_a_name_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ResultError):
        results.path_of(name, "none", 1, tmp_path)
    with pytest.raises(ResultError):
        results.path_of("seed-4", name, 1, tmp_path)


def test_the_hash_names_what_decides_the_outcome(tmp_path: Path) -> None:
    file = tmp_path / "seed-4.yaml"
    file.write_text("a")
    first = results.settings_hash(file, "none", 1, 20)
    assert results.settings_hash(file, "none", 1, 20.0) == first
    others = {
        results.settings_hash(file, "token", 1, 20),
        results.settings_hash(file, "none", 2, 20),
        results.settings_hash(file, "none", 1, 30),
    }
    measured = document(policy="none", settings_hash=first)
    assert results.is_current(measured, file)
    file.write_text("b")
    assert not results.is_current(measured, file)
    assert results.changed_scenarios([measured], tmp_path) == ["seed-4"]
    others.add(results.settings_hash(file, "none", 1, 20))
    assert len(others | {first}) == 5
    with pytest.raises(ResultError, match=r"none\.yaml"):
        results.settings_hash(tmp_path / "none.yaml", "none", 1, 20)


def test_none_is_shown_first_then_ours(tmp_path: Path) -> None:
    for policy in ("window-sigstop", "fairsched", "none"):
        for seed in (10, 2):
            results.write(document(policy=policy, seed=seed), tmp_path)
    found = [(d["policy"], d["seed"]) for d in results.load("seed-4", tmp_path)]
    assert found == [(p, s) for p in ("none", "fairsched", "window-sigstop") for s in (2, 10)]


def test_runs_of_the_same_kind_differ_in_nothing() -> None:
    same = [document(policy=p, seed=s) for p in ("none", "fairsched") for s in (1, 2)]
    assert results.differences(same) == []
    assert results.differences([*same, document("b", kernel=None)])[0] == "several kernels: 6.18.0, unknown"
