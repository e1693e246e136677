# SPDX-License-Identifier: Apache-2.0
"""What the GPU's trace of context switches says: ``python -m benchmarks.gpu.fecs --seconds 5 --out FILE``.

Writes each switch, and prints what a read costs. ``benchmarks.gpu.mixes --record`` beside it has what kernels noted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import signal
import sys
import time
from pathlib import Path

from benchmarks.command import say_error
from benchmarks.rig import BenchError
from fairsched.gpu.nvml import Nvml
from fairsched.gpu.trace import GpuTrace, Switch, TraceLost, TraceRefused


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.fecs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--period", type=float, default=0.033, help="between two reads")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    found: list[Switch] = []
    costs: list[float] = []
    gaps = 0
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    try:
        gpus = Nvml().gpus
        if not gpus:
            raise TraceRefused("no GPU")
        trace = GpuTrace(gpus[0].uuid)
        until = time.monotonic() + options.seconds
        while time.monotonic() < until and not ended:
            time.sleep(options.period)
            before = time.perf_counter()
            new, is_whole = trace.read()
            costs.append(time.perf_counter() - before)
            found += new
            gaps += not is_whole
        trace.close()
    except (TraceRefused, TraceLost) as error:
        return say_error(BenchError(str(error)))
    costs.sort()
    print(
        f"{len(found)} switches, {gaps} gaps; a read takes {1e3 * costs[len(costs) // 2]:.2f} ms, at most "
        f"{1e3 * costs[-1]:.2f}"
    )
    if options.out:
        with gzip.open(options.out, "wt", 3) as file:
            json.dump(found, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
