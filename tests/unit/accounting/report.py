# SPDX-License-Identifier: Apache-2.0
"""Errors of the account in the closed-loop model: ``python -m tests.unit.accounting.report [SEEDS]``.

The figures of docs/decisions/0005-drains.md come from here, and those of 0002 about looks. Weights n ... 1, 20 s after
3 s, each tenant's own time; beside unseen work equal weights, from 2 s after it was found, the worst of all tenants.
"""

from __future__ import annotations

import statistics
import sys

from tests.unit.accounting.closed_loop import mix, with_greedy
from tests.unit.accounting.fake_probe import MS
from tests.unit.accounting.test_unseen import END_NS, played

MIXES = (
    "decode+longkernel",
    "decode+trainer",
    "decode+trainer*3",
    "decode+prefill+trainer",
    "burst+graph+trainer",
    "decode+trainer+poll",
    "decode+graph+prefill+burst+trainer*3+longkernel",
)
DEMO = "4:2:1:1 with a greedy tenant"


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print(f"error of the account in %, mean and worst of {seeds} seeds, under the control law")
    for kinds in (*MIXES, DEMO):
        numbers = range(1, seeds + 1)
        runs = [with_greedy(seed) if kinds == DEMO else mix(*kinds.split("+"), seed=seed) for seed in numbers]
        errors = [run.errors(3000 * MS, 23_000 * MS) for run in runs]
        print(f"\n{kinds}")
        for name in errors[0]:
            of_one = [100 * found[name] for found in errors]
            print(f"  {name:12} {statistics.fmean(of_one):+6.2f} {max(of_one, key=abs):+6.2f}")
        worst = [100 * max(map(abs, found.values())) for found in errors]
        print(f"  {'the worst':12} {statistics.fmean(worst):6.2f} {max(worst):6.2f}")
    print("\ndecoder and trainer beside unseen work, the worst of each seed")
    print("  " + " ".join(f"{100 * _beside_unseen(seed):.2f}" for seed in range(1, seeds + 1)))


def _beside_unseen(seed: int) -> float:
    sim = played("steps", "trainer", seed=seed)
    assert sim.counted_ns is not None, "never found"
    since_ns = sim.counted_ns + 2 * MS * 1000
    return max(abs(sim.error(name, since_ns, END_NS)) for name in sim.tenants if name != "hostile")


if __name__ == "__main__":
    main()
