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

Source: nvmlDeviceGetProcessesUtilizationInfo, and nvmlDeviceGetProcessUtilization on drivers that lack it (the old
call answers 0 on newer GPUs, hence the order). Timestamps are microseconds of NVML's own clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    """When the first and the last of them were taken, in NVML's clock."""


def is_each(samples: Sequence[Sample]) -> bool:
    """Whether an answer has an entry per sample; False where that cannot be told."""
    busy = [sample for sample in samples if sample.pid and 0.0 < sample.busy_ratio <= 1.0]
    is_twice = len({sample.pid for sample in busy}) < len(busy)
    return is_twice or sum(sample.busy_ratio for sample in busy) > 1.0 + _ROUNDED * len(busy)


@dataclass
class Sampler:
    """The samples of one GPU, turned into nanoseconds per process (pure)."""

    last_us: int = 0
    """Newest timestamp seen; 0 = none yet."""
    window_us: int = LONGEST_WINDOW_US
    """Shortest distance between two samples so far: what one stands for after a gap."""
    is_each: bool = False
    """An answer had an entry per sample: so have all."""
    _lags_us: deque[int] = field(default_factory=lambda: deque(maxlen=_LAGS))
    """From a time stamp of NVML's clock to the answer that had it; the least of them is the distance of the clocks."""
    _asked_us: int = 0
    """When the last answer came, in our clock."""

    @property
    def lag_us(self) -> int:
        """Of NVML's clock behind ours; only when something was sampled."""
        return min(self._lags_us)

    @property
    def is_young(self) -> bool:
        """How often samples are taken is not known yet, and some are: means of several do not tell."""
        if not 0 < len(self._lags_us) < _LEAST_ANSWERS:
            return False
        return self._asked_us - self.lag_us - self.last_us < LONGEST_WINDOW_US

    @property
    def after_us(self) -> int:
        """Ask for what is newer than this, in NVML's clock.

        What an answer did not have was not there then: of a GPU that was idle for long only the rest counts.
        """
        if not self._lags_us:
            return self.last_us
        return max(self.last_us, self._asked_us - self.lag_us - self.window_us)

    def take(self, samples: Iterable[Sample], now_us: int) -> dict[int, Used]:
        """What is new by pid, in an answer about the time since :attr:`after_us`, that came at ``now_us`` of our clock.
        The first answer counts nothing."""
        after_us, is_first = self.after_us, not self.last_us
        fresh = sorted(sample for sample in samples if sample.time_us > after_us)
        if not fresh:
            self._asked_us = now_us
            return {}
        self.is_each = self.is_each or is_each(fresh)
        self._asked_us = now_us
        self._lags_us.append(now_us - fresh[-1].time_us)
        return self._each(fresh) if self.is_each else self._averaged(fresh, 0 if is_first else after_us)

    def _each(self, fresh: Sequence[Sample]) -> dict[int, Used]:
        used: dict[int, Used] = {}
        window_us = 0
        for sample in fresh:
            gap_us, is_first = sample.time_us - self.last_us, not self.last_us
            self.last_us = sample.time_us
            if is_first:
                continue
            if gap_us >= SHORTEST_WINDOW_US:
                self.window_us = min(self.window_us, gap_us)
                # Nobody was sampled in a longer gap: only the last window of it is this sample's.
                window_us = gap_us if gap_us < 1.5 * self.window_us else self.window_us
            if sample.pid and 0.0 < sample.busy_ratio <= 1.0:
                before = used.get(sample.pid, Used(0, 0, sample.time_us, 0))
                busy_ns = before.busy_ns + int(sample.busy_ratio * window_us * 1000)
                used[sample.pid] = Used(busy_ns, before.samples + 1, before.first_us, sample.time_us)
        return used

    def _averaged(self, fresh: Sequence[Sample], after_us: int) -> dict[int, Used]:
        """``after_us``: since when the means are; 0 = not known."""
        before_us, self.last_us = self.last_us, fresh[-1].time_us
        if not after_us:
            return {}
        for sample in fresh:
            gap_us, before_us = sample.time_us - before_us, sample.time_us
            if gap_us >= SHORTEST_WINDOW_US:
                self.window_us = min(self.window_us, gap_us)
        # Samples of nobody, newer than the last entry, are in the means, too.
        idle_us = max(0, self._asked_us - self.lag_us - self.last_us) // self.window_us * self.window_us
        passed_us = self.last_us + idle_us - after_us
        used = {}
        for sample in fresh:
            if sample.pid and 0.0 < sample.busy_ratio <= 1.0:
                many = max(1, round(sample.busy_ratio * passed_us / self.window_us))
                first_us = max(sample.time_us - (many - 1) * self.window_us, after_us + 1)
                busy_ns = int(sample.busy_ratio * passed_us * 1000)
                used[sample.pid] = Used(busy_ns, many, first_us, sample.time_us)
        total_ns = sum(one.busy_ns for one in used.values())
        if total_ns > passed_us * 1000:  # rounded up
            used = {
                pid: one._replace(busy_ns=one.busy_ns * passed_us * 1000 // total_ns)
                for pid, one in used.items()
            }
        return used


class NvmlReader:
    """Asks NVML for the samples of one GPU. NVML is initialised by whoever made the handle."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._has_new_call = True
        self._error: str | None = None

    def read(self, after_us: int) -> list[Sample]:
        """Samples newer than ``after_us``."""
        nvml = self._nvml
        try:
            found = self._ask(after_us)
        except nvml.NVMLError as error:
            is_empty = error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND)
            if not is_empty and str(error) != self._error:
                self._error = str(error)
                logger.warning("source=nvml samples=0 error=%r", self._error)
            return []
        return [Sample(int(s.timeStamp), int(s.pid), int(s.smUtil) / 100) for s in found]

    def _ask(self, after_us: int) -> Sequence[Any]:
        nvml = self._nvml
        if self._has_new_call:
            try:
                return nvml.nvmlDeviceGetProcessesUtilizationInfo(self._handle, after_us)  # type: ignore[no-any-return]
            except nvml.NVMLError as error:
                lacking = (
                    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                    nvml.NVML_ERROR_NOT_SUPPORTED,
                    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                )
                if error.value not in lacking:
                    raise
                self._has_new_call = False
        return nvml.nvmlDeviceGetProcessUtilization(self._handle, after_us)  # type: ignore[no-any-return]


def open_readers(count: int) -> list[NvmlReader]:
    """Of the first ``count`` GPUs, in NVML's order. NVML must be initialised and stay so."""
    import pynvml

    return [NvmlReader(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
