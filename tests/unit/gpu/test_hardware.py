# SPDX-License-Identifier: Apache-2.0
"""Where GPUs are in the machine, as NVML and sysfs say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.gpu.hardware import Hardware, read_hardware, short_bus_id


class NvmlError(Exception):
    pass


class Driver:
    """pynvml, with one GPU of the UUID ``GPU-a``."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.shut = 0

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            if name in self.refused:
                raise NvmlError(name)
            return {
                "nvmlSystemGetDriverVersion": "550.1",
                "nvmlDeviceGetMinorNumber": 3,
                "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:3B:00.0"),
            }.get(name, name)

        return call

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        if uuid != b"GPU-a":
            raise NvmlError("none")
        return "handle"

    def nvmlShutdown(self) -> None:
        self.shut += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


def put(sysfs: Path, numa: str) -> Path:
    real = sysfs.parent / "devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"
    real.mkdir(parents=True)
    (real / "numa_node").write_text(numa + "\n")
    sysfs.mkdir()
    (sysfs / "0000:3b:00.0").symlink_to(real)
    return sysfs


def test_all_that_is_known_of_a_gpu(driver: Driver, tmp_path: Path) -> None:
    found = read_hardware(["GPU-a", "GPU-b"], put(tmp_path / "sys", "1"))
    assert found == {"GPU-a": Hardware(3, "0000:3b:00.0", "pci0000:3a", 1, "550.1")}
    assert driver.shut == 1


def test_what_is_not_said_is_none(driver: Driver, tmp_path: Path) -> None:
    driver.refused = {"nvmlDeviceGetMinorNumber", "nvmlSystemGetDriverVersion"}
    found = read_hardware(["GPU-a"], put(tmp_path / "sys", "-1"))
    assert found == {"GPU-a": Hardware(None, "0000:3b:00.0", "pci0000:3a", None, None)}
    driver.refused = {"nvmlDeviceGetPciInfo"}
    assert read_hardware(["GPU-a"], tmp_path / "none") == {"GPU-a": Hardware(3, driver_version="550.1")}


def test_without_nvml_nothing_is_known(driver: Driver) -> None:
    driver.refused = {"nvmlInit"}
    assert read_hardware(["GPU-a"]) == {}


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0001:AB:1f.7", "0001:ab:1f.7"),
        ("3b:00.0", "0000:3b:00.0"),
        ("x", None),
    ],
)
def test_an_address_is_written_as_the_kernel_does(text: str, short: str | None) -> None:
    assert short_bus_id(text) == short
