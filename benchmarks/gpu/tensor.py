# SPDX-License-Identifier: Apache-2.0
"""Does the exporter's reading of SMs and tensor cores (GPM) agree with what the GPU is given to do?

``python3 -m benchmarks.gpu.tensor``: some eight seconds; needs NVIDIA's driver, and of Python pynvml alone. The GPU
does nothing, then kernels that only read its clock (timed.ptx), then matrix products on tensor cores (tensor.ptx), and
each time the values are those that a page would have: NVML's utilisation, which cannot tell the last two apart, and by
GPM the parts of the time in which the engine, the SMs and the tensor cores worked. Exit: 3 where there is no GPM.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairsched.companion.exporter.gpm import Active, Gpm
from fairsched.errors import HostUnsupported

_HERE = Path(__file__).parent
_KERNEL_NS = 20_000_000
_THREADS = 256
_BLOCKS_PER_SM = 4
_SM_COUNT = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
_NOTED_BYTES = 544 + 262_144 * 16
"""What timed.ptx may write; it is told not to."""
PARTS = ("graphics", "sm", "tensor")


class Device:
    """The first GPU that CUDA lists, through the driver's own interface. Raises HostUnsupported where that refuses."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise HostUnsupported(f"libcuda.so.1: {error}", remedy="install NVIDIA's driver") from error
        device, self._context, sms = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetAttribute", ctypes.byref(sms), _SM_COUNT, device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)
        self._blocks = _BLOCKS_PER_SM * sms.value

    def kernel(self, file: str, name: str) -> Callable[[], None]:
        """Launches a kernel of a file beside this one and waits for it; it has room to write to."""
        module, function, room = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuModuleLoadData", ctypes.byref(module), (_HERE / file).read_bytes() + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        self._call("cuMemAlloc_v2", ctypes.byref(room), ctypes.c_size_t(_NOTED_BYTES))
        is_noted = name == "multiply"
        length, where = ctypes.c_uint64(_KERNEL_NS), ctypes.c_uint64(room.value if is_noted else 0)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(length), ctypes.addressof(where))
        shape = (self._blocks, 1, 1, _THREADS, 1, 1, 0)

        def run() -> None:
            _ = length, where  # the pointers are into these
            self._call("cuLaunchKernel", function, *shape, None, pointers, None)
            self._call("cuCtxSynchronize")

        return run

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise HostUnsupported(f"{name} refused: CUDA error {code}", remedy="see nvidia-smi")


def measure(gpm: Gpm, seconds: float, work: Callable[[], None] | None) -> dict[str, Any]:
    """One phase: the values of every GPU by UUID, and what it took to read them."""
    import pynvml

    gpm.read(time.monotonic())
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if work is None:
            time.sleep(max(0.0, end_s - time.monotonic()))
        else:
            work()
    first = pynvml.nvmlDeviceGetHandleByIndex(0)
    utilization_ratio = pynvml.nvmlDeviceGetUtilizationRates(first).gpu / 100
    begin_s = time.perf_counter()
    active: dict[str, Active] = gpm.read(time.monotonic())
    took_ms = 1e3 * (time.perf_counter() - begin_s)
    return {"active": active, "utilization_ratio": utilization_ratio, "read_ms": took_ms}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tensor", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each phase (2)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    options = parser.parse_args(argv)
    gpm = Gpm()
    try:
        gpm.read(time.monotonic())
        if not gpm.uuids:
            raise HostUnsupported(
                "no GPU tells by GPM what it does", remedy="Hopper or later, not in MIG mode"
            )
        device = Device()
        phases = {
            "idle": None,
            "clock": device.kernel("timed.ptx", "work_100us"),
            "products": device.kernel("tensor.ptx", "multiply"),
        }
        found = {name: measure(gpm, options.seconds, work) for name, work in phases.items()}
    except HostUnsupported as error:
        print(f"{error}\n  {error.remedy}", file=sys.stderr)
        return 3
    finally:
        gpm.close()
    print(json.dumps(found) if options.json else "\n".join(lines(found)))
    return 0


def lines(found: dict[str, Any]) -> list[str]:
    """As a table (pure)."""
    rows = [f"{'':10}{'utilisation':>12}" + "".join(f"{part:>10}" for part in PARTS) + f"{'read':>10}  gpu"]
    for phase, one in found.items():
        for uuid, active in one["active"].items():
            values = "".join(f"{active[part]:10.3f}" if part in active else f"{'-':>10}" for part in PARTS)
            rows.append(f"{phase:10}{one['utilization_ratio']:12.2f}{values}{one['read_ms']:7.2f} ms  {uuid}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
