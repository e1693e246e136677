# SPDX-License-Identifier: Apache-2.0
"""The account and the shares on a real GPU against the truth: mixes of the simulated workloads whose kernels note when
they ran (timed.py), under the daemon.

``python -m benchmarks.gpu.mixes --json OUT [--only NAME] [--mode observe] [--source trace]``; ``draw:SEED:NUMBER`` is
a mix of benchmarks/robust_draws.py without its GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import say_error
from benchmarks.gpu.each import check_seconds, measure_each
from benchmarks.gpu.timed import TimedGpu, Truth, quantiles, switches_ns
from benchmarks.gpu.windows import account_ns
from benchmarks.rig import SETTLE_SAMPLED_S, SOURCES, BenchError, TenantLoad
from benchmarks.stats import shares
from fairsched.errors import FairschedError
from fairsched.simgpu import Workload

_DECODE = Workload("decode", kernels=20, kernel_us=250, jitter_ratio=0.2, gap_us=500)
_GREEDY = Workload("trainer", kernels=30, kernel_us=500, jitter_ratio=0.1, depth=4, processes=3)
_CONSTANT = Workload("decode", kernels=20, kernel_us=500, gap_us=500)
MIXES: dict[str, list[TenantLoad]] = {
    "weights": [
        TenantLoad("gold", _DECODE, 4),
        TenantLoad("silver", _DECODE, 2),
        TenantLoad("bronze", _DECODE, 1),
        TenantLoad("greedy", _GREEDY, 1, "batch"),
    ],
    "constant": [
        TenantLoad("gold", _CONSTANT, 4),
        TenantLoad("silver", _CONSTANT, 2),
        TenantLoad("bronze", _CONSTANT, 1),
        TenantLoad(
            "greedy", Workload("trainer", kernels=30, kernel_us=500, depth=4, processes=3), 1, "batch"
        ),
    ],
    "light": [
        TenantLoad("light", Workload("step", kernels=2, kernel_us=500, arrival="poisson", rate_per_s=40), 1),
        TenantLoad("chat", _DECODE, 2),
        TenantLoad("train", Workload("trainer", kernels=30, kernel_us=500, jitter_ratio=0.1), 1, "batch"),
    ],
    "service": [
        TenantLoad("chat", Workload("step", kernels=20, kernel_us=250, arrival="poisson", rate_per_s=40), 2),
        TenantLoad("flood", _GREEDY, 1, "batch"),
        TenantLoad("flood2", _GREEDY, 1, "batch"),
    ],
    "launch-bound": [
        TenantLoad("eager", Workload("step", kernels=40, kernel_us=150, launch_gap_us=250), 2),
        TenantLoad("chat", _DECODE, 1),
        TenantLoad("train", Workload("trainer", kernels=30, kernel_us=500, depth=4), 1, "batch"),
    ],
    "deep": [
        TenantLoad("graph", Workload("graph", kernels=40, kernel_us=150, jitter_ratio=0.1, gap_us=300), 2),
        TenantLoad("chat", _DECODE, 2),
        TenantLoad("train", Workload("trainer", kernels=20, kernel_us=1000, depth=10), 1, "batch"),
        TenantLoad("long", Workload("longkernel", kernels=1, kernel_us=40_000, gap_us=1000), 1),
    ],
    "seven": [
        TenantLoad("a", _DECODE, 9),
        TenantLoad("b", Workload("trainer", kernels=20, kernel_us=700, depth=3), 5),
        TenantLoad("c", Workload("graph", kernels=30, kernel_us=300, gap_us=300), 3),
        TenantLoad("d", _DECODE, 2),
        TenantLoad("e", Workload("step", kernels=10, kernel_us=400, wait="query"), 1),
        TenantLoad("f", Workload("trainer", kernels=20, kernel_us=250, depth=8), 1),
        TenantLoad("g", Workload("nosync", kernels=50, kernel_us=200), 1),
    ],
    "on-off": [
        TenantLoad(
            "phase", Workload("step", kernels=20, kernel_us=400, arrival="onoff", on_us=7e5, off_us=5e5), 3
        ),
        TenantLoad("chat", _DECODE, 2),
        TenantLoad("train", Workload("trainer", kernels=30, kernel_us=500, depth=4, processes=2), 1, "batch"),
    ],
    "launches": [TenantLoad("idle", Workload("decode", kernels=500, kernel_us=0.001), 1)],
}
SETTLE_S = 3.0
_LOG_LINES = 40


def drawn(name: str) -> list[TenantLoad]:
    """Of ``draw:SEED:NUMBER``: its leaves, each with the first of its loads, without copies."""
    from benchmarks.fair.scenario import Scenario
    from benchmarks.robust_draws import draw

    _, seed, number = name.split(":")
    found: list[TenantLoad] = []

    def add(tenants: Any, part: float) -> None:
        whole = sum(told.weight for told in tenants.values())
        for tenant, told in tenants.items():
            weight = part * told.weight / whole
            if told.children:
                add(told.children, weight)
                continue
            one = told.loads[0].model_copy(update={"copy_bytes": 0})
            workload = replace(one.workload("libcuda.so.1", 7), processes=one.processes)
            found.append(TenantLoad(tenant, workload, round(100 * weight, 3), told.tenant_class))

    add(Scenario.model_validate(draw(int(seed), int(number)).document).tenants, 1.0)
    return found


def run(
    host: TimedGpu, loads: list[TenantLoad], mode: str, seconds: float, tape: Path | None, gpu: dict[str, int]
) -> dict[str, Any]:
    """One mix: what everybody ran, was charged and was owed."""
    with host.daemon_beside(mode, loads, gpu, tape) as daemon:
        with host.timed(loads) as crew:
            pids = {name: [one.worker.pid for one in own] for name, own in crew.items()}
            time.sleep(SETTLE_SAMPLED_S if host.source == "nvml" else SETTLE_S)
            before, start_ns = account_ns(daemon), time.monotonic_ns()
            time.sleep(seconds)
            after, end_ns = account_ns(daemon), time.monotonic_ns()
            status = daemon.status()
            latencies = {
                name: quantiles(
                    [s.latency_ns / 1e3 for one in own for s in one.worker.steps() if s.end_ns > start_ns]
                )
                for name, own in crew.items()
            }
        log = daemon.log().splitlines()[-_LOG_LINES:]
    truth, window = Truth(crew), (start_ns, end_ns)
    ran = truth.ran_ns(window)
    charged = {name: after.get(name, 0) - before.get(name, 0) for name in ran}
    found = truth.turns(window)
    got = shares({name: float(ns) for name, ns in ran.items()})
    due = shares({load.name: load.weight for load in loads})
    return {
        "seconds": (end_ns - start_ns) / 1e9,
        "offset_error_us": truth.offset_error_ns / 1e3,
        "is_whole": truth.is_whole,
        "busy_ratio": truth.busy_ns(window) / (end_ns - start_ns),
        "ran_s": {name: round(ns / 1e9, 4) for name, ns in ran.items()},
        "charged_s": {name: round(ns / 1e9, 4) for name, ns in charged.items()},
        "account_error": {name: round(charged[name] / ns - 1, 4) for name, ns in ran.items() if ns},
        "share": {name: round(value, 4) for name, value in got.items()},
        "due": {name: round(value, 4) for name, value in due.items()},
        "share_error_points": round(max(100 * abs(got[name] - due[name]) for name in due), 2),
        "turn_us": quantiles([turn.length_ns / 1e3 for turn in found]),
        "switch_us": quantiles([ns / 1e3 for ns in switches_ns(found)]),
        "step_us": latencies,
        "warnings": status["warnings"],
        "confidence": {t["name"]: t["confidence"] for t in status["tenants"]},
        "window": window,
        "pids": pids,
        "stretches": {name: own for name, own in truth.stretches.items()},
        "log": log,
    }


_BULKY = ("log", "window", "pids", "step_us")


def loads_of(name: str) -> list[TenantLoad]:
    """Raises BenchError for a name that is none."""
    if name in MIXES:
        return MIXES[name]
    parts = name.split(":")
    if len(parts) == 3 and parts[0] == "draw" and all(part.isdigit() for part in parts[1:]):
        return drawn(name)
    raise BenchError(f"--only {name}: no mix", remedy=f"draw:SEED:NUMBER, or one of {', '.join(MIXES)}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.mixes", description=__doc__)
    parser.add_argument("--only", action="append")
    parser.add_argument("--mode", choices=("observe", "enforce"), default="enforce")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--source", choices=SOURCES, default="ebpf", help="the daemon's account")
    parser.add_argument("--slice-us", type=int)
    parser.add_argument("--switch-us", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, help="a directory for recordings of what the account is given")
    options = parser.parse_args(argv)
    check_seconds(parser, options.seconds)
    told = {"timeslice_us": options.slice_us, "switch_us": options.switch_us}
    gpu = {key: value for key, value in told.items() if value is not None}
    names = options.only or list(MIXES)
    try:
        by_name = {name: loads_of(name) for name in names}
        if options.record:
            options.record.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--record {options.record}: {error.strerror}")
    except FairschedError as error:
        return say_error(error)

    def one(host: TimedGpu, name: str) -> dict[str, Any]:
        host.source = options.source
        stem = options.record / name.replace(":", "-") if options.record else None
        tape = stem.with_suffix(".tape").absolute() if stem else None
        found = run(host, by_name[name], options.mode, options.seconds, tape, gpu)
        if stem:
            with gzip.open(stem.with_suffix(".truth.gz"), "wt", 3) as file:
                json.dump(found, file)
        del found["stretches"]
        return found

    return measure_each(names, one, json_path=options.json, bulky=_BULKY)


if __name__ == "__main__":
    sys.exit(main())
