# SPDX-License-Identifier: Apache-2.0
"""Makes devices of GPUs, as a ResourceSlice has them (pure).

A device's name is its GPU's UUID in small letters, whatever index that has today. A GPU that the driver has lost is not
offered; one in MIG mode is not there, its instances are. Under sharing ``capacity`` a GPU is one device of which claims
consume hundredths, as much as they ask for, and bytes of memory, none unless they ask. Under ``devices`` it is a fixed
number of devices that share it in equal parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from fairsched.k8s.quantity import thousandths

SHARE = "fairsched.io/share"
MEMORY = "memory"
WHOLE = 100
"""Shares of one GPU."""
MOST_TEXT_CHARS = 64
"""Of an attribute's value, by the API."""
_MOST_NAME_CHARS = 63
Sharing = Literal["capacity", "devices"]


@dataclass(frozen=True)
class GpuFacts:
    """One GPU or MIG instance; None = not known."""

    uuid: str
    index: int | None = None
    name: str | None = None
    memory_bytes: int | None = None
    is_up: bool | None = None
    """False: the driver has lost it."""
    minor: int | None = None
    """N of /dev/nvidiaN; of an instance, its GPU's. So are the next four."""
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    driver_version: str | None = None
    parent_uuid: str | None = None
    """Of a MIG instance."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    profile: str | None = None
    """Of a MIG instance: 3g.20gb."""


@dataclass(frozen=True)
class Offer:
    """One device, and what is behind it."""

    gpu: GpuFacts
    device: Mapping[str, Any]
    """As the API has it."""
    share: float
    """Of its GPU, where a claim has all of the device."""
    memory_bytes: int | None = None
    """What whoever has all of the device may use; None: no limit comes of it."""


@dataclass(frozen=True)
class Terms:
    """How GPUs are divided."""

    sharing: Sharing = "devices"
    devices_per_gpu: int = 1
    """Under ``devices``."""
    default_share: int = WHOLE
    """Under ``capacity``: what a claim has that asks for none."""


def offers_of(gpus: Iterable[GpuFacts], terms: Terms) -> dict[str, Offer]:
    """What is published, by the name of the device."""
    found: dict[str, Offer] = {}
    for gpu in sorted(gpus, key=lambda one: one.uuid):
        if gpu.is_up is False:
            continue
        if terms.sharing == "capacity":
            found[device_name(gpu.uuid)] = _divisible(gpu, terms)
            continue
        for number in range(terms.devices_per_gpu):
            name = device_name(gpu.uuid, number if terms.devices_per_gpu > 1 else None)
            found[name] = _fixed(gpu, name, terms.devices_per_gpu)
    return found


def device_name(uuid: str, number: int | None = None) -> str:
    """A DNS label: ``gpu-8932f937-...``."""
    bare = re.sub(r"[^a-z0-9-]+", "-", uuid.lower())[: _MOST_NAME_CHARS - 4].strip("-")
    return bare if number is None else f"{bare}-{number}"


def _divisible(gpu: GpuFacts, terms: Terms) -> Offer:
    name, whole = device_name(gpu.uuid), str(WHOLE)
    steps = {"min": "1", "max": whole, "step": "1"}
    share = {
        "value": whole,
        "requestPolicy": {"default": str(terms.default_share), "validRange": steps},
    }
    capacity: dict[str, Any] = {SHARE: share}
    if gpu.memory_bytes:
        # Without a policy whoever asks for no memory would have all of it, and the GPU could not be shared.
        policy = {"default": "0", "validRange": {"min": "0"}}
        capacity[MEMORY] = {"value": str(gpu.memory_bytes), "requestPolicy": policy}
    device = {
        "name": name,
        "attributes": attributes_of(gpu),
        "capacity": capacity,
        "allowMultipleAllocations": True,
    }
    return Offer(gpu, device, float(WHOLE))


def _fixed(gpu: GpuFacts, name: str, parts: int) -> Offer:
    share = Fraction(WHOLE, parts)
    capacity = {SHARE: {"value": thousandths(share)}}
    memory_bytes = None if gpu.memory_bytes is None else gpu.memory_bytes // parts
    if memory_bytes:
        capacity[MEMORY] = {"value": str(memory_bytes)}
    device = {"name": name, "attributes": attributes_of(gpu), "capacity": capacity}
    return Offer(gpu, device, float(share), memory_bytes if parts > 1 else None)


def attributes_of(gpu: GpuFacts) -> dict[str, Any]:
    """What a selector may ask for; what is not known is left out."""
    texts = {
        "type": "gpu" if gpu.parent_uuid is None else "mig",
        "uuid": gpu.uuid,
        "productName": gpu.name,
        "profile": gpu.profile,
        "parentUUID": gpu.parent_uuid,
        "pciBusID": gpu.pci_bus_id,
        "resource.kubernetes.io/pcieRoot": gpu.pcie_root,
    }
    numbers = {"index": gpu.index, "minor": gpu.minor, "numaNode": gpu.numa_node}
    found: dict[str, Any] = {
        key: {"string": text[:MOST_TEXT_CHARS]} for key, text in texts.items() if text is not None
    }
    found |= {key: {"int": number} for key, number in numbers.items() if number is not None}
    if (version := semantic(gpu.driver_version)) is not None:
        found["driverVersion"] = {"version": version}
    return found


def semantic(version: str | None) -> str | None:
    """A driver's version as the API takes one: ``535.104.05`` is 535.104.5; None for what has no numbers."""
    found = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", version or "")
    return None if found is None else ".".join(str(int(part or 0)) for part in found.groups())
