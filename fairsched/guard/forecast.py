# SPDX-License-Identifier: Apache-2.0
"""Tells what a judge would have done to recorded rounds, and what it would do if a moment went on (pure).

Whoever would have been ended is gone from the rounds that follow, as it would have been; what else would have changed
then, nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fairsched.guard.breach import Act, Breach, What
from fairsched.guard.judge import Judge
from fairsched.guard.sample import Round, Sample

_STEP_S = 60.0
"""Between two moments that are made up."""


class News(NamedTuple):
    """Something that is told or done."""

    t_s: float
    breach: Breach


class Rehearsal:
    """Feeds a judge, without those that it would have ended."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.gone: set[tuple[str, int, int]] = set()
        """Processes, by identity."""

    def feed(self, moment: Round) -> list[Breach]:
        """As :meth:`Judge.feed`."""
        if self.gone:
            kept = tuple(one for one in moment.samples if one.process.key not in self.gone)
            moment = replace(moment, samples=kept)
        found = self.judge.feed(moment)
        for breach in found:
            if breach.act is Act.END:
                self.gone.update(process.key for process in breach.processes)
        return found


def play_on(rehearsal: Rehearsal, moment: Round, for_s: float) -> Iterator[News]:
    """What comes of `moment`, and if everything went on as it is there: the same processes with the same memory, each
    with as much GPU time as on average since it began. It ends when nothing more would come, or after `for_s` seconds.
    """
    end_s, t_s = moment.t_s + for_s, moment.t_s
    paces = [_pace(one, moment.t_s) for one in moment.samples]
    while True:
        samples = tuple(_worked(*one, t_s - moment.t_s) for one in zip(moment.samples, paces, strict=True))
        found = rehearsal.feed(replace(moment, t_s=t_s, samples=samples, tenants={}))
        yield from (News(t_s, breach) for breach in found if breach.is_news)
        due = [one.next_s for one in found if one.next_s is not None]
        is_waiting = any(
            bound.hours or bound.maintenance or bound.what is What.GPU_SECONDS
            for bound in rehearsal.judge.rules.bounds
        )
        if t_s >= end_s or (not due and not is_waiting):
            return
        soon = min((one for one in due if one > t_s), default=t_s + _STEP_S)
        t_s = min(soon, t_s + _STEP_S, max(end_s, t_s + 1.0))


def _pace(sample: Sample, t_s: float) -> float:
    """GPU seconds a second since its process began; 0 where that is not known."""
    began_s = sample.process.started_s
    if not sample.gpu_time_s or began_s is None or began_s >= t_s:
        return 0.0
    return min(1.0, sample.gpu_time_s / (t_s - began_s))


def _worked(sample: Sample, pace: float, for_s: float) -> Sample:
    return (
        sample if sample.gpu_time_s is None else sample._replace(gpu_time_s=sample.gpu_time_s + pace * for_s)
    )
