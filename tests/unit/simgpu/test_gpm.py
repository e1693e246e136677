# SPDX-License-Identifier: Apache-2.0
"""GPM through an unmodified pynvml: what the exporter reads of the simulated GPU is what its engine did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.gpu.tensor import PARTS
from fairsched.simgpu import SimHost, Workload
from tests.support import wait_until
from tests.unit.simgpu.conftest import ROOT

READ = """
import json, sys, time
from fairsched.companion.exporter.gpm import Gpm
gpm = Gpm()
def read():
    begun_s = time.monotonic()
    return gpm.read(begun_s), begun_s, time.monotonic()
first, *first_s = read()
said = {"first": first, "has_nvml": gpm._nvml is not None, "uuids": gpm.uuids}
print(json.dumps(said), flush=True)
sys.stdin.readline()
second, *second_s = read()
least_s, most_s = second_s[0] - first_s[1], second_s[1] - first_s[0]
print(json.dumps({"second": second, "between_s": [least_s, most_s]}))
gpm.close()
assert gpm._nvml is None
"""
REFUSALS = """
import ctypes, json, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
def refused(call, *args):
    try:
        call(*args)
    except n.NVMLError as error:
        return error.value
a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
m = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=2, sample1=a, sample2=b)
m.metrics[0].metricId, m.metrics[1].metricId = n.NVML_GPM_METRIC_SM_UTIL, n.NVML_GPM_METRIC_DRAM_BW_UTIL
said = {"empty": refused(n.nvmlGpmMetricsGet, m)}
n.nvmlGpmSampleGet(d, a)
said["same"] = refused(n.nvmlGpmMetricsGet, n.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1, sample1=a, sample2=a))
n.nvmlGpmSampleGet(d, b)
n.nvmlGpmMetricsGet(m)
said["parts"] = [m.metrics[0].nvmlReturn, m.metrics[1].nvmlReturn, m.metrics[0].metricInfo.unit.decode()]
m.version = 2
said["version"] = refused(n.nvmlGpmMetricsGet, m)
support = n.c_nvmlGpmSupport_t(version=2)
said["support"] = n._nvmlGetFunctionPointer("nvmlGpmQueryDeviceSupport")(d, ctypes.byref(support))
n.nvmlGpmSampleFree(a); n.nvmlGpmSampleFree(b)
n.nvmlShutdown()
said["ended"] = refused(n.nvmlGpmSampleAlloc)
print(json.dumps(said))
"""


def python(host: SimHost, program: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **host.env(), "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read(host: SimHost, **env: str) -> dict[str, Any]:
    out, _ = python(host, READ, **env).communicate("\n", timeout=60)
    first, second = map(json.loads, out.splitlines())
    return {**first, "second": second["second"]}


def test_what_is_read_is_what_the_engine_did(host: SimHost) -> None:
    program = python(host, READ)
    try:
        assert program.stdout is not None
        first = json.loads(program.stdout.readline())
        assert (first["first"], first["has_nvml"]) == ({}, True), "one sample alone tells nothing"
        host.spawn(Workload("trainer", kernels=10, kernel_us=500, depth=40))
        wait_until(lambda: host.gpu_truth().busy_ns > 500_000_000, 30, "it works")
        before_s = host.gpu_truth().busy_ns / 1e9
        out, _ = program.communicate("\n", timeout=60)
        after_s = host.gpu_truth().busy_ns / 1e9
    finally:
        program.kill()
    said = json.loads(out)
    active = said["second"][host.uuids()[0]]
    assert set(active) == set(PARTS)
    least_s, most_s = (active["sm"] * between_s for between_s in said["between_s"])
    assert before_s * 0.95 < most_s and least_s < after_s * 1.05, (said, before_s, after_s)
    assert active["graphics"] == active["sm"] <= 1
    assert active["tensor"] == pytest.approx(active["sm"] / 2)


@pytest.mark.parametrize("wish", ["off", "refused"])
def test_a_gpu_without_it_or_that_refuses_says_nothing_and_nvml_is_let_go(host: SimHost, wish: str) -> None:
    assert read(host, FAIRSCHED_SIM_NVML_GPM=wish) == {
        "first": {},
        "has_nvml": False,
        "uuids": [],
        "second": {},
    }


def test_of_a_gpu_in_mig_mode_nothing_is_asked(host: SimHost) -> None:
    program = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(0), 1)"
    if os.geteuid():
        pytest.skip("MIG mode is root's to set")
    assert python(host, program).wait(60) == 0
    assert read(host)["uuids"] == []


def test_versions_and_samples_are_checked_as_nvml_does(host: SimHost) -> None:
    out, _ = python(host, REFUSALS).communicate(timeout=60)
    assert json.loads(out) == {
        "empty": 2,
        "same": 2,
        "parts": [0, 3, "%"],
        "version": 25,
        "support": 25,
        "ended": 1,
    }


def test_the_program_for_a_real_gpu_runs_on_the_simulated_one(host: SimHost) -> None:
    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.tensor", "--seconds", "0.3"],
            env={**os.environ, **host.env(), "FAIRSCHED_SIM_KERNEL_US": "5000", **env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = run()
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["idle", "clock", "products"], done
    assert all(row[-1] == host.uuids()[0] for row in rows)
    idle, clock, products = (float(row[3]) for row in rows)
    assert idle < 0.05 < clock and products > 0.05
    without = run(FAIRSCHED_SIM_NVML_GPM="off")
    assert (without.returncode, without.stdout) == (3, "") and "Hopper or later" in without.stderr
