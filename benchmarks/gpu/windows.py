# SPDX-License-Identifier: Apache-2.0
"""Windows of time over running tenants: what was launched, run and accounted in them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.arithmetic import mean_latency_ns, steps_in
from benchmarks.gpu.hosts import Crew, Host, Load, Member, gpu_logs, logs_of
from benchmarks.rig import BenchError, RunningDaemon, wait_until
from benchmarks.stats import Window

SETTLE_S = 1.0
_LOGGED_S = 30.0
_TICK_S = 0.15
"""Longer than a tick: an account that stands still for so long is up to date."""


def wait_logged(members: Iterable[Member], end_ns: int) -> None:
    """Until the steps across ``end_ns`` are in the logs: a step is logged when it is over."""
    for member in members:
        wait_until(lambda: _is_logged(member, end_ns), _LOGGED_S, f"{member.worker.name} goes on")  # noqa: B023


def _is_logged(member: Member, end_ns: int) -> bool:
    last = member.worker.steps(max(0, member.worker.step_count() - 1))
    return bool(last) and last[-1].end_ns - last[-1].latency_ns >= end_ns


def everyone(crew: Crew) -> list[Member]:
    return [member for members in crew.values() for member in members]


@dataclass(frozen=True)
class Cost:
    """What one step of a load costs the GPU when it is alone."""

    step_ns: float
    run_ns: float
    """Run in the window by which it was measured."""
    window: Window


def cost_alone(host: Host, members: Sequence[Member], seconds: float) -> Cost:
    """Of the tenant that runs now, alone. Raises BenchError when it makes no step."""
    truth_before = host.exec_ns(members)
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    truth_after, end_ns = host.exec_ns(members), time.monotonic_ns()
    window = (start_ns, end_ns)
    wait_logged(members, end_ns)
    steps = steps_in(logs_of(members), window)
    timed = gpu_logs(members)
    if timed is None and truth_before is not None and truth_after is not None and steps > 0:
        run_ns = float(truth_after - truth_before)
        return Cost(run_ns / steps, run_ns, window)
    step_ns = mean_latency_ns(timed, window) if timed else None
    if step_ns is None or steps <= 0:
        raise BenchError(f"{members[0].worker.name} made no whole step in {seconds:g} s")
    return Cost(step_ns, step_ns * steps, window)


def costs_alone(host: Host, loads: Sequence[Load], seconds: float) -> dict[str, float]:
    """GPU time of a step, by tenant; one process of each load is enough, and loads of one kind cost the same."""
    by_kind: dict[str, float] = {}
    for load in loads:
        if load.kind not in by_kind:
            alone = Load(load.name, load.kind, queue_ms=load.queue_ms)
            with host.tenants([alone]) as crew:
                time.sleep(SETTLE_S)
                by_kind[load.kind] = cost_alone(host, crew[load.name], seconds).step_ns
    return {load.name: by_kind[load.kind] for load in loads}


def work_ns(crew: Crew, costs: Mapping[str, float], window: Window) -> dict[str, float]:
    """By tenant: its steps in the window, each at what it costs alone."""
    wait_logged(everyone(crew), window[1])
    return {name: steps_in(logs_of(members), window) * costs[name] for name, members in crew.items()}


def account_ns(daemon: RunningDaemon) -> dict[str, int]:
    """By tenant, right after the daemon has booked a tick: its account is as old as that."""
    before, end_s = _said_ns(daemon), time.monotonic() + _TICK_S
    said = before
    while said == before and time.monotonic() < end_s:
        time.sleep(0.002)
        said = _said_ns(daemon)
    return said


def _said_ns(daemon: RunningDaemon) -> dict[str, int]:
    tenants = daemon.status()["tenants"]
    return {t["name"]: round(t["gpu_time_s"] * 1e9) for t in tenants if t["gpu_time_s"] is not None}
