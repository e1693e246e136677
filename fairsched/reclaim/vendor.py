# SPDX-License-Identifier: Apache-2.0
"""Defines what the listing needs of a vendor: its GPUs, and who holds them.

NVIDIA's is asked by the listing itself, with MPS, MIG and open device files (listing.py). Others are list-only: behind
this protocol there is no way to hold, account or reset. That of DRM drivers (gpu/drm.py) is the one there is.

A process is sure to hold a GPU when its clients are its own, or are shared with its descendants alone, which inherited
them. One that shares a client with somebody else, or has a display's file open, is shown with a mark and is not ended:
whose the memory is cannot be told, and a login manager or a compositor holds the display's file for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fairsched.gpu.drm import Drm, Use
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import GpuView

UUID = "pci-"
"""How the name of a GPU without a UUID begins; its PCI address follows."""
_NAMED = 4


@dataclass(frozen=True)
class Held:
    """One process on one GPU."""

    pid: int
    gpu: str
    vram_bytes: int | None = None
    gpu_time_s: float | None = None
    regions: Mapping[str, int] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)
    shared_with: tuple[int, ...] = ()
    """Other processes that have the same client of the driver open."""
    has_display: bool = False
    """It has the file open that drives a display."""


@dataclass(frozen=True)
class Seen:
    """A vendor's GPUs and who holds them, at one moment."""

    gpus: tuple[GpuView, ...] = ()
    held: tuple[Held, ...] = ()


class Vendor(Protocol):
    """One vendor's interface, to list by."""

    @property
    def is_there(self) -> bool:
        """It has GPUs here."""

    def look(self) -> Seen: ...


class DrmVendor:
    """AMD and Intel, by their DRM drivers."""

    def __init__(self, drm: Drm | None = None) -> None:
        self._drm = drm or Drm()

    @property
    def is_there(self) -> bool:
        return bool(self._drm.cards())

    def look(self) -> Seen:
        cards = self._drm.cards()
        views = tuple(
            GpuView(
                UUID + card.pci,
                card.name,
                None,
                card.vram_used_bytes,
                card.vram_total_bytes,
                vendor=card.vendor,
                driver=card.driver,
            )
            for card in cards
        )
        return Seen(views, tuple(map(_held, self._drm.uses(cards))))


def _held(use: Use) -> Held:
    return Held(
        use.pid,
        UUID + use.card.pci,
        use.vram_bytes,
        use.engine_s,
        use.regions,
        use.busy,
        use.shared_with,
        use.has_display,
    )


def doubt_of(one: Held, table: Mapping[int, Facts]) -> str | None:
    """Why it is not sure that this process is the one that holds the GPU; None: it is sure."""
    strangers = [pid for pid in one.shared_with if not _descends(pid, one.pid, table)]
    if strangers:
        named = ", ".join(map(str, strangers[:_NAMED]))
        more = "" if len(strangers) <= _NAMED else " and others"
        return f"shares its client of the driver with {named}{more}: whose memory it is is not known"
    return "it has the file of a display open" if one.has_display else None


def _descends(pid: int, of: int, table: Mapping[int, Facts]) -> bool:
    seen = {0}
    while pid not in seen and pid != of:
        seen.add(pid)
        facts = table.get(pid)
        pid = 0 if facts is None else facts.parent
    return pid == of
