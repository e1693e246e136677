# SPDX-License-Identifier: Apache-2.0
"""Rungs are policies by name, are played long enough, and beside their like."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fairness
from benchmarks.fair import rungs
from benchmarks.fair.controllers import POLICIES
from benchmarks.fair.scenario import load

SUITE = [rung.policy for rung in rungs.SUITE]


@pytest.mark.parametrize(
    ("source", "brake", "name"),
    [
        ("ebpf", "freezer", "fairsched"),
        ("dcgm", "freezer", "fairsched-dcgm"),
        ("nvml-accounting", "freezer", "fairsched-nvml-accounting"),
        ("ebpf", "sigstop", "fairsched-sigstop"),
        ("nvml", "freezer_v1", "fairsched-nvml-freezer_v1"),
    ],
)
def test_source_and_brake_name_a_policy(source: str, brake: str, name: str) -> None:
    options = fairness._parse(["--scenario", "seed-4", "--source", source, "--brake", brake])
    assert options.policy == [name]
    assert rungs.ALL[name] == rungs.Rung(source, brake)


def test_every_rung_can_be_played() -> None:
    assert set(rungs.ALL) < set(POLICIES)
    assert len(rungs.ALL) == len(rungs.SOURCES) * len(rungs.BRAKES)


def test_on_samples_chance_evens_out_before_and_while_it_is_measured() -> None:
    play = load(Path("weights-4211"))
    assert play.settle_s("fairsched-dcgm") == play.settle_s("fairsched-nvml-sigstop") == 25
    assert play.settle_s("fairsched-sigstop") == play.settle_s("fairsched") == play.scenario.settle_s
    jobs = {
        job.policy: job
        for job in fairness.chosen_jobs(fairness._parse(["--suite", "rungs", "--scenario", "graphs"]))
    }
    assert list(jobs) == SUITE
    assert jobs["fairsched-nvml"].seconds == 20
    assert jobs["fairsched-sigstop"].seconds == 12


def test_a_rung_is_played_beside_its_like_of_one_scenario_and_seed_or_alone() -> None:
    files = [Path("graphs"), Path("weights-4211"), Path("tenants-32")]
    jobs = fairness.jobs_of(files, SUITE, [1, 2], 30.0)
    played = [[(job.play.name, job.policy, job.seed) for job in batch] for batch in rungs.batches(jobs)]
    sampled, probed = SUITE[:3], SUITE[3:]
    beside = [[("graphs", policy, seed) for policy in kind] for seed in (1, 2) for kind in (sampled, probed)]
    beside += [[("weights-4211", policy, seed) for policy in sampled] for seed in (1, 2)]
    alone = [[("weights-4211", policy, seed)] for seed in (1, 2) for policy in probed]
    alone += [[("tenants-32", policy, seed)] for seed in (1, 2) for policy in SUITE]
    assert sorted(sorted(batch) for batch in played) == sorted(sorted(batch) for batch in beside + alone)


def test_nobody_else_is_played_beside_a_rung() -> None:
    jobs = fairness.jobs_of([Path("graphs")], ["none", "fairsched", "fairsched-nvml"], [1], 30.0)
    assert [[job.policy for job in batch] for batch in rungs.batches(jobs)] == [
        ["none"],
        ["fairsched"],
        ["fairsched-nvml"],
    ]
