# SPDX-License-Identifier: Apache-2.0
"""Recognises the clients of MPS servers, and says which tenants are not held for it.

Problem. MPS (NVIDIA's Multi-Process Service) runs the kernels of several processes in one context of its server. One
client that is frozen with work under way, or the server itself, may keep the other clients waiting, whoever they are.
And who shares a context does not take turns: what each had of the GPU is an estimate. But whoever is not held has what
others pay for, so nobody may come to that by pretending.

Approach. A process is a client if NVML lists it as one: that is the driver's word, and no name or variable makes it so.
The clients on a GPU are one group. A tenant of it is *kept*, as in never held for that GPU or any other, where

- a server of the group runs in no tenant: a process that the driver lists on the GPU and whose program is called
  ``nvidia-cuda-mps-server``. One that runs in a tenant counts for nothing: that tenant could call anything so;
- all that the tenant has on the GPU are clients. With other processes there it may be serving itself;
- and all its clients are connected to such a server, where connections are seen at all (mps_sockets.py): who shares
  a GPU with the node's server may be the client of another one.

Everybody else is held as without MPS: where server and clients are of one tenant they stand still together, and nobody
else waits; where a tenant serves others, these have chosen to depend on it. What is taken is charged as everywhere,
each client as if it took turns.

Limits. NVML is asked once a second: until then a new client is anybody. On a GPU with a server of the node's own, a
tenant that also hides a private server on another GPU is not found out by this. Where no client of that server is seen
to be connected to it, all on the GPU count as its. CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is shown, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from fairsched.base.text import counted
from fairsched.gpu.nvml import Gpu, read_environ
from fairsched.gpu.watch import OnMps
from fairsched.model import TenantSpec
from fairsched.observe import mps_sockets

SERVER = "nvidia-cuda-mps-server"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PERCENTAGE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_MOST_READ = 1024
"""Processes on one GPU that are looked at, clients and others apart. An MPS server has 60 clients at most, and each
other context takes hundreds of MB."""


@dataclass(frozen=True)
class MpsGroup:
    """The clients of MPS on one GPU."""

    gpu: str
    """UUID."""
    servers: tuple[int, ...]
    """Processes, in no tenant."""
    clients: Mapping[str, int]
    """How many, by tenant."""
    kept: frozenset[str]
    """Tenants that are not held."""
    percentages: Mapping[str, tuple[float, ...]]
    """By tenant, what its clients were started with."""
    joined: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By tenant, the servers that its clients are seen to be connected to."""
    apart: frozenset[str] = frozenset()
    """Tenants with clients that are connected to none of these."""

    def text(self, tenant: str) -> str:
        """For people: what it is of this tenant, and why."""
        count, given = self.clients[tenant], self.percentages.get(tenant)
        limit = "" if not given else f", limited to {', '.join(f'{one:g} %' for one in given)} of the threads"
        what = f"{counted(count, 'client')} of MPS{limit}"
        if tenant in self.kept:
            pids = ", ".join(map(str, self.joined.get(tenant, self.servers)))
            return f"{what}, server {pids}: not held, as that may stall the other clients; its use is an estimate"
        if not self.servers:
            return f"{what}, whose server is in a tenant or not found: held as without MPS"
        if tenant in self.apart:
            return f"{what}, connected to another server than the node's: held as without MPS"
        return f"{what}, and other processes on the GPU: held as without MPS"


def judge(
    gpu: str,
    clients: Mapping[int, str | None],
    others: Mapping[int, str | None],
    servers: Collection[int],
    percentages: Mapping[int, float],
    connected: Mapping[int, int] = MappingProxyType({}),
) -> MpsGroup:
    """Who is kept (pure). ``clients`` and ``others`` on the GPU: the tenant of each process, None = it is in none.
    ``servers``: those of ``others`` whose program is called so. ``connected``: the server of each client, as far as
    that is seen."""
    outside = tuple(sorted(pid for pid in servers if others.get(pid, "") is None))
    joined: dict[str, set[int]] = {}
    apart = set()
    counts: dict[str, int] = {}
    given: dict[str, set[float]] = {}
    for pid, tenant in clients.items():
        if tenant is not None:
            counts[tenant] = counts.get(tenant, 0) + 1
            if connected.get(pid) in outside:
                joined.setdefault(tenant, set()).add(connected[pid])
            elif connected:
                apart.add(tenant)
            if pid in percentages:
                given.setdefault(tenant, set()).add(percentages[pid])
    kept = counts.keys() - set(others.values()) - apart if outside else frozenset[str]()
    shown = {tenant: tuple(sorted(values)) for tenant, values in given.items()}
    servers_of = {tenant: tuple(sorted(pids)) for tenant, pids in joined.items()}
    return MpsGroup(gpu, outside, counts, frozenset(kept), shown, servers_of, frozenset(apart))


class MpsWatch:
    """Call :meth:`look` now and then."""

    def __init__(self, cgroup_of: Callable[[int], int | None]) -> None:
        """``cgroup_of`` tells the cgroup id of a process."""
        self._cgroup_of = cgroup_of
        self._seen: Mapping[int, OnMps] = {}
        self._connected: dict[int, int | None] = {}
        """The server of each client that was looked at; None = none of them: it connects before it is listed."""
        self.groups: tuple[MpsGroup, ...] = ()
        self.doubted: frozenset[tuple[str, str]] = frozenset()
        """(tenant, UUID) of those that are kept."""

    def look(
        self, listed: Mapping[int, OnMps], gpus: Sequence[Gpu], tenant_of: Callable[[int], str | None]
    ) -> None:
        """``listed``: NVML's last answer, by slot. Nothing is done for one that was looked at."""
        if listed is self._seen:
            return
        self._seen = listed
        self.groups = tuple(self._groups(listed, gpus, tenant_of))
        self.doubted = frozenset((tenant, group.gpu) for group in self.groups for tenant in group.kept)

    @property
    def served(self) -> list[str]:
        """UUIDs of GPUs with a server in no tenant."""
        return [group.gpu for group in self.groups if group.servers]

    def spare(self, specs: Mapping[str, TenantSpec]) -> Mapping[str, TenantSpec]:
        """With those that are kept exempt: for whoever holds for another reason than a share."""
        kept = {tenant for tenant, _ in self.doubted}
        if not kept:
            return specs
        own = {name: specs.get(name) or TenantSpec(name) for name in kept}
        return {**specs, **{name: replace(spec, is_exempt=True) for name, spec in own.items()}}

    def _groups(
        self, listed: Mapping[int, OnMps], gpus: Sequence[Gpu], tenant_of: Callable[[int], str | None]
    ) -> Iterator[MpsGroup]:
        there = {pid for on in listed.values() for pid in on.clients}
        self._connected = {pid: server for pid, server in self._connected.items() if pid in there}
        for slot, on in sorted(listed.items()):
            if slot >= len(gpus):
                continue
            clients, others = (self._tenants(pids, tenant_of) for pids in (on.clients, on.others))
            servers = [pid for pid in others if _program(pid) == SERVER]
            connected = self._connections(clients, [pid for pid in servers if others[pid] is None])
            percentages = {pid: value for pid in clients if (value := _percentage(pid)) is not None}
            yield judge(gpus[slot].uuid, clients, others, servers, percentages, connected)

    def _connections(self, clients: Collection[int], servers: Collection[int]) -> dict[int, int]:
        """Asked once of each client: one with many descriptors takes long."""
        new = [pid for pid in clients if pid not in self._connected]
        found = mps_sockets.connections(new, servers) if new and servers else None
        if found is not None:
            self._connected |= {pid: found.get(pid) for pid in new}
        return {pid: one for pid in clients if (one := self._connected.get(pid)) is not None}

    def _tenants(
        self, pids: Collection[int], tenant_of: Callable[[int], str | None]
    ) -> dict[int, str | None]:
        cgroups = {pid: self._cgroup_of(pid) for pid in sorted(pids)[:_MOST_READ]}
        return {pid: tenant_of(cgroup) for pid, cgroup in cgroups.items() if cgroup is not None}


def _program(pid: int) -> str | None:
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None
    return path.removesuffix(" (deleted)").rpartition("/")[2]


def _percentage(pid: int) -> float | None:
    text = read_environ(pid, (PERCENTAGE,)).get(PERCENTAGE, "").strip()
    return float(text) if _PERCENTAGE.fullmatch(text) and 0 < float(text) <= 100 else None
