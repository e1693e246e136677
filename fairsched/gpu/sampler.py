# SPDX-License-Identifier: Apache-2.0
"""Reads NVML's utilisation samples and turns them into GPU time per process.

The driver takes one sample per GPU and 139 ms or so: the process that happened to be on the GPU at that moment, and how
busy the GPU was since the sample before. GPUs in MIG mode and processes of other pid namespaces have no samples.

What NVML says of them, in two readings:

*averaged*, as nvml.h has it: one entry per process, the mean over all samples since the time that was asked for (0 in
    those that name another), and when it was last sampled. Traces of hardware show that: Syllo/nvtop issue 110.
*each*: one entry per sample. No trace shows it, but the ring in the driver is like that, and so were stand-ins.

They are told apart by what comes: a process that is in one answer twice, or processes that together are busier than
the GPU, are not averages. Averages are asked for since the answer before, so that a mean times that time is GPU time.
No more of it counts than has passed by our own clock: NVML's may be set, and an answer may come late.

Source: nvmlDeviceGetProcessesUtilizationInfo, and nvmlDeviceGetProcessUtilization on drivers that lack it (the old
call answers 0 on newer GPUs, hence the order). Timestamps are microseconds of NVML's own clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairsched.gpu.nvml import Nvml

logger = logging.getLogger(__name__)


SHORTEST_WINDOW_US = 10_000
"""Samples closer than this are of one window."""


LONGEST_WINDOW_US = 1_000_000
"""NVML's slowest product samples once a second; a longer gap means that samples were missed."""
_ROUNDED = 0.005
"""Of each average: NVML tells whole percents."""
_LAGS = 64
"""Answers: a clock that is set is followed after half a minute."""
_LEAST_ANSWERS = 8
"""With something in them, after which the time between two samples is known, if they were asked for often."""
_LEAST_VOTES = 4
"""An answer that has an entry per sample gives two, one of several entries that may be means takes one away."""
_LONGEST_SPAN_US = 2_000_000
"""Of one answer: who asks so seldom has been kept from asking, and the driver remembers no more than seconds."""
_SILENT_US = 10_000_000
"""Without anything new: then NVML's clock may have been set back."""


class Sample(NamedTuple):
    """One entry: a process that ran on one GPU, when it was last sampled there, and for which part of the time."""

    time_us: int
    pid: int
    busy_ratio: float
    """Of the GPU, since the sample before or, averaged, since the time that was asked for."""


class Used(NamedTuple):
    """What the samples since the answer before tell of one process."""

    busy_ns: int
    samples: int
    """That named it; where they are averaged, as many as make up its part."""
    first_us: int
    last_us: int
    """When the first (at the earliest) and the last of them were taken, in NVML's clock."""


def is_each(samples: Sequence[Sample]) -> bool:
    """Whether an answer has an entry per sample; False where that cannot be told."""
    is_twice = len({sample.pid for sample in samples}) < len(samples)
    return is_twice or sum(sample.busy_ratio for sample in samples) > 1.0 + _ROUNDED * len(samples)


@dataclass
class Sampler:
    """The samples of one GPU, turned into nanoseconds per process (pure)."""

    last_us: int = 0
    """Newest timestamp seen. 0 = none yet, or NVML's clock was set and all begins anew."""
    window_us: int = LONGEST_WINDOW_US
    """Shortest distance between two samples so far: what one stands for after a gap."""
    _votes: int = 0
    """For answers with an entry per sample."""
    _shorter_us: int = 0
    """A distance that was seen once; a single one may be a clock that was set."""
    _lags_us: deque[int] = field(default_factory=lambda: deque(maxlen=_LAGS))
    """From a time stamp of NVML's clock to the answer that had it; the least of them is the distance of the clocks."""
    _asked_us: int = 0
    """When the last answer came, in our clock ..."""
    _told_us: int = 0
    """... and the last one with something in it."""

    @property
    def lag_us(self) -> int:
        """Of NVML's clock behind ours; only when something was sampled."""
        return min(self._lags_us)

    @property
    def after_us(self) -> int:
        """Ask for what is newer than this, in NVML's clock: what earlier answers did not have was not there then."""
        if not self.last_us:
            return 0
        return self.last_us + max(0, self._asked_us - self._told_us - 2 * self.window_us)

    @property
    def is_each(self) -> bool:
        """Whether answers have an entry per sample, as far as is known. One odd answer does not tell."""
        return self._votes >= _LEAST_VOTES

    @property
    def is_young(self) -> bool:
        """How often samples are taken is not known yet, and some are: means of several do not tell."""
        is_few = 0 < len(self._lags_us) < _LEAST_ANSWERS
        return is_few and self._asked_us - self._told_us < LONGEST_WINDOW_US

    def take(self, samples: Iterable[Sample], now_us: int) -> dict[int, Used]:
        """What is new by pid, in an answer about the time since :attr:`after_us`, that came at ``now_us`` of our clock.

        The first answer counts nothing. Nor does one whose time stamps have gone further than our clock: NVML's was
        set. Where it was set back nothing is newer for long: then all is asked for, and begins anew.
        """
        after_us = self.after_us
        fresh = sorted(s for s in samples if s.time_us > self.last_us and s.pid and 0.0 < s.busy_ratio <= 1.0)
        elapsed_us, self._asked_us = max(0, now_us - self._asked_us), now_us
        if not fresh:
            if now_us - self._told_us > _SILENT_US:
                self.last_us, self._told_us = 0, now_us
            return {}
        before_us, passed_us = self.last_us, max(0, fresh[-1].time_us - after_us)
        if before_us and fresh[-1].time_us - before_us > now_us - self._told_us + 2 * LONGEST_WINDOW_US:
            self.last_us = before_us = 0
        if not before_us:
            self._lags_us.clear()
        self._told_us = now_us
        self._lags_us.append(now_us - fresh[-1].time_us)
        shows_each = is_each(fresh)
        if len(fresh) > 1:
            self._votes = min(max(self._votes + (2 if shows_each else -1), 0), 2 * _LEAST_VOTES)
        if self.is_each or shows_each:
            return self._each(fresh)
        return self._averaged(fresh, before_us, min(passed_us, elapsed_us + self.window_us, _LONGEST_SPAN_US))

    def _each(self, fresh: Sequence[Sample]) -> dict[int, Used]:
        used: dict[int, Used] = {}
        window_us = 0
        for sample in fresh:
            gap_us, is_first = sample.time_us - self.last_us, not self.last_us
            self.last_us = sample.time_us
            if is_first:
                continue
            if gap_us >= SHORTEST_WINDOW_US:
                self._learn_window(gap_us)
                # Nobody was sampled in a longer gap: only the last window of it is this sample's.
                window_us = gap_us if gap_us < 1.5 * self.window_us else self.window_us
            before = used.get(sample.pid, Used(0, 0, sample.time_us, 0))
            busy_ns = before.busy_ns + int(sample.busy_ratio * window_us * 1000)
            used[sample.pid] = Used(busy_ns, before.samples + 1, before.first_us, sample.time_us)
        return used

    def _averaged(self, fresh: Sequence[Sample], before_us: int, passed_us: int) -> dict[int, Used]:
        """``before_us``: since when the means are, 0 = not known. ``passed_us``: of that time at most so much."""
        self.last_us = fresh[-1].time_us
        if not before_us:
            return {}
        for sample in fresh:
            gap_us, before_us = sample.time_us - before_us, sample.time_us
            if gap_us >= SHORTEST_WINDOW_US:
                self._learn_window(gap_us)
        scale = passed_us / max(1.0, sum(sample.busy_ratio for sample in fresh))  # they are rounded
        first_us = self.last_us - passed_us + 1
        return {
            sample.pid: Used(
                int(sample.busy_ratio * scale * 1000),
                max(1, round(sample.busy_ratio * passed_us / self.window_us)),
                min(first_us, sample.time_us),
                sample.time_us,
            )
            for sample in fresh
        }

    def _learn_window(self, gap_us: int) -> None:
        is_confirmed = abs(gap_us - self._shorter_us) < gap_us // 10
        if gap_us < self.window_us and (is_confirmed or self.window_us == LONGEST_WINDOW_US):
            self.window_us = gap_us
        elif gap_us < self.window_us:
            self._shorter_us = gap_us


class NvmlReader:
    """Asks NVML for the samples of one GPU. NVML is initialised by whoever made the handle."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self._has_new_call = True
        self._error: str | None = None
        self.is_failing = False
        """The last answer was an error, and not that there is nothing new."""

    def read(self, after_us: int) -> list[Sample]:
        """Samples newer than ``after_us``."""
        nvml = self.nvml
        try:
            found = self._ask(after_us)
        except nvml.NVMLError as error:
            self.is_failing = error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND)
            if self.is_failing and str(error) != self._error:
                self._error = str(error)
                logger.warning("source=nvml samples=0 error=%r", self._error)
            return []
        self.is_failing = False
        return [Sample(int(s.timeStamp), int(s.pid), int(s.smUtil) / 100) for s in found]

    def _ask(self, after_us: int) -> Sequence[Any]:
        nvml = self.nvml
        if self._has_new_call:
            try:
                return nvml.nvmlDeviceGetProcessesUtilizationInfo(self.handle, after_us)  # type: ignore[no-any-return]
            except nvml.NVMLError as error:
                lacking = (
                    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                    nvml.NVML_ERROR_NOT_SUPPORTED,
                    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                )
                if error.value not in lacking:
                    raise
                self._has_new_call = False
        return nvml.nvmlDeviceGetProcessUtilization(self.handle, after_us)  # type: ignore[no-any-return]


class NoReader(NvmlReader):
    """Of a MIG instance: NVML takes no samples of GPUs in MIG mode."""

    def read(self, after_us: int) -> list[Sample]:
        """None."""
        return []


def open_readers(nvml: Nvml) -> list[NvmlReader]:
    """Of the GPUs that are there now, by slot. NVML must stay initialised."""
    import pynvml

    return [
        NoReader(pynvml, None)
        if gpu.mig is not None or gpu.is_gone
        else NvmlReader(pynvml, nvml.handle(slot))
        for slot, gpu in enumerate(nvml.gpus)
    ]
