# SPDX-License-Identifier: Apache-2.0
"""Judges whether a process mines: two independent kinds of evidence, or next to nothing.

1. Its shape: a miner repeats one kernel without end. Its rate of launches is more even than that of any work that reads
   data, and its memory is small and never changes. A benchmark looks so, too.
2. A connection to a port that pools use and few others do. One that goes to 443 says nothing.
3. The words of a miner in its command. Anybody may write them, and leave them out.

So a miner that hides its name behind TLS on 443 is not told from a small benchmark, and not accused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt

from fairsched.guard.finding import Finding, Rule, gib, lasting
from fairsched.guard.step import Key, Look, Step
from fairsched.guard.thresholds import WELL_KNOWN, Miner

_LEAST_STEPS = 8
_MOST_KNOWN = 4096


@dataclass
class _Past:
    """Steps of the last while, and their length."""

    steps: deque[tuple[float, int, float, int]] = field(default_factory=deque)
    """Seconds, launches, share, memory."""
    long_s: float = 0.0

    def add(self, step: tuple[float, int, float, int], for_s: float) -> None:
        self.steps.append(step)
        self.long_s += step[0]
        while self.long_s - self.steps[0][0] >= for_s:
            self.long_s -= self.steps.popleft()[0]


class MinerJudge:
    def __init__(self, rule: Rule, limits: Miner) -> None:
        self._rule, self._limits = rule, limits
        self._words = [re.compile(word, re.IGNORECASE) for word in limits.words]
        self._ports = frozenset(port for port in limits.ports if port >= WELL_KNOWN)
        self._past: dict[Key, _Past] = {}
        self._said: dict[str, str | None] = {}
        """By command: the same ones come again and again."""

    def feed(self, look: Look) -> Iterator[Finding]:
        past = self._past
        self._past = {}
        for step in look.steps:
            known = self._remember(step, past.get(step.key))
            shape = None if known is None else self._shape(known)
            hints = [text for text in (self._port(step), self._word(step)) if text is not None]
            count = len(hints) + (shape is not None)
            if not count:
                continue
            score = self._limits.hint_score if shape is None else self._limits.shape_score
            if count > 1:
                score = 1 - (1 - self._limits.score) ** (count - 1)
            said = tuple(text for text in (shape, *hints) if text is not None)
            if count == 1:
                said += ("alone it proves nothing",)
            long_s = known.long_s if known is not None else 0.0
            yield Finding(
                self._rule.name,
                self._rule.kind,
                step.sample.process,
                step.sample.gpu,
                score,
                said,
                look.t_s - long_s,
            )

    def _remember(self, step: Step, past: _Past | None) -> _Past | None:
        vram = step.sample.vram_bytes
        if step.dt_s is None or step.share is None or step.launched is None or vram is None:
            return None
        past = self._past[step.key] = past or _Past()
        past.add((step.dt_s, step.launched, step.share, vram), self._limits.for_s)
        return past

    def _shape(self, past: _Past) -> str | None:
        limits = self._limits
        if past.long_s < limits.for_s or len(past.steps) < _LEAST_STEPS:
            return None
        if past.steps[-1][3] > limits.vram_bytes:
            return None  # most are: no need to look at all steps
        high = max(vram for *_, vram in past.steps)
        low = min(vram for *_, vram in past.steps)
        load = sum(dt_s * share for dt_s, _, share, _ in past.steps) / past.long_s
        mean = sum(launched for _, launched, _, _ in past.steps) / past.long_s
        if (
            high > limits.vram_bytes
            or high - low > limits.vram_change * high
            or load < limits.load
            or not mean
        ):
            return None
        spread = (
            sum(dt_s * (launched / dt_s - mean) ** 2 for dt_s, launched, _, _ in past.steps) / past.long_s
        )
        unevenness = sqrt(spread) / mean
        if unevenness > limits.evenness:
            return None
        return (
            f"launched {mean:.0f} times a second for {lasting(past.long_s)}, even to {unevenness:.1%}, with "
            f"{load:.0%} of the GPU and memory that stayed at {gib(high)}"
        )

    def _port(self, step: Step) -> str | None:
        for port in step.sample.remote_ports or ():
            if port in self._ports:
                return f"is connected to port {port}, which pools use"
        return None

    def _word(self, step: Step) -> str | None:
        command = step.sample.process.command
        if command not in self._said:
            if len(self._said) >= _MOST_KNOWN:
                self._said.clear()
            matches = (word.search(command) for word in self._words)
            match = next((one for one in matches if one is not None), None)
            self._said[command] = None if match is None else f"its command says {match[0]!r}"
        return self._said[command]
