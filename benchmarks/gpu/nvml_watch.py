# SPDX-License-Identifier: Apache-2.0
"""A process of its own, because libnvidia-ml is found when a program starts: GPU time by pid from NVML's samples.

``python -m benchmarks.gpu.nvml_watch UUID``: samples until standard input ends, then prints JSON.
"""

from __future__ import annotations

import json
import sys
import time

from fairsched.base.wait import is_readable
from fairsched.gpu.sampler import NvmlReader, Sampler

_POLL_S = 0.25


def main(uuid: str) -> None:
    import pynvml

    pynvml.nvmlInit()
    reader = NvmlReader(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    sampler = Sampler()
    used: dict[int, int] = {}
    sampler.take(reader.read(0), _now_us())  # what was before does not count
    begun_s = time.monotonic()
    is_over = False
    while not is_over:
        is_over = is_readable(sys.stdin, _POLL_S)
        for pid, one in sampler.take(reader.read(sampler.after_us), _now_us()).items():
            used[pid] = used.get(pid, 0) + one.busy_ns
    told = {"used_ns": used, "seconds": time.monotonic() - begun_s, "period_us": sampler.window_us}
    print(json.dumps(told))


def _now_us() -> int:
    return time.monotonic_ns() // 1000


if __name__ == "__main__":
    main(sys.argv[1])
