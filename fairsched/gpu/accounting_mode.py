# SPDX-License-Identifier: Apache-2.0
"""Reads NVML's accounting mode, and finds in it what the utilisation samples did not tell.

Problem. Samples are kept for ten seconds: whoever could not ask in time has missed some, and some drivers tell none.
And a process may have ended before its first sample comes, and then nobody knows whose it was.

What the driver does in accounting mode (nvml.h, and gpu_acct.c of the open kernel modules): once a second it adds the
same samples to the sum of the process that each of them names. So of a process that runs it knows nothing better, only
later. It books to processes that are there at that moment: what one did after the last booking before its end is lost,
of one that lived for less than a second nearly all. A process that came before the mode was switched on is never in it.

* ``GetAccountingStats_v2`` tells the sum in hundredths of a percent, which only grows, and of how many samples of the
  GPU it is. That is used, for what samples missed.
* ``GetAccountingStats`` (v1) tells the mean over the life of a process in whole percents: after an hour one percent is
  36 seconds, so nothing is charged from it. The duration is 0 until the process has ended.
* ``GetAccountingPids`` tells who is there and who has ended: so it is known how many processes came and went unseen.

Approach. Who runs is asked before each answer of samples, in accounting mode or not, so that the cgroup of a process is
known while it lives. Where there are sums, each process is owed what its sum grew by less what samples told of it. It
is paid when that is more than the driver can be late, or at once where samples fail. Nobody is paid more than the time
that passed, and all together no more than the GPU had left.

Source: docs/decisions/0023-the-error-is-a-number.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairsched.gpu.sampler import LONGEST_WINDOW_US, NvmlReader

BOOKED_NS = 1_000_000_000
"""From one booking of the driver to the next."""
LATE_NS = 2 * BOOKED_NS
"""Less than this may be owed by the driver, which books later, or to the process, for means are in whole percents."""
_LEAST_SAMPLES = 21
"""Of a GPU, after which the time between two of them is known from the counts."""
_SUM_OF_ONE = 10_000
"""Of a process that had the GPU for the whole time of one sample."""
_MOST_ROOM_NS = 60_000_000_000

logger = logging.getLogger(__name__)


class Booked(NamedTuple):
    """What the driver has booked of one process."""

    start_us: int
    """When it began: tells it from another of the same pid."""
    samples: int
    """Of the GPU, since then."""
    sum_ratio: float
    """Of these, how many it was the one of, each as far as the GPU was busy."""


class AccountingMode:
    """Who is on one GPU, and what its accounting mode says of them.

    ``is_wanted``: switch the mode on, which takes root; else it is used where somebody has. Not ``is_used``: neither.
    """

    def __init__(self, reader: NvmlReader, *, is_used: bool = True, is_wanted: bool = False) -> None:
        self._nvml, self._handle = reader.nvml, reader.handle
        self._reader, self._is_wanted = reader, is_wanted
        self._is_used = is_used and self._handle is not None
        self._has_sums = True
        self._known: set[int] | None = None
        """Those in the account at the last look; None: nobody has looked."""
        self.is_on = False
        """As of the last :meth:`look`."""
        self.unseen, self.unseen_ms = 0, 0
        """Processes that came and went without being listed, and for how long they had the GPU open."""
        self._said: str | None = None

    @property
    def is_blind(self) -> bool:
        """Samples are not told."""
        return self._reader.is_failing

    def look(self) -> None:
        """Whether it is on now: somebody may switch it, and a driver that was loaded anew has it off."""
        nvml, was_on, self.is_on = self._nvml, self.is_on, False
        if not self._is_used:
            return
        try:
            self.is_on = nvml.nvmlDeviceGetAccountingMode(self._handle) != 0
            if self._is_wanted and not self.is_on:
                nvml.nvmlDeviceSetAccountingMode(self._handle, 1)
                self.is_on = True
        except nvml.NVMLError as error:
            self._say(str(error))
            self.is_on = was_on
        if was_on != self.is_on:
            self._known = None
            logger.info("source=nvml accounting_mode=%s", "on" if self.is_on else "off")

    def running(self) -> list[int]:
        """Who is on the GPU."""
        if self._handle is None:
            return []
        try:
            return [int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)]
        except self._nvml.NVMLError as error:
            self._say(str(error))
            return []

    def booked(self, met: Collection[int]) -> dict[int, Booked] | None:
        """Of those that were listed lately, where this driver has sums; who else is new in the account is counted.

        None: no answer.
        """
        if not self.is_on:
            return {}
        found: dict[int, Booked] = {}
        try:
            pids = set(map(int, self._nvml.nvmlDeviceGetAccountingPids(self._handle)))
            fresh = pids - (pids if self._known is None else self._known)
            self._known = pids
            for pid in pids & set(met) if self._has_sums else ():
                if (one := self._stats(pid)) is not None:
                    found[pid] = Booked(
                        int(one.startTime), int(one.sampleCount), int(one.sumGpuUtil) / _SUM_OF_ONE
                    )
            for pid in fresh - set(met):
                if (one := self._stats(pid)) is not None and not one.isRunning:
                    self.unseen, self.unseen_ms = self.unseen + 1, self.unseen_ms + int(one.time)
        except self._nvml.NVMLError as error:
            self._say(str(error))
            return None
        return found

    def _stats(self, pid: int) -> Any:
        """None: it was written over since, or there are no sums after all."""
        nvml = self._nvml
        try:
            if self._has_sums:
                return nvml.nvmlDeviceGetAccountingStats_v2(self._handle, pid)
            return nvml.nvmlDeviceGetAccountingStats(self._handle, pid)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND and self._has_sums:
                self._has_sums = False
                logger.info("source=nvml accounting_mode=without_sums")
            elif error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
            return None

    def _say(self, error: str) -> None:
        if error != self._said:
            self._said = error
            logger.warning("source=nvml accounting_mode=unused error=%r", error)


@dataclass
class _Book:
    told: Booked
    owed_ns: float = 0.0


class Arrears:
    """What the samples of one GPU did not tell of its processes (pure)."""

    def __init__(self) -> None:
        self._books: dict[int, _Book] = {}
        self._taken_ns: int | None = None
        self._room_ns = 0.0
        """What the GPU had left."""
        self._began_ns, self._began_samples = 0, Counter[int]()
        self.odd = Counter[str]()
        """Of what cannot be, how often it was told."""

    def take(
        self,
        booked: Mapping[int, Booked],
        told_ns: Mapping[int, int],
        now_ns: int,
        *,
        window_us: int,
        is_blind: bool,
    ) -> dict[int, int]:
        """What each process is paid now, in ns. ``told_ns``: what samples said since the call before."""
        elapsed_ns = 0 if self._taken_ns is None else now_ns - self._taken_ns
        self._taken_ns = now_ns
        self._room_ns = min(self._room_ns + elapsed_ns - sum(told_ns.values()), _MOST_ROOM_NS)
        period_ns = 1000 * window_us if window_us < LONGEST_WINDOW_US else self._period_ns(booked, now_ns)
        due: dict[int, float] = {}
        books: dict[int, _Book] = {}
        for pid, one in booked.items():
            is_new = one.samples * period_ns <= elapsed_ns + BOOKED_NS
            book = books[pid] = self._book(pid, one, is_new=is_new)
            grown_ns = self._grown(book.told, one) * period_ns
            book.told = one
            if grown_ns > elapsed_ns + LATE_NS:
                self.odd["more_than_time"] += 1
                grown_ns = 0.0
            book.owed_ns = max(-LATE_NS, book.owed_ns + grown_ns - told_ns.get(pid, 0))
            if book.owed_ns > (0 if is_blind else LATE_NS):
                due[pid], book.owed_ns = book.owed_ns, 0.0
        self._books = books
        whole_ns = sum(due.values())
        part = min(1.0, max(0.0, self._room_ns) / whole_ns) if whole_ns else 0.0
        self._room_ns -= part * whole_ns
        return {pid: paid_ns for pid, owed_ns in due.items() if (paid_ns := int(part * owed_ns))}

    def _book(self, pid: int, one: Booked, *, is_new: bool) -> _Book:
        """``is_new``: it came since the call before; else its sum may be of years ago."""
        book = self._books.get(pid)
        if book is not None and book.told.start_us == one.start_us:
            return book
        if book is not None:
            self.odd["reused_pid"] += 1
        return _Book(one._replace(samples=0, sum_ratio=0.0) if is_new else one)

    def _grown(self, before: Booked, one: Booked) -> float:
        """Samples' worth, since the look before."""
        if one.sum_ratio < before.sum_ratio or one.samples < before.samples:
            self.odd["fallen_sum"] += 1
            return 0.0
        if one.sum_ratio - before.sum_ratio > one.samples - before.samples:
            self.odd["more_than_samples"] += 1
            return 0.0
        return one.sum_ratio - before.sum_ratio

    def _period_ns(self, booked: Mapping[int, Booked], now_ns: int) -> float:
        """From the counts of those that have been there since the first look; 0 while that is not known."""
        if not any(pid in booked for pid in self._began_samples):
            self._began_ns = now_ns
            self._began_samples = Counter({pid: one.samples for pid, one in booked.items()})
        grown = [
            booked[pid].samples - samples for pid, samples in self._began_samples.items() if pid in booked
        ]
        most = max(grown, default=0)
        return (now_ns - self._began_ns) / most if most >= _LEAST_SAMPLES else 0.0
