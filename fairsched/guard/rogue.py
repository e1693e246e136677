# SPDX-License-Identifier: Apache-2.0
"""Applies rogue rules: rounds go in, findings come out. It accuses, and ends nobody.

Problem: no single number tells a rogue from somebody who works. A GPU that is busy for five minutes with flat memory
is what everybody wishes of a trainer.

Approach: each rule is a judge of one kind with thresholds (thresholds.py), fed with steps (step.py). It finds with
a score, and the findings on a process are combined (finding.py): weak ones that come together in honest work stay
below what is reported. What is on the allow-list is never accused; it is still looked at, for it explains load.

Errors: none; a round that is not later than the last is left out, and what is not known matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from fairsched.guard.allow import Allow
from fairsched.guard.evasion import EvasionJudge
from fairsched.guard.finding import Finding, Rule
from fairsched.guard.judges import AgeJudge, IdleHoarderJudge, NoProgressJudge, OrphanJudge, UnknownImageJudge
from fairsched.guard.miner import MinerJudge
from fairsched.guard.sample import Round
from fairsched.guard.step import Look, Stepper
from fairsched.guard.thresholds import (
    KINDS,
    Age,
    Evasion,
    IdleHoarder,
    Miner,
    NoProgress,
    Orphan,
    UnknownImage,
)

BUILT_IN = tuple(Rule(name, kind()) for name, kind in KINDS.items())
"""One of each kind, named after it."""


class Judge(Protocol):
    def feed(self, look: Look) -> Iterator[Finding]: ...


class RogueRules:
    """Keeps what rules need of the rounds before."""

    def __init__(self, rules: Sequence[Rule] = BUILT_IN, allow: Allow | None = None) -> None:
        self._stepper = Stepper()
        self._allow = allow or Allow()
        self._judges = [(judge_of(rule), rule.kind) for rule in rules]

    def feed(self, moment: Round) -> list[Finding]:
        """What matches now, in no particular order."""
        look = self._stepper.feed(moment)
        if look is None:
            return []
        allowed = {
            step.sample.process.key for step in look.steps if self._allow.why(step.sample.process) is not None
        }
        others = replace(
            look, steps=tuple(step for step in look.steps if step.sample.process.key not in allowed)
        )
        found: list[Finding] = []
        for judge, kind in self._judges:
            # work of those who are allowed is nobody's evasion
            seen = others if kind == Evasion.kind else look
            found += [one for one in judge.feed(seen) if one.process.key not in allowed]
        return [one for one in found if one.score > 0]


def judge_of(rule: Rule) -> Judge:
    """The state machine of a rule."""
    match rule.thresholds:
        case NoProgress() as limits:
            return NoProgressJudge(rule, limits)
        case Orphan() as limits:
            return OrphanJudge(rule, limits)
        case Age() as limits:
            return AgeJudge(rule, limits)
        case IdleHoarder() as limits:
            return IdleHoarderJudge(rule, limits)
        case UnknownImage() as limits:
            return UnknownImageJudge(rule, limits)
        case Miner() as limits:
            return MinerJudge(rule, limits)
        case Evasion() as limits:
            return EvasionJudge(rule, limits)
