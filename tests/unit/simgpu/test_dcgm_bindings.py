# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own Python bindings read the stand-in libdcgm as they read NVIDIA's.

They are not packaged: take the directory testing/python3 of https://github.com/NVIDIA/DCGM.

    FAIRSCHED_DCGM_BINDINGS=DCGM/testing/python3 pytest tests/unit/simgpu/test_dcgm_bindings.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairsched.simgpu import SimHost, Workload, build
from tests.support import wait_until

BINDINGS = os.environ.get("FAIRSCHED_DCGM_BINDINGS", "")
pytestmark = [
    pytest.mark.skipif(not BINDINGS, reason="NVIDIA's bindings: FAIRSCHED_DCGM_BINDINGS=DIR names them"),
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the driver's accounting mode takes root: run the tests as root"
    ),
]

READER = """
import json, sys
import dcgm_fields, dcgm_structs
dcgm_structs._dcgmInit(libDcgmPath=sys.argv[1])
import pydcgm
handle = pydcgm.DcgmHandle(opMode=dcgm_structs.DCGM_OPERATION_MODE_AUTO)
system = handle.GetSystem()
gpus = list(system.discovery.GetAllGpuIds())
group = system.GetGroupWithGpuIds("all", gpus)
utilisation, active = dcgm_fields.DCGM_FI_DEV_GPU_UTIL, dcgm_fields.DCGM_FI_PROF_GR_ENGINE_ACTIVE
fields = pydcgm.DcgmFieldGroup(handle, "fields", [utilisation, active])
group.samples.WatchFields(fields, 100_000, 10.0, 100)
group.stats.WatchPidFields(1_000_000, 3600.0, 0)
for line in sys.stdin:
    system.UpdateAllFields(1)
    values = group.samples.GetLatest(fields).values[gpus[0]]
    try:
        of_process = group.stats.GetPidInfo(int(line)).summary.processUtilization.smUtil
    except dcgm_structs.DCGMError_NoData:
        of_process = 0.0
    print(json.dumps({
        "uuid": system.discovery.GetGpuAttributes(gpus[0]).identifiers.uuid,
        "utilisation": values[utilisation].values[-1].value or 0,
        "active": values[active].values[-1].value or 0.0,
        "process": of_process,
    }), flush=True)
"""


def test_nvidias_bindings_read_gpus_fields_and_processes(host: SimHost) -> None:
    workers = [host.spawn(Workload("trainer", kernels=10, kernel_us=500, depth=40)) for _ in range(2)]
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(build().dcgm_dir)],
        env={**os.environ, **host.dcgm_env(), "PYTHONPATH": str(Path(BINDINGS).resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin and reader.stdout

        def ask() -> dict[str, float | str]:
            assert reader.stdin and reader.stdout
            print(workers[0].pid, file=reader.stdin, flush=True)
            answer: dict[str, float | str] = json.loads(reader.stdout.readline())
            return answer

        wait_until(lambda: 30 < float(ask()["process"]) < 70, 60, "half of the GPU is the one's of two")
        seen = ask()
        reader.stdin.close()
    assert seen["uuid"] == host.uuids()[0]
    assert float(seen["utilisation"]) > 80 and 0.8 < float(seen["active"]) <= 1.0, seen
