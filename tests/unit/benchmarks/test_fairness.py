# SPDX-License-Identifier: Apache-2.0
"""What the harness plays, in which order, and what it leaves out because it has it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fairness
from benchmarks.fair import results, scenario, solo, summary

TWO = """
tenants:
  a: {loads: [{}]}
  b: {loads: [{kernels: 3}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TWO)
    return path


def test_policies_of_one_scenario_and_seed_are_played_together_and_take_turns_at_being_first(
    file: Path,
) -> None:
    jobs = fairness.jobs_of([file], ["none", "fairsched"], [1, 2], 5.0)
    assert [(job.seed, job.policy) for job in jobs] == [
        (1, "none"),
        (1, "fairsched"),
        (2, "fairsched"),
        (2, "none"),
    ]
    assert {job.seconds for job in jobs} == {5.0}


def test_rivals_play_on_headlines_only(file: Path) -> None:
    def policies(path: Path) -> set[str]:
        jobs = fairness.jobs_of([path], fairness.OURS, [1], None, rival_seeds=[1])
        return {job.policy for job in jobs}

    assert policies(file) == {"none", "fairsched"}
    assert policies(Path("seed-4")) == {"none", "fairsched", *fairness.RIVALS}


@pytest.mark.parametrize(("suite", "seeds"), [("bench", {1}), ("full", {1, 2, 3, 4, 5})])
def test_rivals_play_one_seed_in_three_quarters_of_an_hour_and_all_in_hours(
    suite: str, seeds: set[int]
) -> None:
    jobs = fairness.chosen_jobs(fairness._parse(["--suite", suite]))
    for name in fairness.RIVALS:
        assert {(job.play.name, job.seed) for job in jobs if job.policy == name} == {
            (headline, seed) for headline in ("seed-4", "weights-4211") for seed in seeds
        }


@pytest.mark.parametrize(("suite", "minutes"), [("quick", 3.5), ("bench", 46.0)])
def test_a_suite_takes_no_longer_than_was_promised(suite: str, minutes: float) -> None:
    """47 minutes and 4: the rest is for tables and pictures. The guess is on the safe side: see _AROUND_S."""
    jobs = fairness.chosen_jobs(fairness._parse(["--suite", suite]))
    assert fairness.estimate_s(jobs) / 60 <= minutes


@pytest.mark.parametrize("suite", ["bench", "full"])
def test_nobody_plays_beside_another_scenario_or_another_policy(suite: str) -> None:
    """Two seeds of one are played at a time where the scenario says so: what is beside a run is always the same."""
    batches = fairness.batches_of(fairness.chosen_jobs(fairness._parse(["--suite", suite])))
    assert max(map(len, batches)) == 2
    for batch in batches:
        assert len({(job.play.name, job.policy) for job in batch}) == 1
        assert len({job.seed for job in batch}) == len(batch)
        assert len(batch) == 1 or batch[0].play.scenario.beside_others


@pytest.mark.parametrize("name", ["hostile-starve-cpu", "hostile-fork-storm"])
def test_who_takes_the_processors_plays_alone(name: str) -> None:
    batches = fairness.batches_of(fairness.jobs_of([Path(name)], fairness.OURS, [1, 2], None))
    assert [len(batch) for batch in batches] == [1, 1, 1, 1]


def test_two_seeds_at_a_time_take_half_of_their_time(file: Path) -> None:
    alone = fairness.jobs_of([file], ["none", "fairsched"], [1], 5.0)
    two_solos = 2 * (0.5 + 2.0 + 0.5)
    assert fairness.estimate_s(alone) == 5.0 + 1.5 + 0.5 + 5.0 + 3.0 + 8.5 + two_solos
    file.write_text(TWO + "beside_others: true\n")
    assert fairness.estimate_s(fairness.jobs_of([file], ["none"], [1], 5.0)) == 5.0 + 1.5 + 0.5
    assert fairness.estimate_s(fairness.jobs_of([file], ["none"], [1, 2], 5.0)) == 5.0 + 1.5 + 0.5 + 0.5
    jobs = fairness.jobs_of([file], ["none", "fairsched"], [1, 2, 3], 5.0)
    played = [[(job.policy, job.seed) for job in batch] for batch in fairness.batches_of(jobs)]
    assert played == [
        [("none", 1), ("none", 2)],
        [("fairsched", 1), ("fairsched", 2)],
        [("none", 3)],
        [("fairsched", 3)],
    ]


@pytest.mark.parametrize("suite", ["bench", "full"])
def test_what_a_trick_gains_is_also_measured_where_nobody_schedules(suite: str) -> None:
    jobs = fairness.chosen_jobs(fairness._parse(["--suite", suite]))
    hostile = {job.play.name for job in jobs if any(t.is_hostile for t in job.play.leaves().values())}
    assert len(hostile) >= 20
    for name in hostile:
        seeds = {
            policy: {j.seed for j in jobs if (j.play.name, j.policy) == (name, policy)}
            for policy in fairness.OURS
        }
        assert seeds["none"] == seeds["fairsched"] != set()


def test_leaves_are_comparable_when_promise_and_cost_of_a_token_are_the_same() -> None:
    play = scenario.load(Path("seed-4"))
    assert play.equal_groups() == [["a", "b", "c", "d"]]
    assert scenario.load(Path("weights-4211")).equal_groups() == []


def document(job: fairness.Job) -> dict[str, Any]:
    return {
        "scenario": job.play.name,
        "policy": job.policy,
        "seed": job.seed,
        "seconds": job.seconds,
        **fairness.origin.of_this_run(),
        "cpus": 2,
        "commit": "c",
        "started": "2026-01-01T00:00:00Z",
        "settings_hash": job.settings_hash,
        "measures": {"whole": {"busy_ratio": 1.0}, "leaves": {}},
        "series": {},
        "notes": [],
    }


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    titles: list[str] = []

    def perform(
        job: fairness.Job, _build: Path, _progress: Callable[[float], None], _solos: solo.Solos
    ) -> dict[str, Any]:
        titles.append(job.title)
        if job.policy == "token":
            raise fairness.FairschedError("it did not start")
        return document(job)

    monkeypatch.setattr(fairness, "perform", perform)
    return titles


def test_what_is_done_is_not_done_again_until_the_file_changes(
    file: Path, tmp_path: Path, played: list[str]
) -> None:
    root = tmp_path / "results"

    def run(reuse: fairness.Reuse = fairness.Reuse.SAME) -> list[str]:
        played.clear()
        jobs = fairness.jobs_of([file], ["none", "fairsched"], [1], 5.0)
        fairness.Performance(jobs, root, reuse=reuse).run()
        return list(played)

    both = ["mine none seed 1", "mine fairsched seed 1"]
    assert run() == both
    assert run() == []
    results.path_of("mine", "none", 1, root).unlink()
    assert run() == both[:1]
    assert run(fairness.Reuse.NONE) == both
    file.write_text(TWO + "seconds: 7\n")
    assert run() == both


@pytest.mark.parametrize("key", ["machine", "kernel", "code_hash"])
def test_what_another_machine_or_program_measured_is_no_result_of_this_one(
    file: Path, tmp_path: Path, played: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, root = fairness.jobs_of([file], ["none"], [1], 5.0), tmp_path / "results"
    results.write({**document(jobs[0]), key: "another"}, root)
    fairness.Performance(jobs, root, reuse=fairness.Reuse.ANY).run()
    assert played == []
    fairness.Performance(jobs, root).run()
    assert played == ["mine none seed 1"]
    assert "1 more lie here from another machine" in capsys.readouterr().err
    fairness.Performance(jobs, root).run()
    assert len(played) == 1


def test_what_is_shown_is_the_summary_that_the_documents_were_taken_into(
    file: Path, tmp_path: Path, played: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "results"
    fairness.Performance(fairness.jobs_of([file], ["none"], [1, 2], 5.0), root).run()
    assert len(fairness.show(["mine"], root, pictures=False)) == 2
    for kept in (root / "mine").iterdir():
        kept.unlink()
    fairness.Performance(fairness.jobs_of([file], ["fairsched"], [1], 5.0), root).run()
    shown = fairness.show(["mine", "absent"], root, pictures=False)
    assert [(run["policy"], run["seed"]) for run in shown] == [("none", 1), ("none", 2), ("fairsched", 1)]
    assert shown == summary.read(root)
    assert "mine: 1 to 2 seeds" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_a_length_that_cannot_be_played_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fairness.main(["--scenario", "seed-4", f"--seconds={seconds}"])
    assert "more than 0" in capsys.readouterr().err


def test_it_is_a_program() -> None:
    done = subprocess.run([fairness.__file__, "--list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "seed-4" in done.stdout


def test_a_run_that_fails_is_told_and_the_rest_goes_on(file: Path, tmp_path: Path, played: list[str]) -> None:
    jobs = fairness.jobs_of([file], ["token", "none"], [1], 5.0)
    performance = fairness.Performance(jobs, tmp_path / "results")
    performance.run()
    assert played == ["mine token seed 1", "mine none seed 1"]
    assert performance.failed == ["mine token seed 1: it did not start"]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--scenario", "seed-4", "--json", "out.json"],
        ["--scenario", "no-such-file"],
    ],
)
def test_bad_usage_is_told_with_a_remedy(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fairness.main(argv) == 2
    assert "remedy:" in capsys.readouterr().err


def test_list_names_every_shipped_scenario_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fairness.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(scenario.shipped())
    assert any(line.startswith("seed-4") and "greedy" in line for line in lines)
