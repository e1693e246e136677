# SPDX-License-Identifier: Apache-2.0
"""Defines what rules and limits look at: everybody on every GPU, moment by moment. None = not known (law 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Process:
    """What stays as it is while a process lives."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat; with the pid its identity (law 5)."""
    boot_id: str = ""
    """Of the boot that both count from."""
    uid: int | None = None
    user: str | None = None
    groups: tuple[str, ...] = ()
    """Names of its user's groups, the primary one first."""
    tenant: str | None = None
    cgroup: str | None = None
    """As in /proc/PID/cgroup."""
    unit: str | None = None
    """Of systemd, as its cgroup says."""
    container_id: str | None = None
    image: str | None = None
    """As its runtime names it."""
    image_digest: str | None = None
    """``sha256:...``."""
    program: str | None = None
    """What /proc/PID/exe points to."""
    program_digest: str | None = None
    """``sha256:...`` of the file that it runs."""
    command: str = ""
    """With its arguments."""
    started_s: float | None = None
    """Unix time."""

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.boot_id, self.pid, self.start_ticks)


class Sample(NamedTuple):
    """One process on one GPU at one moment. Counters only grow; a smaller one than before has begun anew."""

    process: Process
    gpu: str
    """UUID."""
    vram_bytes: int | None = None
    contexts: int | None = None
    gpu_time_s: float | None = None
    """Counter."""
    launches: int | None = None
    """Counter: launches that were seen."""
    idle_s: float | None = None
    """For how long no launch of it was seen; None = it works, or launches are not seen at all."""
    is_orphan: bool | None = None
    remote_ports: tuple[int, ...] | None = None
    """Of its established TCP connections that leave the host."""
    is_paused: bool | None = None
    """Somebody stopped it or froze it (a batch system, docker pause, a debugger), and it was not fairsched."""
    is_serving: bool | None = None
    """It listens for other hosts, or is a worker of one that does."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU at one moment."""

    busy_ratio: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    index: int | None = None
    """As the driver counts; of a MIG instance that of its GPU."""


@dataclass(frozen=True, slots=True)
class Round:
    """One moment. A process that is not in it was not on a GPU then."""

    t_s: float
    """Unix time. Rounds come in order; one that is a little before the last is left out by whoever is fed."""
    samples: tuple[Sample, ...]
    gpus: Mapping[str, GpuLoad] = field(default_factory=dict)
    """By UUID."""
    tenants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Counters of GPU seconds by tenant and GPU (UUID), of short processes too; empty where they are not known."""
