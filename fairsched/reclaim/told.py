# SPDX-License-Identifier: Apache-2.0
"""Takes from the daemon's status what a listing, a round and a session ask of a daemon (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairsched.protocol.status import StatusReport
from fairsched.reclaim.holder import GpuView
from fairsched.reclaim.session import Own


def gpu_views(report: StatusReport) -> list[GpuView]:
    """Its GPUs."""
    return [
        GpuView(
            gpu.uuid,
            gpu.index_text,
            None,
            gpu.memory_used_bytes,
            gpu.memory_total_bytes,
            busy_ratio=gpu.utilization_ratio,
        )
        for gpu in report.gpus
    ]


def tenant_seconds(report: StatusReport) -> Mapping[str, Mapping[str, float]]:
    """GPU seconds by tenant and GPU (UUID)."""
    return {one.name: one.gpu_time_by_gpu_s for one in report.tenants}


def own_of(report: StatusReport, run_dir: Path) -> Own:
    """The daemon's own processes, which nobody ends."""
    helpers = () if report.own is None else report.own.processes
    pids = tuple(pid for pid in (report.pid, *(one.pid for one in helpers)) if pid)
    return Own(pids, has_answer=True, run_dir=run_dir)
