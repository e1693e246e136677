# SPDX-License-Identifier: Apache-2.0
"""Collects which processes NVML sees on the GPUs, asked beside the loop.

A thread asks every POLL_S (see base/beside.py for why) and keeps what was seen until the loop takes it; it asks oftener
while somebody is suspected. It asks for the cgroup of a process at once, for that may live for a fifth of a second. If
NVML hangs, nothing is seen: nobody is charged, and no process is accused of anything.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.base.beside import Poller
from fairsched.base.process import ProcessId
from fairsched.gpu.accounting_mode import BOOKED_NS, AccountingMode, Arrears
from fairsched.gpu.sampler import NvmlReader, Sampler, Used

POLL_S = 0.5
_URGENT_PART = 4
_SEEN_FOR_NS = 5_000_000_000
_MET_FOR_NS = 15_000_000_000
"""After it was last listed: the driver keeps samples for ten seconds."""

Where = tuple[int, int]
"""(process, GPU slot)."""


@dataclass
class ProcessSamples:
    """The samples of one process on one GPU since the last :meth:`SampleWatch.take`."""

    pid: int
    slot: int
    owner: ProcessId | None
    """Which process of that pid; None: it had ended when it was first asked for."""
    cgroup_id: int | None
    """Where it was last seen; None: nowhere."""
    samples: int = 0
    busy_ns: int = 0
    period_ns: int = 0
    first_ns: int = 0
    """When the first and the last of the samples were taken."""
    last_ns: int = 0


@dataclass
class _Met:
    """A process that was listed as being on a GPU."""

    owner: ProcessId | None
    cgroup_id: int | None
    last_ns: int


@dataclass
class _Gpu:
    slot: int
    reader: NvmlReader
    mode: AccountingMode | None
    sampler: Sampler = field(default_factory=Sampler)
    arrears: Arrears = field(default_factory=Arrears)
    told_ns: Counter[int] = field(default_factory=Counter)
    """By process, what samples said since the accounting mode was last asked ..."""
    asked_ns: int | None = None
    """... and when that was."""
    met: dict[int, _Met] = field(default_factory=dict)
    """Those that were listed lately."""
    met_ns: int = 0
    """When they were last asked for."""

    def poll(self, clock_ns: Callable[[], int]) -> dict[int, Used]:
        """What is new, by process."""
        samples = self.reader.read(self.sampler.after_us)
        return self.sampler.take(samples, clock_ns() // 1000)  # the driver may have kept us waiting

    def ours_ns(self, time_us: int) -> int:
        """A moment of NVML's clock in ours."""
        return (time_us + self.sampler.lag_us) * 1000


class SampleWatch:
    """Reads the samples, in a thread once it is started.

    ``readers`` by slot; ``cgroup_of`` tells the cgroup id of a pid. ``modes`` by slot, where it is to be asked who is
    there and what samples missed.
    """

    def __init__(
        self,
        readers: Sequence[NvmlReader],
        cgroup_of: Callable[[int], int | None],
        poll_s: float = POLL_S,
        modes: Sequence[AccountingMode] = (),
    ) -> None:
        pairs = itertools.zip_longest(readers, modes)
        self._gpus = [_Gpu(slot, reader, mode) for slot, (reader, mode) in enumerate(pairs)]
        self._cgroup_of = cgroup_of
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._found: list[ProcessSamples] = []
        self._last: dict[Where, ProcessSamples] = {}
        """Of these, the last of each pid on each GPU."""
        self.seen_running: Mapping[Where, int] = {}
        """When each was last seen. Replaced, never changed."""
        self.is_urgent = False
        """Somebody waits for the next samples."""
        self._poller: Poller | None = None

    def start(self) -> None:
        """Ask in a thread from now on."""
        self._poller = Poller("samples", self.poll, self._pause_s, "samples")

    @property
    def is_started(self) -> bool:
        """Whether a thread asks."""
        return self._poller is not None

    def stop(self) -> None:
        """End the thread in its own time."""
        if self._poller is not None:
            self._poller.stop()

    def close(self) -> None:
        """End the thread, unless NVML keeps it."""
        if self._poller is not None:
            self._poller.close()

    def period_ns(self, slot: int) -> int:
        """From one sample of a GPU to the next, as far as is known."""
        return 1000 * self._gpus[slot].sampler.window_us

    def take(self) -> list[ProcessSamples]:
        """What was seen since the call before, in the order in which processes were first seen. Never blocks on NVML.

        Of two processes that had one pid in turn each has an entry, the later one last.
        """
        with self._lock:
            found, self._found, self._last = self._found, [], {}
        return found

    def counts(self) -> Counter[str]:
        """What NVML's accounting mode said that cannot be, and processes of which there was nothing but their end."""
        found = Counter[str]()
        for gpu in self._gpus:
            found.update(dict(gpu.arrears.odd))  # a copy, made at once: the thread adds to it
            if gpu.mode is not None and gpu.mode.unseen:
                found["unseen_process"] += gpu.mode.unseen
        return found

    def _pause_s(self) -> float:
        is_young = any(gpu.sampler.is_young for gpu in self._gpus)
        return self._poll_s / (_URGENT_PART if self.is_urgent or is_young else 1)

    def poll(self, now_ns: int | None = None) -> None:
        """Ask once. The thread does; tests do, and say when."""
        clock_ns = time.monotonic_ns if now_ns is None else lambda: now_ns
        seen = {where: t for where, t in self.seen_running.items() if clock_ns() - t < _SEEN_FOR_NS}
        for gpu in self._gpus:
            self._meet(gpu, clock_ns())
            for pid, used in gpu.poll(clock_ns).items():
                if gpu.mode is not None:  # else nobody asks for it
                    gpu.told_ns[pid] += used.busy_ns
                last_ns = gpu.ours_ns(used.last_us)
                if self._add(pid, gpu, used, gpu.ours_ns(used.first_us), last_ns):
                    seen[pid, gpu.slot] = last_ns
            self._pay(gpu, clock_ns())
        self.seen_running = seen

    def _meet(self, gpu: _Gpu, now_ns: int) -> None:
        """Find out whose they are that are on a GPU, before they end."""
        if gpu.mode is None:
            return
        for pid in gpu.mode.running():
            met = gpu.met.get(pid)
            if met is None or met.last_ns != gpu.met_ns:  # else it was there all the time
                met = gpu.met[pid] = _Met(ProcessId.of(pid), self._cgroup_of(pid), now_ns)
            met.last_ns = now_ns
        gpu.met_ns = now_ns
        gpu.met = {pid: met for pid, met in gpu.met.items() if now_ns - met.last_ns <= _MET_FOR_NS}

    def _pay(self, gpu: _Gpu, now_ns: int) -> None:
        """Once a second: what the driver has booked and samples did not tell."""
        if gpu.mode is None or (gpu.asked_ns is not None and now_ns - gpu.asked_ns < BOOKED_NS):
            return
        gpu.asked_ns = now_ns
        gpu.mode.look()
        booked = gpu.mode.booked(gpu.met)
        if booked is None:
            return
        told_ns, gpu.told_ns = gpu.told_ns, Counter()
        paid_ns = gpu.arrears.take(
            booked,
            told_ns,
            now_ns,
            window_us=gpu.sampler.window_us,
            is_blind=gpu.mode.is_blind,
        )
        for pid, busy_ns in paid_ns.items():
            self._add(pid, gpu, Used(busy_ns, 0, 0, 0), now_ns, now_ns)

    def _add(self, pid: int, gpu: _Gpu, used: Used, first_ns: int, last_ns: int) -> bool:
        """False: it has ended."""
        owner, cgroup_id = ProcessId.of(pid), self._cgroup_of(pid)
        is_there, met = owner is not None, gpu.met.get(pid)
        if met is not None and is_there and cgroup_id is not None:
            met.owner, met.cgroup_id = owner, cgroup_id
        elif met is not None and not is_there:
            owner, cgroup_id = met.owner, met.cgroup_id
        with self._lock:
            found = self._last.get((pid, gpu.slot))
            if found is None or owner not in (None, found.owner):
                found = ProcessSamples(pid, gpu.slot, owner, cgroup_id, first_ns=first_ns)
                self._found.append(found)
                self._last[pid, gpu.slot] = found
            found.cgroup_id = found.cgroup_id if cgroup_id is None else cgroup_id
            found.samples += used.samples
            found.busy_ns += used.busy_ns
            found.period_ns, found.last_ns = gpu.sampler.window_us * 1000, last_ns
        return is_there
