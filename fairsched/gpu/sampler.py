# SPDX-License-Identifier: Apache-2.0
"""Reads NVML's utilisation samples and turns them into GPU time per process.

NVML keeps one sample per GPU and 139 ms or so: the process that happened to be on the GPU at that moment, and how busy
the GPU was since the sample before. GPUs in MIG mode and processes of other pid namespaces have no samples.

Source: nvmlDeviceGetProcessesUtilizationInfo, and nvmlDeviceGetProcessUtilization on drivers that lack it (the old
call answers 0 on newer GPUs, hence the order). Timestamps are microseconds of NVML's own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)


SHORTEST_WINDOW_US = 10_000
"""Samples closer than this are of one window."""


LONGEST_WINDOW_US = 1_000_000
"""NVML's slowest product samples once a second; a longer gap means that samples were missed."""


class Sample(NamedTuple):
    """One sample of the driver: which process ran on one GPU at that time."""

    time_us: int
    pid: int
    busy_ratio: float
    """Of the GPU, since the sample before."""


@dataclass
class Sampler:
    """The samples of one GPU, turned into nanoseconds per process (pure)."""

    last_us: int = 0
    """Newest timestamp seen; 0 = none yet."""
    window_us: int = LONGEST_WINDOW_US
    """Shortest distance between two samples so far: what one stands for after a gap."""

    def take(self, samples: Iterable[Sample]) -> dict[int, int]:
        """GPU time in ns by pid in the samples newer than those of the call before; the first counts nothing."""
        fresh = sorted(s for s in samples if s.time_us > self.last_us)
        used: dict[int, int] = {}
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
                used[sample.pid] = used.get(sample.pid, 0) + int(sample.busy_ratio * window_us * 1000)
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
