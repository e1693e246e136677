# SPDX-License-Identifier: Apache-2.0
"""Parses what a DRM driver says of one open file of a GPU in /proc/PID/fdinfo/FD (pure).

Problem: AMD's and Intel's drivers have no list of processes like NVML's. They write what each client has into the
fdinfo of its descriptor: lines ``key: value`` which the kernel has documented, with regions of memory and engines that
each driver names as it likes.

Approach: keys that are documented are read, all others are ignored. A value that is no number in a known unit, or that
is negative, is as if it were not there: what is not known is None, never 0. Of a key that is there twice the first
counts.

Terms: a *client* is one opening of the device, with an id. A *region* is a kind of memory: ``vram`` of amdgpu,
``vram0`` of xe and ``local0`` of i915 are on the card, ``gtt``, ``cpu``, ``system`` and ``system0`` are the host's.
An *engine* is a part of the GPU that works by itself; of several alike (its *capacity*) the times are added up.

Units: bytes; nanoseconds of engines (amdgpu, i915), or cycles of them and of the GPU's clock meanwhile (xe).

Source: the kernel's Documentation/gpu/drm-usage-stats.rst: units KiB and MiB, no unit is bytes; drm-memory-REGION is
an old alias of drm-resident-REGION, and with neither there is drm-total-REGION, which counts what has no pages, too.
Region and engine names: drivers/gpu/drm/xe/xe_drm_client.c, amd/amdgpu/amdgpu_fdinfo.c, i915/i915_drm_client.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_NUMBER = re.compile(r"(\d{1,20})(?:[ \t]+([A-Za-z]+))?", re.ASCII)
"""As long as 64 bits can be."""
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ENGINE = re.compile(r"drm-(engine-capacity|engine|total-cycles|cycles)-(.+)")
_MEMORY = re.compile(r"drm-(memory|total|shared|resident|purgeable|active)-(.+)")
_ON_CARD = re.compile(r"(vram|local|stolen-local)\d*")


@dataclass(frozen=True)
class Region:
    """Memory of one kind that a client has, in bytes; None = the driver does not say."""

    total: int | None = None
    resident: int | None = None
    shared: int | None = None
    purgeable: int | None = None
    active: int | None = None

    @property
    def held(self) -> int | None:
        """What is really there; where that is not said, what was asked for."""
        return self.total if self.resident is None else self.resident


@dataclass(frozen=True)
class Engine:
    """The work of a client on engines of one kind, since it was opened."""

    busy_ns: int | None = None
    cycles: int | None = None
    total_cycles: int | None = None
    """Of the GPU's clock at that moment."""
    capacity: int = 1


@dataclass(frozen=True)
class Client:
    """What a driver says of one client."""

    driver: str
    pdev: str | None = None
    """Its device's PCI address."""
    client_id: int | None = None
    regions: Mapping[str, Region] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=dict)

    @property
    def vram_bytes(self) -> int | None:
        """On the card; 0 of a GPU that has no memory of its own; None where nothing is said of memory."""
        if not self.regions:
            return None
        sizes = [region.held for name, region in self.regions.items() if is_on_card(name)]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


def is_on_card(region: str) -> bool:
    """Whether a region is the card's own memory."""
    return _ON_CARD.fullmatch(region) is not None


def parse(text: bytes) -> Client | None:
    """What an fdinfo says; None: it is no DRM client's."""
    said = _lines(text)
    driver = said.get("drm-driver")
    if not driver:
        return None
    memory: dict[str, dict[str, int]] = {}
    engines: dict[str, dict[str, int]] = {}
    for key, value in said.items():
        if (match := _ENGINE.fullmatch(key)) is not None:
            number = _number(value, {"ns": 1} if match[1] == "engine" else {"": 1})
            if number is not None:
                engines.setdefault(match[2], {})[match[1]] = number
        elif (match := _MEMORY.fullmatch(key)) is not None:
            size = _number(value, _UNITS)
            if size is not None:
                memory.setdefault(match[2], {})[match[1]] = size
    pdev = said.get("drm-pdev", "")
    return Client(
        driver,
        pdev if _PCI.fullmatch(pdev) else None,
        _number(said.get("drm-client-id", ""), {"": 1}),
        {name: _region(values) for name, values in memory.items()},
        {name: engine for name, values in engines.items() if (engine := _engine(values)) is not None},
    )


def _lines(text: bytes) -> dict[str, str]:
    said: dict[str, str] = {}
    for line in text.decode("ascii", errors="replace").split("\n"):
        key, colon, value = line.partition(":")
        if colon and key.startswith("drm-"):
            said.setdefault(key, value.strip(" \t"))
    return said


def _number(text: str, units: Mapping[str, int]) -> int | None:
    match = _NUMBER.fullmatch(text)
    unit = None if match is None else units.get(match[2] or "")
    return None if match is None or unit is None else int(match[1]) * unit


def _region(said: Mapping[str, int]) -> Region:
    return Region(
        said.get("total"),
        said.get("resident", said.get("memory")),
        said.get("shared"),
        said.get("purgeable"),
        said.get("active"),
    )


def _engine(said: Mapping[str, int]) -> Engine | None:
    """None: only its capacity is told."""
    busy, cycles, total = said.get("engine"), said.get("cycles"), said.get("total-cycles")
    if busy is None and cycles is None:
        return None
    return Engine(busy, cycles, total, max(1, said.get("engine-capacity", 1)))
