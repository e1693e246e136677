# SPDX-License-Identifier: Apache-2.0
"""A past with something to see in it: four tenants, a greedy one, a weight that changes, an hour without a daemon.

``python -m tests.unit.cli.page.story FILE [HOURS [MORE_TENANTS]]`` writes it as a history, for whoever wants to look at
a report of it, or at its size.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from fairsched.companion.history.collect import DecisionRow, GpuRow, NodeRow, Rows, ShareRow, TenantRow
from fairsched.companion.history.store import open_store

GPU = "GPU-5f2c1a90-1111-2222-3333-444455556666"
WEIGHTS = {"chat": 4.0, "code": 2.0, "mail": 1.0, "trainer": 1.0}
STEP_S = 10


def rows_of(end_t: int, hours: float = 2.0, more_tenants: int = 0) -> Iterator[Rows]:
    """Every ten seconds until `end_t`, but for a sixth of the time in the middle."""
    dice = random.Random(1)
    count = round(hours * 3600 / STEP_S)
    weights = WEIGHTS | {f"small-{number}": 0.25 for number in range(more_tenants)}
    for number in range(count):
        part = number / count
        if not 0.4 < part < 0.4 + 1 / 6:
            yield _rows(end_t - (count - 1 - number) * STEP_S, part, weights, dice)


def _rows(t: int, part: float, weights: dict[str, float], dice: random.Random) -> Rows:
    weights = {**weights, "chat": 4.0 if part < 0.75 else 2.0}
    wants = {name: name != "mail" or math.sin(part * 40) > -0.3 for name in weights}
    due_sum = sum(weight for name, weight in weights.items() if wants[name])
    is_unfair = 0.15 < part < 0.22
    tenants, shares, decisions = [], [], []
    for name, weight in weights.items():
        due = weight / due_sum if wants[name] else 0.0
        off = {"trainer": 0.25, "chat": -0.2}.get(name, -0.02) if is_unfair and wants[name] else 0.0
        used = max(0.0, min(1.0, due + off + dice.gauss(0, 0.006))) if wants[name] else 0.0
        delay_ms = 2 ** dice.gauss(2.2 + 2.4 * is_unfair * (name != "trainer"), 0.4) if wants[name] else None
        rate = None if name == "trainer" else used * 48
        held_s = 2.6 + dice.random() if name == "trainer" else 0.05 * dice.random()
        state = "run" if wants[name] else "idle"
        lag_ms = dice.gauss(0, 6) - 900 * off * (1 if name == "trainer" else 0.3)
        tenants.append(
            TenantRow(name, state, weight, held_s, delay_ms and delay_ms / 4, delay_ms, rate, 4 << 30)
        )
        shares.append(ShareRow(name, GPU, used, due, max(-400.0, min(400.0, lag_ms)), used * STEP_S))
        if name == "trainer":
            for reason, mean in (("over_entitlement", 60), ("deep_queue", 25)):
                many = max(0, round(dice.gauss(mean, mean / 6)))
                decisions.append(DecisionRow(name, "hold", reason, False, many, 0, None))
        if name == "code" and dice.random() < 0.3:
            decisions.append(DecisionRow(name, "hold", "over_quota", False, dice.randrange(1, 12), 0, None))
    node = NodeRow(
        STEP_S, "enforce", True, 0.24 if is_unfair else abs(dice.gauss(0.006, 0.003)), None, 0.03, 0.021, 0.04
    )
    busy = min(1.0, 0.985 + dice.gauss(0, 0.006))
    gpus = (GpuRow(GPU, busy, 0.0, 16 << 30, 45 << 30),)
    return Rows(t, node, gpus, tuple(tenants), tuple(shares), tuple(decisions))


def write(path: Path, end_t: int, hours: float = 2.0, more_tenants: int = 0) -> None:
    store = open_store(path, keep_s=10**9, max_bytes=64 << 20)
    for rows in rows_of(end_t, hours, more_tenants):
        store.write(rows)
    store.close()


if __name__ == "__main__":
    import time

    numbers = [float(word) for word in sys.argv[2:]]
    write(
        Path(sys.argv[1]),
        int(time.time()),
        numbers[0] if numbers else 2.0,
        int(numbers[1]) if numbers[1:] else 0,
    )
