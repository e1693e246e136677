# SPDX-License-Identifier: Apache-2.0
"""A /proc and a /sys with DRM cards and clients; descriptors are links whose target is the device's name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from fairsched.gpu.drm import Drm

RECORDED = {
    name: one["text"].encode()
    for name, one in yaml.safe_load((Path(__file__).parent / "recorded_drm.yaml").read_text()).items()
}
PCI = {"amdgpu": "0000:08:00.0", "xe": "0000:03:00.0", "i915": "0000:04:00.0", "nvidia": "0000:01:00.0"}


class FakeDrm:
    """Of one test; ``now_s`` is the clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 100.0
        (root / "proc").mkdir()
        (root / "sys").mkdir()

    def drm(self) -> Drm:
        return Drm(str(self.root / "proc"), str(self.root / "sys"), self._minor_of, lambda: self.now_s)

    def card(self, number: int, driver: str, **files: Any) -> None:
        for node, minor in ((f"card{number}", number), (f"renderD{128 + number}", 128 + number)):
            directory = self.root / "sys/class/drm" / node
            (directory / "device").mkdir(parents=True)
            (directory / "dev").write_text(f"226:{minor}\n")
            uevent = f"DRIVER={driver}\nPCI_ID=1002:73BF\nPCI_SLOT_NAME={PCI[driver]}\n"
            (directory / "device/uevent").write_text(uevent)
            for name, value in files.items():
                (directory / "device" / name).write_text(f"{value}\n")

    def client(self, pid: int, fd: int, text: bytes, node: str = "dri/renderD128", start: int = 100) -> None:
        directory = self.root / f"proc/{pid}"
        (directory / "fd").mkdir(parents=True, exist_ok=True)
        (directory / "fdinfo").mkdir(exist_ok=True)
        link = directory / "fd" / str(fd)
        link.unlink(missing_ok=True)
        link.symlink_to(f"/dev/{node}")
        (directory / "fdinfo" / str(fd)).write_bytes(text)
        fields = ["S", "1", *["0"] * 15, "1", "0", str(start), *["0"] * 30]
        (directory / "stat").write_text(f"{pid} (p) {' '.join(fields)}")

    @staticmethod
    def _minor_of(path: str) -> int | None:
        name = os.readlink(path)
        digits = name.removeprefix("/dev/dri/").removeprefix("renderD").removeprefix("card")
        return int(digits) if name.startswith("/dev/dri/") and digits.isdecimal() else None
