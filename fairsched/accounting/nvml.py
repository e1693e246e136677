# SPDX-License-Identifier: Apache-2.0
"""GPU time per process from NVML's utilisation samples: the account where BPF cannot be had.

Problem: NVML keeps one sample per GPU and 139 ms or so: the process that happened to be on the GPU at that moment,
and how busy the GPU was since the sample before. With slices of 2 ms that is a lottery whose expectation is right:
off by 19 points over 1 s, 6 over 10 s, 2.4 over 60 s (one sigma, a share of one half).

Approach: give each sampled process the busy part of its window; never claim more than LOW confidence, so that nobody
is held on it. A GPU that idles at the moment of a sample leaves none, so one that is partly idle is undercounted,
unless DCGM tells its load (:mod:`fairsched.accounting.normalise`).

Source: the samples of :mod:`fairsched.gpu.sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fairsched.accounting.context import ProcessUse
from fairsched.accounting.normalise import Normaliser
from fairsched.cgroup.path import Mount
from fairsched.cgroup.tree import cgroup_id_of
from fairsched.gpu.sampler import NvmlReader, Sampler, open_readers
from fairsched.model import Confidence

POLL_NS = 250_000_000
"""Asking more often than samples appear says nothing."""
DEMAND_LINGER_NS = 2_000_000_000
"""A process in no sample for this long has no demand: of two that share a GPU evenly, one is missing from the
fourteen samples of 2 s once in 16 000 times."""


@dataclass
class _Process:
    cgroup_id: int
    seen_ns: int


@dataclass
class _Gpu:
    slot: int
    reader: NvmlReader
    sampler: Sampler = field(default_factory=Sampler)
    processes: dict[int, _Process] = field(default_factory=dict)


class NvmlAccount:
    """Uses like those of EbpfAccount, of LOW confidence, without drains and launches."""

    def __init__(
        self, readers: Sequence[NvmlReader], cgroup_of: Callable[[int], int | None], poll_ns: int = POLL_NS
    ) -> None:
        """``readers`` by slot; ``cgroup_of`` tells the cgroup id of a pid."""
        self._gpus = [_Gpu(slot, reader) for slot, reader in enumerate(readers)]
        self._cgroup_of = cgroup_of
        self._poll_ns = poll_ns
        self._next_poll_ns = 0
        self.normaliser: Normaliser | None = None
        """Scales what the samples say, where the load of the GPUs is known."""

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read. Between two polls: who is there, and no time."""
        is_due = now_ns >= self._next_poll_ns
        if is_due:
            self._next_poll_ns = now_ns + self._poll_ns
        rows = []
        for gpu in self._gpus:
            used = self._take(gpu, now_ns) if is_due else {}
            self._see(gpu, used, now_ns)
            rows += [
                ProcessUse(process.cgroup_id, pid, gpu.slot, used.get(pid, 0), True, 0, Confidence.LOW, 0)
                for pid, process in gpu.processes.items()
            ]
        return rows

    def _take(self, gpu: _Gpu, now_ns: int) -> dict[int, int]:
        """GPU time by process since the last poll."""
        samples = gpu.reader.read(gpu.sampler.after_us)
        used = {pid: one.busy_ns for pid, one in gpu.sampler.take(samples, now_ns // 1000).items()}
        return used if self.normaliser is None else self.normaliser.scaled(gpu.slot, used, now_ns)

    def _see(self, gpu: _Gpu, used: Iterable[int], now_ns: int) -> None:
        for pid in used:
            before = gpu.processes.get(pid)
            found = self._cgroup_of(pid)
            # Gone since: charged to where it was last; 0, nobody's, when it never was seen alive.
            cgroup_id = found if found is not None else before.cgroup_id if before else 0
            gpu.processes[pid] = _Process(cgroup_id, now_ns)
        for pid, process in list(gpu.processes.items()):
            if now_ns - process.seen_ns > DEMAND_LINGER_NS:
                del gpu.processes[pid]


def open_account(mount: Mount, count: int) -> NvmlAccount:
    """The account of the first ``count`` GPUs."""
    return NvmlAccount(open_readers(count), lambda pid: cgroup_id_of(pid, mount))
