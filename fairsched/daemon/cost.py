# SPDX-License-Identifier: Apache-2.0
"""Measures what the daemon costs: ticks, CPU time, memory, BPF maps.

Problem: whoever wonders whether a slow node is fairsched's doing must be able to see it, and to look must not make it
slow.

Approach: a tick adds one to one counter. Everything else is read when somebody asks: CPU time and memory of the daemon
and its helpers by psutil, sizes of maps from the descriptors' fdinfo, once per descriptor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

import psutil

from fairsched.base import buckets
from fairsched.protocol.own import BpfMap, Histogram, ProcessCost

_WINDOW_NS = 10_000_000_000


class OwnCost:
    """Ticks and CPU time of this process."""

    def __init__(self, now_ns: int) -> None:
        self.late_ticks = self.failed_ticks = self.failed_housekeeping = 0
        self.cpu_ratio: float | None = None
        """Part of one CPU over the last ten seconds; None before those are over."""
        self._mark = (now_ns, time.process_time_ns())
        self._buckets = [0] * buckets.COUNT
        self._sum_ns = 0

    @property
    def errors(self) -> int:
        """Ticks and housekeeping that failed."""
        return self.failed_ticks + self.failed_housekeeping

    def note_tick(self, took_ns: int) -> None:
        """Count a tick that took so long."""
        self._buckets[buckets.bucket_of(took_ns)] += 1
        self._sum_ns += took_ns

    def ticks(self) -> Histogram:
        """How long ticks took, since the start."""
        return Histogram.of(self._buckets, self._sum_ns)

    def refresh(self, now_ns: int) -> None:
        """Work out ``cpu_ratio`` when it is time."""
        wall_ns = now_ns - self._mark[0]
        if wall_ns >= _WINDOW_NS:
            cpu_ns = time.process_time_ns()
            self.cpu_ratio = (cpu_ns - self._mark[1]) / wall_ns
            self._mark = (now_ns, cpu_ns)


def read_process(role: str, pid: int | None) -> ProcessCost | None:
    """What one process has cost so far; None when it is not there."""
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        cpu, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    return ProcessCost(role, pid, cpu.user + cpu.system, memory.rss)


def read_processes(pids: Mapping[str, int | None]) -> tuple[ProcessCost, ...]:
    """By role; without those that do not run."""
    found = (read_process(role, pid) for role, pid in pids.items())
    return tuple(one for one in found if one is not None)


class MapFacts:
    """Capacity and memory of maps; neither changes, so each descriptor is asked once."""

    def __init__(self, proc: str = "/proc/self/fdinfo") -> None:
        self._proc = proc
        self._known: dict[tuple[str, int], BpfMap | None] = {}

    def read(self, fds: Iterable[tuple[str, int]], entries: Mapping[str, int]) -> tuple[BpfMap, ...]:
        """``fds``: maps by name; ``entries``: how many each has now, where that is known."""
        found = []
        for place in fds:
            if place not in self._known:
                self._known[place] = self._ask(*place)
            known = self._known[place]
            if known is not None:
                found.append(BpfMap(known.name, known.capacity, entries.get(known.name), known.memory_bytes))
        return tuple(found)

    def _ask(self, name: str, fd: int) -> BpfMap | None:
        facts = {}
        with contextlib.suppress(OSError), open(f"{self._proc}/{fd}", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file if ":" in line)
        if "max_entries" not in facts:
            return None  # a program, or nothing
        memory = facts.get("memlock")
        return BpfMap(name, int(facts["max_entries"]), None, None if memory is None else int(memory))
