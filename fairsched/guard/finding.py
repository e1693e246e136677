# SPDX-License-Identifier: Apache-2.0
"""Defines what rules say: findings, and the verdict on a process that is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from fairsched.guard.sample import Process
from fairsched.guard.thresholds import Thresholds

MIN_SCORE = 0.6
"""A verdict below is not reported."""
_STRONG = 0.5
"""Findings below are circumstances: an honest job may have all of them."""
_WEAK_TOGETHER = 0.55
"""What circumstances come to at most, however many there are."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Thresholds under a name that the operator knows them by."""

    name: str
    thresholds: Thresholds

    @property
    def kind(self) -> str:
        return self.thresholds.kind


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that matched a process on a GPU."""

    rule: str
    kind: str
    process: Process
    gpu: str
    """UUID."""
    score: float
    """0 to 1."""
    evidence: tuple[str, ...]
    """Sentences with numbers. Words of the tenant in them are as they were written: not printable, maybe."""
    since_s: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all findings on a process come to."""

    process: Process
    score: float
    findings: tuple[Finding, ...]
    """The weightiest first."""
    t_s: float = 0.0
    """Unix time of the round."""


def verdicts(findings: Iterable[Finding], t_s: float = 0.0) -> list[Verdict]:
    """One for each process, the weightiest first.

    Of a kind only the weightiest counts: a process on eight GPUs is no eight witnesses, nor are two rules of one kind.
    Circumstances alone (a busy GPU, no parent, days of age, a port) come together in good trainers: they are bounded.
    """
    mine: dict[tuple[str, int, int], list[Finding]] = {}
    for finding in findings:
        mine.setdefault(finding.process.key, []).append(finding)
    found = []
    for several in mine.values():
        several.sort(key=lambda one: -one.score)
        best: dict[str, float] = {}
        for finding in several:
            best.setdefault(finding.kind, finding.score)
        score = round(1 - prod(1 - one for one in best.values()), 4)
        if several[0].score < _STRONG:
            score = min(score, _WEAK_TOGETHER)
        found.append(Verdict(several[0].process, score, tuple(several), t_s))
    return sorted(found, key=lambda one: -one.score)


class Worst:
    """Keeps the weightiest verdict on each process, over many rounds."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], Verdict] = {}

    def feed(self, t_s: float, findings: Iterable[Finding]) -> None:
        for verdict in verdicts(findings, t_s):
            kept = self._kept.get(verdict.process.key)
            if kept is None or verdict.score >= kept.score:
                self._kept[verdict.process.key] = verdict

    def verdicts(self, min_score: float = MIN_SCORE) -> list[Verdict]:
        """Those of at least `min_score`, the weightiest first."""
        found = [one for one in self._kept.values() if one.score >= min_score]
        return sorted(found, key=lambda one: (-one.score, one.process.pid))


def lasting(seconds: float) -> str:
    """``40 s``, ``5 min``, ``3.5 h``, ``9 d``."""
    for unit, of_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * of_s:
            return f"{seconds / of_s:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"


def gib(number: float) -> str:
    return f"{number / (1 << 30):.1f} GiB"
