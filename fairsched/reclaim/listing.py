# SPDX-License-Identifier: Apache-2.0
"""Lists who holds which GPU: what the daemon, NVML and /proc say, joined; those of other vendors beside.

Problem: the daemon knows tenants, contexts and launches, and may not run. NVML knows processes and memory, and not
whose they are. /proc knows users, parents and states, and nothing of GPUs.

Approach: NVML is asked here, with a daemon or without; the daemon's rows are better where it has some. A row of the
daemon that NVML does not confirm is kept and says so (``is_listed``): it is shown, and not acted on. Each is joined
with /proc by pid. A pid may be another process's a moment later: whoever acts pins it first and lists again (pin.py).
GPUs of other vendors come by a protocol (vendor.py) and are listed only.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

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
from fairsched.reclaim.holder import UNSEEN_BYTES, GpuView, Holder, Listing
from fairsched.reclaim.marks import is_orphan
from fairsched.reclaim.vendor import UUID, DrmVendor, Held, Vendor, doubt_of

DEVICE_DIR = Path("/dev")
TenantOf = Callable[[str], "str | None"]


class Lister:
    """Call :meth:`look`. ``ask``: the daemon's rows, or None without one; ``tenant_of``: of a cgroup, for others.

    Raises HostUnsupported where neither a daemon nor NVML nor another vendor's driver tells of processes.
    """

    def __init__(
        self,
        ask: Callable[[], Iterable[ProcessStatus]] | None,
        tenant_of: TenantOf | None = None,
        device_dir: Path = DEVICE_DIR,
        nvml: Nvml | None = None,
        names: Names | None = None,
        told_gpus: Callable[[], Iterable[GpuView]] = tuple,
        others: Vendor | None = None,
    ) -> None:
        """``told_gpus``: the daemon's, for where NVML does not work here."""
        self._ask, self._tenant_of, self._device_dir = ask, tenant_of, device_dir
        self._told_gpus = told_gpus
        self.nvml = nvml or Nvml()
        self._others = others or DrmVendor()
        self._names = names or known_names.shared()
        try:
            self.mount: Mount | None = find_mount()
        except HostUnsupported:
            self.mount = None
        if ask is None and self.nvml.error is not None and not self._others.is_there:
            raise HostUnsupported(
                f"no daemon answers, NVML does not work ({self.nvml.error}), and there is no card of AMD or Intel: "
                "who is on a GPU is not known",
                remedy="start the daemon, or install the driver's libnvidia-ml.so.1",
            )

    def look(self, *, has_openers: bool = True) -> Listing:
        """Ask everybody. ``has_openers``: also look through all descriptors of this host."""
        table = read_table(self.mount)
        told = {} if self._ask is None else {(row.pid, row.gpu): row for row in self._ask()}
        if self.nvml.error is None:
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
                    has_tenants=(pid, uuid) in told or self._tenant_of is not None,
                )
            )
        seen_elsewhere = self._others.look()
        views |= {view.uuid: view for view in seen_elsewhere.gpus}
        holders += [self._held(one, views[one.gpu], table) for one in seen_elsewhere.held]
        seen = {holder.pid for holder in holders if holder.vendor == "nvidia"}
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

    def _held(self, one: Held, view: GpuView, table: Mapping[int, Facts]) -> Holder:
        """A process on a GPU of another vendor."""
        facts = table.get(one.pid) or read_facts(one.pid, self.mount)
        doubt = doubt_of(one, table)
        row = self._row(one.pid, one.gpu, one.vram_bytes, table)
        user = None if facts is None else self._names.of(Book.USERS, str(facts.uid)) or str(facts.uid)
        return Holder(
            dataclasses.replace(row, gpu_time_s=one.gpu_time_s),
            facts,
            user=user,
            gpu_index=view.index,
            age_s=None if facts is None else facts.age_s(time.clock_gettime(time.CLOCK_BOOTTIME)),
            is_orphan=None if facts is None else is_orphan(facts, table),
            is_listed=doubt is None,
            source="drm",
            vendor=view.vendor,
            doubt=doubt,
            regions=one.regions,
            busy=one.busy,
            has_tenants=self._tenant_of is not None,
        )

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
            busy = self.nvml.load(slot)
            yield GpuView(gpu.uuid, index, slot, used, gpu.memory_total_bytes, unseen, busy_ratio=busy)

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


def gpus_called(name: str, gpus: Iterable[GpuView], *, is_one: bool = False) -> frozenset[str]:
    """UUIDs of the GPUs meant by an index (of a GPU, or of a MIG instance), or by how their UUIDs begin.

    ``is_one``: several are refused. Whoever ends processes asks for it: ``GPU-$ID`` without an ID is no wish for all.
    Raises NoSuchGpu.
    """
    known = list(gpus)
    whole = frozenset(gpu.uuid for gpu in known if name in (gpu.index, gpu.uuid) or gpu.uuid == UUID + name)
    found = whole or frozenset(gpu.uuid for gpu in known if name and gpu.uuid.startswith(name))
    if is_one and len(found) > 1:
        raise NoSuchGpu(
            f"'{name}' is the beginning of {len(found)} GPUs", remedy="name one by its index or UUID"
        )
    if not found:
        there = ", ".join(sorted(f"{gpu.index} ({gpu.uuid[:12]})" for gpu in known)) or "none"
        raise NoSuchGpu(
            f"there is no GPU '{name}'; there are: {there}", remedy="name one by its index or UUID"
        )
    return found


class NoSuchGpu(FairschedError):
    """A GPU that is not there."""

    exit_status = 2


def _with_vram(row: ProcessStatus, size: int | None) -> ProcessStatus:
    return row if size is None else dataclasses.replace(row, vram_bytes=size)


def _program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)").rpartition("/")[2]
    except OSError:
        return None
