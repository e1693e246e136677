# SPDX-License-Identifier: Apache-2.0
"""Plays tenants under a daemon on a host that has no cgroup v2, and prints what came of it as JSON.

Argument: a directory. Started by test_v1_host.py in a mount namespace of its own, in which cgroup v2 is not mounted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site
from tests.support import let_run, wait_until

TENANTS = {"chat": {"weight": 3}, "greedy": {"weight": 1, "class": "batch"}}
SETTLE_S, SHARES_S = 15.0, 25.0
"""On samples the law looks back over ten seconds."""


def main() -> None:
    site = Site(Path(sys.argv[1]))
    try:
        site.configure(TENANTS, mechanisms={"ebpf": "auto"})
        doctor = json.loads(site.cli("doctor", "--json", "--config", str(site.config_path)).stdout)
        site.start()
        site.spawn("chat", STEADY)
        site.spawn("greedy", GREEDY)
        wait_until(lambda: site.tenant("greedy")["holds"], PATIENCE_S, "greedy was held")
        let_run(SETTLE_S)
        shares = site.shares(list(TENANTS), SHARES_S)
        status = site.status()
        answer = {
            "mount": [site.mount.path, site.mount.v1],
            "rows": {row["name"]: row["fact"] for row in doctor["checks"]},
            "source": status["source"],
            "mode": status["mode"],
            "shares": shares,
            "exit": site.stop(),
            "log": site.log(),
        }
    finally:
        site.close()
    print(json.dumps(answer))


main()
