# SPDX-License-Identifier: Apache-2.0
"""The shape of the stand-in libraries: stubs, spellings, and NVML through an unmodified pynvml."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fairsched.simgpu import SimHost, Workload, build
from tests.support import wait_until

STUB = re.compile(rb"\x81\x3d....\x00\xba\x1c\x32\x74.\xff\x25....", re.DOTALL)


def exported_functions(path: Path) -> dict[str, tuple[int, bytes]]:
    """Name -> (address, first bytes) of the functions a 64-bit ELF library exports."""
    raw = path.read_bytes()
    section_offset, entry_size, count = (
        struct.unpack_from("<Q", raw, 40)[0],
        *struct.unpack_from("<HH", raw, 58),
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", raw, section_offset + i * entry_size) for i in range(count)]
    symbols = next(s for s in sections if s[1] == 11)
    strings = sections[symbols[6]][4]
    found = {}
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, info, _, section, address, _ = struct.unpack_from("<IBBHQQ", raw, at)
        if section and info & 15 == 2:
            text = raw[strings + name : raw.index(b"\0", strings + name)].decode()
            offset = address - sections[section][3] + sections[section][4]
            found[text] = (address, raw[offset : offset + 24])
    return found


@pytest.fixture(scope="module")
def exports() -> dict[str, tuple[int, bytes]]:
    return exported_functions(build().library_dir / "libcuda.so.1")


def test_every_export_but_the_synchronous_memsets_has_the_real_stub(exports):
    odd = {name for name, (_, code) in exports.items() if not STUB.match(code)}
    assert odd and all(re.fullmatch(r"cuMemsetD(2D)?(8|16|32)(_v2)?(_ptds)?", name) for name in odd)
    assert len(exports) > 150


def test_exports_are_driver_names_only(exports):
    assert all(name.startswith("cu") for name in exports)


@pytest.mark.parametrize(
    ("name", "version", "flags", "export"),
    [
        ("cuInit", 12040, 0, "cuInit"),
        ("cuLaunchKernel", 7000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12040, 2, "cuLaunchKernel_ptsz"),
        ("cuStreamSynchronize", 12040, 2, "cuStreamSynchronize_ptsz"),
        ("cuStreamSynchronize", 12040, 0, "cuStreamSynchronize"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemcpyHtoD", 12040, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoDAsync", 12040, 2, "cuMemcpyHtoDAsync_v2_ptsz"),
        ("cuGetProcAddress", 12040, 0, "cuGetProcAddress_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGraphInstantiate", 12040, 0, "cuGraphInstantiate_v2"),  # as driver 580 does
        ("cuCtxCreate", 11000, 0, "cuCtxCreate_v2"),
        ("cuDeviceGetUuid", 12040, 0, "cuDeviceGetUuid_v2"),
        ("cuNoSuchThing", 12040, 0, None),
    ],
)
def test_get_proc_address_answers_with_exported_addresses(host, start, exports, name, version, flags, export):
    seen = start(host, "addresses", json.dumps([(name, version, flags)])).says()
    ((rc, address),) = seen["answers"].values()
    if export is None:
        assert (rc, address) == (500, None)
    else:
        assert rc == 0
        assert address - seen["base"] == exports[export][0] - exports["cuInit"][0]


NVML = """
import json, sys, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
try:
    n.nvmlDeviceGetProcessUtilization(d, 2**63)
    newer = "something"
except n.NVMLError as error:
    newer = error.value
samples = n.nvmlDeviceGetProcessUtilization(d, 0)
times = [s.timeStamp for s in samples]
print(json.dumps({
    "count": n.nvmlDeviceGetCount(), "name": n.nvmlDeviceGetName(d), "uuid": n.nvmlDeviceGetUUID(d),
    "by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(d))),
    "by_bus": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(d).busId)),
    "minor": n.nvmlDeviceGetMinorNumber(d), "used": n.nvmlDeviceGetMemoryInfo(d).used,
    "used_v2": n.nvmlDeviceGetMemoryInfo(d, n.nvmlMemory_v2).used,
    "util": n.nvmlDeviceGetUtilizationRates(d).gpu, "power_mw": n.nvmlDeviceGetPowerUsage(d),
    "limit_mw": n.nvmlDeviceGetEnforcedPowerLimit(d),
    "pcie": [n.nvmlDeviceGetPcieThroughput(d, way) for way in (n.NVML_PCIE_UTIL_TX_BYTES, n.NVML_PCIE_UTIL_RX_BYTES)],
    "processes": [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(d)],
    "graphics": n.nvmlDeviceGetGraphicsRunningProcesses(d),
    "pids": sorted({s.pid for s in samples}), "sm": samples[-1].smUtil,
    "steps": [round((b - a) / 1000) for a, b in zip(times, times[1:])],
    "newer": newer, "new_call": len(n.nvmlDeviceGetProcessesUtilizationInfo(d, 0)) >= len(samples),
    "mig": n.nvmlDeviceGetMigMode(d), "version": n.nvmlSystemGetDriverVersion(),
}))
"""


@pytest.mark.parametrize("reading", ["", "each"])
def test_pynvml_sees_what_it_would_see_on_a_real_gpu(host: SimHost, reading: str):
    worker = host.spawn(Workload("trainer", kernels=10, kernel_us=500, depth=40, alloc_bytes=1 << 20))
    wait_until(lambda: host.reader.gpu_truth().as_of_ns - worker_start(host) > 600_000_000, 30, "samples")
    done = subprocess.run(
        [sys.executable, "-c", NVML],
        env={**os.environ, **host.env(), "FAIRSCHED_SIM_NVML_SAMPLES": reading},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert (seen["count"], seen["name"], seen["uuid"]) == (1, "Simulated GPU", host.uuids()[0])
    assert (seen["by_uuid"], seen["by_bus"], seen["minor"]) == (0, 0, 0)
    assert seen["used"] == seen["used_v2"] == 1 << 20
    assert seen["processes"] == [[worker.pid, 1 << 20]] and seen["graphics"] == []
    assert seen["pids"] == [worker.pid]
    assert seen["util"] > 50 and seen["sm"] > 50
    assert 60_000 < seen["power_mw"] < seen["limit_mw"] == 700_000 and seen["pcie"] == [0, 0]
    # One mean per process, as nvml.h has it; or one sample per 139 ms.
    assert set(seen["steps"]) == ({139} if reading else set())
    assert seen["newer"] == 6 and seen["new_call"]
    assert seen["mig"] == [0, 0]


def worker_start(host: SimHost) -> int:
    return host.truth()[0].created_ns
