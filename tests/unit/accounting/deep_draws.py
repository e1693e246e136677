# SPDX-License-Identifier: Apache-2.0
"""Drawn GPUs and mixes to which training comes that queues whole steps: up to twenty seconds of work at once.

Problem. In drawn_loop.py nobody queues more than half a second. Training that asks once in a step does, and a hold does
not end what is queued: it must last until the others have had as much.

Approach. One to three tenants of a draw of drawn_loop.py, and one or two trainers with steps of .2 to 5 s, from one to
four processes each, that ask for each step or keep two queued. NVML's samples are judged as the daemon does it: where a
queue outlasts most holds nobody is ever alone, and no account is right without them.

``python -m tests.unit.accounting.deep_draws --draws 40 --seed 2``; docs/decisions/0035-holds-as-long-as-queues.md has
what was measured with it.
"""

from __future__ import annotations

import random

from fairsched.model import TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import MS, Pipeline, Steps
from tests.unit.accounting.drawn_loop import DrawnLoop, Nature, Result, S, draw, measured
from tests.unit.accounting.draws import log_uniform, main_of
from tests.unit.accounting.unseen_loop import Watched
from tests.unit.policy.model_gpu import Tenant

SETTLE_NS, MEASURED_NS = 15 * S, 40 * S


class DrawnWatched(Watched, DrawnLoop):
    """A closed loop on a GPU of another nature, with NVML's samples."""


def play_watched(
    drawn: tuple[Nature, list[Tenant]], number: int, settle_ns: int, measured_ns: int, *, is_enforced: bool
) -> Result:
    """``number`` of the draw: it seeds the loop."""
    nature, tenants = drawn
    loop = DrawnWatched(tenants, seed=1000 + number, nature=nature, is_enforced=is_enforced)
    return measured(loop, number, settle_ns, measured_ns)


def draw_trainer(rng: random.Random, name: str) -> Tenant:
    kernels = rng.randint(50, 1000)
    kernel_ns = round(log_uniform(rng, 0.2 * S, 5 * S) / kernels)
    spread, many = rng.uniform(0, 0.2), rng.choice((1, 1, 1, 2, 4))
    gap_ns, asks_each = round(rng.uniform(1, 20) * MS), rng.random() < 0.6
    processes: list[Steps] = [
        Steps(kernels, kernel_ns, spread, gap_ns)
        if asks_each
        else Pipeline(kernels // 2 + 1, kernel_ns, spread, depth=2)
        for _ in range(many)
    ]
    for process in processes:
        process.start_ns = round(rng.uniform(0, 2 * S))
    weight, kind = rng.randint(1, 9), rng.choice((TenantClass.BATCH, TenantClass.LATENCY))
    return Tenant(TenantSpec(name, weight=weight, tenant_class=kind), list(processes))


def draw_deep(seed: int, number: int) -> tuple[Nature, list[Tenant]]:
    """The same for the same arguments."""
    rng = random.Random(f"deep {seed}/{number}")
    nature, tenants = draw(seed, number)
    tenants = tenants[: rng.choice((1, 1, 2, 3))]
    trainers = rng.choice((1, 1, 1, 2))
    return nature, [*tenants, *(draw_trainer(rng, f"train-{place}") for place in range(trainers))]


def play_deep(seed: int, number: int, *, is_enforced: bool = True) -> Result:
    return play_watched(draw_deep(seed, number), number, SETTLE_NS, MEASURED_NS, is_enforced=is_enforced)


if __name__ == "__main__":
    main_of("The account and the law beside training that queues whole steps.", play_deep)
