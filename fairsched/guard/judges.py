# SPDX-License-Identifier: Apache-2.0
"""Judges one process by itself: no progress, orphan, age, idle hoarder, unknown image.

Each judge is fed with every look and keeps what it needs of those that are there. What is not known ends a streak, for
a streak is what was seen without a break.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairsched.guard.finding import Finding, Rule, gib, lasting
from fairsched.guard.step import Key, Look, Step
from fairsched.guard.thresholds import Age, IdleHoarder, NoProgress, Orphan, UnknownImage

Case = tuple[float, tuple[str, ...], float]
"""Score, evidence, since when."""


def _finding(rule: Rule, step: Step, case: Case) -> Finding:
    return Finding(rule.name, rule.kind, step.sample.process, step.sample.gpu, *case)


@dataclass
class _Flat:
    """A streak with memory that stays as it is."""

    since_s: float
    low: int
    high: int
    ran_s: float = 0.0

    def reaches(self, now_s: float, for_s: float) -> bool:
        return now_s - self.since_s >= for_s


class NoProgressJudge:
    """Two streaks: busy, and one launch open.

    An open launch is no hang by itself: a program may run kernels of ten minutes, or a server one for all its life. So
    it counts when it lasts longer than those that were seen to end, and less of one that listens for others.
    """

    def __init__(self, rule: Rule, limits: NoProgress) -> None:
        self._rule, self._limits = rule, limits
        self._busy: dict[Key, _Flat] = {}
        self._open: dict[Key, _Flat] = {}
        self._longest_s: dict[Key, float] = {}
        """Of open launches that have ended."""

    def feed(self, look: Look) -> Iterator[Finding]:
        limits = self._limits
        busy, open_ = self._busy, self._open
        self._busy, self._open = {}, {}
        self._longest_s = {step.key: self._ended_s(step, open_, look.t_s) for step in look.steps}
        for step in look.steps:
            is_busy = step.share is not None and step.share >= limits.load
            was_busy = self._goes_on(busy.get(step.key), step, look.t_s) if is_busy else None
            was_open = self._goes_on(open_.get(step.key), step, look.t_s) if self._is_open(step) else None
            if was_busy is not None:
                self._busy[step.key] = was_busy
            if was_open is not None:
                self._open[step.key] = was_open
            if was_open is not None and was_open.reaches(look.t_s, self._due_s(step.key)):
                yield _finding(self._rule, step, self._hangs(was_open, step, look.t_s))
            elif was_busy is not None and was_busy.reaches(look.t_s, limits.for_s):
                yield _finding(self._rule, step, self._works(was_busy, look.t_s))

    def _due_s(self, key: Key) -> float:
        return max(self._limits.for_s, self._limits.usual * self._longest_s[key])

    def _ended_s(self, step: Step, before: Mapping[Key, _Flat], now_s: float) -> float:
        """How long the longest launch of it was open that was seen to end."""
        longest_s, flat = self._longest_s.get(step.key, 0.0), before.get(step.key)
        has_ended = flat is not None and step.dt_s is not None and bool(step.launched)
        return longest_s if flat is None or not has_ended else max(longest_s, now_s - flat.since_s)

    def _is_open(self, step: Step) -> bool:
        """Time passes on the GPU and nothing is launched, by one whose launches are seen: not so an MPS server's.

        One that is stopped cannot launch.
        """
        if step.sample.is_paused:
            return False
        share, launches = step.share, step.sample.launches
        is_seen = launches is not None and launches > 0
        return is_seen and step.launched == 0 and share is not None and share >= self._limits.open_load

    def _goes_on(self, flat: _Flat | None, step: Step, now_s: float) -> _Flat | None:
        vram = step.sample.vram_bytes
        if vram is None or step.dt_s is None:
            return None
        if flat is not None:
            flat.low, flat.high = min(flat.low, vram), max(flat.high, vram)
            if flat.high - flat.low > self._limits.vram_change * flat.high:
                flat = _Flat(now_s, vram, vram)
        else:
            flat = _Flat(now_s - step.dt_s, vram, vram)
        flat.ran_s += (step.share or 0.0) * step.dt_s
        return flat

    def _works(self, flat: _Flat, now_s: float) -> Case:
        said = (
            f"used at least {self._limits.load:.0%} of the GPU for {lasting(now_s - flat.since_s)}, "
            f"its memory stayed at {gib(flat.high)}",
            "a trainer that works well looks so, too",
        )
        return self._limits.busy_score, said, flat.since_s

    def _hangs(self, flat: _Flat, step: Step, now_s: float) -> Case:
        said = (
            f"launched nothing for {lasting(now_s - flat.since_s)} (after {step.sample.launches} launches), "
            f"and its GPU time grew by {lasting(flat.ran_s)}: a launch that does not end",
            f"its memory stayed at {gib(flat.high)}",
        )
        if not step.sample.is_serving:
            return self._limits.score, said, flat.since_s
        serves = "it listens for others: a server may run one kernel for all its life"
        return self._limits.serving_score, (*said, serves), flat.since_s


class OrphanJudge:
    def __init__(self, rule: Rule, limits: Orphan) -> None:
        self._rule, self._limits = rule, limits
        self._since: dict[Key, float] = {}

    def feed(self, look: Look) -> Iterator[Finding]:
        since = self._since
        self._since = {}
        for step in look.steps:
            if step.sample.is_orphan is not True:
                continue
            is_new = step.dt_s is None
            begun = self._since[step.key] = look.t_s if is_new else since.get(step.key, look.t_s)
            if look.t_s - begun >= self._limits.for_s:
                said = (f"its parent is gone, seen for {lasting(look.t_s - begun)}",)
                yield _finding(self._rule, step, (self._limits.score, said, begun))


class AgeJudge:
    def __init__(self, rule: Rule, limits: Age) -> None:
        self._rule, self._limits = rule, limits

    def feed(self, look: Look) -> Iterator[Finding]:
        for step in look.steps:
            started_s = step.sample.process.started_s
            if started_s is not None and look.t_s - started_s >= self._limits.for_s:
                said = (
                    f"has run for {lasting(look.t_s - started_s)}; allowed are {lasting(self._limits.for_s)}",
                )
                yield _finding(self._rule, step, (self._limits.score, said, started_s))


class IdleHoarderJudge:
    """By the daemon's word for how long nothing was launched, while what the GPU does is the work of others.

    Otherwise it may be its own, by a way on which launches are not seen. Nor is it idle while somebody has stopped it.
    """

    def __init__(self, rule: Rule, limits: IdleHoarder) -> None:
        self._rule, self._limits = rule, limits
        self._since: dict[Key, float] = {}
        self._paused_s: dict[Key, float] = {}
        """When it was last seen to be stopped: it may have worked since then only."""

    def feed(self, look: Look) -> Iterator[Finding]:
        since = self._since
        self._since = {}
        paused_s = self._paused_s
        self._paused_s = {step.key: paused_s[step.key] for step in look.steps if step.key in paused_s}
        self._paused_s |= {step.key: look.t_s for step in look.steps if step.sample.is_paused}
        shares: dict[str, float] = {}
        for step in look.steps:
            shares[step.sample.gpu] = shares.get(step.sample.gpu, 0.0) + (step.share or 0.0)
        for step in look.steps:
            load = look.gpus.get(step.sample.gpu)
            others = shares[step.sample.gpu] - (step.share or 0.0)
            busy = None if load is None else load.busy_ratio
            is_explained = busy is not None and busy <= others + self._limits.slack
            if (
                step.dt_s is None
                or not is_explained
                or step.is_reset
                or step.launched
                or step.sample.is_paused
                or (step.share or 0) > 0.01
            ):
                continue
            begun = self._since[step.key] = since.get(step.key, look.t_s - step.dt_s)
            case = self._case(step, look.t_s)
            if case is not None and look.t_s - begun >= self._limits.watch_s:
                yield _finding(self._rule, step, case)

    def _case(self, step: Step, now_s: float) -> Case | None:
        limits, sample = self._limits, step.sample
        idle_s, vram = sample.idle_s, sample.vram_bytes
        if idle_s is not None and step.key in self._paused_s:
            idle_s = min(idle_s, now_s - self._paused_s[step.key])
        if idle_s is None or vram is None or vram < limits.vram_bytes or idle_s < limits.for_s:
            return None
        started_s = sample.process.started_s
        # a daemon that was started again counts anew: 0 alone does not mean that it has never worked
        is_first = started_s is not None and now_s - started_s - idle_s <= limits.start_s
        never = sample.launches == 0 and is_first
        is_bad = never or idle_s >= limits.long_s
        ever = ", nor any since it was started" if never else ""
        said: tuple[str, ...] = (
            f"holds {gib(vram)}, and no launch of it was seen for {lasting(idle_s)}{ever}",
        )
        if sample.is_serving:
            return (
                limits.serving_score,
                (*said, "it listens for others: a server waits for requests"),
                now_s - idle_s,
            )
        return limits.score if is_bad else limits.idle_score, said, now_s - idle_s


class UnknownImageJudge:
    def __init__(self, rule: Rule, limits: UnknownImage) -> None:
        self._rule, self._limits = rule, limits

    def feed(self, look: Look) -> Iterator[Finding]:
        for step in look.steps:
            process = step.sample.process
            digest = process.image_digest
            if self._limits.known and digest is not None and digest not in self._limits.known:
                count = len(self._limits.known)
                said = (
                    f"runs the image {digest} ({process.image or 'no name'}), none of the {count} known ones",
                )
                since_s = look.t_s if process.started_s is None else process.started_s
                yield _finding(self._rule, step, (self._limits.score, said, since_s))
