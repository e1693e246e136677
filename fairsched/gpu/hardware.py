# SPDX-License-Identifier: Apache-2.0
"""Where GPUs are in this machine: device node, PCI address, NUMA node; and the driver's version.

NVML is asked once for all of them, and let go of. What it does not say is None. For whoever describes GPUs to others
(the DRA driver), not for the loop.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairsched.base.files import read_stripped
from fairsched.gpu.nvml import nvml_text

SYSFS = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Hardware:
    """Of one whole GPU."""

    minor: int | None = None
    """N of /dev/nvidiaN."""
    pci_bus_id: str | None = None
    """As sysfs writes it: 0000:3b:00.0."""
    pcie_root: str | None = None
    """``pci0000:3a``: GPUs, network cards and disks below the same one are near each other."""
    numa_node: int | None = None
    driver_version: str | None = None


def read_hardware(uuids: Iterable[str], sysfs: Path = SYSFS) -> dict[str, Hardware]:
    """By UUID of a whole GPU; without those that NVML has not got. Raises nothing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # pynvml raises its own family and OSError
        return {}
    found = {}
    try:
        version = None
        with contextlib.suppress(pynvml.NVMLError):
            version = nvml_text(pynvml.nvmlSystemGetDriverVersion())
        for uuid in uuids:
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                minor = bus_id = None
                with contextlib.suppress(pynvml.NVMLError):
                    minor = int(pynvml.nvmlDeviceGetMinorNumber(handle))
                with contextlib.suppress(pynvml.NVMLError):
                    bus_id = short_bus_id(nvml_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
                found[uuid] = Hardware(minor, bus_id, *_place(bus_id, sysfs), version)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return found


def short_bus_id(text: str) -> str | None:
    """NVML writes the domain with eight digits, the kernel with four; None for what is no address."""
    parts = re.fullmatch(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", text.strip())
    return None if parts is None else f"{int(parts[1] or '0', 16):04x}:{parts[2].lower()}"


def _place(bus_id: str | None, sysfs: Path) -> tuple[str | None, int | None]:
    """(PCIe root, NUMA node) of a device."""
    if bus_id is None:
        return None, None
    node = read_stripped(sysfs / bus_id / "numa_node")
    numa = int(node) if node is not None and node.isdecimal() else None  # -1: the machine does not say
    with contextlib.suppress(OSError):
        for part in (sysfs / bus_id).resolve(strict=True).parts:
            if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part):
                return part, numa
    return None, numa
