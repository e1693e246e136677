# SPDX-License-Identifier: Apache-2.0
"""Processes and listings for tests that need no /proc."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import GpuView, Holder, Listing

GPU = "GPU-5f2c1a90-0"
VIEW = GpuView(GPU, "0", 0, 8 << 30, 80 << 30, 0)


def process(pid: int, parent: int = 1, **changes: Any) -> Facts:
    """A process in its own group and session, in /a."""
    base = Facts(
        pid=pid,
        start_ticks=100 + pid,
        state="S",
        parent=parent,
        group=pid,
        session=pid,
        threads=1,
        is_kernel=False,
        uid=1001,
        name=f"p{pid}",
        command=f"/bin/p{pid} --train",
        namespace_pids=(pid,),
        cgroup="/a",
    )
    return replace(base, **changes)


def table_of(*processes: Facts) -> dict[int, Facts]:
    """With the host's init."""
    init = process(1, 0, name="init", cgroup="/")
    return {one.pid: one for one in (init, *processes)}


def holder(facts: Facts, vram_bytes: int | None = 2 << 30, **changes: Any) -> Holder:
    status = ProcessStatus(facts.pid, GPU, vram_bytes=vram_bytes, command=facts.command, cgroup=facts.cgroup)
    base = Holder(status, facts, user="ann", gpu_index="0", age_s=60.0, is_orphan=False, is_listed=True)
    return replace(base, **changes)


def listing(holders: list[Holder], table: dict[int, Facts], view: GpuView = VIEW) -> Listing:
    return Listing(tuple(holders), (view,), table)
