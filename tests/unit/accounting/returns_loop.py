# SPDX-License-Identifier: Apache-2.0
"""Drawn mixes of tenants that come and go beside deep queues: what a return costs.

Problem. In :mod:`tests.unit.accounting.drawn_loop` everybody always wants the GPU. A service pauses between requests,
and meets what others queued meanwhile.

Approach. The closed loop with tenants that work for 50 to 1000 ms and pause for 20 to 2000 ms (at fixed times, or at
random with that mean; for so long, or until so much is done), deep queues of 1 to 8 steps of 5 to 50 ms (some with CPU
work before each step), decoders, and nested weights. Due is what a fluid scheduler would have given: what is delivered
in each 2 ms, divided by entitlement among those who want it then. A pause of up to 5 ms, and a hold, count as wanting.

``python -m tests.unit.accounting.returns_loop --draws 40 --seed 3`` prints the distribution of the share error;
docs/decisions/0025-queues-that-meet-a-return.md has what was measured with it. ``--truth``: the law's own error.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fairsched.model import TenantClass, TenantSpec
from fairsched.policy.shares import entitlements
from tests.unit.accounting.closed_loop import ClosedLoop, Pipeline, Steps
from tests.unit.accounting.drawn_loop import ASSUMED, DrawnLoop, Nature, S, draw_nature
from tests.unit.accounting.draws import log_uniform, parser_of, play_all, tell_errors, tell_worst
from tests.unit.accounting.fake_probe import MS
from tests.unit.policy.model_gpu import Simulation, Tenant
from tests.unit.policy.model_processes import Process

GRACE_NS = 5 * MS
LOOK_NS = 2 * MS
_CPU_NS = MS


class OnOff(Steps):
    """Serves for a while, step by step, then is silent."""

    def __init__(self, step_ns: int, on_ns: int, off_ns: int, *, by_chance: bool, by_work: bool) -> None:
        """``by_work``: until ``on_ns`` of GPU time are done, and not for so long."""
        super().__init__(10, step_ns // 10, 0.05, 100_000)
        self.on_ns, self.off_ns, self.by_chance, self.by_work = on_ns, off_ns, by_chance, by_work
        self.begun_ns = self.work_ns = 0
        self.length_ns = on_ns

    def _seen(self, sim: ClosedLoop) -> None:
        self.work_ns += self.kernels * self.kernel_ns
        if (self.work_ns if self.by_work else sim.now - self.begun_ns) < self.length_ns:
            super()._seen(sim)
            return
        sim.synced(self, sim.now - self.submitted_ns)
        pause = self._length(sim, self.off_ns)
        self.begun_ns, self.work_ns, self.length_ns = sim.now + pause, 0, self._length(sim, self.on_ns)
        sim.program(self, sim.now + pause, lambda: self.on_start(sim))

    def _length(self, sim: ClosedLoop, mean_ns: int) -> int:
        return round(sim.rng.expovariate(1 / mean_ns)) if self.by_chance else mean_ns


class Loading(Pipeline):
    """A trainer that prepares each step on the CPU before it is queued: while it is frozen nothing is prepared."""

    def __init__(self, kernels: int, kernel_ns: int, jitter_ratio: float, depth: int, cpu_ns: int) -> None:
        super().__init__(kernels, kernel_ns, jitter_ratio, depth)
        self.cpu_ns = cpu_ns
        self.is_preparing = False

    def on_start(self, sim: Simulation) -> None:
        if not self.is_preparing and self.asked - self.done < self.depth:
            self.is_preparing = True
            self._prepare(sim, self.cpu_ns)

    def _prepare(self, sim: Simulation, left_ns: int) -> None:
        if left_ns > 0:
            sim.program(self, sim.now + min(left_ns, _CPU_NS), lambda: self._prepare(sim, left_ns - _CPU_NS))
            return
        assert isinstance(sim, ClosedLoop)
        self.is_preparing = False
        self.submitted_ns = sim.now
        self.asked += 1
        sim.launched(self, self.kernels)
        self.submit(sim, sum(sim.kernel_ns(self) for _ in range(self.kernels)))
        self.on_start(sim)


@dataclass(frozen=True)
class Result:
    """Of one draw."""

    number: int
    share_error: float
    """Largest of any tenant, in points."""
    account_error: float
    """Largest of any tenant: its share as the account has it, against the truth."""
    busy_ratio: float
    held_ratio: float
    """Of the time, the sum over tenants."""
    holds_per_s: float
    idle_held_ratio: float
    """Of the time: the GPU had nothing to do, and somebody was frozen."""
    words: str


class ReturnsLoop(DrawnLoop):
    """Keeps what a fluid scheduler would have given."""

    def watch_from(self, start_ns: int, end_ns: int) -> None:
        self.due: dict[str, float] = dict.fromkeys(self.tenants, 0.0)
        self.had: dict[str, int] = {}
        self.frozen_ns = self.idle_held_ns = 0
        self._owed: dict[frozenset[str], dict[str, float]] = {}
        for at_ns in range(start_ns, end_ns + 1, LOOK_NS):
            self.at(at_ns, self._look)

    def _look(self) -> None:
        self._account("gpu0")
        had = {name: self.delivered[name, "gpu0"] for name in self.tenants}
        if not self.had:
            self.began, self.had = self.totals(), had
            return
        got = sum(had.values()) - sum(self.had.values())
        wanting = frozenset(
            name
            for name, one in self.tenants.items()
            if one.is_frozen or one.queued_ns("gpu0") or self.now - one.worked_ns.get("gpu0", -S) <= GRACE_NS
        )
        if wanting not in self._owed:
            self._owed[wanting] = entitlements(wanting, self.specs)
        for name, ratio in self._owed[wanting].items():
            self.due[name] += ratio * got
        frozen = sum(one.is_frozen for one in self.tenants.values())
        self.frozen_ns += frozen * LOOK_NS
        if frozen and not any(process.queue for process in self.owner):
            self.idle_held_ns += LOOK_NS
        self.had = had


def _goer(rng: random.Random) -> Process:
    on_ns, off_ns = round(log_uniform(rng, 50, 1000) * MS), round(log_uniform(rng, 20, 2000) * MS)
    return OnOff(
        round(log_uniform(rng, 2, 20) * MS),
        on_ns,
        off_ns,
        by_chance=rng.random() < 0.5,
        by_work=rng.random() < 0.4,
    )


def _trainer(rng: random.Random) -> Process:
    depth, step_ns = rng.randint(1, 8), log_uniform(rng, 5, 50) * MS
    kernels = rng.randint(5, 20)
    jitter = rng.uniform(0, 0.15)
    if rng.random() < 0.3 and depth > 1:
        return Loading(
            kernels, round(step_ns / kernels), jitter, depth, round(rng.uniform(0.2, 0.8) * step_ns)
        )
    return Pipeline(kernels, round(step_ns / kernels), jitter, depth)


def draw(
    seed: int, number: int, *, is_nature_drawn: bool = False
) -> tuple[Nature, list[Tenant], dict[str, TenantSpec]]:
    """The same for the same arguments."""
    rng = random.Random(f"returns {seed}/{number}")
    nature = draw_nature(rng)
    others = rng.choices(("goer", "trainer", "decoder"), k=rng.choice((0, 0, 1, 1, 2, 3)))
    kinds = ["goer", "trainer", *others]
    teams = {"": 1.0}
    if len(kinds) > 2 and rng.random() < 0.4:
        teams = {"x/": log_uniform(rng, 0.5, 4), "y/": log_uniform(rng, 0.5, 4)}
    specs = {team[:-1]: TenantSpec(team[:-1], weight=weight) for team, weight in teams.items() if team}
    tenants = []
    for place, kind in enumerate(kinds):
        many = 1 if kind == "goer" else rng.choice((1, 1, 1, 2, 3))
        if kind == "goer":
            processes = [_goer(rng)]
        elif kind == "trainer":
            processes = [_trainer(rng) for _ in range(many)]
        else:
            processes = [Steps(10, round(log_uniform(rng, 0.2, 2) * MS), 0.05, 300_000) for _ in range(many)]
        for process in processes:
            process.start_ns = round(rng.uniform(0, 0.5 * S))
        is_batch = kind == "trainer" and rng.random() < 0.8
        name = f"{rng.choice(sorted(teams))}{kind}{place}"
        tenant_class = TenantClass.BATCH if is_batch else TenantClass.LATENCY
        specs[name] = TenantSpec(name, weight=round(log_uniform(rng, 0.3, 8), 2), tenant_class=tenant_class)
        tenants.append(Tenant(specs[name], processes))
    return (nature if is_nature_drawn else ASSUMED), tenants, specs


def play(seed: int, number: int, *, is_enforced: bool, is_law_told: bool, is_nature_drawn: bool) -> Result:
    """One draw, from 6 s to 22 s."""
    nature, tenants, specs = draw(seed, number, is_nature_drawn=is_nature_drawn)
    loop = ReturnsLoop(tenants, nature, seed=1000 + number, is_enforced=is_enforced, is_law_told=is_law_told)
    loop.specs = specs
    start_ns, end_ns = 6 * S, 22 * S
    loop.watch_from(start_ns, end_ns)
    loop.run(end_ns)
    span = loop.totals().since(loop.began)
    due = {name: ns / span.whole_ns for name, ns in loop.due.items()}
    span_ns = end_ns - start_ns
    holds = sum(record.since_ns >= start_ns for record in loop.records)
    return Result(
        number,
        max(span.share_errors(due).values()),
        max(span.account_errors().values()),
        span.whole_ns / span_ns,
        loop.frozen_ns / span_ns,
        holds * S / span_ns,
        loop.idle_held_ns / span_ns,
        f"[{nature}] {span.words(due)}",
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def main() -> None:
    parser = parser_of("Tenants that come and go beside deep queues.")
    parser.add_argument("--truth", action="store_true", help="the law sees the truth: its own error")
    parser.add_argument("--natures", action="store_true", help="GPUs are drawn, too")
    chosen = parser.parse_args()
    how = {"is_law_told": chosen.truth, "is_nature_drawn": chosen.natures}
    played = partial(play, is_enforced=not chosen.observe, **how)
    results = play_all(played, [(chosen.seed, number) for number in range(chosen.draws)])
    tell_errors(results)
    print(
        f"means: share error {_mean([one.share_error for one in results]):.2f}, "
        f"busy {_mean([one.busy_ratio for one in results]):.4f}, "
        f"held {_mean([one.held_ratio for one in results]):.3f}, "
        f"holds/s {_mean([one.holds_per_s for one in results]):.1f}, "
        f"idle while held {_mean([one.idle_held_ratio for one in results]):.4f}"
    )
    tell_worst(
        results,
        chosen.worst,
        lambda one: (
            f"account {one.account_error:.1f}, busy {one.busy_ratio:.3f}, idle {one.idle_held_ratio:.3f}, "
            f"held {one.held_ratio:.2f}"
        ),
    )


if __name__ == "__main__":
    main()
