# SPDX-License-Identifier: Apache-2.0
"""The calls of pynvml that tell who used one GPU, as nvml.h and the driver's source have them.

Samples name one process each and are kept for 72 of them. The accounting mode books them once a second to the
processes that are there then, and begins with those that come while it is on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fairsched.gpu.accounting_mode import AccountingMode
from fairsched.gpu.sampler import NvmlReader

EPOCH_US = 10**15
"""NVML's clock when ours says 0."""
S = 1_000_000_000


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class _Entry:
    start_us: int
    from_samples: int
    sum_pct100: int = 0
    until_samples: int | None = None
    """None: it is there."""
    time_ms: int = 0


class FakeNvml:
    """One GPU. Moments are ns of our clock."""

    NVMLError = NvmlError
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25

    def __init__(self, *, is_on: bool = True, has_sums: bool = True) -> None:
        self.ring: deque[tuple[int, int, int]] = deque(maxlen=72)
        """(time stamp, process, hundredths of a percent)."""
        self.there: dict[int, int] = {}
        """Since when, by process."""
        self.entries: dict[int, _Entry] = {}
        self.is_on, self.has_sums = is_on, has_sums
        self.errors: dict[str, int] = {}
        """By a part of the name of a call: the error it answers with."""
        self.booked_us, self.booked_samples, self._next_booking_ns = 0, 0, S
        self.asked: list[str] = []

    @property
    def reader(self) -> NvmlReader:
        return NvmlReader(self, "GPU 0")

    def mode(self, reader: NvmlReader, **wish: bool) -> AccountingMode:
        return AccountingMode(reader, **wish)

    # ---- what happens ----

    def start(self, pid: int, now_ns: int) -> None:
        self.there[pid] = now_ns
        if self.is_on:
            self.entries[pid] = _Entry(EPOCH_US + now_ns // 1000, self.booked_samples)

    def end(self, pid: int, now_ns: int) -> None:
        time_ms = (now_ns - self.there.pop(pid)) // 1_000_000
        if pid in self.entries:
            self.entries[pid].until_samples, self.entries[pid].time_ms = self.booked_samples, time_ms

    def keep(self, now_ns: int, pid: int, busy_ratio: float = 1.0) -> None:
        """One sample."""
        self.ring.append((EPOCH_US + now_ns // 1000, pid, round(min(1.0, busy_ratio) * 10_000)))
        if now_ns >= self._next_booking_ns:
            self._next_booking_ns = now_ns + S
            self.book()

    def book(self) -> None:
        for at_us, pid, pct100 in self.ring:
            if at_us > self.booked_us:
                self.booked_samples += 1
                if pid in self.there and pid in self.entries:
                    self.entries[pid].sum_pct100 += pct100
        self.booked_us = self.ring[-1][0]

    def reload(self) -> None:
        """The driver was unloaded and loaded: all accounts are gone and the mode is off."""
        self.entries, self.is_on = {}, False
        self.ring.clear()

    # ---- what is asked ----

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        for part, error in self.errors.items():
            if part in name:
                raise NvmlError(error)

    def _needs_mode(self, name: str) -> None:
        self._ask(name)
        if not self.is_on:
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetProcessesUtilizationInfo(self, _handle: object, after_us: int) -> list[Any]:
        self._ask("ProcessesUtilizationInfo")
        new = [sample for sample in self.ring if sample[0] > after_us]
        means: dict[int, SimpleNamespace] = {}
        for at_us, pid, pct100 in new:
            if pid:
                before = means.get(pid, SimpleNamespace(timeStamp=0, pid=pid, smUtil=0))
                means[pid] = SimpleNamespace(
                    timeStamp=at_us, pid=pid, smUtil=before.smUtil + pct100 / 100 / len(new)
                )
        if not means:
            raise NvmlError(self.NVML_ERROR_NOT_FOUND)
        for one in means.values():
            one.smUtil = round(one.smUtil)
        return list(means.values())

    nvmlDeviceGetProcessUtilization = nvmlDeviceGetProcessesUtilizationInfo

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: object) -> list[Any]:
        self._ask("ComputeRunningProcesses")
        return [SimpleNamespace(pid=pid) for pid in self.there]

    def nvmlDeviceGetAccountingMode(self, _handle: object) -> int:
        self._ask("AccountingMode")
        return int(self.is_on)

    def nvmlDeviceSetAccountingMode(self, _handle: object, mode: int) -> None:
        self._ask("SetAccounting")
        self.is_on = bool(mode)

    def nvmlDeviceGetAccountingPids(self, _handle: object) -> list[int]:
        self._needs_mode("AccountingPids")
        return list(self.entries)

    def nvmlDeviceGetAccountingStats_v2(self, _handle: object, pid: int) -> Any:
        self._needs_mode("AccountingStats_v2")
        if not self.has_sums:
            raise NvmlError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        return self._stats(pid)

    def nvmlDeviceGetAccountingStats(self, _handle: object, pid: int) -> Any:
        self._needs_mode("AccountingStats")
        return self._stats(pid)

    def _stats(self, pid: int) -> Any:
        entry = self.entries.get(pid)
        if entry is None:
            raise NvmlError(self.NVML_ERROR_NOT_FOUND)
        until = self.booked_samples if entry.until_samples is None else entry.until_samples
        return SimpleNamespace(
            startTime=entry.start_us,
            sampleCount=until - entry.from_samples,
            sumGpuUtil=entry.sum_pct100,
            isRunning=int(entry.until_samples is None),
            time=entry.time_ms,
        )
