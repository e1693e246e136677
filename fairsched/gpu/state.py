# SPDX-License-Identifier: Apache-2.0
"""Tells what of a GPU decides whether it is free and whether it can be reset; asked by commands, not by the loop.

What NVML does not say is None. Source: nvml.h (nvmlDeviceGetMemoryInfo_v2, nvmlGpuVirtualizationMode_t,
nvmlDeviceQueryDrainState, nvmlDeviceGetNvLinkState, nvmlDeviceSetPersistenceMode).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fairsched.gpu.nvml import Nvml, nvml_text

_VIRTUALIZATIONS = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
_LINKS = 18
T = TypeVar("T")


@dataclass(frozen=True)
class ResetFacts:
    """What NVML says of a GPU that is to be reset."""

    uuid: str
    is_instance: bool
    """A MIG instance, which is none of its own."""
    has_instances: bool | None = None
    """It is in MIG mode."""
    virtualization: str | None = None
    """none, passthrough, vgpu, host_vgpu or host_vsga."""
    has_display: bool | None = None
    is_persistent: bool | None = None
    """The driver stays initialised while nobody uses it."""
    is_draining: bool | None = None
    """Somebody is about to take it out: new clients are refused."""
    peers: tuple[str, ...] = ()
    """PCI addresses at the other ends of its active NVLinks."""


def used_bytes(nvml: Nvml, slot: int) -> int | None:
    """Memory in use; without what the driver keeps for itself, where it tells the two apart (drivers from 510 on)."""
    handle = nvml.handle(slot)
    if handle is None:
        return None
    import pynvml

    def asked(version: Any = None) -> int:
        args = () if version is None else (version,)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, *args).used)

    found = _said(lambda: asked(pynvml.nvmlMemory_v2))
    return _said(asked) if found is None else found


def minor_of(nvml: Nvml, slot: int) -> int | None:
    """The number in the name of its device file, /dev/nvidiaN; of a MIG instance None."""
    handle = nvml.handle(slot)
    import pynvml

    return None if handle is None else _said(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)))


def reset_facts(nvml: Nvml, slot: int) -> ResetFacts:
    """What is known of the GPU in a slot."""
    gpu, handle = nvml.gpus[slot], nvml.handle(slot)
    if handle is None or gpu.mig is not None:
        return ResetFacts(gpu.uuid, gpu.mig is not None)
    import pynvml

    mode = _said(lambda: int(pynvml.nvmlDeviceGetVirtualizationMode(handle)))
    drain = _said(lambda: int(pynvml.nvmlDeviceQueryDrainState(pynvml.nvmlDeviceGetPciInfo(handle))))
    split = _said(lambda: int(pynvml.nvmlDeviceGetMigMode(handle)[0]))
    display = _said(lambda: int(pynvml.nvmlDeviceGetDisplayActive(handle)))
    persistent = _said(lambda: int(pynvml.nvmlDeviceGetPersistenceMode(handle)))
    return ResetFacts(
        gpu.uuid,
        False,
        has_instances=None if split is None else bool(split),
        virtualization=None if mode is None else _VIRTUALIZATIONS.get(mode, str(mode)),
        has_display=None if display is None else bool(display),
        is_persistent=None if persistent is None else bool(persistent),
        is_draining=None if drain is None else bool(drain),
        peers=tuple(sorted({peer for link in range(_LINKS) if (peer := _peer(handle, link))})),
    )


def set_persistence(nvml: Nvml, slot: int, *, is_on: bool) -> str | None:
    """Why it could not be set; None: it is."""
    import pynvml

    try:
        pynvml.nvmlDeviceSetPersistenceMode(nvml.handle(slot), int(is_on))
    except pynvml.NVMLError as error:
        return str(error)
    return None


def _peer(handle: Any, link: int) -> str | None:
    import pynvml

    if not _said(lambda: int(pynvml.nvmlDeviceGetNvLinkState(handle, link))):
        return None
    info = _said(lambda: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    return None if info is None else nvml_text(info.busId)


def _said(ask: Callable[[], T]) -> T | None:
    import pynvml

    try:
        return ask()
    except pynvml.NVMLError:
        return None
