# SPDX-License-Identifier: Apache-2.0
"""The closed loop beside work that no probe sees: NVML's samples are judged, the account counts on what they show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from fairsched.accounting.context import ProcessUse
from fairsched.model import Confidence, ContextWork, Snapshot, TenantSpec
from fairsched.policy.evidence import Evidence, MisbehaviourLimits, TenantSamples
from fairsched.policy.misbehaviour import WatchState, judge
from fairsched.policy.unseen import intruded_gpus, steady_unseen
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Unseen, pid_of
from tests.unit.policy.model_gpu import Tenant
from tests.unit.policy.model_processes import Process

S = 1000 * MS
PERIOD_NS = 139 * MS
POLL_NS = 500 * MS
LOOK_NS, URGENT_NS, HOUSEKEEPING_NS = 900 * MS, 350 * MS, 200 * MS
GPU = "gpu0"
BLIND_NS = 5 * S


@dataclass(frozen=True)
class Reading:
    """One look at the account and the truth."""

    t_ns: int
    billed: dict[str, int]
    real: dict[str, int]
    low: frozenset[str]


class Watched(ClosedLoop):
    """As the daemon does it: misbehaviour is looked for about once."""

    def __init__(self, tenants: list[Tenant], *, seed: int) -> None:
        super().__init__(tenants, seed=seed)
        self.watch_state = WatchState()
        self.readings: list[Reading] = []
        self.found_ns: int | None = None
        self.counted_ns: int | None = None
        """When the account began to count on the unseen."""
        self.let_go = 0
        """How often it ceased to."""
        self._counted: frozenset[tuple[int, str]] = frozenset()
        self._charged: dict[tuple[int, str], int] = {}
        self._samples: list[tuple[int, int]] = []
        self._next_ns = self._look_ns = 0
        self.at(PERIOD_NS, self._take_sample)

    def _take_sample(self) -> None:
        running = self.gpus[GPU].running
        if running is not None:
            self._samples.append((self.slots[running], self.now))
        self.at(self.now + PERIOD_NS, self._take_sample)

    def rows(self) -> list[ProcessUse]:
        rows = super().rows()
        for row in rows:
            where = (row.tgid, GPU)
            self._charged[where] = self._charged.get(where, 0) + row.used_ns
        return rows

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        if self.now >= self._next_ns:
            self._next_ns = self.now + HOUSEKEEPING_NS
            self._look()
        doubted = {episode.tenant for episode in self.watch_state.episodes.values()}
        uses = tuple(
            use._replace(confidence=Confidence.LOW) if use.tenant in doubted else use for use in seen.uses
        )
        self.readings.append(
            Reading(
                self.now,
                dict(self.billed),
                {name: self.delivered[name, GPU] for name in self.tenants},
                frozenset(use.tenant for use in uses if use.confidence is not Confidence.HIGH),
            )
        )
        return replace(seen, uses=uses)

    def _look(self) -> None:
        if self.now < self._look_ns:
            return
        evidence = self._evidence()
        self.watch_state = judge(evidence, self.watch_state, MisbehaviourLimits())
        self._look_ns = self.now + (URGENT_NS if self.watch_state.is_urgent else LOOK_NS)
        before, self._counted = self._counted, steady_unseen(self.watch_state, evidence, self._counted)
        unseen = {(pid, 0) for pid, _ in self._counted}
        intruded = intruded_gpus(self.watch_state, self._counted, self.now)
        self.account.intruded = {0 for _ in intruded}
        self.account.stand_in_for(unseen, self.now)
        if self.watch_state.episodes and self.found_ns is None:
            self.found_ns = self.now
        if self._counted and self.counted_ns is None:
            self.counted_ns = self.now
        self.let_go += bool(before - self._counted)

    def _evidence(self) -> Evidence:
        charged, self._charged = self._charged, {}
        every_ns = POLL_NS // (4 if self.watch_state.is_urgent else 1)
        told = [one for one in self._samples if one[1] <= self.now - self.now % every_ns]
        self._samples = self._samples[len(told) :]
        by_slot: dict[int, list[int]] = {}
        for slot, t_ns in told:
            by_slot.setdefault(slot, []).append(t_ns)
        names = {slot: self.owner[process].name for process, slot in self.slots.items()}
        return Evidence(
            now_ns=self.now,
            works=self._works(),
            samples=tuple(
                TenantSamples(
                    names[slot], pid_of(slot), GPU, len(at), len(at) * PERIOD_NS, PERIOD_NS, at[0], at[-1]
                )
                for slot, at in by_slot.items()
            ),
            charged_ns=charged,
            watched_since_ns=dict.fromkeys(self.watch_state.suspects, 0),
            is_blind=self.now < BLIND_NS,
            unsure=frozenset({GPU} if self.account.contradicted_gpus() else ()),
        )

    def _works(self) -> dict[tuple[int, str], tuple[ContextWork, ...]]:
        found: dict[tuple[int, str], tuple[ContextWork, ...]] = {}
        for work in self.account.work():
            found[work.pid, GPU] = (*found.get((work.pid, GPU), ()), work)
        return found

    # -- the verdict --------------------------------------------------------------------------

    def error(self, name: str, since_ns: int, until_ns: int, *, is_sure: bool = True) -> float:
        """Of its account between the two moments; where ``is_sure``, of the time it was sure of it."""
        said = real = 0
        inside = [one for one in self.readings if since_ns <= one.t_ns <= until_ns]
        for one, other in pairwise(inside):
            if is_sure and name in one.low | other.low:
                continue
            said += other.billed[name] - one.billed[name]
            real += other.real[name] - one.real[name]
        return said / real - 1 if real else 0.0

    def low_ratio(self, name: str, since_ns: int, until_ns: int) -> float:
        inside = [one for one in self.readings if since_ns <= one.t_ns <= until_ns]
        return sum(name in one.low for one in inside) / max(1, len(inside))


def beside_unseen(*honest: Process, start_ns: int, seed: int) -> Watched:
    """``honest`` processes, each a tenant, and one of whom no probe tells anything from ``start_ns`` on."""
    tenants = [Tenant(TenantSpec(f"honest{n + 1}"), [process]) for n, process in enumerate(honest)]
    hidden = Unseen(20, 500_000, 0.1, 2)
    hidden.start_ns = start_ns
    tenants.append(Tenant(TenantSpec("hostile"), [hidden]))
    return Watched(tenants, seed=seed)
