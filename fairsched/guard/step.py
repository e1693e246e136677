# SPDX-License-Identifier: Apache-2.0
"""Makes steps of rounds: what a process did on a GPU between two rounds, so far as that was seen.

A process that was not in the round before begins anew, and so does everybody after a gap: what happened meanwhile
was not seen, and may have been anything. A counter that is smaller than before has begun anew. A clock that was set
back by more than two minutes is a gap, too: else nobody would be looked at until it has caught up.

Terms: a *step* is one process on one GPU from one round to the next. A *gap* is more than three intervals between two
rounds, or more than two minutes; an interval is the median of the last ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from fairsched.guard.sample import GpuLoad, Round, Sample

_GAP_INTERVALS = 3.0
GAP_S = 120.0
Key = tuple[tuple[str, int, int], str]
"""A process, by its identity, on a GPU, by its UUID."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is None was not seen."""

    key: Key
    sample: Sample
    dt_s: float | None = None
    """None: it begins here."""
    share: float | None = None
    """Of the GPU's time."""
    launched: int | None = None
    is_reset: bool = False
    """A counter has begun anew."""


@dataclass(frozen=True, slots=True)
class Look:
    """One round, as steps."""

    t_s: float
    steps: tuple[Step, ...]
    gpus: Mapping[str, GpuLoad]


class Stepper:
    """Fed with rounds in order."""

    def __init__(self) -> None:
        self._t_s: float | None = None
        self._last: dict[Key, Sample] = {}
        self._intervals: deque[float] = deque(maxlen=9)

    def feed(self, moment: Round) -> Look | None:
        """None: the round is not later than the last, and left out."""
        if self._t_s is not None and moment.t_s < self._t_s - GAP_S:
            self._t_s = None
        dt_s = self._seen_s(moment.t_s)
        if dt_s is not None and dt_s <= 0:
            return None
        steps: dict[Key, Step] = {}
        for sample in moment.samples:
            key = (sample.process.key, sample.gpu)
            steps[key] = _step(key, sample, self._last.get(key), dt_s)
        self._t_s = moment.t_s
        self._last = {key: step.sample for key, step in steps.items()}
        return Look(moment.t_s, tuple(steps.values()), moment.gpus)

    def _seen_s(self, t_s: float) -> float | None:
        """Since the last round; None: this is the first one, or it comes after a gap."""
        if self._t_s is None:
            return None
        dt_s = t_s - self._t_s
        if dt_s <= 0:
            return dt_s
        usual_s = median(self._intervals) if self._intervals else dt_s
        self._intervals.append(dt_s)
        return None if dt_s > min(GAP_S, _GAP_INTERVALS * usual_s) else dt_s


def _step(key: Key, sample: Sample, before: Sample | None, dt_s: float | None) -> Step:
    if before is None or dt_s is None:
        return Step(key, sample)
    ran_s = _grown(before.gpu_time_s, sample.gpu_time_s)
    launched = _grown(before.launches, sample.launches)
    if (ran_s is not None and ran_s < 0) or (launched is not None and launched < 0):
        return Step(key, sample, dt_s, is_reset=True)
    share = None if ran_s is None else ran_s / dt_s
    return Step(key, sample, dt_s, share, None if launched is None else int(launched))


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before
