# SPDX-License-Identifier: Apache-2.0
"""In the closed loop: who launches next to nothing and never asks, or asks late, is charged that."""

from __future__ import annotations

import pytest

from fairsched.model import TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Steps
from tests.unit.accounting.unseen_loop import S, Watched
from tests.unit.policy.model_gpu import Simulation, Tenant

SETTLED_NS, END_NS = 12 * S, 40 * S


class Phantom(Steps):
    """Launches 5 us, and again after ``gap_ns``. With ``asks_once`` it asks for the first."""

    def __init__(self, gap_ns: int, *, asks_once: bool) -> None:
        super().__init__(1, 5000, 0.1, gap_ns, is_seen=asks_once)

    def _seen(self, sim: ClosedLoop) -> None:
        super()._seen(sim)
        self.is_seen = False


class Before(Steps):
    """Launches a step, asks for the one before, which is done, and pauses: training that reads the last step's loss."""

    def __init__(self, kernels: int, kernel_ns: int, gap_ns: int) -> None:
        super().__init__(kernels, kernel_ns, 0.1, gap_ns)
        self.launched = 0

    def on_start(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        before, self.launched = self.launched, self.launched + self.kernels
        super().on_start(sim)
        if before:
            sim.progressed(self, before, 1000)
        sim.program(self, sim.now + 20_000 + self.gap_ns, lambda: self.on_start(sim))

    def on_done(self, sim: Simulation) -> None:
        """Nobody waits for it."""


def played(hogs: list[Steps], weight: int, seed: int) -> Watched:
    chat = Tenant(TenantSpec("chat"), [Steps(20, 500_000, 0.2, 500_000)])
    sim = Watched([chat, Tenant(TenantSpec("hog", weight=weight), list(hogs))], seed=seed)
    sim.run(END_NS)
    return sim


def expect_busy(sim: Watched, least: float) -> None:
    """Chat had so much of the GPU, and was charged that."""
    charged_ns, had_ns = sim._added("chat", SETTLED_NS, END_NS)
    assert had_ns > least * (END_NS - SETTLED_NS)
    assert charged_ns == pytest.approx(had_ns, rel=0.25)
    assert not sim.accused


# Of four of weight 9 that launch every 3 ms one nearly always waits for its turn: whoever is owed nine parts of ten and
# wants the GPU that often has others held for it. Where they wait for each launch chat has .71 to .73.
PLAYS = [(1, 1, 3, 0.8), (1, 1, 20, 0.8), (4, 9, 20, 0.8), (4, 9, 3, 0.4)]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("asks_once", [False, True])
@pytest.mark.parametrize(("many", "weight", "gap_ms", "least"), PLAYS)
def test_who_launches_next_to_nothing_and_never_asks_takes_nothing_from_anybody(
    many: int, weight: int, gap_ms: int, least: float, asks_once: bool, seed: int
) -> None:
    """It was .14 to .56 busy, or its neighbour was named."""
    expect_busy(played([Phantom(gap_ms * MS, asks_once=asks_once) for _ in range(many)], weight, seed), least)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("many", "weight", "gap_ms", "least"), PLAYS)
def test_who_asks_for_the_launch_before_takes_nothing_from_anybody(
    many: int, weight: int, gap_ms: int, least: float, seed: int
) -> None:
    """It was .09 to .21 busy beside four of them, .41 to .80 beside one."""
    expect_busy(played([Before(1, 5000, gap_ms * MS) for _ in range(many)], weight, seed), least)


@pytest.mark.parametrize("seed", [1, 2])
def test_training_that_waits_for_its_data_is_not_charged_for_that(seed: int) -> None:
    """A fifth of the GPU; it was charged .53, and the GPU was .8 busy."""
    sim = played([Before(20, 200_000, 20 * MS)], 1, seed)
    charged_ns, had_ns = sim._added("hog", 24 * S, END_NS)
    assert had_ns == pytest.approx(0.2 * 16 * S, rel=0.1)
    assert charged_ns < 0.3 * 16 * S
