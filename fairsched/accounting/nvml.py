# SPDX-License-Identifier: Apache-2.0
"""GPU time per process from NVML's utilisation samples: the account where BPF cannot be had.

Problem: NVML keeps one sample per GPU and 139 ms or so: the process that happened to be on the GPU at that moment,
and how busy the GPU was since the sample before. With slices of 2 ms that is a lottery whose expectation is right:
off by 19 points over 1 s, 6 over 10 s, 2.4 over 60 s (one sigma, a share of one half). And a sample names one process:
that another was not named says little of whether it wants the GPU.

Approach: each sampled process is given the busy part of its window. A GPU takes turns, so one of n processes with work
is in one of n samples. Who has been missing from MISSES that it should have been in wants nothing any more; time in
which it is held does not count. Who is in fewer than that is taken to pause: of a wall time T in which it got u, T - nu
(the GPU was its own for u, and others' for (n - 1) u while it waited). Confidence is SAMPLED: the law acts on it, over
seconds. A GPU that idles at the moment of a sample leaves none, so one that is partly idle is undercounted,
unless DCGM tells its load (:mod:`fairsched.accounting.normalise`).

Source: the samples of :mod:`fairsched.gpu.sampler`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.accounting.context import ProcessUse
from fairsched.accounting.error import sampled_points
from fairsched.accounting.normalise import Normaliser
from fairsched.cgroup.path import Mount
from fairsched.cgroup.tree import cgroup_id_of
from fairsched.gpu.sampler import LONGEST_WINDOW_US, NvmlReader, Sampler, open_readers
from fairsched.model import Confidence, Source

POLL_NS = 250_000_000
"""Asking more often than samples appear says nothing."""
MISSES = 5.0
"""One that wants the GPU is missing from so many samples in a row once in exp(5) = 148 times."""
DRAINED = 2.0
"""And as one that is held and has been missing from so many may have nothing queued any more, it takes no turns."""
_FORGOTTEN_NS = 1_000_000.0


@dataclass
class _Process:
    cgroup_id: int
    missed: float = 0.0
    """Samples that it should have been in since it was in one, if it wanted the GPU and was not held ..."""
    absent: float = 0.0
    """... and if it was held, and what it had queued still ran."""


@dataclass
class _Gpu:
    slot: int
    reader: NvmlReader
    sampler: Sampler = field(default_factory=Sampler)
    processes: dict[int, _Process] = field(default_factory=dict)


class NvmlAccount:
    """Uses like those of EbpfAccount, of SAMPLED confidence, without drains and launches."""

    source, window_s = Source.NVML, 10.0

    def __init__(
        self, readers: Sequence[NvmlReader], cgroup_of: Callable[[int], int | None], poll_ns: int = POLL_NS
    ) -> None:
        """``readers`` by slot; ``cgroup_of`` tells the cgroup id of a pid."""
        self._gpus = [_Gpu(slot, reader) for slot, reader in enumerate(readers)]
        self._cgroup_of = cgroup_of
        self._poll_ns = poll_ns
        self._next_poll_ns = 0
        self._polled_ns: int | None = None
        self._held: set[int] = set()
        """Cgroups that were held since the last poll ..."""
        self._still_held: set[int] = set()
        """... and those that are now."""
        self._used_ns: dict[tuple[str | None, int], float] = {}
        """By (tenant, slot), over ``window_s`` with exponential forgetting."""
        self.tenant_of: Callable[[int], str | None] = lambda _cgroup_id: None
        self.normaliser: Normaliser | None = None
        """Scales what the samples say, where the load of the GPUs is known."""

    @property
    def period_ns(self) -> int:
        """From one sample of a GPU to the next, of the slowest; as long as may be while that is not known."""
        return 1000 * max((gpu.sampler.window_us for gpu in self._gpus), default=LONGEST_WINDOW_US)

    def error_points(self, window_s: float) -> float:
        """See :class:`GpuTimeSource`: of one half."""
        return sampled_points(window_s, self.period_ns)

    def error_ratio(self, tenant: str, gpu: int) -> float | None:
        """See :class:`GpuTimeSource`."""
        used_ns = self._used_ns.get((tenant, gpu))
        if not used_ns:
            return None
        share = min(0.5, used_ns / (self.window_s * 1e9))
        return sampled_points(self.window_s, self.period_ns, share) / 100 / share

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read. Between two polls: who is there, and no time."""
        is_due = now_ns >= self._next_poll_ns
        elapsed_ns = 0 if self._polled_ns is None else now_ns - self._polled_ns
        if is_due:
            self._next_poll_ns = now_ns + self._poll_ns
        rows = []
        for gpu in self._gpus:
            used: Mapping[int, int] = {}
            if is_due:
                used = self._take(gpu, now_ns)
                self._see(gpu, used)
            found = [
                ProcessUse(process.cgroup_id, pid, gpu.slot, used.get(pid, 0), True, 0, Confidence.SAMPLED, 0)
                for pid, process in gpu.processes.items()
            ]
            if is_due:
                self._note_pauses(gpu, found, elapsed_ns)
            rows += found
        if is_due:
            self._remember(rows, elapsed_ns)
            self._polled_ns = now_ns
            self._held = set(self._still_held)
        return rows

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These were frozen: that they are in no sample says nothing."""
        self._still_held |= set(cgroup_ids)
        self._held |= self._still_held

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These run again."""
        self._still_held -= set(cgroup_ids)

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """Not known."""
        return 0

    def _take(self, gpu: _Gpu, now_ns: int) -> dict[int, int]:
        """GPU time by process since the last poll."""
        samples = gpu.reader.read(gpu.sampler.after_us)
        used = {pid: one.busy_ns for pid, one in gpu.sampler.take(samples, now_ns // 1000).items()}
        return used if self.normaliser is None else self.normaliser.scaled(gpu.slot, used, now_ns)

    def _see(self, gpu: _Gpu, used: Collection[int]) -> None:
        """Who is there, and in which cgroup. One that has ended is charged to where it was last, and wants nothing."""
        for pid in {*used, *gpu.processes}:
            found = self._cgroup_of(pid)
            if pid not in used and found is None:
                del gpu.processes[pid]
                continue
            process = gpu.processes.setdefault(pid, _Process(0))
            process.cgroup_id = process.cgroup_id if found is None else found
            if pid in used:
                process.missed = process.absent = 0.0

    def _remember(self, rows: Iterable[ProcessUse], elapsed_ns: int) -> None:
        kept = math.exp(-elapsed_ns / (self.window_s * 1e9))
        self._used_ns = {
            where: kept * used_ns for where, used_ns in self._used_ns.items() if used_ns > _FORGOTTEN_NS
        }
        for row in rows:
            if row.used_ns:
                where = (self.tenant_of(row.cgroup_id), row.gpu)
                self._used_ns[where] = self._used_ns.get(where, 0.0) + row.used_ns

    def _note_pauses(self, gpu: _Gpu, rows: list[ProcessUse], elapsed_ns: int) -> None:
        there = [process for process in gpu.processes.values() if process.absent <= DRAINED]
        samples = elapsed_ns / (gpu.sampler.window_us * 1000) / max(1, len(there))
        for row in rows:
            if not row.used_ns:
                gpu.processes[row.tgid].absent += samples
        running = [row for row in rows if row.cgroup_id not in self._held]
        if not running:
            return
        idle_ns = max(0, elapsed_ns - sum(row.used_ns for row in rows))
        tenants: dict[str | None, list[ProcessUse]] = {}
        for row in running:
            process = gpu.processes[row.tgid]
            if not row.used_ns:
                process.missed += samples
                if process.missed > MISSES:
                    del gpu.processes[row.tgid]
                    row.has_demand = False
            tenants.setdefault(self.tenant_of(row.cgroup_id), []).append(row)
        for mine in tenants.values():
            used_ns = sum(row.used_ns for row in mine)
            mine[0].paused_ns = round(elapsed_ns - used_ns * len(there) / len(mine))
            mine[0].idle_ns = idle_ns


def open_account(mount: Mount, count: int) -> NvmlAccount:
    """The account of the first ``count`` GPUs."""
    return NvmlAccount(open_readers(count), lambda pid: cgroup_id_of(pid, mount))
