# SPDX-License-Identifier: Apache-2.0
"""A node whose GPU is sampled by lot, looked at by the judgement once a second."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st

from fairsched.model import ContextWork, MisbehaviourKind
from fairsched.policy.evidence import Episode, Evidence, MisbehaviourLimits, TenantSamples
from fairsched.policy.misbehaviour import WatchState, judge

MS = 1_000_000
S = 1000 * MS
PERIOD = 139 * MS
GPU = "GPU-a"
LIMITS = MisbehaviourLimits()
ALWAYS_S = -10.0
ENDLESS, UNSEEN = MisbehaviourKind.ENDLESS, MisbehaviourKind.UNSEEN


@dataclass
class Process:
    """Runs for ``share`` of each second on the GPU. ``step_s``: from one proof of completion to the next."""

    pid: int
    share: float
    step_s: float | None = 0.02
    launches_per_s: float = 0.0
    """Besides those that are proven complete."""
    seen_ratio: float = 1.0
    """Part of its work that the account sees."""
    contexts: int = 1
    busy_until_s: float = 1e9
    """When the GPU has done all it had; the account hears nothing of that."""
    charge_until_s: float = 1e9
    begin_s: float = 0.0
    expected_ns: int = 0
    tenant: str = ""

    def work(self, now_s: float, context: int) -> ContextWork:
        age_s = max(0.0, now_s - self.begin_s)
        each = self.share * self.seen_ratio / self.contexts
        done = 0 if self.step_s is None else int(age_s / self.step_s)
        since_s = self.begin_s + (done * self.step_s if self.step_s else 0.0)
        charged_s = min(now_s, self.charge_until_s) - self.begin_s
        return ContextWork(
            key=(self.pid * 100 + context, 1),
            pid=self.pid,
            cgroup_id=self.pid,
            gpu=0,
            submitted=done + 1 + int(age_s * self.launches_per_s),
            completed=done,
            is_outstanding=True,
            since_ns=round(since_s * S),
            charged_then_ns=round((since_s - self.begin_s) * each * S),
            charged_ns=round(max(0.0, charged_s) * each * S),
            expected_ns=self.expected_ns,
        )


@dataclass
class World:
    """Looks once a second; NVML names one process in each period, by lot."""

    processes: list[Process]
    seed: int = 1
    look_s: float = 1.0
    phase_s: float = 0.3
    state: WatchState = field(default_factory=WatchState)
    blind_until_s: float = 0.0
    over_budget: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    late_s: float = 0.2
    """NVML tells so long after it looked."""
    watched_s: float | None = None
    """Since when the libraries of those who are suspected have probes; None = nobody finds out."""
    history_s: float = 0.0
    """Samples of so long before the first look are in it."""
    step_s: float = 1.0
    """Between the look before and this one."""
    held_ratio: float = 0.0
    """Part of the time in which the tenant of the first process is held."""

    def looks(self, seconds: float) -> Iterator[tuple[float, list[Episode]]]:
        lot, now_s, sampled_s = random.Random(self.seed), self.phase_s, -self.history_s
        self.step_s = self.look_s
        while now_s <= seconds:
            counts: dict[int, list[float]] = {}
            while sampled_s + PERIOD / S <= now_s - self.late_s:
                sampled_s += PERIOD / S
                who = self._occupant(lot.random(), sampled_s)
                if who is not None:
                    counts.setdefault(who, []).append(sampled_s)
            self.state = judge(self._evidence(now_s, counts), self.state, LIMITS)
            yield now_s, list(self.state.episodes.values())
            self.step_s = 0.4 if self.state.is_urgent else self.look_s
            now_s += self.step_s

    def _occupant(self, at: float, now_s: float) -> int | None:
        for process in self.processes:
            if process.begin_s <= now_s < process.busy_until_s:
                at -= process.share
                if at < 0:
                    return process.pid
        return None

    def _evidence(self, now_s: float, counts: dict[int, list[float]]) -> Evidence:
        here = [process for process in self.processes if process.begin_s <= now_s]
        charged = {}
        for p in here:
            length_s = min(now_s, p.charge_until_s) - max(now_s - self.step_s, p.begin_s)
            charged[p.pid, GPU] = round(max(0.0, length_s) * p.share * p.seen_ratio * S)
        tenants = {p.pid: p.tenant or f"t{p.pid}" for p in here}
        return Evidence(
            now_ns=round(now_s * S),
            works={
                (p.pid, GPU): tuple(p.work(now_s, c) for c in range(p.contexts))
                for p in here
                if p.seen_ratio > 0
            },
            samples=tuple(
                TenantSamples(
                    tenants[pid],
                    pid,
                    GPU,
                    len(at),
                    len(at) * PERIOD,
                    PERIOD,
                    round(at[0] * S),
                    round(at[-1] * S),
                )
                for pid, at in counts.items()
            ),
            charged_ns=charged,
            whose=tenants,
            held_ns={self.processes[0].tenant or "t1": round(self.held_ratio * self.step_s * S)},
            watched_since_ns={}
            if self.watched_s is None
            else {pid: round(min(now_s, self.watched_s) * S) for pid in self.state.suspects},
            is_blind=now_s < self.blind_until_s,
            over_budget=self.over_budget,
            unsure=self.unsure,
        )


def first(world: World, seconds: float, kind: MisbehaviourKind, tenant: str = "t1") -> float | None:
    for now_s, episodes in world.looks(seconds):
        if any(one.kind is kind and one.tenant == tenant for one in episodes):
            return now_s
    return None


def accused(world: World, seconds: float) -> set[tuple[str, MisbehaviourKind]]:
    return {(one.tenant, one.kind) for _, episodes in world.looks(seconds) for one in episodes}


seeds = st.integers(0, 10_000)
phases = st.floats(0.01, 1.0)
unhurried = settings(deadline=None)
"""An example is half a minute of a node: how long it takes on a busy machine is not what is asked."""


def moments(make: Callable[[int], World], kind: MisbehaviourKind) -> list[float]:
    """When it is found in three hundred lotteries, at all moments at which it may begin between two looks."""
    return sorted(first(make(seed), 15, kind) or 99.0 for seed in range(300))


def phase_of(seed: int) -> float:
    return 0.01 + seed % 100 / 100


INNOCENT: dict[str, Callable[[float], Process]] = {
    "a decoder": lambda share: Process(1, share, 0.02),
    "kernels of 200 ms that wait their turn": lambda share: Process(1, share, 0.2 / max(share, 1e-3)),
    "a graph of two seconds": lambda share: Process(1, share, 2.0),
    "a program that polls": lambda share: Process(1, share, None, launches_per_s=20 * 1000 / 5),
    "one that polls for kernels of 200 ms": lambda share: Process(1, share, None, launches_per_s=5 * share),
    "one that never synchronises": lambda share: Process(1, share, None, launches_per_s=5000 * share),
    "one that waits behind others": lambda share: Process(1, 0.02 * share, 20.0),
    "one that launched, and computes on the CPU": lambda share: Process(1, share, None, busy_until_s=1.0),
    "one that is idle, which nobody told": lambda share: Process(
        1, share, None, busy_until_s=1.0, charge_until_s=2.0
    ),
    "one that was held for long with a short drain": lambda share: Process(
        1, share, None, busy_until_s=0.6, charge_until_s=0.9
    ),
    "one whose account is a tenth too low": lambda share: Process(1, share, 0.02, seen_ratio=0.9),
    "bursts known to take long": lambda share: Process(1, share, 5.0, expected_ns=6 * S),
}
