# SPDX-License-Identifier: Apache-2.0
"""Print the table of docs/decisions/0002-control-law.md: ``python -m tests.unit.policy.report``.

One row per scenario, 2 s to 12 s: share error with and without the law, busy (work on the GPU) and
useful (delivered) time as a ratio to the run without it, Jain's index over 1 s windows, holds per second.
"""

from __future__ import annotations

from collections.abc import Callable

from fairsched.model import TenantClass
from tests.unit.policy.model_gpu import MS, Simulation, Tenant
from tests.unit.policy.model_processes import Bursty, ClosedLoop, DeepQueue
from tests.unit.policy.test_scenarios import (
    BATCH,
    FROM,
    TO,
    decoder,
    error,
    four_with_greedy,
    gang,
    greedy,
    run,
    tenant,
    trainer,
)

Scenario = Callable[[], list[Tenant]]


def decoders(**weights: float) -> list[Tenant]:
    return [decoder(name, weight) for name, weight in weights.items()]


def slow(tenants: list[Tenant]) -> list[Tenant]:
    for one in tenants:
        one.freeze_latency_ns = 3 * MS
    return tenants


SCENARIOS: dict[str, Scenario] = {
    "4:2:1:1, greedy 3 x 33 ms": four_with_greedy,
    "same, 3 ms freeze": lambda: slow(four_with_greedy()),
    "same, greedy of class latency": lambda: four_with_greedy(tenant_class=TenantClass.LATENCY),
    "4:2:1:1, greedy 3 x 100 ms": lambda: [*decoders(a=4, b=2, c=1), trainer("g", 1, 3, 25, 4)],
    "4:2:1:1, 80 ms bursts": lambda: [
        *decoders(a=4, b=2, c=1),
        tenant("g", 1, Bursty(80 * MS, MS), tenant_class=BATCH),
    ],
    "same, bursts of class latency": lambda: [
        *decoders(a=4, b=2, c=1),
        tenant("g", 1, Bursty(80 * MS, MS)),
    ],
    "1:1:1:1 decoders": lambda: decoders(a=1, b=1, c=1, d=1),
    "1:1:1:1, one greedy": lambda: [*decoders(a=1, b=1, c=1), greedy()],
    "3:1 decode:train, gap 0.5 ms": lambda: [decoder("a", 3, MS // 2), trainer("t")],
    "3:1 decode:train, gap 1 ms": lambda: [decoder("a", 3, MS), trainer("t")],
    "3:1 decode:train, gap 2 ms": lambda: [decoder("a", 3, 2 * MS), trainer("t")],
    "3:1 decode:train, gap 8 ms": lambda: [decoder("a", 3, 8 * MS), trainer("t")],
    "1:3 decode:train": lambda: [decoder("a", 1), trainer("t", 3)],
    "1:1:1, trainer of 4 processes": lambda: [*decoders(a=1, b=1), trainer("t", 1, 4, 10)],
    "nested (3:1):4": lambda: [decoder("team/chat", 3), decoder("team/eval", 1), trainer("s", 1, 2, 10)],
    "quota .3 beside a decoder": lambda: [trainer("q", 9, 1, 10, quota_ratio=0.3), decoder("a")],
    "min .3 against 5:5": lambda: [
        decoder("m", 0.1, min_ratio=0.3),
        decoder("a", 5),
        trainer("g", 5, 2, 10),
    ],
    "batch, latency, decoder 1:1:1": lambda: [
        decoder("a"),
        trainer("l", 1, 2, 10, tenant_class=TenantClass.LATENCY),
        trainer("b", 1, 2, 10),
    ],
    "two GPUs, gang (gpu1 shown)": lambda: [
        gang(),
        tenant("x", 1, ClosedLoop(gpu="gpu0")),
        tenant("y", 3, ClosedLoop(gpu="gpu1")),
    ],
    "32 decoders 1..4, batch": lambda: [
        decoder(f"t{index:02}", 1 + index % 4, tenant_class=BATCH) for index in range(32)
    ],
    "32 decoders 1..4, latency": lambda: [decoder(f"t{index:02}", 1 + index % 4) for index in range(32)],
    "1:1 trainers, 1 and 2 processes": lambda: [
        trainer("a"),
        tenant("b", 1, DeepQueue(10 * MS, 3), DeepQueue(10 * MS, 3)),
    ],
}


def jain_text(sim: Simulation, gpu: str) -> str:
    values = sim.jain(FROM, TO, gpu)
    return f"{sum(values) / len(values):.3f}/{min(values):.3f}"


def main() -> None:
    print("| scenario | error (none), points | busy | useful | Jain 1 s mean/min | holds/s |")
    print("|---|---|---|---|---|---|")
    for name, build in SCENARIOS.items():
        gpu = "gpu1" if "gpu1" in name else "gpu0"
        law, none = run(*build()), run(*build(), is_enforced=False)
        busy = law.busy_ratio(FROM, TO, gpu) / none.busy_ratio(FROM, TO, gpu)
        useful = law.delivered_ratio(FROM, TO, gpu) / none.delivered_ratio(FROM, TO, gpu)
        print(
            f"| {name} | {100 * error(law, gpu):.2f} ({100 * error(none, gpu):.1f}) | {busy:.3f} "
            f"| {useful:.3f} | {jain_text(law, gpu)} | {len(law.records) / 12:.1f} |"
        )


if __name__ == "__main__":
    main()
