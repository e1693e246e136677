# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA devices there are to open: GPUs by minor, every major of the driver, whose GPU a capability is.

Source: as in devices.py, and /proc/driver/nvidia-caps/mig-minors. 195 is NVIDIA's for good, with a driver or without.
Whether all this may have changed is told by :func:`signature` and :func:`module_identity`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairsched.bpf.abi import Node
from fairsched.driver.devices import NVIDIA_MAJOR, parse_majors, read_cards

MODULES = Path("/sys/module")
MODULE, UVM_MODULE = MODULES / "nvidia", MODULES / "nvidia_uvm"
_CAP = re.compile(r"^gpu(\d+)/\S+ (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Devices:
    """Without a driver only the fixed major."""

    gpus: Mapping[int, str | None] = field(default_factory=dict)
    """UUID by minor; None = the driver does not say."""
    majors: Mapping[int, Node] = field(default_factory=lambda: {NVIDIA_MAJOR: Node.GPU})
    caps: Mapping[int, int] = field(default_factory=dict)
    """Minor of /dev/nvidia-caps -> minor of the GPU the MIG capability is of; only of GPUs that are there."""

    @property
    def has_driver(self) -> bool:
        return bool(self.gpus)


def parse_all_majors(text: str) -> dict[int, Node]:
    """Of every character device in /proc/devices whose name begins with nvidia."""
    found = {NVIDIA_MAJOR: Node.GPU}
    for line in text.partition("Block devices:")[0].splitlines():
        major, _, name = line.strip().partition(" ")
        if major.isdigit() and name.startswith("nvidia"):
            found.setdefault(int(major), Node.OTHER)
    return {**found, **parse_majors(text)}


def parse_caps(text: str) -> dict[int, int]:
    """GPU minor by capability minor, of mig-minors; what belongs to no GPU (config, monitor) is left out."""
    return {int(cap): int(gpu) for gpu, cap in _CAP.findall(text)}


def read_devices(proc: Path = Path("/proc")) -> Devices:
    """What there is now. Files that are not there are no error: then there is no driver."""
    gpus = {card.minor: card.uuid for card in read_cards(proc)}
    caps = parse_caps(_read(proc / "driver/nvidia-caps/mig-minors"))
    majors = parse_all_majors(_read(proc / "devices"))
    return Devices(gpus, majors, {cap: gpu for cap, gpu in caps.items() if gpu in gpus})


def signature(proc: Path = Path("/proc")) -> object:
    """Changes when :func:`read_devices` would say something else; cheap, and does not ask the driver."""
    try:
        names = tuple(sorted(os.listdir(proc / "driver/nvidia/gpus")))
    except OSError:
        names = ()
    return names, _read(proc / "devices")


def module_identity(path: Path = MODULE) -> int | None:
    """Another number each time a kernel module is loaded; None = it is not, or not yet."""
    try:
        is_live = (path / "initstate").read_text().strip() == "live"
        return path.stat().st_ino if is_live else None
    except OSError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
