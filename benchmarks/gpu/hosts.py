# SPDX-License-Identifier: Apache-2.0
"""Where the checks run: a machine with a GPU and PyTorch, or the simulated one. Same daemon, same cgroups, same logs.

What differs is who the tenants are and what is known of them: on a GPU, events in the tenant's own process time its
steps, and its trace of context switches, where the driver hands it out, says who had it; the simulated GPU knows
everything. ``exec_ns`` and ``gpu_logs`` are None where their host has no such thing.
"""

from __future__ import annotations

import contextlib
import uuid as uuid_module
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig import Rig, RunningDaemon, TenantLoad
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.simgpu import Step, Worker, Workload
from fairsched.simgpu.node import PARENT

_ATTACH_S = 240.0
STEP_NS = 10_000_000
"""Of a simulated step, but of the graph's."""


@dataclass(frozen=True)
class Load:
    """A tenant: ``processes`` that all do the same, in one cgroup."""

    name: str
    kind: str
    """Of benchmarks.gpu.tenant.KINDS."""
    weight: float = 1.0
    tenant_class: str = "latency"
    processes: int = 1
    queue_ms: float = 100.0
    """How much work a trainer keeps queued."""
    threads: int = 0
    is_counted: bool = False
    """Its launches per step are wanted."""


@dataclass
class Member:
    """One process of a tenant."""

    worker: Worker
    launches: float | None
    """Per step; None = not known, and ``launches_from`` says why."""
    launches_from: str
    gpu_log: Worker | None = None
    """Its steps as the GPU ran them."""


Crew = dict[str, list[Member]]


def logs_of(members: Sequence[Member]) -> list[list[Step]]:
    """The steps as the programs saw them, by process."""
    return [member.worker.steps() for member in members]


def gpu_logs(members: Sequence[Member]) -> list[list[Step]] | None:
    """The steps as the GPU ran them; None where nobody timed them."""
    found = [member.gpu_log.steps() for member in members if member.gpu_log is not None]
    return found if len(found) == len(members) else None


class Host(ABC):
    """A context manager."""

    is_simulated: bool
    source = "ebpf"
    """Of the daemon's account (benchmarks.rig.SOURCES)."""
    mount: Mount
    prefix: str

    @abstractmethod
    def __enter__(self) -> Host: ...

    @abstractmethod
    def __exit__(self, *exc_info: object) -> None: ...

    @property
    @abstractmethod
    def directory(self) -> Path:
        """For whatever is gone afterwards."""

    @property
    @abstractmethod
    def libcuda(self) -> Path: ...

    @property
    @abstractmethod
    def gpu_uuid(self) -> str: ...

    @abstractmethod
    def env(self) -> dict[str, str]:
        """What a program needs, on top of everything else, to see this host's NVML and GPU."""

    @abstractmethod
    def tenants(self, loads: Sequence[Load]) -> AbstractContextManager[Crew]:
        """The loads, running; killed and their cgroups removed afterwards."""

    @abstractmethod
    def daemon(self, mode: str, loads: Sequence[Load]) -> AbstractContextManager[RunningDaemon]: ...

    @abstractmethod
    def exec_ns(self, members: Sequence[Member]) -> int | None:
        """How long a tenant had the GPU so far; None where nobody can know."""

    @abstractmethod
    def drain_end_ns(self, member: Member, from_ns: int, to_ns: int) -> int | None:
        """When the GPU last worked for a process within a hold; None = it did not. Asked after the hold."""

    def cgroup(self, tenant: str) -> CgroupRef:
        """Of a tenant that runs."""
        return CgroupRef.open(self.mount, f"{PARENT}/{self.prefix}{tenant}")

    @contextlib.contextmanager
    def eyes(self) -> Iterator[GpuTimeProbe]:
        """The daemon's BPF programs without the daemon, on this host's libcuda."""
        probe = GpuTimeProbe()
        try:
            probe.set_uuids({uuid_module.UUID(self.gpu_uuid.removeprefix("GPU-")).bytes: 0})
            probe.attach_library(str(self.libcuda), _ATTACH_S)
            yield probe
        finally:
            probe.close()


def know(probe: GpuTimeProbe, crew: Crew) -> None:
    """Say which GPU the tenants' first ordinal is: their only one."""
    for member in (one for members in crew.values() for one in members):
        for ordinal in (0, abi.ORDINAL_UNSEEN):
            probe.set_device(member.worker.pid, ordinal, 0)


def counters(probe: GpuTimeProbe, pid: int) -> tuple[int, int]:
    """Launches of a process so far, and calls of it that returned and proved work complete."""
    own = [context for _, context in probe.contexts() if context.tgid == pid]
    return sum(int(one.submitted) for one in own), sum(int(one.synced) for one in own)


def sim_workload(load: Load) -> Workload:
    """The simulated program that stands in for a PyTorch one."""
    shapes = {
        "spin": Workload("decode", kernels=20, kernel_us=500),
        "decode": Workload("decode", kernels=20, kernel_us=500, jitter_ratio=0.1, gap_us=500),
        "graph": Workload("graph", kernels=40, kernel_us=200, jitter_ratio=0.1, gap_us=300),
        "trainer": Workload("trainer", kernels=20, kernel_us=500, jitter_ratio=0.1),
    }
    plain = shapes[load.kind]
    changed = {**vars(plain), "threads": load.threads, "processes": load.processes}
    if load.kind == "trainer":
        changed["depth"] = max(2, round(load.queue_ms * 1e6 / STEP_NS))
    return Workload(**changed)


class Simulated(Host):
    """The rig of the other benchmarks."""

    is_simulated = True

    def __init__(self) -> None:
        self._rig = Rig()
        self.prefix = self._rig.prefix

    def __enter__(self) -> Simulated:
        self._rig.__enter__()
        self.mount = self._rig.mount
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._rig.__exit__(None, None, None)

    @property
    def directory(self) -> Path:
        return self._rig.directory

    @property
    def libcuda(self) -> Path:
        return self._rig.libcuda

    @property
    def gpu_uuid(self) -> str:
        return self._rig.host.uuids()[0]

    def env(self) -> dict[str, str]:
        return self._rig.host.env()

    def _rig_loads(self, loads: Sequence[Load]) -> list[TenantLoad]:
        return [TenantLoad(one.name, sim_workload(one), one.weight, one.tenant_class) for one in loads]

    @contextlib.contextmanager
    def tenants(self, loads: Sequence[Load]) -> Iterator[Crew]:
        per_step = {one.name: 1 if one.kind == "graph" else sim_workload(one).kernels for one in loads}
        with self._rig.tenants(self._rig_loads(loads)) as workers:
            yield {
                name: [Member(worker, per_step[name], "known") for worker in group]
                for name, group in workers.items()
            }

    def daemon(self, mode: str, loads: Sequence[Load]) -> AbstractContextManager[RunningDaemon]:
        return self._rig.daemon(mode, self._rig_loads(loads), self.source)

    def exec_ns(self, members: Sequence[Member]) -> int | None:
        pids = {member.worker.pid for member in members}
        return sum(context.exec_ns for context in self._rig.host.truth() if context.pid in pids)

    def drain_end_ns(self, member: Member, from_ns: int, to_ns: int) -> int | None:
        own = {context.id for context in self._rig.host.truth_of(member.worker)}
        # A stay is known when it is over: of one that outlasts the hold, the program's own log tells.
        seen = [step.end_ns for step in member.worker.steps() if from_ns < step.end_ns <= to_ns]
        ends = seen + [
            min(stay.end_ns, to_ns)
            for stay in self._rig.host.residencies()
            if stay.context_id in own and stay.start_ns < to_ns and stay.end_ns > from_ns
        ]
        return max(ends, default=None)


def root_of_checkout() -> Path:
    return Path(__file__).resolve().parents[2]
