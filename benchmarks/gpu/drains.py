# SPDX-License-Identifier: Apache-2.0
"""What a GPU still runs of a process that is frozen: how long, beside whom, and do its neighbours go on meanwhile?

``python -m benchmarks.gpu.drains --json OUT [--only SHAPE]``: the first load of a shape is held by the daemon's own
freezer, again and again; its kernels and its neighbours' noted when they ran (timed.py), so that nothing is asked of
events that nobody reaches. The account charges a drain by the queue's length (docs/accounting.md); here is what it is.

Below an MPS server (``CUDA_MPS_PIPE_DIRECTORY``) the same tells whether a held client stops the others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.each import measure_shapes
from benchmarks.gpu.freeze import open_freezer, settle
from benchmarks.gpu.timed import TimedGpu, Truth, quantiles, ran_ns
from benchmarks.rig import BenchError, TenantLoad
from benchmarks.stats import Window
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef
from fairsched.simgpu import Workload
from fairsched.simgpu.node import PARENT

HELD = "held"
HELD_S, REST_S = 1.0, 0.6
"""Longer than any queue below beside its neighbours; long enough to fill it again."""
_QUEUE_200_MS = Workload("trainer", kernels=20, kernel_us=500, depth=20)
_BUSY = Workload("trainer", kernels=20, kernel_us=400, depth=4)
_LONG_KERNEL = Workload("longkernel", kernels=1, kernel_us=60_000, gap_us=1000)
_DECODE = Workload("decode", kernels=20, kernel_us=250, gap_us=300)
_GRAPH = Workload("graph", kernels=40, kernel_us=250, gap_us=300)
SHAPES: dict[str, list[Workload]] = {
    "queue-alone": [_QUEUE_200_MS],
    "queue-beside-one": [_QUEUE_200_MS, _BUSY],
    "queue-beside-two": [_QUEUE_200_MS, _BUSY, _BUSY],
    "long-kernel-alone": [_LONG_KERNEL],
    "long-kernel-beside-one": [_LONG_KERNEL, _BUSY],
    "decode-beside-one": [_DECODE, _BUSY],
    "graph-beside-one": [_GRAPH, _BUSY],
}
"""Who is held, and who runs beside it."""


@dataclass(frozen=True)
class Held:
    """One hold, in the host's clock."""

    written_ns: int
    frozen_ns: int
    thawed_ns: int


def measure(host: TimedGpu, name: str, seconds: float) -> dict[str, Any]:
    """One shape, held as often as the time allows: drains, and what both sides ran in a hold and between holds."""
    workloads = SHAPES[name]
    loads = [
        TenantLoad(f"beside{number}" if number else HELD, workload)
        for number, workload in enumerate(workloads)
    ]
    with host.timed(loads) as crew:
        ref = CgroupRef.open(host.mount, f"{PARENT}/{host.prefix}{HELD}")
        with open_freezer(host.directory) as freezer, ref:
            made = [_hold(freezer, ref) for _ in range(max(1, round(seconds / (HELD_S + REST_S))))]
            time.sleep(REST_S)
    truth = Truth(crew)
    own = [stretch for each in truth.stretches[HELD] for stretch in each]
    others = sorted(
        stretch
        for tenant, contexts in truth.stretches.items()
        if tenant != HELD
        for each in contexts
        for stretch in each
    )
    return {"offset_error_us": truth.offset_error_ns / 1e3, **judge(made, own, others)}


def judge(
    holds: Sequence[Held], own: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """What happened in the holds (pure). ``own`` and ``others`` in order: stretches of whom was held, of the rest.

    Raises BenchError when nothing was launched after one.
    """
    drains, ran, before, again, beside, usually = [], [], [], [], [], []
    for hold in holds:
        window: Window = (hold.frozen_ns, hold.thawed_ns)
        quiet: Window = (2 * hold.written_ns - hold.thawed_ns, hold.written_ns)
        # The last that began before the thaw: what begins later was launched after it.
        inside = [
            min(end, hold.thawed_ns) for start, end in own if start < hold.thawed_ns and end > hold.frozen_ns
        ]
        drains.append((max(inside, default=hold.frozen_ns) - hold.frozen_ns) / 1e6)
        ran.append(ran_ns(own, window) / 1e6)
        before.append(ran_ns(own, (hold.written_ns, hold.frozen_ns)) / 1e6)
        next_ns = next((start for start, _ in own if start >= hold.thawed_ns), None)
        if next_ns is None:
            raise BenchError(f"{HELD} launches nothing after its thaw")
        again.append((next_ns - hold.thawed_ns) / 1e6)
        beside.append(ran_ns(others, window) / (window[1] - window[0]))
        usually.append(ran_ns(others, quiet) / (quiet[1] - quiet[0]))
    return {
        "freeze_ms": quantiles([(hold.frozen_ns - hold.written_ns) / 1e6 for hold in holds]),
        "drain_ms": quantiles(drains),
        "drain_ran_ms": quantiles(ran),
        "ran_while_freezing_ms": quantiles(before),
        "thaw_to_kernel_ms": quantiles(again),
        "others_ran_ratio": {"in holds": quantiles(beside), "before": quantiles(usually)},
        "drains_ms": [round(value, 2) for value in drains],
    }


def _hold(freezer: Freezer, ref: CgroupRef) -> Held:
    time.sleep(REST_S)
    written_ns = time.monotonic_ns()
    made = freezer.hold(ref, HELD, written_ns + 60_000_000_000, "benchmark")
    if made.kind is not HoldKind.HELD:
        raise BenchError(f"{ref.path} could not be held: {made.kind.value}")
    frozen_ns = written_ns + settle(freezer)
    time.sleep(HELD_S)
    thawed_ns = time.monotonic_ns()
    freezer.thaw(ref.id)
    return Held(written_ns, frozen_ns, thawed_ns)


def main(argv: list[str] | None = None) -> int:
    return measure_shapes(argv, "drains", __doc__, SHAPES, measure, seconds=8.0, bulky=("drains_ms",))


if __name__ == "__main__":
    sys.exit(main())
