# SPDX-License-Identifier: Apache-2.0
"""What NVML says of GPUs and MIG instances, and what it does not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.gpu.nvml import UNKNOWN, Gpu, GpuUse, Nvml, gpu_label, read_environ

GPUS = tuple(Gpu(f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-0000-0000-0000-00000000000{n}", index=n) for n in range(4))


def test_a_gpu_nvml_has_not_named_says_so() -> None:
    assert gpu_label(GPUS, 2) == GPUS[2].uuid
    assert gpu_label(GPUS, 4) == f"{UNKNOWN}-4"
    assert Gpu(gpu_label((), 0)).uuid_bytes is None


def test_the_bytes_of_a_uuid_are_those_cuda_reports() -> None:
    assert GPUS[1].uuid_bytes == bytes.fromhex("11111111000000000000000000000001")


def test_the_environment_of_a_process_is_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(b"A=1\0B=x=y\0C\0D=\xff\0")
    assert read_environ(7, ("A", "B", "D"), str(tmp_path)) == {"A": "1", "B": "x=y", "D": "�"}
    assert read_environ(8, ("A",), str(tmp_path)) == {}
    assert read_environ(os.getpid(), ("NOT_THERE",)) == {}


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def nvml(memory: Any, utilization: Any, celsius: Any, power: Any = 310_500, pcie: Any = 2_000) -> Nvml:
    """NVML that answers, or refuses with an error."""

    def answer(value: Any) -> Any:
        def told(*_args: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return told

    found = Nvml.__new__(Nvml)
    found._handles = [object()]
    found._nvml = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetMemoryInfo=answer(memory),
        nvmlDeviceGetUtilizationRates=answer(utilization),
        nvmlDeviceGetTemperature=answer(celsius),
        nvmlDeviceGetPowerUsage=answer(power),
        nvmlDeviceGetEnforcedPowerLimit=answer(700_000),
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        nvmlDeviceGetPcieThroughput=pcie if callable(pcie) else answer(pcie),
    )
    return found


def test_what_nvml_refuses_to_say_is_not_known_and_the_gpu_is_there() -> None:
    memory, rates, unsupported = SimpleNamespace(used=5), SimpleNamespace(gpu=40), NvmlError(3)
    assert nvml(memory, rates, 61).use(0) == GpuUse(5, 0.4, 61.0, True, 310.5, 700.0)
    silent = nvml(memory, unsupported, unsupported, unsupported).use(0)
    assert silent == GpuUse(5, None, None, True, None, 700.0)
    assert nvml(memory, rates, 61).use(7) == GpuUse(), "one that NVML never listed"


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_the_driver_has_lost_is_not_up(code: int) -> None:
    lost = NvmlError(code)
    assert nvml(lost, lost, lost, lost).use(0) == GpuUse(None, None, None, False, None, 700.0)


def test_what_passes_over_pcie_is_told_by_direction_and_what_is_not_said_is_left_out() -> None:
    """TX and RX are the GPU's own: it receives what goes to it."""

    def said(_handle: object, counter: int) -> int:
        if counter == 0:
            raise NvmlError(3)
        return 2_000

    memory, rates = SimpleNamespace(used=5), SimpleNamespace(gpu=40)
    assert nvml(memory, rates, 61).pcie(0) == {"to_gpu": 2e6, "from_gpu": 2e6}
    assert nvml(memory, rates, 61, pcie=said).pcie(0) == {"to_gpu": 2e6}
    assert nvml(memory, rates, 61, pcie=NvmlError(3)).pcie(0) == {}
    assert nvml(memory, rates, 61).pcie(7) == {}, "one that NVML never listed"
