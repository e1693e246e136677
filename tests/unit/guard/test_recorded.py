# SPDX-License-Identifier: Apache-2.0
"""Rogue rules on a tape of a real GPU: nine PyTorch programs on an H100 for two minutes (benchmarks/gpu/rogues.py).

Each is a tenant named after what it is. The rules are as built in, but for how long they wait: it has two minutes.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.guard.allow import Allow
from fairsched.guard.finding import MIN_SCORE, Worst
from fairsched.guard.rogue import BUILT_IN, RogueRules
from fairsched.guard.tape import play

TAPE = Path(__file__).parent / "recorded/h100.tape.gz"
WAITS_S = 100.0


@pytest.fixture(scope="module")
def scores() -> dict[str, float]:
    """The worst of each tenant."""
    rules = tuple(
        replace(rule, thresholds=replace(rule.thresholds, for_s=min(rule.thresholds.for_s, WAITS_S)))
        if hasattr(rule.thresholds, "for_s")
        else rule
        for rule in BUILT_IN
    )
    judge, worst = RogueRules(rules, Allow()), Worst()
    with gzip.open(TAPE, "rt", encoding="utf-8") as file:
        for moment in play(file):
            worst.feed(moment.t_s, judge.feed(moment))
    return {str(one.process.tenant): one.score for one in worst.verdicts(0.0)}


def test_a_kernel_that_does_not_end_is_reported(scores: dict[str, float]) -> None:
    assert scores["rogue-hang"] >= MIN_SCORE


def test_no_honest_program_is(scores: dict[str, float]) -> None:
    assert all(score < MIN_SCORE for tenant, score in scores.items() if tenant.startswith("honest"))


def test_circumstances_are_told_below_the_score(scores: dict[str, float]) -> None:
    """A hoarder that once launched may work again; a miner beside eight others has no GPU for itself."""
    assert 0.4 < scores["rogue-hoarder"] < MIN_SCORE
    assert 0.1 < scores["rogue-miner"] < MIN_SCORE
