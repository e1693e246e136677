# SPDX-License-Identifier: Apache-2.0
"""What samples tell of the turns that processes take, who wants none any more, and who pauses (pure).

Problem. A sample names one process of those on a GPU, by lot. That one is seldom named may be chance, or it pauses, or
a neighbour takes many turns: a process has one for each of its contexts, and nobody tells how many those are.

Approach. Nothing is concluded from what chance, or a neighbour, explains as well:

*equal turns*: at rest, while no process was named more often or more seldom than lots of equal turns make it
    once in exp(MISSES) times, the GPU's time is charged in equal parts. So chance moves no account.
*wants nothing*: who is missing from MISSES samples that it should have been in: of those with work it should be in as
    many as its turns are worth, and in every one of a GPU on which nobody was named.
*pauses*: seen where the GPU idles while rivals are held (before programs begin to work it idles, too). Who has not been
    seen so for MISSES samples' time is believed to want its part. Who then idles for more than IDLE_RATIO is taken to
    have had equal turns before: in a wall time T in which it used u beside n - 1 others it paused for T - nu. Who idles
    for less pauses no more than it did then.

Terms. turns: of a process, relative to those of its neighbours. at rest: nobody was held there for REST_NS.

What that costs: of a tenant that pauses it is found out with the GPU idle for MISSES samples at most, and again when
that is half forgotten.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MISSES = 5.0
"""One that wants the GPU is missing from so many samples in a row once in exp(5) = 148 times. What is less likely than
that is no chance."""
DRAINED = 2.0
"""One that is held, and missing from so many, may have nothing queued any more: it takes no turns."""
IDLE_RATIO = 1 / 3
"""Gaps between steps and the cost of switches are less. Of these four the only one that matters within a factor of two:
with twice as much GPUs idle for tenants that pause (docs/decisions/0032-what-samples-remember.md)."""
REST_NS = 1_000_000_000
"""After a hold: samples come late, and what it kept from running runs."""
_TURNS_S = 10.0
"""Over which turns are learnt ..."""
_MEMORY_S = 120.0
"""... and for which it is remembered whether they are equal, and who pauses. By :attr:`Process.is_even` one of two that
is in 4 samples of 100 too many is told from chance then; in 15 of 100 with ten seconds."""


@dataclass
class Process:
    """One that has been sampled."""

    cgroup_id: int
    turns: float = 1.0
    """As of when it was last in a sample ..."""
    turns_now: float = 1.0
    """... and what has become of them since."""
    missed: float = 0.0
    """Samples that it should have been in since it was in one, if it wanted the GPU and was not held ..."""
    absent: float = 0.0
    """... and if it was held, and what it had queued still ran."""
    excess_ns: float = 0.0
    """Beyond equal turns, at rest ..."""
    period_ns: int = 0
    """Of a sample ..."""
    chance_ns2: float = 0.0
    """... and the variance of that if turns are equal."""

    @property
    def is_gone(self) -> bool:
        """It wants nothing, as far as is known."""
        return self.missed > MISSES

    @property
    def is_even(self) -> bool:
        """Chance explains that it was in so many samples (Bernstein's bound: once in exp(MISSES) times it does not)."""
        beyond_ns = max(0.0, abs(self.excess_ns) - MISSES * self.period_ns / 3)
        return beyond_ns**2 <= 2 * MISSES * self.chance_ns2


@dataclass
class Unhindered:
    """What a tenant did while rivals were held."""

    used_ns: float = 0.0
    idle_ns: float = 0.0

    def note(self, used_ns: int, idle_ns: int, kept: float) -> None:
        """``kept``: of what was known before."""
        self.used_ns = self.used_ns * kept + used_ns
        self.idle_ns = self.idle_ns * kept + idle_ns

    def is_known(self, period_ns: int) -> bool:
        return self.used_ns + self.idle_ns >= MISSES * period_ns

    @property
    def pauses(self) -> bool:
        return self.idle_ns > IDLE_RATIO * (self.used_ns + self.idle_ns)


class Look(NamedTuple):
    """At a tenant that is not held."""

    tenant: Hashable
    cgroups: Collection[int]
    used_ns: int
    """As samples said."""
    idle_ns: int
    """Of the GPU."""
    elapsed_ns: int
    period_ns: int
    is_free: bool
    """A rival is held."""
    there: Counter[int]
    """See :meth:`Lots.there`."""


@dataclass
class Lots:
    """Of one GPU. ``used``: by pid, what samples said since the last look."""

    processes: dict[int, Process] = field(default_factory=dict)
    unhindered: dict[Hashable, Unhindered] = field(default_factory=dict)
    """By tenant."""
    _rest_ns: int = 0
    """At rest for so long."""
    _idle_ns: int = 0

    @property
    def wanting(self) -> dict[int, Process]:
        """By pid, who is not gone."""
        return {pid: process for pid, process in self.processes.items() if not process.is_gone}

    def see(self, pid: int, cgroup_id: int | None) -> None:
        """It was sampled. One that nothing is known of takes as many turns as others do."""
        process = self.processes.get(pid)
        if process is None:
            known = [one.turns for one in self.wanting.values()]
            turns = math.fsum(known) / len(known) if known else 1.0
            process = self.processes[pid] = Process(0, turns, turns)
        process.missed = process.absent = 0.0
        process.cgroup_id = process.cgroup_id if cgroup_id is None else cgroup_id

    def charged(
        self, used: Mapping[int, int], held: Iterable[int], elapsed_ns: int, period_ns: int
    ) -> Mapping[int, int]:
        """GPU time by pid. ``held``: cgroups."""
        wanting, total_ns, kept = self.wanting, sum(used.values()), math.exp(-elapsed_ns / (_MEMORY_S * 1e9))
        is_held = not {process.cgroup_id for process in self.processes.values()}.isdisjoint(held)
        self._rest_ns = 0 if is_held else self._rest_ns + elapsed_ns
        is_at_rest, part = self._rest_ns > REST_NS, 1 / max(1, len(wanting))
        for pid, process in wanting.items():
            process.excess_ns *= kept
            process.chance_ns2 *= kept**2
            if is_at_rest:
                process.period_ns = period_ns
                process.excess_ns += used.get(pid, 0) - part * total_ns
                process.chance_ns2 += part * (1 - part) * total_ns * period_ns
        if is_at_rest and wanting and all(process.is_even for process in wanting.values()):
            return {pid: round(part * total_ns) for pid in wanting}
        return used

    def miss(self, used: Mapping[int, int], held: Iterable[int], elapsed_ns: int, period_ns: int) -> None:
        """Who was not named, and should have been."""
        held, samples, is_idle = set(held), elapsed_ns / period_ns, not any(used.values())
        there = self._there()
        turns = math.fsum(process.turns for process in there)
        for pid, process in self.processes.items():
            if used.get(pid):
                continue
            # Nobody at all in the samples: whoever is not held and wanted the GPU would have been in every one.
            missed = samples if is_idle or not turns else samples * min(1.0, process.turns / turns)
            process.absent += missed
            process.missed += 0.0 if process.cgroup_id in held else missed
        if not is_idle:
            self._learn(used, held, elapsed_ns)

    def there(self) -> Counter[int]:
        """How many processes of each cgroup take turns now."""
        return Counter(process.cgroup_id for process in self._there())

    def _there(self) -> list[Process]:
        """Who takes turns now: it wants the GPU, and if it is held it has something queued."""
        return [process for process in self.processes.values() if process.absent <= DRAINED]

    def _learn(self, used: Mapping[int, int], held: Iterable[int], elapsed_ns: int) -> None:
        """Those that run share out among themselves the turns that they have together."""
        part, total_ns = 1 - math.exp(-elapsed_ns / (_TURNS_S * 1e9)), sum(used.values())
        running = {
            pid: process
            for pid, process in self.processes.items()
            if used.get(pid) or process.cgroup_id not in held
        }
        turns = math.fsum(process.turns_now for process in running.values())
        for pid, process in running.items():
            used_ns = used.get(pid, 0)
            process.turns_now += part * (turns * used_ns / total_ns - process.turns_now)
            if used_ns:
                process.turns = process.turns_now

    def idle_ns(self, used: Mapping[int, int], elapsed_ns: int, period_ns: int) -> int:
        """In which nobody worked. A sample more or less in a look is chance: what was too much counts in the next."""
        self._idle_ns = max(min(self._idle_ns, 0) + elapsed_ns - sum(used.values()), -period_ns)
        return max(0, self._idle_ns)

    def keep(self, tenants: Container[Hashable]) -> None:
        """The others have ended."""
        self.unhindered = {tenant: known for tenant, known in self.unhindered.items() if tenant in tenants}

    def is_pausing(self, look: Look) -> bool:
        """Whether one that is known to pause does so now: the GPU idles though it is not held, and rivals are."""
        known = self.unhindered[look.tenant]
        is_idle = look.is_free and look.idle_ns > IDLE_RATIO * look.elapsed_ns
        return is_idle and known.is_known(look.period_ns) and known.pauses

    def paused_ns(self, look: Look) -> int:
        """For how long a tenant paused."""
        known = self.unhindered.setdefault(look.tenant, Unhindered())
        is_free = look.is_free
        kept = math.exp(-look.elapsed_ns / (_MEMORY_S * 1e9))
        known.note(look.used_ns * is_free, look.idle_ns * is_free, kept)
        if not known.is_known(look.period_ns):
            return 0
        turns = sum(look.there[cgroup_id] for cgroup_id in look.cgroups)
        equal_ns = look.elapsed_ns - look.used_ns * look.there.total() / max(1, turns)
        if known.pauses:
            return round(equal_ns)
        return round(min(equal_ns, look.used_ns * known.idle_ns / known.used_ns))
