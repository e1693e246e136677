# SPDX-License-Identifier: Apache-2.0
"""Lists who holds which GPU: what the daemon, NVML and /proc say, joined.

Problem: the daemon knows tenants, contexts and launches, and may not run. NVML knows processes and memory, and not
whose they are. /proc knows users, parents and states, and nothing of GPUs.

Approach: NVML is asked here, with a daemon or without; the daemon's rows are better where it has some. A row of the
daemon that NVML does not confirm is kept and says so (``is_listed``): it is shown, and not acted on. Each is joined
with /proc by pid. A pid may be another process's a moment later: whoever acts pins it first and lists again (pin.py).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairsched.base.text import counted
from fairsched.cgroup import names as known_names
from fairsched.cgroup.containers import container_of
from fairsched.cgroup.names import Book, Names, known_as
from fairsched.cgroup.path import Mount, find_mount
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.gpu.nvml import Gpu, Nvml
from fairsched.gpu.state import minor_of, used_bytes
from fairsched.observe.mps import SERVER
from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.devices import open_devices
from fairsched.reclaim.facts import Facts, read_facts, read_table
from fairsched.reclaim.marks import is_orphan, marks_of

UNSEEN_BYTES = 512 << 20
"""Memory of a GPU that no listed process has, from which on it is said: a driver keeps some hundred MiB."""
DEVICE_DIR = Path("/dev")
TenantOf = Callable[[str], "str | None"]


@dataclass(frozen=True)
class GpuView:
    """One GPU, or one MIG instance."""

    uuid: str
    index: str = "-"
    """``0``; of a MIG instance ``0/1/0``."""
    slot: int | None = None
    """NVML's, here."""
    used_bytes: int | None = None
    total_bytes: int | None = None
    unseen_bytes: int | None = None
    """In use, and of no process that is listed; None = not known."""
    openers: tuple[int, ...] = ()
    """Processes that are not listed and have its device file open."""


@dataclass(frozen=True)
class Holder:
    """One process on one GPU."""

    status: ProcessStatus
    facts: Facts | None = None
    """None: it is not in /proc."""
    user: str | None = None
    gpu_index: str = "-"
    age_s: float | None = None
    is_orphan: bool | None = None
    mps: str | None = None
    """server or client."""
    is_listed: bool = False
    """NVML lists it, or it has the device file open: seen by us, just now."""
    source: str = "nvml"
    """daemon or nvml."""
    has_tenants: bool = True
    """Tenants are known: one of none is of none."""

    @property
    def pid(self) -> int:
        return self.status.pid

    @property
    def command(self) -> str | None:
        return self.status.command

    @property
    def vram_bytes(self) -> int | None:
        return self.status.vram_bytes

    @property
    def idle_s(self) -> float | None:
        return self.status.idle_s

    def has_mark(self, name: str) -> bool | None:
        """Whether it is an orphan, or a zombie; None = not known."""
        if self.facts is None:
            return None
        return self.is_orphan if name == "orphan" else self.facts.is_zombie or self.facts.is_headless

    def words(self, key: str) -> frozenset[str] | None:
        """What it answers to under a key of a filter; None = not known."""
        status = self.status
        if key == "pid":
            return frozenset((str(self.pid),))
        if key == "gpu":
            return frozenset((self.gpu_index, status.gpu, status.gpu.partition("-")[2][:8], status.gpu[:12]))
        if key == "user":
            uid = None if self.facts is None else self.facts.uid
            return None if uid is None else frozenset(one for one in (self.user, str(uid)) if one)
        if key == "tenant":
            return frozenset((status.tenant or "-",)) if self.has_tenants else None
        name = (status.known_as or "").partition(" ")[2]
        ids = [one for one in (status.container_id, status.pod_uid) if one]
        said = [*ids, *(one[:12] for one in ids), *(one[:8] for one in ids)]
        return frozenset([*said, *([name, name.rpartition("/")[2]] if name else [])])

    def plain(self) -> dict[str, Any]:
        """For ``--json``."""
        facts = self.facts
        return {
            **dataclasses.asdict(self.status),
            "gpu_index": self.gpu_index,
            "user": self.user,
            "uid": None if facts is None else facts.uid,
            "state": None if facts is None else facts.state,
            "parent_pid": None if facts is None else facts.parent,
            "start_ticks": None if facts is None else facts.start_ticks,
            "age_s": None if self.age_s is None else round(self.age_s, 1),
            "is_orphan": self.is_orphan,
            "is_zombie": self.has_mark("zombie"),
            "mps": self.mps,
            "marks": marks_of(self),
            "is_confirmed": self.is_listed,
            "source": self.source,
        }


@dataclass(frozen=True)
class Listing:
    """Everybody on every GPU, at one moment."""

    holders: tuple[Holder, ...]
    gpus: tuple[GpuView, ...]
    table: Mapping[int, Facts]
    """Every process of this host."""

    def gpu(self, uuid: str) -> GpuView:
        return next((one for one in self.gpus if one.uuid == uuid), GpuView(uuid))


class Lister:
    """Call :meth:`look`. ``ask``: the daemon's rows, or None without one; ``tenant_of``: of a cgroup, without one.

    Raises HostUnsupported where neither a daemon nor NVML tells of processes.
    """

    def __init__(
        self,
        ask: Callable[[], Iterable[ProcessStatus]] | None,
        tenant_of: TenantOf | None = None,
        device_dir: Path = DEVICE_DIR,
        nvml: Nvml | None = None,
        names: Names | None = None,
        told_gpus: Callable[[], Iterable[GpuView]] = tuple,
    ) -> None:
        """``told_gpus``: the daemon's, for where NVML does not work here."""
        self._ask, self._tenant_of, self._device_dir = ask, tenant_of, device_dir
        self._told_gpus = told_gpus
        self.nvml = nvml or Nvml()
        self._names = names or known_names.shared()
        try:
            self.mount: Mount | None = find_mount()
        except HostUnsupported:
            self.mount = None
        if ask is None and self.nvml.error is not None:
            raise HostUnsupported(
                f"no daemon answers, and NVML does not work ({self.nvml.error}): who is on a GPU is not known",
                remedy="start the daemon, or install the driver's libnvidia-ml.so.1",
            )

    def look(self, *, has_openers: bool = True) -> Listing:
        """Ask everybody. ``has_openers``: also look through all descriptors of this host."""
        table = read_table(self.mount)
        told = {} if self._ask is None else {(row.pid, row.gpu): row for row in self._ask()}
        self.nvml.refresh()
        gpus, clients = self.nvml.gpus, self.nvml.mps_clients()
        by_slot = self.nvml.listed_by_slot(clients)
        listed = {
            (pid, gpus[slot].uuid): size
            for slot, processes in by_slot.items()
            for pid, size in processes.items()
        }
        of_mps = {(pid, gpus[slot].uuid) for slot, pids in clients.items() for pid in pids}
        found = self._told_gpus() if self.nvml.error is not None else self._views(gpus, by_slot)
        views = {view.uuid: view for view in found}
        is_short = any((view.unseen_bytes or 0) >= UNSEEN_BYTES for view in views.values())
        opened = self._opened(gpus) if has_openers or is_short else {}
        rows = {**{where: self._row(*where, size, table) for where, size in listed.items()}, **told}
        holders = []
        for (pid, uuid), row in rows.items():
            facts = table.get(pid) or read_facts(pid, self.mount)
            view = views.setdefault(uuid, GpuView(uuid))
            holders.append(
                Holder(
                    row if row.vram_bytes is not None else _with_vram(row, listed.get((pid, uuid))),
                    facts,
                    user=None
                    if facts is None
                    else self._names.of(Book.USERS, str(facts.uid)) or str(facts.uid),
                    gpu_index=view.index,
                    age_s=None if facts is None else facts.age_s(time.clock_gettime(time.CLOCK_BOOTTIME)),
                    is_orphan=None if facts is None else is_orphan(facts, table),
                    mps="client" if (pid, uuid) in of_mps else "server" if _program(pid) == SERVER else None,
                    is_listed=(pid, uuid) in listed or uuid in opened.get(pid, ()),
                    source="daemon" if (pid, uuid) in told else "nvml",
                    has_tenants=self._ask is not None or self._tenant_of is not None,
                )
            )
        seen = {holder.pid for holder in holders}
        shown = [
            dataclasses.replace(
                view,
                openers=tuple(
                    sorted(pid for pid, on in opened.items() if view.uuid in on and pid not in seen)
                ),
            )
            for view in views.values()
        ]
        return Listing(tuple(holders), tuple(shown), table)

    def _views(
        self, gpus: Sequence[Gpu], by_slot: Mapping[int, Mapping[int, int | None]]
    ) -> Iterable[GpuView]:
        for slot, gpu in enumerate(gpus):
            if gpu.is_gone:
                continue
            used, sizes = used_bytes(self.nvml, slot), list(by_slot.get(slot, {}).values())
            known = [size for size in sizes if size is not None]
            is_known = used is not None and slot in by_slot and len(known) == len(sizes)
            index = "-" if gpu.index is None else str(gpu.index)
            if gpu.mig is not None:
                index = f"{index}/{gpu.mig.gpu_instance}/{gpu.mig.compute_instance}"
            unseen = max(0, (used or 0) - sum(known)) if is_known else None
            yield GpuView(gpu.uuid, index, slot, used, gpu.memory_total_bytes, unseen)

    def _opened(self, gpus: Sequence[Gpu]) -> Mapping[int, frozenset[str]]:
        minors = {
            minor: gpu.uuid
            for slot, gpu in enumerate(gpus)
            if gpu.mig is None and (minor := minor_of(self.nvml, slot)) is not None
        }
        return open_devices(self._device_dir, minors)

    def _row(self, pid: int, uuid: str, size: int | None, table: Mapping[int, Facts]) -> ProcessStatus:
        """What is known of a process that only NVML tells of."""
        facts = table.get(pid)
        cgroup = None if facts is None else facts.cgroup
        container = None if cgroup is None else container_of(cgroup)
        inner = () if facts is None else facts.namespace_pids
        return ProcessStatus(
            pid=pid,
            gpu=uuid,
            tenant=None if cgroup is None or self._tenant_of is None else self._tenant_of(cgroup),
            cgroup=cgroup,
            runtime=container.runtime if container else None,
            container_id=container.container_id if container else None,
            pod_uid=container.pod_uid if container else None,
            known_as=None if cgroup is None else known_as(cgroup, self._names),
            namespace_pid=inner[-1] if len(inner) > 1 else None,
            vram_bytes=size,
            command=None if facts is None else facts.command,
        )


def gpus_called(name: str, gpus: Iterable[GpuView]) -> frozenset[str]:
    """UUIDs of the GPUs meant by an index (of a GPU, or of a MIG instance), or by how their UUIDs begin.

    Raises FairschedError (exit status 2).
    """
    known = list(gpus)
    found = frozenset(gpu.uuid for gpu in known if gpu.index == name or (name and gpu.uuid.startswith(name)))
    if not found:
        there = ", ".join(sorted(f"{gpu.index} ({gpu.uuid[:12]})" for gpu in known)) or "none"
        raise NoSuchGpu(
            f"there is no GPU '{name}'; there are: {there}", remedy="name one by its index or UUID"
        )
    return found


class NoSuchGpu(FairschedError):
    """A GPU that is not there."""

    exit_status = 2


def unseen_text(view: GpuView, table: Mapping[int, Facts]) -> str | None:
    """``3.1 GiB in use by no process that is listed; open by 77 (train)``; None where there is nothing to say."""
    if (view.unseen_bytes or 0) < UNSEEN_BYTES:
        return None
    size = f"{(view.unseen_bytes or 0) / 2**30:.1f} GiB in use by no process that is listed"
    who = [f"{pid} ({table[pid].name})" if pid in table else str(pid) for pid in view.openers[:8]]
    if not who:
        return f"{size}, nor has any its device file open" if os.geteuid() == 0 else size
    more = len(view.openers) - len(who)
    return f"{size}; its device file is open in {', '.join(who)}" + (
        f" and {counted(more, 'process', 'processes')} more" if more else ""
    )


def _with_vram(row: ProcessStatus, size: int | None) -> ProcessStatus:
    return row if size is None else dataclasses.replace(row, vram_bytes=size)


def _program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)").rpartition("/")[2]
    except OSError:
        return None
