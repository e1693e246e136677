# SPDX-License-Identifier: Apache-2.0
"""The command: what it accepts, and what it says of the machine."""

from __future__ import annotations

import pytest

from benchmarks import core, machine, shares


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert core.main(["--only", "nonsense"]) == 2
    error = capsys.readouterr().err
    assert "nonsense" in error
    assert "decode+trainers" in error


def test_the_whole_run_takes_a_quarter_of_an_hour_at_most() -> None:
    assert core.estimate_s(core.Plan()) <= 15 * 60
    assert core.estimate_s(core.QUICK) <= 5 * 60


def test_the_processor_is_named() -> None:
    assert machine.cpu_model("processor\t: 0\nmodel name\t: Fast One\n") == "Fast One"
    assert machine.cpu_model("") is None


def run(is_scheduled: bool, busy: float, error: float) -> shares.Run:
    cost = shares.DaemonCost(0.02, {"daemon": 0.02}, {"daemon": 30, "guardian": 10}, 29.4)
    errors = {"gold": error, "greedy": -error}
    return shares.Run(is_scheduled, busy, 0.0, {"gold": 0.5}, errors, cost if is_scheduled else None)


def test_the_worst_share_and_the_mean_business_count() -> None:
    runs = [run(False, 0.9, 30.0), run(True, 0.8, -1.2), run(True, 1.0, 0.3), run(False, 0.9, 29.0)]
    values = shares.judge(runs)
    assert values["share_error_max_points"] == pytest.approx(1.2)
    assert values["busy_ratio"] == pytest.approx(1.0)
    assert values["daemon_rss_bytes"] == 40


def test_ticks_a_second_are_on_record_beside_what_they_cost() -> None:
    runs = [run(False, 0.9, 30.0), run(True, 0.8, -1.2)]
    assert shares.notes(runs)["daemon_cpu_ratio"] == "daemon 2.00%; 29.4 ticks a second"
