# SPDX-License-Identifier: Apache-2.0
"""Drawn GPUs and mixes beside processes that launch without end and never ask.

Problem. Nobody proves anything of such a process: what its launches take is learnt from what it is charged between two
moments at which its queue is as full, and that it had it from its neighbours and NVML's samples. What is not known by
the time it is held is not charged while what it had queued goes on.

Approach. One to three tenants of a draw of drawn_loop.py, and one to four processes of one tenant that each keep 1,024
launches queued, of .05 to 5 ms; three of ten rest now and then. Queues of more than five seconds in all are left out:
the longest hold repays no more (docs/decisions/0035-holds-as-long-as-queues.md).

``python -m tests.unit.accounting.flood_draws --draws 40 --seed 2``; docs/decisions/0037-what-a-full-queue-tells.md has
what was measured with it.
"""

from __future__ import annotations

import random

from fairsched.model import TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import MS, Flood
from tests.unit.accounting.deep_draws import play_watched
from tests.unit.accounting.drawn_loop import Nature, Result, S, draw
from tests.unit.accounting.draws import log_uniform, main_of
from tests.unit.policy.model_gpu import Tenant

SETTLE_NS, MEASURED_NS = 15 * S, 40 * S
MOST_QUEUED_NS = 5 * S


def draw_flood(seed: int, number: int) -> tuple[Nature, list[Tenant]]:
    """The same for the same arguments."""
    rng = random.Random(f"flood {seed}/{number}")
    nature, tenants = draw(seed, number)
    tenants = tenants[: rng.choice((1, 1, 2, 3))]
    many = rng.choice((1, 1, 2, 4))
    kernel_ns = round(log_uniform(rng, 0.05 * MS, min(5 * MS, MOST_QUEUED_NS / Flood.DEPTH / many)))
    rests = {"on_ns": round(rng.uniform(2, 8) * S), "off_ns": round(rng.uniform(0.3, 4) * S)}
    floods = [Flood(kernel_ns, **(rests if rng.random() < 0.3 else {})) for _ in range(many)]
    for flood in floods:
        flood.start_ns = round(rng.uniform(0, 2 * S))
    kind = rng.choice((TenantClass.BATCH, TenantClass.LATENCY))
    spec = TenantSpec("flood", weight=rng.randint(1, 9), tenant_class=kind)
    return nature, [*tenants, Tenant(spec, list(floods))]


def play_flood(seed: int, number: int, *, is_enforced: bool = True) -> Result:
    return play_watched(draw_flood(seed, number), number, SETTLE_NS, MEASURED_NS, is_enforced=is_enforced)


if __name__ == "__main__":
    main_of("The account and the law beside processes that never ask.", play_flood)
