# SPDX-License-Identifier: Apache-2.0
"""GPU time per process from NVML's utilisation samples: the account where BPF cannot be had.

Problem: NVML keeps one sample per GPU and 139 ms or so: the process that happened to be on the GPU at that moment,
and how busy the GPU was since the sample before. With slices of 2 ms that is a lottery whose expectation is right:
off by 19 points over 1 s, 6 over 10 s, 2.4 over 60 s (one sigma, a share of one half). And a sample names one process:
that another was not named says little of whether it wants the GPU.

Approach: each sampled process is given the busy part of its window, or all an equal part where samples do not
contradict equal turns; who wants the GPU no more, and who pauses: :mod:`fairsched.accounting.lots`. Confidence is
SAMPLED: the law acts on it, over seconds. A GPU that idles at the moment of a sample leaves none, so one that is partly
idle is undercounted, unless DCGM tells its load (:mod:`fairsched.accounting.normalise`). MIG instances have no samples:
who is there is charged their load (:mod:`fairsched.accounting.instances`), where DCGM tells it.

Source: the samples of :mod:`fairsched.gpu.sampler`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.accounting.context import ProcessUse
from fairsched.accounting.error import sampled_points
from fairsched.accounting.instances import InstanceUses, Loads
from fairsched.accounting.lots import Look, Lots, Process
from fairsched.accounting.normalise import Normaliser
from fairsched.gpu.accounting_mode import AccountingMode
from fairsched.gpu.nvml import Nvml
from fairsched.gpu.sampler import LONGEST_WINDOW_US, NoReader, NvmlReader, open_readers
from fairsched.gpu.samples import ProcessSamples, SampleWatch
from fairsched.model import Confidence, Source

POLL_NS = 250_000_000
"""Looking more often than samples appear says nothing."""
_WINDOW_S = 10.0
"""Over which the error of a tenant is told."""
_FORGOTTEN_NS = 1_000_000.0
_ASKED_S = 0.1
"""Between two questions beside the loop: one that lives for less than two samples is asked for its cgroup in time."""
_ASKING_NS = 2_000_000
"""At a poll, for processes that have ended or moved: enough for fifty of them, but to ask for one in a cgroup that is a
thousand levels deep takes 3 to 8 ms."""


@dataclass
class _Gpu:
    slot: int
    is_instance: bool = False
    """Of MIG: it has no samples."""
    lots: Lots = field(default_factory=Lots)


class NvmlAccount:
    """Uses like those of EbpfAccount, of SAMPLED confidence, without drains and launches."""

    source = Source.NVML

    def __init__(
        self,
        readers: Sequence[NvmlReader],
        cgroup_of: Callable[[int], int | None],
        poll_ns: int = POLL_NS,
        modes: Sequence[AccountingMode] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``readers`` by slot; ``cgroup_of`` tells the cgroup id of a pid; ``modes`` by slot or none.

        ``clock_ns`` tells how long questions take.
        """
        self._gpus = [_Gpu(slot, isinstance(one, NoReader)) for slot, one in enumerate(readers)]
        self._samples, self._cgroup_of = SampleWatch(readers, cgroup_of, _ASKED_S, modes), cgroup_of
        self._clock_ns, self._to_ask = clock_ns, deque(self._gpus)
        """The GPU whose processes are asked for first comes first."""
        self._poll_ns = poll_ns
        self._next_poll_ns = 0
        self._polled_ns: int | None = None
        self._held: set[int] = set()
        """Cgroups that were held since the last poll ..."""
        self._still_held: set[int] = set()
        """... and those that are now."""
        self._paused: set[int] = set()
        """Of these, those that somebody else has paused: they want nothing."""
        self._used_ns: dict[tuple[str | None, int], float] = {}
        """By (tenant, slot), over _WINDOW_S with exponential forgetting."""
        self.tenant_of: Callable[[int], str | None] = lambda _cgroup_id: None
        self.normaliser: Normaliser | None = None
        """Scales what the samples say, where the load of the GPUs is known ..."""
        self.instances: InstanceUses | None = None
        """... and that of MIG instances is told by this."""

    @property
    def period_ns(self) -> int:
        """From one sample of a GPU to the next, of the slowest; as long as may be while that is not known.

        Of a GPU that nobody was sampled on nothing is known, and nobody is held for it.
        """
        known = [self._samples.period_ns(gpu.slot) for gpu in self._gpus if gpu.lots.processes]
        return max(known, default=1000 * LONGEST_WINDOW_US)

    def scale(self, loads: Loads, listed: Callable[[], Mapping[int, Collection[int]]]) -> None:
        """Charge the load of each GPU, where it is known. ``listed``: who is on each MIG instance, by slot."""
        self.normaliser = Normaliser(loads.load)
        self.instances = InstanceUses(loads, listed, self._cgroup_of)

    def start(self) -> None:
        """Ask NVML beside the loop from now on."""
        self._samples.start()

    def close(self) -> None:
        """Ask no more. The thread ends in its own time: the daemon changes accounts while it holds people."""
        self._samples.stop()

    def counts(self) -> Mapping[str, int]:
        """See :meth:`SampleWatch.counts`."""
        return self._samples.counts()

    def error_points(self, window_s: float) -> float:
        """See :class:`GpuTimeSource`: of one half."""
        return sampled_points(window_s, self.period_ns)

    def error_ratio(self, tenant: str, gpu: int) -> float | None:
        """See :class:`GpuTimeSource`."""
        used_ns = self._used_ns.get((tenant, gpu))
        if gpu >= len(self._gpus) or self._gpus[gpu].is_instance:
            return None if self.instances is None else self.instances.error_ratio(tenant, gpu)
        if not used_ns:
            return None
        share = min(0.5, used_ns / (_WINDOW_S * 1e9))
        return sampled_points(_WINDOW_S, self.period_ns, share) / 100 / share

    def graph_work(self, _tenant: str, _gpu: int) -> None:
        """Samples do not tell what runs."""

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read. Between two polls: who is there, and no time."""
        is_due = now_ns >= self._next_poll_ns
        elapsed_ns = 0 if self._polled_ns is None else now_ns - self._polled_ns
        if is_due:
            self._next_poll_ns = now_ns + self._poll_ns
        rows = []
        sampled = self._take(now_ns) if is_due else []
        if is_due:
            self._see(sampled)
        for gpu in self._gpus:
            told: Mapping[int, int] = {}
            used: Mapping[int, int] = {}
            if is_due:
                mine = [one for one in sampled if one.slot == gpu.slot]
                told = self._scaled(gpu, mine, now_ns)
                period_ns = self._samples.period_ns(gpu.slot)
                used = gpu.lots.charged(told, self._held, elapsed_ns, period_ns)
            wanting = gpu.lots.wanting.items()
            found = [self._row(pid, process, gpu.slot, used.get(pid, 0)) for pid, process in wanting]
            if is_due:
                self._note_pauses(gpu, found, told, elapsed_ns)
            rows += found
        if self.instances is not None:
            on = self.instances
            rows += on.read(elapsed_ns, self.tenant_of, self._held, self._paused) if is_due else on.rows()
        if is_due:
            self._remember(rows, elapsed_ns)
            ended = self._paused - {row.cgroup_id for row in rows}  # nobody tells of their thaw
            self._paused -= ended
            self._still_held -= ended
            self._polled_ns = now_ns
            self._held = set(self._still_held)
        return rows

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These were frozen: that they are in no sample says nothing."""
        held = set(cgroup_ids)
        if by_others:
            self._paused |= held
        self._still_held |= held
        self._held |= self._still_held

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These run again."""
        thawed = set(cgroup_ids)
        self._still_held -= thawed
        self._paused -= thawed

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """Not known."""
        return 0

    def _row(self, pid: int, process: Process, slot: int, used_ns: int) -> ProcessUse:
        wants = process.cgroup_id not in self._paused
        return ProcessUse(process.cgroup_id, pid, slot, used_ns, wants, 0, Confidence.SAMPLED, 0)

    def _take(self, now_ns: int) -> list[ProcessSamples]:
        if not self._samples.is_started:
            self._samples.poll(now_ns)
        return self._samples.take()

    def _scaled(self, gpu: _Gpu, sampled: Iterable[ProcessSamples], now_ns: int) -> dict[int, int]:
        """GPU time by process since the last poll."""
        used: dict[int, int] = {}
        for one in sampled:
            used[one.pid] = used.get(one.pid, 0) + one.busy_ns
        return used if self.normaliser is None else self.normaliser.scaled(gpu.slot, used, now_ns)

    def _see(self, sampled: Collection[ProcessSamples]) -> None:
        """Who is there, and in which cgroup. One that has ended is charged to where it was last, and wants nothing."""
        for one in sampled:
            self._gpus[one.slot].lots.see(one.pid, one.cgroup_id)
        known = {(one.slot, one.pid) for one in sampled}
        until_ns = self._clock_ns() + _ASKING_NS
        # The others are asked for in turn: there may be a thousand, and each may take long.
        for gpu in list(self._to_ask):
            self._to_ask.rotate(-1)
            processes = gpu.lots.processes
            for pid in list(processes):
                process = processes.pop(pid)
                found = process.cgroup_id if (gpu.slot, pid) in known else self._cgroup_of(pid)
                if found is not None:
                    process.cgroup_id = found
                    processes[pid] = process
                if self._clock_ns() >= until_ns:
                    return

    def _remember(self, rows: Iterable[ProcessUse], elapsed_ns: int) -> None:
        kept = math.exp(-elapsed_ns / (_WINDOW_S * 1e9))
        self._used_ns = {
            where: kept * used_ns for where, used_ns in self._used_ns.items() if used_ns > _FORGOTTEN_NS
        }
        for row in rows:
            if row.used_ns:
                where = (self.tenant_of(row.cgroup_id), row.gpu)
                self._used_ns[where] = self._used_ns.get(where, 0.0) + row.used_ns

    def _note_pauses(
        self, gpu: _Gpu, rows: list[ProcessUse], used: Mapping[int, int], elapsed_ns: int
    ) -> None:
        """``used``: what the samples said."""
        lots, period_ns = gpu.lots, self._samples.period_ns(gpu.slot)
        lots.miss(used, self._held, elapsed_ns, period_ns)
        idle_ns = lots.idle_ns(used, elapsed_ns, period_ns)
        is_free = any(row.cgroup_id in self._held for row in rows)
        tenants: dict[str | None, list[ProcessUse]] = {}
        for row in rows:
            row.has_demand = row.has_demand and not lots.processes[row.tgid].is_gone
            if row.cgroup_id not in self._held:
                tenants.setdefault(self.tenant_of(row.cgroup_id), []).append(row)
        there = lots.there()
        lots.keep({self.tenant_of(process.cgroup_id) for process in lots.processes.values()})
        for tenant, mine in tenants.items():
            used_ns, cgroups = sum(used.get(row.tgid, 0) for row in mine), {row.cgroup_id for row in mine}
            look = Look(tenant, cgroups, used_ns, idle_ns, elapsed_ns, period_ns, is_free, there)
            mine[0].paused_ns, mine[0].idle_ns = lots.paused_ns(look), idle_ns
            if lots.is_pausing(look):
                for row in mine:  # what it has earned in doubt is forfeited
                    row.has_demand = False


def open_account(nvml: Nvml, cgroup_of: Callable[[int], int | None], accounting: str = "auto") -> NvmlAccount:
    """The account of the GPUs that are there now, asked for beside the loop. Close it in the end.

    ``cgroup_of`` tells the cgroup id of a pid; a thread asks. ``accounting``: as in gpu.nvml_accounting: auto uses
    NVML's accounting mode where it is on, on switches it on.
    """
    readers, wish = open_readers(nvml), {"is_used": accounting != "off", "is_wanted": accounting == "on"}
    modes = [AccountingMode(reader, **wish) for reader in readers]
    account = NvmlAccount(readers, cgroup_of, modes=modes)
    account.start()
    return account
