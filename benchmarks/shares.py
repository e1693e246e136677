# SPDX-License-Identifier: Apache-2.0
"""Shares by weight beside a greedy tenant, what they cost the GPU, and what the daemon costs the node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import psutil

from benchmarks.rig import Rig, RunningDaemon, TenantLoad, cpu_s, read_truth
from benchmarks.stats import share_errors_points, shares
from fairsched.protocol.own import own_from_plain
from fairsched.simgpu import Workload

_CHAT = Workload("decode", kernels=40, kernel_us=500, jitter_ratio=0.1, gap_us=1000)
_GREEDY = Workload("trainer", kernels=10, kernel_us=1000, jitter_ratio=0.1, depth=4, processes=3)
LOADS = (
    TenantLoad("gold", _CHAT, weight=4),
    TenantLoad("silver", _CHAT, weight=2),
    TenantLoad("bronze", _CHAT, weight=1),
    TenantLoad("greedy", _GREEDY, weight=1, tenant_class="batch"),
)


@dataclass(frozen=True)
class DaemonCost:
    """Of the daemon and its helpers over one window."""

    cpu_ratio: float
    cpu_ratio_by_role: dict[str, float]
    rss_bytes: dict[str, int]
    """By role, at the end."""
    ticks_per_second: float | None
    """None: the daemon did not tell."""


@dataclass(frozen=True)
class Run:
    """One window."""

    is_scheduled: bool
    busy_ratio: float
    """Time the GPU executed kernels, of wall time."""
    switch_ratio: float
    share_ratio: dict[str, float]
    share_error_points: dict[str, float]
    cost: DaemonCost | None = None


def measure(rig: Rig, *, is_scheduled: bool, seconds: float, settle_s: float, seed: int) -> Run:
    """The set once, with the daemon enforcing or with none at all."""
    if not is_scheduled:
        return _window(rig, None, seconds, settle_s, seed)
    with rig.daemon("enforce", LOADS) as daemon:
        return _window(rig, daemon, seconds, settle_s, seed)


def _window(rig: Rig, daemon: RunningDaemon | None, seconds: float, settle_s: float, seed: int) -> Run:
    with rig.tenants(LOADS, seed) as workers:
        time.sleep(settle_s)
        processes = daemon.processes() if daemon else {}
        ticks = _ticks(daemon)
        before, start_s, used_s = read_truth(rig, workers), time.monotonic(), _cpu_by_role(processes)
        time.sleep(seconds)
        after, wall_s, used_now_s = (
            read_truth(rig, workers),
            time.monotonic() - start_s,
            _cpu_by_role(processes),
        )
        ticks_now = _ticks(daemon)
        cost = None
        if daemon:
            by_role = {role: (used_now_s[role] - used_s[role]) / wall_s for role in processes}
            rss = {role: int(process.memory_info().rss) for role, process in processes.items()}
            per_s = None if ticks is None or ticks_now is None else (ticks_now - ticks) / wall_s
            cost = DaemonCost(sum(by_role.values()), by_role, rss, per_s)
    used = {name: after.truth_ns[name] - before.truth_ns[name] for name in after.truth_ns}
    span_ns = after.gpu.as_of_ns - before.gpu.as_of_ns
    return Run(
        is_scheduled=daemon is not None,
        busy_ratio=(after.gpu.busy_ns - before.gpu.busy_ns) / span_ns,
        switch_ratio=(after.gpu.switch_ns - before.gpu.switch_ns) / span_ns,
        share_ratio=shares(used),
        share_error_points=share_errors_points(used, {load.name: load.weight for load in LOADS}),
        cost=cost,
    )


def _ticks(daemon: RunningDaemon | None) -> int | None:
    """How many it has made; asked outside of what is measured."""
    own = own_from_plain(daemon.status().get("own")) if daemon else None
    return None if own is None or own.ticks is None else own.ticks.total


def _cpu_by_role(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {role: cpu_s(process) for role, process in processes.items()}


def judge(runs: Sequence[Run]) -> dict[str, float | None]:
    """The figures of all runs together: the worst share, mean business, mean CPU, largest memory."""
    scheduled = [run for run in runs if run.is_scheduled]
    plain = [run for run in runs if not run.is_scheduled]
    costs = [run.cost for run in scheduled if run.cost is not None]
    return {
        "share_error_max_points": max(abs(e) for run in scheduled for e in run.share_error_points.values()),
        "busy_ratio": fmean(run.busy_ratio for run in scheduled) / fmean(run.busy_ratio for run in plain),
        "daemon_cpu_ratio": fmean(cost.cpu_ratio for cost in costs),
        "daemon_rss_bytes": max(sum(cost.rss_bytes.values()) for cost in costs),
    }


def notes(runs: Sequence[Run]) -> dict[str, str]:
    """What a reader of the table wants to know besides."""
    scheduled = [run for run in runs if run.is_scheduled]
    plain = [run for run in runs if not run.is_scheduled]
    worst = max(scheduled, key=lambda run: max(abs(e) for e in run.share_error_points.values()))
    cost = next(run.cost for run in reversed(scheduled) if run.cost is not None)
    shown = " ".join(f"{name} {share:.3f}" for name, share in worst.share_ratio.items())
    return {
        "share_error_max_points": shown,
        "busy_ratio": f"{fmean(run.busy_ratio for run in scheduled):.4f} / "
        f"{fmean(run.busy_ratio for run in plain):.4f}",
        "daemon_cpu_ratio": ", ".join(f"{r} {c:.2%}" for r, c in cost.cpu_ratio_by_role.items())
        + ("" if cost.ticks_per_second is None else f"; {cost.ticks_per_second:.1f} ticks a second"),
        "daemon_rss_bytes": ", ".join(f"{r} {b / 1e6:.1f} MB" for r, b in cost.rss_bytes.items()),
    }
