# SPDX-License-Identifier: Apache-2.0
"""Contexts, VRAM and calls per process, added up from the sums that BPF keeps of each client.

BPF forgets what is freed and leaves what was below it (docs/decisions/0009). Here, in passing and a bounded amount
at a time: clients of processes that ended unseen are freed, objects that lead nowhere are deleted, and what was kept
of dead processes is handed out one last time and dropped. Each such entry is room that its tenant has again.

A handle may be given out anew while we look, so an object is deleted only when it was garbage a whole pass ago.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fairsched.bpf import abi

_Owner = tuple[int, int]
"""(cgroup id, tgid)."""

_SWEEP_SLACK = 1024
"""A pass over all objects begins when there are so many more than the last one left, and a quarter."""


@dataclass(frozen=True)
class DriverUse:
    """What one process holds on one GPU now. It is charged to the cgroup in which it opened the driver."""

    cgroup_id: int
    tgid: int
    gpu: int | None
    """Slot; None: it named a GPU that has none."""
    contexts: int
    vram_bytes: int
    made_ns: int | None = None
    """CLOCK_MONOTONIC: when the oldest client of this process in this cgroup was made. A process with the same pid
    that was started later is another one: a client may outlive its maker. None = not known."""


@dataclass(frozen=True)
class DriverCalls:
    """Calls of one process to the driver since it was first seen."""

    cgroup_id: int
    tgid: int
    ioctls: int
    failed: int
    time_ns: int
    opens: int
    is_final: bool
    """The process is gone: this is the last time it is listed."""


@dataclass(frozen=True)
class DriverLook:
    """Everything at one moment."""

    uses: tuple[DriverUse, ...]
    calls: tuple[DriverCalls, ...]


class Maps(Protocol):
    """What :class:`~fairsched.driver.probe.DriverProbe` offers."""

    @property
    def sees_files_end(self) -> bool: ...
    def calls(self) -> list[tuple[abi.Caller, abi.Calls]]: ...
    def clients(self) -> list[abi.Client]: ...
    def files(self) -> dict[int, tuple[int, bool]]: ...
    def makers(self) -> dict[int, tuple[int, bool]]: ...
    def objects(self, *, is_first: bool) -> tuple[list[tuple[abi.ObjectKey, abi.Object]], bool]: ...
    def object(self, client: int, handle: int) -> abi.Object | None: ...
    def count(self, what: abi.DriverCount) -> int: ...
    def free_client(self, handle: int, serial: int) -> None: ...
    def forget_calls(self, key: abi.Caller) -> None: ...
    def forget_maker(self, tgid: int) -> None: ...
    def forget_file(self, address: int, serial: int) -> None: ...
    def forget_object(self, client: int, handle: int, serial: int) -> None: ...


@dataclass(frozen=True)
class _Client:
    """A client as of the last look; the structures of the probe change under us."""

    handle: int
    serial: int
    cgroup_id: int
    tgid: int
    held: tuple[tuple[int, int, int], ...]
    """(GPU, contexts, VRAM bytes), where there is any."""


_HELD = slice(abi.Client.held.offset, abi.Client.held.offset + abi.Client.held.size)
_NOTHING = bytes(abi.Client.held.size)
_CLOSED = 1 << 61
"""Beyond half of it: the sums of a client that is just freed."""


def _held(client: abi.Client) -> Iterable[tuple[int, int, int]]:
    raw = memoryview(client).cast("B")[_HELD]
    if raw == _NOTHING or client.is_gone:
        return
    words = raw.cast("q")
    for gpu in range(abi.GPUS_HELD):
        vram_bytes, contexts = words[2 * gpu], words[2 * gpu + 1]
        if (vram_bytes or contexts) and abs(vram_bytes) < _CLOSED and abs(contexts) < _CLOSED:
            yield gpu, contexts, vram_bytes


class DriverBooks:
    """Reads a probe; ``proc`` is /proc."""

    def __init__(self, probe: Maps, proc: str = "/proc") -> None:
        self._probe = probe
        self._proc = proc
        self.partial: frozenset[int] = frozenset()
        """Processes that have more than the last look found: their tenant had no room for it."""
        self._sweep = _Sweep(probe)

    def read(self) -> DriverLook:
        """What is held and was called, dead processes taken out. Does a bounded part of the cleaning."""
        makers = self._probe.makers()
        self.partial = frozenset(tgid for tgid, (_, is_partial) in makers.items() if is_partial)
        clients = self._live_clients({tgid: gone_ns for tgid, (gone_ns, _) in makers.items()})
        tgids = {client.tgid for client in clients.values()}
        calls = tuple(self._calls(tgids))
        for tgid in makers:
            if tgid not in tgids and not self._is_alive(tgid):
                self._probe.forget_maker(tgid)
        self._sweep.step(clients)
        return DriverLook(tuple(_uses(clients.values())), calls)

    def _is_alive(self, tgid: int) -> bool:
        return os.path.exists(f"{self._proc}/{tgid}")

    def _live_clients(self, gone: Mapping[int, int]) -> dict[int, _Client]:
        """By handle; those the driver no longer has are freed."""
        clients = [
            (_Client(c.handle, c.serial, c.cgroup_id, c.tgid, tuple(_held(c))), (c.file, c.file_serial))
            for c in self._probe.clients()
        ]
        files = self._probe.files()
        serials = {(address, serial) for address, (serial, _) in files.items()}
        live: dict[int, _Client] = {}
        left = set()
        for client, file in clients:
            if file not in serials or self._has_ended(client, gone):
                self._probe.free_client(client.handle, client.serial)
            else:
                live[client.handle] = client
                left.add(file)
        if not self._probe.sees_files_end:
            for address, (serial, has_clients) in files.items():
                if not has_clients and (address, serial) not in left:
                    self._probe.forget_file(address, serial)
        return live

    def _has_ended(self, client: _Client, gone: Mapping[int, int]) -> bool:
        """Where the end of files is not seen, that of their process stands for it."""
        if self._probe.sees_files_end:
            return False
        return gone.get(client.tgid, 0) > client.serial or not self._is_alive(client.tgid)

    def _calls(self, tgids: set[int]) -> Iterable[DriverCalls]:
        for key, calls in self._probe.calls():
            is_final = key.tgid not in tgids and not self._is_alive(key.tgid)
            yield DriverCalls(
                key.cgroup_id, key.tgid, calls.ioctls, calls.failed, calls.time_ns, calls.opens, is_final
            )
            if is_final:
                self._probe.forget_calls(key)


def _uses(clients: Collection[_Client]) -> Iterable[DriverUse]:
    made_ns: dict[_Owner, int] = {}
    totals: dict[tuple[int, int, int], tuple[int, int]] = {}
    for client in clients:
        owner = (client.cgroup_id, client.tgid)
        made_ns[owner] = min(client.serial, made_ns.get(owner, client.serial))
        for gpu, contexts, vram_bytes in client.held:
            key = (*owner, gpu)
            before = totals.get(key, (0, 0))
            totals[key] = before[0] + contexts, before[1] + vram_bytes
    for (cgroup_id, tgid, gpu), (contexts, vram_bytes) in totals.items():
        if contexts > 0 or vram_bytes > 0:
            slot = gpu if gpu < abi.MAX_GPUS else None
            has = max(0, contexts), max(0, vram_bytes)
            yield DriverUse(cgroup_id, tgid, slot, *has, made_ns[cgroup_id, tgid])


class _Sweep:
    """Deletes objects that lead to no client, some at each look, once there are many or somebody has no room left."""

    def __init__(self, probe: Maps) -> None:
        self._probe = probe
        self._left = 0
        self._refusals = 0
        self._is_running = False
        self._is_wanted = False
        """There is something to confirm."""
        self._suspects: set[tuple[int, int, int]] = set()
        self._found: set[tuple[int, int, int]] = set()

    def _population(self) -> int:
        made = self._probe.count(abi.DriverCount.OBJECTS_MADE)
        return made - self._probe.count(abi.DriverCount.OBJECTS_GONE)

    def step(self, clients: Mapping[int, _Client]) -> None:
        is_many = self._population() > self._left + self._left // 4 + _SWEEP_SLACK
        before, self._refusals = self._refusals, self._probe.count(abi.DriverCount.OVER_BUDGET)
        if not (self._is_running or self._is_wanted or is_many or before != self._refusals):
            return
        rows, more = self._probe.objects(is_first=not self._is_running)
        self._is_running = True
        serials: dict[tuple[int, int], int] = {}
        for key, item in rows:
            if self._leads_nowhere(key.client, item.parent, item.parent_serial, clients, serials):
                self._condemn(key.client, key.handle, item.serial)
        if not more:
            self._is_running = False
            self._is_wanted = bool(self._found)
            self._left = self._population()
            self._suspects, self._found = self._found, set()

    def _condemn(self, client: int, handle: int, serial: int) -> None:
        identity = (client, handle, serial)
        if identity not in self._suspects:
            self._found.add(identity)
        else:
            self._probe.forget_object(*identity)

    def _leads_nowhere(
        self,
        client: int,
        parent: int,
        parent_serial: int,
        clients: Mapping[int, _Client],
        serials: dict[tuple[int, int], int],
    ) -> bool:
        """One level up is enough: the parent's own turn comes in the same or the next pass."""
        if client not in clients:
            return True
        if parent == client:
            return clients[client].serial != parent_serial
        if (client, parent) not in serials:
            found = self._probe.object(client, parent)
            serials[client, parent] = 0 if found is None else found.serial
        return serials[client, parent] != parent_serial
