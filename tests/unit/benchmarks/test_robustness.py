# SPDX-License-Identifier: Apache-2.0
"""From the plays of many draws to what is said of them, and the command around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fairness, robust_figures, robustness
from benchmarks.fair import results
from benchmarks.fair.results import Document
from benchmarks.machine import ROOT
from benchmarks.robust_draws import Draw, draw
from fairsched.errors import FairschedError
from tests.unit.benchmarks.made_results import document


def play_of(one: Draw, policy: str, error: float | None, **whole: float) -> dict[str, Any]:
    figures = {"share_error_max_points": error, **whole}
    return document(one.name, policy, one.number, whole=figures)


def summary(*errors: tuple[float | None, float | None]) -> dict[str, Any]:
    """Draws with (error under none, under fairsched)."""
    draws = [draw(1, number) for number in range(1, len(errors) + 1)]
    played = [
        (one, {"none": play_of(one, "none", theirs), "fairsched": play_of(one, "fairsched", ours)})
        for one, (theirs, ours) in zip(draws, errors, strict=True)
    ]
    return robust_figures.summed_up(played)


# ---- the arithmetic ----


@pytest.mark.parametrize(
    ("values", "is_bad_when_large", "expected"),
    [
        ([3.0], True, (3, 3, 3)),
        ([float(n) for n in range(1, 11)], True, (5.5, 9, 10)),
        ([float(n) for n in range(1, 11)], False, (5.5, 2, 1)),
        ([2.0, None, 4.0], True, (3, 4, 4)),
    ],
)
def test_the_distribution_has_its_bad_end_where_the_figure_is_bad(
    values: list[float | None], is_bad_when_large: bool, expected: tuple[float, float, float]
) -> None:
    found = robust_figures.distribution(values, is_bad_when_large=is_bad_when_large)
    assert found == dict(zip(("median", "p90", "worst"), expected, strict=True))


def test_of_nothing_there_is_no_distribution() -> None:
    assert robust_figures.distribution([None], is_bad_when_large=True) is None


def test_the_account_is_judged_by_the_largest_error_of_who_had_a_tenth() -> None:
    leaves = {
        "over": {"share_ratio": 0.4, "account_error_ratio": 0.02, "low_confidence_ratio": 0.5},
        "under": {"share_ratio": 0.1, "account_error_ratio": -0.07, "low_confidence_ratio": 0.0},
        "small": {"share_ratio": 0.05, "account_error_ratio": 0.9, "low_confidence_ratio": 0.25},
        "unknown": {"share_ratio": None, "account_error_ratio": None, "low_confidence_ratio": None},
    }
    found = robust_figures.figures_of(document(leaves=leaves))
    assert found["account_error_ratio"] == 0.07
    assert found["unsure_ratio"] == 0.25
    assert found["account_error_sure_ratio"] == 0.034


def test_who_has_no_account_has_no_error_of_it() -> None:
    nobody = {"account_error_ratio": None, "low_confidence_ratio": None}
    found = robust_figures.figures_of(document(policy="none", leaves={"a": nobody}))
    assert found["account_error_ratio"] is None
    assert found["unsure_ratio"] is None


def test_the_draws_in_which_nobody_would_have_been_better_are_named() -> None:
    found = summary((5.0, 6.1), (5.0, 5.9), (5.0, 0.3), (0.2, 1.3), (None, 9.0))
    assert found["worse_than_none_numbers"] == [1, 4]
    assert found["worse_than_none"] == 2
    assert [number for number, _ in robust_figures.worst(found, 2)] == ["5", "1"]


def test_what_is_judged_is_the_distribution_of_all_draws() -> None:
    found = summary(*[(20.0, 0.1 * n) for n in range(1, 11)])
    assert found["share_error_median_points"] == pytest.approx(0.55)
    assert found["share_error_p90_points"] == pytest.approx(0.9)
    assert found["share_error_worst_points"] == pytest.approx(1.0)
    assert robust_figures.missed_bars(found) == []
    assert robust_figures.missed_bars(summary((20.0, 8.5))) == [
        "share_error_median_points",
        "share_error_p90_points",
        "share_error_worst_points",
    ]


def test_a_draw_that_was_not_played_under_both_is_counted_and_left_out() -> None:
    first, second = draw(1, 1), draw(1, 2)
    whole = {"none": play_of(first, "none", 9.0), "fairsched": play_of(first, "fairsched", 0.5)}
    found = robust_figures.summed_up([(first, whole), (second, {"none": play_of(second, "none", 99.0)})])
    assert (found["played"], found["not_played"]) == (1, [2])
    assert found["distribution"]["none"]["share_error_points"]["worst"] == 9.0
    assert "Not played under both: 2" in "\n".join(robust_figures.told(found))


def test_nothing_played_meets_no_bar() -> None:
    found = robust_figures.summed_up([(draw(1, 1), {})])
    assert {found[bar.key] for bar in robust_figures.BARS} == {None}
    assert "n/a" in "\n".join(robust_figures.told(found))


def test_errors_are_told_by_what_the_draws_have() -> None:
    found = summary((9.0, 1.0), (8.0, 2.0), (7.0, 6.0))
    rows = {row[0]: row[1:] for row in robust_figures.by_trait(found)}
    assert rows["one by one"] == ("3", "8.00 pt", "2.00 pt", "6.00 pt")
    assert rows["unequal"] == ("1", "8.00 pt", "2.00 pt", "2.00 pt"), "the second has it"
    assert "two side by side" not in rows


# ---- what is shown ----


def test_lines_are_eighty_columns_wide_and_name_the_worst() -> None:
    lines = robust_figures.told(summary(*[(20.0, float(n)) for n in range(1, 9)]))
    assert max(map(len, lines)) <= 80
    assert any(line.strip().startswith("8: 8.00 pt (none: 20.00 pt)") for line in lines)


def whole_summary(seed: int = 3, **changed: Any) -> dict[str, Any]:
    made = {"machine": "A processor", "cpus": 2, "kernel": "6.1", "commit": "c", "started": "2026-01-01T"}
    made |= {"code_hashes": ["a"]}
    return {"seed": seed, "is_tuned_on": False, **made, **summary((9.0, 0.5), (9.0, 9.5)), **changed}


def test_the_page_gets_a_section_a_seed_and_keeps_the_rest() -> None:
    text = "before\n<!-- robustness: measured -->\nold\n<!-- robustness: end -->\nafter\n"
    filled = robust_figures.filled(text, [whole_summary(3), whole_summary(5, is_tuned_on=True)])
    assert filled.startswith("before\n") and filled.endswith("after\n")
    assert "\nold\n" not in filled
    assert "### Seed 3, 2 draws" in filled and "this seed was not tuned on" in filled
    assert "### Seed 5, 2 draws" in filled and "looked at while the code was changed" in filled
    assert "| share error | none | 9.00 pt | 9.00 pt | 9.00 pt |" in filled
    assert robust_figures.filled(filled, [whole_summary(3), whole_summary(5, is_tuned_on=True)]) == filled
    assert "No run is committed yet." in robust_figures.filled(text, [])


def test_plays_of_several_programs_are_pointed_out() -> None:
    mixed = whole_summary(code_hashes=["a", "b"])
    assert any("of another program" in line for line in robust_figures.told(mixed))
    text = "<!-- robustness: measured -->\n<!-- robustness: end -->\n"
    assert "of another program" in robust_figures.filled(text, [mixed])
    assert "of another program" not in robust_figures.filled(text, [whole_summary()])


def test_the_page_says_what_the_committed_summaries_say() -> None:
    text = robustness.PAGE.read_text(encoding="utf-8")
    filled = robust_figures.filled(text, robustness.committed())
    assert text == filled, "run: python -m benchmarks.robustness --write"


def test_what_is_committed_can_be_drawn_again() -> None:
    for kept in robustness.committed():
        for number, one in kept["draws"].items():
            assert draw(kept["seed"], int(number)).description == one["description"]


def test_a_summary_that_cannot_be_read_is_told_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "robustness-3.json").write_text("{")
    with pytest.raises(results.ResultError, match="robustness-3") as caught:
        robustness.committed(tmp_path)
    assert caught.value.remedy


# ---- the command ----


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was played; the third draw does not start."""
    titles: list[str] = []

    def perform(job: fairness.Job, *_: object) -> Document:
        titles.append(job.title)
        if job.seed == 3:
            raise FairschedError("it did not start")
        made = fairness.origin.of_this_run()
        whole = {"share_error_max_points": 9.0 if job.policy == "none" else 0.5}
        about = {"settings_hash": job.settings_hash, "seconds": job.seconds}
        return document(job.play.name, job.policy, job.seed, whole=whole, **made, **about)

    monkeypatch.setattr(fairness, "perform", perform)
    return titles


def command(tmp_path: Path, *more: str) -> int:
    return robustness.main(["--results", str(tmp_path / "raw"), "--output", str(tmp_path / "s.json"), *more])


def test_draws_are_played_under_both_and_what_is_done_is_left_out(tmp_path: Path, played: list[str]) -> None:
    assert command(tmp_path, "--draws", "2", "--seed", "4") == 0
    assert played == [f"s4-00{n} {policy} seed {n}" for n, policy in PLAYED]
    kept = json.loads((tmp_path / "s.json").read_text())
    assert (kept["seed"], kept["played"], kept["is_tuned_on"]) == (4, 2, False)
    assert kept["code_hashes"] == [kept["code_hash"]]
    assert kept["draws"]["2"]["fairsched"]["share_error_points"] == 0.5
    assert command(tmp_path, "--draws", "2", "--seed", "4") == 0
    assert len(played) == len(PLAYED)
    assert command(tmp_path, "--draws", "2", "--seed", "4", "--fresh") == 0
    assert len(played) == 2 * len(PLAYED)


def test_with_the_trace_the_same_draws_are_played_and_kept_apart(tmp_path: Path, played: list[str]) -> None:
    assert command(tmp_path, "--draws", "2", "--seed", "4") == 0
    assert json.loads((tmp_path / "s.json").read_text())["trace"] is False
    assert command(tmp_path, "--draws", "2", "--seed", "4", "--trace") == 0
    assert played[len(PLAYED) :] == [f"s4-00{n} fairsched-traced seed {n}" for n in (1, 2)], (
        "none is played once"
    )
    kept = json.loads((tmp_path / "s.json").read_text())
    assert (kept["trace"], kept["played"], kept["not_played"]) == (True, 2, [])
    assert kept["draws"]["2"]["fairsched"]["share_error_points"] == 0.5
    names = {robustness.summary_path(4, is_traced=is_traced).name for is_traced in (False, True)}
    assert names == {"robustness-4.json", "traced-robustness-4.json"}


PLAYED = ((1, "none"), (1, "fairsched"), (2, "fairsched"), (2, "none"))


def test_one_is_played_again_by_its_number_and_nothing_is_summed_up(
    tmp_path: Path, played: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert command(tmp_path, "--only", "17", "--seed", "4") == 0
    assert played == ["s4-017 none seed 17", "s4-017 fairsched seed 17"] * 2
    assert not (tmp_path / "s.json").exists()
    assert draw(4, 17).description[:40] in capsys.readouterr().out
    (file,) = (tmp_path / "raw").glob("*.yaml")
    assert file.stem == "s4-017"


def test_a_draw_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, played: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, "--draws", "4") == 1
    assert len(played) == 8
    said = capsys.readouterr()
    assert "failed: s1-003 none seed 3: it did not start" in said.err
    assert "Not played under both: 3" in said.out


def test_a_missed_bar_is_an_exit_status_only_when_that_is_asked_for(
    tmp_path: Path, played: list[str]
) -> None:
    assert command(tmp_path, "--draws", "1", "--strict") == 0
    assert command(tmp_path, "--draws", "3", "--strict") == 1, "one of them was not played"
    assert played


def test_plays_of_another_length_do_not_replace_what_is_committed(
    tmp_path: Path, played: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--results", str(tmp_path / "raw"), "--draws", "1", "--seed", "99999"]
    assert robustness.main([*argv, "--seconds", "2"]) == 0
    assert "not written" in capsys.readouterr().out
    assert not robustness.summary_path(99999).exists()
    assert len(played) == 2


def jobs(tmp_path: Path, *numbers: int) -> list[fairness.Job]:
    return [job for number in numbers for job in robustness.jobs_of(draw(1, number), tmp_path)]


def test_two_at_a_time_are_two_draws_under_one_policy(tmp_path: Path) -> None:
    batches = robustness.in_pairs(jobs(tmp_path, 1, 2, 3))
    assert [[(job.seed, job.policy) for job in batch] for batch in batches] == [
        [(1, "fairsched"), (2, "fairsched")],
        [(1, "none"), (2, "none")],
        [(3, "none")],
        [(3, "fairsched")],
    ]
    assert [len(batch) for batch in robustness.one_by_one(jobs(tmp_path, 1, 2))] == [1, 1, 1, 1]


def test_sixty_draws_take_no_longer_than_was_promised(tmp_path: Path) -> None:
    """Seventy minutes."""
    every = jobs(tmp_path, *range(1, robustness.DRAWS + 1))
    assert fairness.estimate_s(every, robustness.one_by_one) <= 68 * 60
    assert fairness.estimate_s(every, robustness.in_pairs) <= 36 * 60


def test_what_is_drawn_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert robustness.main(["--list", "--draws", "9", "--seed", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("  1  ") and any(line.startswith("  9  ") for line in lines)


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--draws", "0"], "1 to 100000"),
        (["--seconds", "0"], "--seconds"),
        (["--settle", "61"], "--settle"),
        (["--jobs", "3"], "--jobs"),
        (["--fresh", "--resume-any"], "not allowed"),
    ],
)
def test_bad_usage_is_told(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        robustness.main(argv)
    assert caught.value.code == 2
    assert word in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw").write_text("")
    assert command(tmp_path, "--draws", "1") != 0
    assert "remedy:" in capsys.readouterr().err


def test_single_plays_are_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert f"/{robustness.RAW.relative_to(ROOT)}/" in ignored
