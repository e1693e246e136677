# SPDX-License-Identifier: Apache-2.0
"""Is the account right?

Alone: GPU time accounted against GPU time run. Side by side, where a real GPU tells nobody's time: shares against the
work done (steps times the cost of a step alone), and against NVML's samples as far as those can tell. Where the driver
hands out the GPU's trace of context switches, and on the simulated GPU, both the account and the work are held against
the truth, so that the method is checked as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.arithmetic import nvml_limit_points, share_errors, worst
from benchmarks.gpu.figures import Figure, measured, not_possible
from benchmarks.gpu.hosts import Crew, Host, Load, root_of_checkout
from benchmarks.gpu.windows import SETTLE_S, account_ns, cost_alone, everyone, work_ns
from benchmarks.rig import RunningDaemon
from benchmarks.stats import Window, shares

LOADS = (Load("chat", "decode"), Load("graph", "graph"), Load("train", "trainer", tenant_class="batch"))
_NVML_END_S = 10.0


def measure(host: Host, seconds: float) -> list[Figure]:
    with host.daemon("observe", LOADS) as daemon:
        costs, alone = _alone(host, daemon, seconds)
        with host.tenants(LOADS) as crew:
            time.sleep(SETTLE_S)
            return [alone, *_together(host, daemon, crew, costs, seconds)]


def _alone(host: Host, daemon: RunningDaemon, seconds: float) -> tuple[dict[str, float], Figure]:
    costs, errors = {}, {}
    for load in LOADS:
        with host.tenants([load]) as crew:
            time.sleep(SETTLE_S)
            before, start_ns = account_ns(daemon).get(load.name, 0), time.monotonic_ns()
            cost = cost_alone(host, crew[load.name], seconds)
            after, end_ns = account_ns(daemon).get(load.name, 0), time.monotonic_ns()
        costs[load.name] = cost.step_ns
        # The readings of the account enclose the window of the run: both as rates.
        accounted = (after - before) / (end_ns - start_ns)
        errors[load.name] = accounted * (cost.window[1] - cost.window[0]) / cost.run_ns - 1
    return costs, measured("account_solo_error", worst(errors)[1], _list(errors))


def _together(
    host: Host, daemon: RunningDaemon, crew: Crew, costs: Mapping[str, float], seconds: float
) -> list[Figure]:
    watch = _start_nvml(host)
    before, truth_before = account_ns(daemon), _truth(host, crew)
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    after, truth_after = account_ns(daemon), _truth(host, crew)
    window: Window = (start_ns, time.monotonic_ns())
    said = doubts(daemon.status())
    sampled = _end_nvml(watch)
    work = work_ns(crew, costs, window)
    account = {name: float(after.get(name, 0) - before.get(name, 0)) for name in crew}
    truth = {
        name: float(end - begin)
        for name in crew
        if (begin := truth_before[name]) is not None and (end := truth_after[name]) is not None
    }
    return [
        _against("account_share_error", account, work, said),
        _against_nvml(crew, account, sampled),
        *_against_truth(account, work, truth),
    ]


def _truth(host: Host, crew: Crew) -> dict[str, int | None]:
    return {name: host.exec_ns(members) for name, members in crew.items()}


def doubts(status: Mapping[str, Any]) -> list[str]:
    """What the daemon itself says against its account (pure): on a GPU of another nature it should say so."""
    unsure = [
        f"{tenant['name']} is of {tenant['confidence']} confidence"
        for tenant in status["tenants"]
        if tenant["confidence"] != "high"
    ]
    return [*unsure, *status["warnings"]]


def _against(
    key: str, got: Mapping[str, float], wanted: Mapping[str, float], said: Sequence[str] = ()
) -> Figure:
    errors = share_errors(got, wanted)
    if not errors:
        return not_possible(key, "nobody did any work")
    return measured(key, worst(errors)[1], "; ".join([_list(errors), *said]))


def _against_truth(
    account: Mapping[str, float], work: Mapping[str, float], truth: Mapping[str, float]
) -> list[Figure]:
    if len(truth) < len(account):
        why = "this driver hands out no trace; account_share_error and account_nvml_points stand in"
        return [not_possible("account_truth_error", why), not_possible("work_method_error", why)]
    return [_against("account_truth_error", account, truth), _against("work_method_error", work, truth)]


def _list(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * error:+.2f} %" for name, error in errors.items())


# ---- NVML ----


def _start_nvml(host: Host) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.nvml_watch", host.gpu_uuid],
        env={**os.environ, **host.env()},
        cwd=root_of_checkout(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end_nvml(watch: subprocess.Popen[str]) -> dict[str, Any]:
    """What it saw, or ``{"error": why}``."""
    try:
        out, err = watch.communicate("", timeout=_NVML_END_S)
    except subprocess.TimeoutExpired:
        watch.kill()
        watch.communicate()
        return {"error": "NVML does not answer"}
    if watch.returncode != 0:
        return {"error": (err.strip().splitlines() or ["no reason given"])[-1]}
    answer: dict[str, Any] = json.loads(out)
    return answer


def _against_nvml(crew: Crew, account: Mapping[str, float], sampled: Mapping[str, Any]) -> Figure:
    key = "account_nvml_points"
    if "error" in sampled:
        return not_possible(key, f"NVML: {sampled['error']}")
    by_pid = {int(pid): ns for pid, ns in sampled["used_ns"].items()}
    used = {
        name: float(sum(by_pid.get(one.worker.pid, 0) for one in members)) for name, members in crew.items()
    }
    if not sum(used.values()):
        seen = f"{len(everyone(crew))} processes, none of them in a sample"
        return not_possible(key, f"NVML named nobody ({seen}): MIG, or a driver that samples no processes")
    said, own = shares(used), shares(account)
    points = {name: 100 * abs(said[name] - own[name]) for name in crew}
    limit = nvml_limit_points(own, sampled["seconds"], sampled["period_us"])
    note = ", ".join(f"{name} {100 * said[name]:.1f} / {100 * own[name]:.1f} %" for name in crew)
    return measured(key, max(points.values()), f"NVML / account: {note}; the bar is 3 sigma", limit=limit)
