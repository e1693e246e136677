# SPDX-License-Identifier: Apache-2.0
"""Of what nature is this GPU: how long are its slices, what does a switch cost, how equal are they, who waits how long?

``python -m benchmarks.gpu.nature --json OUT``: contexts with endless work side by side, in several shapes; what their
kernels noted tells every turn. Nothing is enforced, no daemon runs. Terms: see timed.py.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.gpu.each import measure_shapes
from benchmarks.gpu.timed import TimedGpu, Truth, quantiles, switches_ns
from benchmarks.rig import TenantLoad
from fairsched.simgpu import Workload

_LONG = Workload("trainer", kernels=1, kernel_us=100_000, depth=2)
_SHORT = Workload("trainer", kernels=20, kernel_us=300, depth=8)
_TINY = Workload("trainer", kernels=100, kernel_us=20, depth=16)
_SYNCED = Workload("decode", kernels=1, kernel_us=100)
_DECODE = Workload("decode", kernels=20, kernel_us=250)
_RARE = Workload("step", kernels=1, kernel_us=200, arrival="poisson", rate_per_s=50)
_FILLED = ("--blocks", "264", "--block-threads", "512")
SHAPES: dict[str, tuple[list[Workload], tuple[str, ...]]] = {
    "two-long": ([_LONG, _LONG], ()),
    "three-long": ([_LONG] * 3, ()),
    "five-long": ([_LONG] * 5, ()),
    "two-long-filled": ([_LONG, _LONG], _FILLED),
    "three-short": ([_SHORT] * 3, ()),
    "three-short-filled": ([_SHORT] * 3, _FILLED),
    "three-tiny": ([_TINY] * 3, ()),
    "synced-beside-two": ([_SYNCED, _LONG, _LONG], ()),
    "decode-beside-two": ([_DECODE, _LONG, _SHORT], ()),
    "rare-beside-two": ([_RARE, _LONG, _SHORT], ()),
    "launches": ([Workload("decode", kernels=500, kernel_us=0.001)], ()),
    "one-process-three-contexts": (
        [Workload("trainer", kernels=1, kernel_us=50_000, depth=2, contexts=3)],
        (),
    ),
}
"""What runs side by side, and options of all of it."""
_SETTLE_S = 0.5


def measure(host: TimedGpu, name: str, seconds: float) -> dict[str, Any]:
    """One shape: turns by context, switches, shares, busy."""
    workloads, options = SHAPES[name]
    loads = [TenantLoad(f"n{number}", workload) for number, workload in enumerate(workloads)]
    with host.timed(loads, options) as crew:
        time.sleep(_SETTLE_S)
        start_ns = time.monotonic_ns()
        time.sleep(seconds)
        window = (start_ns, time.monotonic_ns())
        latencies = {
            load.name: [
                s.latency_ns / 1e3
                for one in crew[load.name]
                for s in one.worker.steps()
                if s.end_ns > start_ns
            ]
            for load in loads
        }
    truth = Truth(crew)
    found = truth.turns(window)
    ran = truth.ran_ns(window)
    length_ns = window[1] - window[0]
    return {
        "offset_error_us": truth.offset_error_ns / 1e3,
        "is_whole": truth.is_whole,
        "busy_ratio": truth.busy_ns(window) / length_ns,
        "ran_ratio": {who: ns / length_ns for who, ns in ran.items()},
        "turn_us": {
            str(who): quantiles([turn.length_ns / 1e3 for turn in found if turn.who == who])
            for who in sorted({turn.who for turn in found})
        },
        "switch_us": quantiles([ns / 1e3 for ns in switches_ns(found)]),
        "step_us": {who: quantiles(values) for who, values in latencies.items()},
        "order": "".join(str(turn.who) for turn in found[:60]),
        "turns": [[turn.who, turn.start_ns - window[0], turn.length_ns] for turn in found[:400]],
    }


def main(argv: list[str] | None = None) -> int:
    return measure_shapes(argv, "nature", __doc__, SHAPES, measure, seconds=2.0, bulky=("turns",))


if __name__ == "__main__":
    sys.exit(main())
