# SPDX-License-Identifier: Apache-2.0
"""A process of its own, because libnvidia-ml is found at its start: prints what the daemon would account.

``samples.py SECONDS [CONFIGURATION]``: source, reason, per cgroup id the GPU time in ns that NVML's samples gave it,
and confidences.
"""

from __future__ import annotations

import json
import sys
import time

from fairsched.base.wait import wait_readable
from fairsched.cgroup.path import find_mount
from fairsched.config import from_bytes
from fairsched.observe.sensors import Sensors
from fairsched.observe.whose import Whose


def main(seconds: float, configuration: str = "mechanisms: {ebpf: off}") -> None:
    sensors = Sensors(from_bytes(configuration.encode(), "test"), Whose(find_mount()))
    used: dict[int, int] = {}
    confidences = set()
    sensors.read(time.monotonic_ns())  # what was before does not count
    begin_ns = now_ns = time.monotonic_ns()
    while now_ns - begin_ns < seconds * 1e9:
        wait_readable([], 0.1)
        now_ns = time.monotonic_ns()
        for row in sensors.read(now_ns):
            used[row.cgroup_id] = used.get(row.cgroup_id, 0) + row.used_ns
            confidences.add(row.confidence.value)
    source = sensors.source.value if sensors.source else None
    sensors.close()
    print(
        json.dumps(
            {
                "source": source,
                "reason": sensors.reason,
                "used": used,
                "elapsed": now_ns - begin_ns,
                "confidences": sorted(confidences),
            }
        )
    )


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
