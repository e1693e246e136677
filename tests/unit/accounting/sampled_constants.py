# SPDX-License-Identifier: Apache-2.0
"""What the constants of accounting/lots.py are worth: ``python -m tests.unit.accounting.sampled_constants [DRAWS]``.

Each is halved and doubled in the model, on three kinds of draws: tenants that always want the GPU, one process of many
contexts beside others, and tenants that pause. The draws of docs/decisions/0032-what-samples-remember.md are these.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from fairsched.accounting import lots
from tests.unit.accounting.sampled_loop import MS, S, SampledLoop, decoder, drawn, tenants_of
from tests.unit.policy.model_gpu import Tenant
from tests.unit.policy.model_processes import ClosedLoop, DeepQueue, OnOff, Process

BEGIN_NS, END_NS = 15 * S, 60 * S


def drawn_pausing(number: int) -> list[Tenant]:
    """One to three that pause (bursts every .6 to 8 s, or a step and a rest), and one to three that always want it."""
    rng = random.Random(f"pausing {number}")
    rows = []
    for place in range(rng.randint(1, 3)):
        step_ns = round(rng.uniform(2, 30)) * MS
        process: Process
        if rng.random() < 0.6:
            period_s = rng.uniform(0.6, 8)
            on_s = period_s * rng.uniform(0.1, 0.7)
            process = OnOff(round(on_s * S), round((period_s - on_s) * S), token_ns=step_ns, gap_ns=MS // 10)
        else:
            process = ClosedLoop(step_ns, round(step_ns * rng.uniform(0.5, 20)))
        rows.append((f"p{place}", float(rng.randint(1, 4)), [process]))
    for place in range(rng.randint(1, 3)):
        step_ns = round(rng.uniform(4, 40)) * MS
        process = decoder(step_ns) if rng.random() < 0.5 else DeepQueue(step_ns, rng.randint(2, 4))
        rows.append((f"w{place}", float(rng.randint(1, 4)), [process]))
    return tenants_of(*rows)


def drawn_contexts(number: int) -> list[Tenant]:
    """One process, ``x``, of two to eight contexts, and one to four of one."""
    rng = random.Random(f"contexts {number}")
    weight, count = float(rng.randint(1, 4)), rng.randint(2, 8)
    rows = [("x", weight, [decoder(round(rng.uniform(4, 30)) * MS) for _ in range(count)])]
    for place in range(rng.randint(1, 4)):
        rows.append((f"t{place}", float(rng.randint(1, 4)), [decoder(round(rng.uniform(4, 30)) * MS)]))
    return tenants_of(*rows)


KINDS: Mapping[str, Callable[[int], list[Tenant]]] = {
    "always": drawn,
    "contexts": drawn_contexts,
    "pausing": drawn_pausing,
}


class Found(NamedTuple):
    """Of one draw."""

    shares: Mapping[str, float]
    error_points: float
    busy_ratio: float


def play(kind: str, number: int, constants: Mapping[str, Any], *, is_enforced: bool = True) -> Found:
    """One draw with these constants."""
    before = {name: getattr(lots, name) for name in constants}
    try:
        for name, value in constants.items():
            setattr(lots, name, value)
        one_process = ("x",) if kind == "contexts" else ()
        tenants, shows_each = KINDS[kind](number), bool(number % 2)
        loop = SampledLoop(
            tenants, seed=number, shows_each=shows_each, is_enforced=is_enforced, one_process=one_process
        )
        loop.run(END_NS)
    finally:
        for name, value in before.items():
            setattr(lots, name, value)
    window = (BEGIN_NS, END_NS)
    return Found(loop.shares(*window), loop.error_points(*window), loop.busy_ratio(*window))


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Each constant as it is, halved and doubled."""
    names = [name for name in ("IDLE_RATIO", "REST_NS", "_TURNS_S", "_MEMORY_S") if hasattr(lots, name)]
    changed = [(name, factor) for name in names for factor in (0.5, 2.0)]
    return [("as they are", {})] + [
        (f"{name} x {factor:g}", {name: type(getattr(lots, name))(factor * getattr(lots, name))})
        for name, factor in changed
    ]


def main() -> None:
    draws = range(int(sys.argv[1]) if len(sys.argv) > 1 else 34)
    with ProcessPoolExecutor() as pool:
        for kind in KINDS:
            free = [pool.submit(play, kind, number, {}, is_enforced=False) for number in draws]
            played = [
                (name, [pool.submit(play, kind, number, constants) for number in draws])
                for name, constants in variants()
            ]
            print(
                f"{kind}, {len(draws)} draws: change of the error, how far a share moves, work lost, in points"
            )
            now = [one.result() for one in played[0][1]]
            for name, futures in played:
                found = [one.result() for one in futures]
                worse = [a.error_points - b.error_points for a, b in zip(found, now, strict=True)]
                moved = [
                    100 * max(abs(a.shares[name] - b.shares[name]) for name in b.shares)
                    for a, b in zip(found, now, strict=True)
                ]
                lost = [
                    100 * (b.result().busy_ratio - a.busy_ratio) for a, b in zip(found, free, strict=True)
                ]
                error = statistics.fmean(one.error_points for one in found)
                doubt = statistics.stdev(worse) / len(worse) ** 0.5
                print(
                    f"  {name:16} {error:5.2f} {statistics.fmean(worse):+.2f} +- {doubt:.2f}"
                    f"  {statistics.fmean(moved):.2f}  {statistics.fmean(lost):.2f}"
                )


if __name__ == "__main__":
    main()
