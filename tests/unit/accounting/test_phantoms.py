# SPDX-License-Identifier: Apache-2.0
"""In the closed loop: who launches next to nothing and never asks is charged that, and nobody is held for it."""

from __future__ import annotations

import pytest

from fairsched.model import TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Steps
from tests.unit.accounting.unseen_loop import S, Watched
from tests.unit.policy.model_gpu import Tenant

SETTLED_NS, END_NS = 12 * S, 40 * S


class Phantom(Steps):
    """Launches 5 us, and again after ``gap_ns``. With ``asks_once`` it asks for the first."""

    def __init__(self, gap_ns: int, *, asks_once: bool) -> None:
        super().__init__(1, 5000, 0.1, gap_ns, is_seen=asks_once)

    def _seen(self, sim: ClosedLoop) -> None:
        super()._seen(sim)
        self.is_seen = False


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("gap_ms", [3, 20])
@pytest.mark.parametrize("asks_once", [False, True])
@pytest.mark.parametrize(("many", "weight"), [(4, 9), (1, 1)])
def test_who_launches_next_to_nothing_and_never_asks_takes_nothing_from_anybody(
    many: int, weight: int, asks_once: bool, gap_ms: int, seed: int
) -> None:
    """It was .14 to .56 busy, or its neighbour was named."""
    chat = Tenant(TenantSpec("chat"), [Steps(20, 500_000, 0.2, 500_000)])
    phantoms = [Phantom(gap_ms * MS, asks_once=asks_once) for _ in range(many)]
    sim = Watched([chat, Tenant(TenantSpec("hog", weight=weight), list(phantoms))], seed=seed)
    sim.run(END_NS)
    charged_ns, had_ns = sim._added("chat", SETTLED_NS, END_NS)
    assert had_ns > 0.8 * (END_NS - SETTLED_NS)
    assert charged_ns == pytest.approx(had_ns, rel=0.25)
    assert not sim.accused
