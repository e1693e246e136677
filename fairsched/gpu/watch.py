# SPDX-License-Identifier: Apache-2.0
"""Reads from NVML which GPUs there are, their load, memory and processes, beside the loop (see base/beside.py for why).

Problem. `status` tells memory, load and temperature of every GPU and the companion asks for it every second; `ps` tells
what each process has. A GPU that fell off its bus may answer late or never, and the loop that freezes people's
processes must not wait for it.

Approach. One thread asks every POLL_S. The loop takes the last answer; one that is older than STALE_S counts as none,
and `status` says so. Who wants to know of processes that have just started has the thread ask at once, and waits for it
for no longer than a tick can spare. NVML takes 40 ms to tell what passes over PCIe, so one GPU in its turn is asked for
that, after everything else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from fairsched.base.beside import Poller
from fairsched.gpu.nvml import GpuUse, Nvml

POLL_S = 1.0
STALE_S = 5.0
_CLOSE_S = 0.25
_LOADS = 16
"""Kept until they are taken."""
_FRESH_S = 0.03


@dataclass(frozen=True)
class OnMps:
    """The processes on a GPU that has clients of MPS."""

    clients: frozenset[int]
    others: frozenset[int]
    """The servers among them."""


@dataclass(frozen=True)
class _Answer:
    begun_s: float
    """When it was asked for."""
    done_s: float
    uses: tuple[GpuUse, ...] = ()
    listed: Mapping[tuple[int, int], int | None] = field(default_factory=dict)
    mps: Mapping[int, OnMps] = field(default_factory=dict)


class GpuWatch:
    """Asks NVML in a thread from the start on, and keeps the last answers."""

    def __init__(self, nvml: Nvml, poll_s: float = POLL_S) -> None:
        self._nvml = nvml
        self._changed = threading.Condition()
        self._answer = _Answer(0.0, time.monotonic())
        self._poll_s = poll_s
        self.is_close = False
        """The load is asked for every _CLOSE_S, and nothing else is more often than before."""
        self._wants_all = True
        self._loads: dict[int, deque[float]] = {}
        self._pcie: dict[int, dict[str, float]] = {}
        self._turn = 0
        self._poller = Poller("gpus", self._poll, self._pause_s, "state of the GPUs")
        self._poller.ask()

    def use(self, slot: int) -> GpuUse:
        """The load of one GPU; nothing is known where NVML has not answered lately."""
        answer = self._answer
        if self.silent_s() is not None or slot >= len(answer.uses):
            return GpuUse()
        return answer.uses[slot]

    def listed(self) -> Mapping[tuple[int, int], int | None]:
        """VRAM in bytes by (process, slot), see :meth:`fairsched.gpu.nvml.Nvml.listed`; at worst as of before."""
        now_s, self._wants_all = time.monotonic(), True
        self._poller.ask()
        with self._changed:
            self._changed.wait_for(lambda: self._answer.begun_s >= now_s, _FRESH_S)
        return self._answer.listed

    def take_loads(self, slot: int) -> tuple[float, ...]:
        """What was said of the load of a GPU while ``is_close``, since the call before."""
        loads = self._loads.get(slot, ())
        return tuple(loads.popleft() for _ in range(len(loads))) if loads else ()

    def slots_of(self, pids: Set[int]) -> dict[int, set[int]]:
        """On which GPUs these processes have compute contexts, as of the last answer."""
        found: dict[int, set[int]] = {}
        for pid, slot in self._answer.listed:
            if pid in pids:
                found.setdefault(pid, set()).add(slot)
        return found

    def on_instances(self) -> Mapping[int, list[int]]:
        """The processes on each MIG instance, by slot, as of the last answer."""
        found: dict[int, list[int]] = {}
        gpus = self._nvml.gpus
        for pid, slot in self._answer.listed:
            if slot < len(gpus) and gpus[slot].mig is not None and not gpus[slot].is_gone:
                found.setdefault(slot, []).append(pid)
        return found

    @property
    def mps(self) -> Mapping[int, OnMps]:
        """Of GPUs with clients of MPS, by slot, as of the last answer."""
        return self._answer.mps

    def silent_s(self) -> float | None:
        """How long NVML has not answered; None while it does."""
        age_s = time.monotonic() - self._answer.done_s
        return age_s if age_s > STALE_S else None

    def close(self) -> bool:
        """End the thread; False: NVML keeps it, and would keep whoever calls it next."""
        return self._poller.close()

    def _pause_s(self) -> float:
        return min(_CLOSE_S, self._poll_s) if self.is_close else self._poll_s

    def _poll(self) -> None:
        begun_s = time.monotonic()
        if self.is_close:
            for slot in range(len(self._nvml.gpus)):
                load = self._nvml.load(slot)
                if load is not None:
                    self._loads.setdefault(slot, deque(maxlen=_LOADS)).append(load)
            if not self._wants_all and begun_s - self._answer.begun_s < self._poll_s:
                return
        self._wants_all = False
        self._nvml.refresh()
        slots = len(self._nvml.gpus)
        uses = tuple(
            replace(self._nvml.use(slot), pcie_bytes_per_s=self._pcie.get(slot, {})) for slot in range(slots)
        )
        clients = self._nvml.mps_clients()
        listed = self._nvml.listed(clients)  # of one answer: who came after it is no other process
        mps = {
            slot: OnMps(
                frozenset(pids), frozenset(pid for pid, at in listed if at == slot and pid not in pids)
            )
            for slot, pids in clients.items()
        }
        answer = _Answer(begun_s, time.monotonic(), uses, listed, mps)
        with self._changed:
            self._answer = answer
            self._changed.notify_all()
        if slots:
            self._turn = (self._turn + 1) % slots
            self._pcie[self._turn] = self._nvml.pcie(self._turn)
