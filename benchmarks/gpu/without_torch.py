# SPDX-License-Identifier: Apache-2.0
"""The GPU and libcuda of this host, without PyTorch."""

from __future__ import annotations

import ctypes
from pathlib import Path

from benchmarks.gpu.facts import Facts, driver_version
from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Nvml


def libcuda_path() -> Path:
    """Of the file that programs load. Raises HostUnsupported."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise HostUnsupported(f"libcuda.so.1: {error}", remedy="install NVIDIA's driver") from error
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in maps if "libcuda.so" in line))


def look_at_gpu(index: int = 0) -> Facts:
    """Raises HostUnsupported."""
    nvml = Nvml()
    try:
        if index >= len(nvml.gpus):
            raise HostUnsupported(
                f"no GPU {index}: {nvml.error or 'NVML lists fewer'}", remedy="see nvidia-smi"
            )
        return Facts("", "", "", nvml.gpus[index], libcuda_path(), driver_version())
    finally:
        nvml.close()
