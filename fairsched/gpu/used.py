# SPDX-License-Identifier: Apache-2.0
"""Collects the GPU time of processes from NVML's samples, beside the loop (see base/beside.py for why).

Problem. The loop that freezes people's processes must not wait for a driver, and a process that lives for a fifth of a
second must be asked for its cgroup while it lives.

Approach. A thread asks every POLL_S, notes who was sampled, for how long and in which cgroup, and keeps that until the
loop takes it. If NVML hangs nobody is sampled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairsched.base.beside import Poller
from fairsched.gpu.sampler import NvmlReader, Sampler

POLL_S = 0.1


class Sampled(NamedTuple):
    """One process since it was last taken."""

    busy_ns: int
    cgroup_id: int | None
    """Where it was; None: it had ended."""


class UsedTime:
    """``readers`` by slot; ``cgroup_of`` tells the cgroup id of a pid. Until it is started, taking asks."""

    def __init__(self, readers: Sequence[NvmlReader], cgroup_of: Callable[[int], int | None]) -> None:
        self._readers, self._cgroup_of = tuple(readers), cgroup_of
        self._samplers = [Sampler() for _ in readers]
        self._lock = threading.Lock()
        self._found: list[dict[int, Sampled]] = [{} for _ in readers]
        self._poller: Poller | None = None

    def start(self) -> None:
        """Ask in a thread from now on."""
        self._poller = Poller("samples", self.poll, lambda: POLL_S, "samples")

    def close(self) -> None:
        """End the thread in its own time."""
        if self._poller is not None:
            self._poller.stop()

    def period_ns(self, slot: int) -> int:
        """From one sample of a GPU to the next, as far as is known."""
        return 1000 * self._samplers[slot].window_us

    def poll(self, now_ns: int | None = None) -> None:
        """Ask once. The thread does; tests do, and say when."""
        for slot, (reader, sampler) in enumerate(zip(self._readers, self._samplers, strict=True)):
            samples = reader.read(sampler.after_us)
            clock_ns = (
                time.monotonic_ns() if now_ns is None else now_ns
            )  # the driver may have kept us waiting
            used = sampler.take(samples, clock_ns // 1000)
            found = {pid: Sampled(one.busy_ns, self._cgroup_of(pid)) for pid, one in used.items()}
            with self._lock:
                self._add(self._found[slot], found)

    @staticmethod
    def _add(before: dict[int, Sampled], found: dict[int, Sampled]) -> None:
        for pid, (busy_ns, cgroup_id) in found.items():
            was = before.get(pid, Sampled(0, None))
            before[pid] = Sampled(was.busy_ns + busy_ns, was.cgroup_id if cgroup_id is None else cgroup_id)

    def take(self, now_ns: int) -> list[dict[int, Sampled]]:
        """Who was sampled since the call before, by slot and process. Never blocks on NVML once it is started."""
        if self._poller is None:
            self.poll(now_ns)
        with self._lock:
            found, self._found = self._found, [{} for _ in self._readers]
        return found
