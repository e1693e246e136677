# SPDX-License-Identifier: Apache-2.0
"""The closed loop beside work that no probe sees: NVML's samples are judged, the account counts on what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairsched.accounting.context import ProcessUse
from fairsched.model import NOTHING_UNSEEN, ContextWork, Snapshot
from fairsched.observe.snapshot import Observation, with_unseen
from fairsched.policy.evidence import EpisodeKey, Evidence, MisbehaviourLimits, TenantSamples
from fairsched.policy.launches import NO_TIMINGS, time_launches
from fairsched.policy.misbehaviour import WatchState, judge
from fairsched.policy.unseen import borne_out, suspected_gpus, unseen_rates
from tests.unit.accounting.closed_loop import MS, ClosedLoop, pid_of
from tests.unit.policy.model_gpu import Tenant

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


class Watched(ClosedLoop):
    """As the daemon does it: misbehaviour is looked for about once."""

    def __init__(self, tenants: Sequence[Tenant], *, seed: int, **more: Any) -> None:
        """``more``: what the loop needs that it is one of."""
        super().__init__(tenants, seed=seed, **more)
        self.watch_state = WatchState()
        self.timings = NO_TIMINGS
        self.readings: list[Reading] = []
        self.unseen = NOTHING_UNSEEN
        self.accused: set[EpisodeKey] = set()
        """At any look."""
        self._held_ns: dict[str, int] = {}
        self._charged: dict[tuple[int, str], int] = {}
        self._anchored: dict[tuple[int, str], int] = {}
        self._launches: dict[tuple[int, str], int] = {}
        self._samples: list[tuple[int, int]] = []
        self._seen_ns: dict[tuple[int, int], int] = {}
        self._next_ns = self._look_ns = 0
        self.at(PERIOD_NS, self._take_sample)
        self.at(POLL_NS, self._poll)

    def _take_sample(self) -> None:
        running = self.gpus[GPU].running
        if running is not None:
            self._samples.append((self.slots[running], self.now))
            self._seen_ns[pid_of(self.slots[running]), 0] = self.now
        self.at(self.now + PERIOD_NS, self._take_sample)

    def _poll(self) -> None:
        self.account.seen_running = dict(self._seen_ns)
        self.at(self.now + POLL_NS, self._poll)

    def rows(self) -> list[ProcessUse]:
        rows = super().rows()
        for row in rows:
            where = (row.tgid, GPU)
            self._charged[where] = self._charged.get(where, 0) + row.used_ns
            self._anchored[where] = self._anchored.get(where, 0) + row.anchored_ns
            self._launches[where] = self._launches.get(where, 0) + row.unanchored_launches
        return rows

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        if self.now >= self._next_ns:
            self._next_ns = self.now + HOUSEKEEPING_NS
            self._look()
        for name in seen.holds:
            self._held_ns[name] = self._held_ns.get(name, 0) + seen.interval_ns
        observed = Observation(self.now, seen.interval_ns, holds=seen.holds, unseen=self.unseen)
        before = {use.tenant: use.used_ns for use in seen.uses}
        uses = tuple(with_unseen(list(seen.uses), observed)) if self.unseen.rates else seen.uses
        for use in uses:
            self.billed[use.tenant] += use.used_ns - before.get(use.tenant, 0)
        self.readings.append(
            Reading(
                self.now,
                dict(self.billed),
                {name: self.delivered[name, GPU] for name in self.tenants},
            )
        )
        return replace(seen, uses=uses)

    def _look(self) -> None:
        if self.now < self._look_ns:
            return
        evidence = self._evidence()
        self.watch_state = judge(evidence, self.watch_state, MisbehaviourLimits())
        self.accused |= self.watch_state.episodes.keys()
        self._look_ns = self.now + (URGENT_NS if self.watch_state.is_urgent else LOOK_NS)
        self.timings = time_launches(self.watch_state, evidence, self.timings)
        self.unseen = unseen_rates(self.watch_state, evidence, self.timings)
        self.account.borne_out = {(pid, 0) for pid, _ in borne_out(self.watch_state, self.now)}
        launches = self.timings.launches.items()
        self.account.sampled = {(pid, 0): one for (pid, _), one in launches}
        self.account.intruded = {0 for _ in suspected_gpus(self.watch_state, self.unseen)}

    def _evidence(self) -> Evidence:
        charged, self._charged = self._charged, {}
        anchored, self._anchored = self._anchored, {}
        launches, self._launches = self._launches, {}
        held, self._held_ns = self._held_ns, {}
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
            anchored_ns=anchored,
            launches=launches,
            whose={pid_of(slot): name for slot, name in names.items()},
            held_ns=held,
            watched_since_ns=dict.fromkeys(self.watch_state.suspects, 0),
            is_blind=self.now < BLIND_NS,
            unanchored=frozenset((pid, GPU) for pid, _ in self.account.unanchored()),
            unsure=frozenset({GPU} if self.account.contradicted_gpus() else ()),
        )

    def _works(self) -> dict[tuple[int, str], tuple[ContextWork, ...]]:
        found: dict[tuple[int, str], tuple[ContextWork, ...]] = {}
        for work in self.account.work():
            found[work.pid, GPU] = (*found.get((work.pid, GPU), ()), work)
        return found

    # -- the verdict --------------------------------------------------------------------------

    def shares(self, since_ns: int, until_ns: int) -> dict[str, float]:
        """Of what all had between the two moments."""
        real = {name: self._added(name, since_ns, until_ns)[1] for name in self.tenants}
        return {name: ns / sum(real.values()) for name, ns in real.items()}

    def _added(self, name: str, since_ns: int, until_ns: int) -> tuple[int, int]:
        """What it was charged, and what it had."""
        inside = [one for one in self.readings if since_ns <= one.t_ns <= until_ns]
        one, other = inside[0], inside[-1]
        return other.billed[name] - one.billed[name], other.real[name] - one.real[name]
