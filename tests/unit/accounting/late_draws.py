# SPDX-License-Identifier: Apache-2.0
"""Drawn GPUs and mixes to which training comes that asks for a step long after it is done.

Problem. In the other distributions who waits for a step waits for work that goes on, so that the moment at which the
call returns is the one at which the work ended. Training that logs the loss of a hundred steps ago, or that is kept
waiting by a launch because its queue is full, never waits in a call that asks: each proof comes late, and how much of
what was launched later is done, too, nobody tells.

Approach. One to three tenants of a draw of drawn_loop.py, and a trainer that keeps 16 to 128 steps of 2 to 20 ms in
flight, whose steps take up to as long to launch as to run. As in CUDA no more than 1,024 launches fit in a queue.

``python -m tests.unit.accounting.late_draws --draws 40 --seed 2``; docs/decisions/0036-proofs-that-come-late.md has
what was measured with it.
"""

from __future__ import annotations

import random

from fairsched.model import TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Pipeline
from tests.unit.accounting.deep_draws import play_watched
from tests.unit.accounting.drawn_loop import Nature, Result, S, draw
from tests.unit.accounting.draws import log_uniform, main_of
from tests.unit.policy.model_gpu import Simulation, Tenant

SETTLE_NS, MEASURED_NS = 12 * S, 30 * S
ROOM = 1024
"""Launches; with so many in flight a launch waits until a quarter of them is done."""


class LateAsker(Pipeline):
    """Takes ``launch_ns`` to launch a step, keeps ``depth`` of them in flight, and then asks for the oldest."""

    def __init__(self, kernels: int, kernel_ns: int, jitter_ratio: float, depth: int, launch_ns: int) -> None:
        super().__init__(kernels, kernel_ns, jitter_ratio, depth)
        self.launch_ns = launch_ns
        self.is_asking = self.is_blocked = False

    def on_start(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        if self.asked - self.done >= self.depth:
            self.returned_ns, self.is_asking = sim.now, True
            self._ask(sim)
        elif (len(self.queue) + 1) * self.kernels > ROOM:
            self.is_blocked = True
        else:
            self.asked += 1
            sim.launched(self, self.kernels)
            self.submit(sim, sum(sim.kernel_ns(self) for _ in range(self.kernels)))
            sim.program(self, sim.now + self.launch_ns, lambda: self.on_start(sim))

    def _ask(self, sim: ClosedLoop) -> None:
        if self.is_asking and self.finished_ns:
            self.is_asking = False
            sim.program(self, sim.now + 1000, lambda: self._seen(sim))

    def on_done(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        if self.is_blocked and len(self.queue) * self.kernels <= ROOM * 3 // 4:
            self.is_blocked = False
            sim.program(self, sim.now + 1000, lambda: self.on_start(sim))
        sim.program(self, sim.now + 1, lambda: self._ask(sim))


def draw_late(seed: int, number: int) -> tuple[Nature, list[Tenant]]:
    """The same for the same arguments."""
    rng = random.Random(f"late {seed}/{number}")
    nature, tenants = draw(seed, number)
    tenants = tenants[: rng.choice((1, 2, 2, 3))]
    step_ns, kernels = log_uniform(rng, 2 * MS, 20 * MS), rng.randint(5, 60)
    depth = round(log_uniform(rng, 16, 128))
    launch_ns = max(kernels * 3_000, round(rng.uniform(0, 1) * step_ns))
    late = LateAsker(kernels, round(step_ns / kernels), rng.uniform(0, 0.2), depth, launch_ns)
    late.start_ns = round(rng.uniform(0, 2 * S))
    kind = rng.choice((TenantClass.BATCH, TenantClass.LATENCY))
    return nature, [*tenants, Tenant(TenantSpec("late", weight=rng.randint(1, 9), tenant_class=kind), [late])]


def play_late(seed: int, number: int, *, is_enforced: bool = True) -> Result:
    return play_watched(draw_late(seed, number), number, SETTLE_NS, MEASURED_NS, is_enforced=is_enforced)


if __name__ == "__main__":
    main_of("The account and the law beside training whose proofs come late.", play_late)
