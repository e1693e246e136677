# SPDX-License-Identifier: Apache-2.0
"""Compares what fairsched says, as JSON, with what the page promises; exits 1 where it differs.

look.py mode MODE, weight TENANT WEIGHT, share TENANT LOW HIGH (percent of a GPU), held TENANT
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def ask(*args: str) -> Any:
    return json.loads(subprocess.run(["fairsched", *args], capture_output=True, check=True).stdout)


def mode(wanted: str) -> bool:
    return bool(ask("status", "--json")["mode"] == wanted)


def weight(name: str, wanted: str) -> bool:
    (tenant,) = (one for one in ask("tenant", "list", "--json")["tenants"] if one["name"] == name)
    return bool(tenant["weight"] == float(wanted))


def share(name: str, low: str, high: str) -> bool:
    (tenant,) = (one for one in ask("status", "--json")["tenants"] if one["name"] == name)
    used = [100 * gpu["used_ratio"] for gpu in tenant["gpus"] if gpu["used_ratio"] is not None]
    print(name, used, flush=True)
    return bool(used) and float(low) <= used[0] <= float(high)


def held(name: str) -> bool:
    return '"hold"' in json.dumps(ask("explain", name, "--json"))


if __name__ == "__main__":
    looks = {"mode": mode, "weight": weight, "share": share, "held": held}
    sys.exit(not looks[sys.argv[1]](*sys.argv[2:]))
