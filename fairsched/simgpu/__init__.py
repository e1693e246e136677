# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs: real processes, real cgroups, real probes, real pynvml; only the silicon is not.

    with SimHost([GpuSpec()]) as host:
        chat = host.spawn(PRESETS["decode"], cgroup_path)
        ...
        print(host.truth())

Used by the demo, the tests and the benchmarks; the daemon never imports it. See README.md.
"""

from fairsched.simgpu.build import Built, SimBuildError, build
from fairsched.simgpu.host import GpuSpec, SimHost
from fairsched.simgpu.reader import ContextTruth, GpuTruth, Residency, SimGpuError, SimReader
from fairsched.simgpu.workload import KINDS, PRESETS, Step, Worker, WorkerError, Workload

__all__ = [
    "KINDS",
    "PRESETS",
    "Built",
    "ContextTruth",
    "GpuSpec",
    "GpuTruth",
    "Residency",
    "SimBuildError",
    "SimGpuError",
    "SimHost",
    "SimReader",
    "Step",
    "Worker",
    "WorkerError",
    "Workload",
    "build",
]
