# SPDX-License-Identifier: Apache-2.0
"""Defines who holds which GPU, as data: what the listing makes, and plans, filters and screens are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairsched.base.text import counted
from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.facts import Facts

UNSEEN_BYTES = 512 << 20
"""Memory of a GPU that no listed process has, from which on it is said: a driver keeps some hundred MiB."""


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
    vendor: str = "nvidia"
    """nvidia, amd or intel."""
    driver: str | None = None
    """Of a GPU that is listed only: amdgpu, i915 or xe."""
    busy_ratio: float | None = None
    """Part of NVML's last sampling period in which any kernel ran."""


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
    """daemon, nvml or drm."""
    vendor: str = "nvidia"
    doubt: str | None = None
    """Why it is not sure that this process holds the GPU; None: nothing speaks against it."""
    regions: Mapping[str, int] = field(default_factory=dict)
    """Bytes by kind of memory, the host's too; as DRM drivers tell."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """Part of the time since the look before, by engine; as DRM drivers tell."""
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
        if key == "gpu" and self.vendor != "nvidia":  # no UUID, so nothing is cut off it
            return frozenset((self.gpu_index, status.gpu, status.gpu.partition("-")[2]))
        if key == "gpu":
            return frozenset((self.gpu_index, status.gpu, status.gpu.partition("-")[2][:8], status.gpu[:12]))
        if key == "user":
            uid = None if self.facts is None else self.facts.uid
            return None if uid is None else frozenset(one for one in (self.user, str(uid)) if one)
        if key == "tenant":
            return frozenset((status.tenant or "-",)) if self.has_tenants else None
        if status.cgroup is None:
            return None
        name = (status.known_as or "").partition(" ")[2]
        ids = [one for one in (status.container_id, status.pod_uid) if one]
        said = [*ids, *(one[:12] for one in ids), *(one[:8] for one in ids)]
        return frozenset([*said, *([name, name.rpartition("/")[2]] if name else [])])


@dataclass(frozen=True)
class Listing:
    """Everybody on every GPU, at one moment."""

    holders: tuple[Holder, ...]
    gpus: tuple[GpuView, ...]
    table: Mapping[int, Facts]
    """Every process of this host."""

    def gpu(self, uuid: str) -> GpuView:
        return next((one for one in self.gpus if one.uuid == uuid), GpuView(uuid))


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
