# SPDX-License-Identifier: Apache-2.0
"""A discrete-event model of a time-slicing GPU: the truth the replay is measured against.

A fixed circle of contexts; one with work runs for at most a slice, then the next in the circle; changing to another
context costs. What an observer sees are edges: work asked for at once, completion a wake-up latency late.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairsched.accounting.replay import Replay

SLICE_NS = 2_000_000
SWITCH_NS = 100_000
MS = 1_000_000
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Load:
    """One context: bursts of work with gaps in between. ``work_ms`` None = it never runs out."""

    work_ms: float | None
    gap_ms: float = 0.0
    jitter: float = 0.015
    """Of the work, as the sigma of a log-normal factor."""


@dataclass(frozen=True)
class ModelEdge:
    """What libcuda's probes would have seen."""

    t_ns: int
    is_open: bool
    context: int


@dataclass(frozen=True)
class Truth:
    """What really happened."""

    exec_ns: list[int]
    edges: list[ModelEdge]
    end_ns: int


def ask(kind: str) -> Load:
    """The loads of the mixes by name: decN = a decoder of N ms per token, inf = an endless trainer."""
    if kind == "inf":
        return Load(None)
    if kind == "short":
        return Load(1.2, 0.3, 0.05)
    if kind == "bursty":
        return Load(80, 80, 0.2)
    if kind == "prefill":
        return Load(33, 5, 0.05)
    if kind == "dec8":
        return Load(8, 0.5, 0.1)
    return Load(5, 0.5) if kind == "dec5" else Load(20, 1)


MIXES: dict[str, tuple[str, ...]] = {
    "four decoders": ("dec",) * 4,
    "three decoders and a trainer": ("dec",) * 3 + ("inf",),
    "decoder and trainer": ("dec", "inf"),
    "two decoders and four trainers": ("dec",) * 2 + ("inf",) * 4,
    "short bursts and a trainer": ("short", "inf"),
    "three with short bursts and a trainer": ("short",) * 3 + ("inf",),
    "all kinds": ("dec", "dec8", "prefill", "inf"),
    "bursty, trainer, decoder": ("bursty", "inf", "dec"),
    "small decoder and three trainers": ("dec5",) + ("inf",) * 3,
}


class Gpu:
    """Runs the loads until ``run`` returns."""

    def __init__(self, loads: Sequence[Load], seed: int, latency_us: float = 50.0) -> None:
        self._random = random.Random(seed)
        self._loads = loads
        self._latency_ns = latency_us * 1000
        self._left = [0] * len(loads)
        self._exec = [0] * len(loads)
        self._edges: list[ModelEdge] = []
        self._arrivals = [(int(self._random.uniform(0, 5 * MS)), i) for i in range(len(loads))]
        heapq.heapify(self._arrivals)

    def run(self, duration_ns: int) -> Truth:
        now, last = 0, -1
        while now < duration_ns:
            self._admit(now)
            chosen = self._next_after(last)
            if chosen is None:
                now = self._arrivals[0][0]
                continue
            if last not in (-1, chosen):
                now += SWITCH_NS
            last = chosen
            ran = min(SLICE_NS, self._left[chosen])
            self._exec[chosen] += ran
            self._left[chosen] -= ran
            now += ran
            self._admit(now)
            if not self._left[chosen]:
                self._complete(chosen, now)
        return Truth(self._exec, sorted(self._edges, key=lambda edge: edge.t_ns), now)

    def _admit(self, now: int) -> None:
        while self._arrivals and self._arrivals[0][0] <= now:
            t_ns, i = heapq.heappop(self._arrivals)
            load = self._loads[i]
            if load.work_ms is None:
                self._left[i] = _ENDLESS
            else:
                self._left[i] = int(load.work_ms * MS * self._random.lognormvariate(0, load.jitter))
            self._edges.append(ModelEdge(t_ns, True, i))

    def _next_after(self, last: int) -> int | None:
        count = len(self._loads)
        for step in range(1, count + 1):
            i = (last + step) % count
            if self._left[i]:
                return i
        return None

    def _complete(self, i: int, now: int) -> None:
        seen_ns = now + int(self._random.expovariate(1) * self._latency_ns)
        self._edges.append(ModelEdge(seen_ns, False, i))
        gap_ns = self._loads[i].gap_ms * MS * self._random.lognormvariate(0, 0.3)
        heapq.heappush(self._arrivals, (seen_ns + 20_000 + int(gap_ns), i))


def simulate(mix: str, seconds: float = 20.0, seed: int = 1) -> Truth:
    """The truth of one of the MIXES."""
    return Gpu([ask(kind) for kind in MIXES[mix]], seed).run(int(seconds * 1000 * MS))


def replayed(
    truth: Truth, *, slice_ns: int = SLICE_NS, switch_ns: int = SWITCH_NS, ranks: Sequence[int] | None = None
) -> Replay:
    """A replay fed with the edges; ``ranks`` = where each context stands in its circle."""
    replay = Replay(slice_ns, switch_ns)
    for i in range(len(truth.exec_ns)):
        replay.add(i, (ranks[i] if ranks else i,))
    feed(replay, truth.edges)
    replay.advance(truth.end_ns)
    return replay


def feed(replay: Replay, edges: Iterable[ModelEdge]) -> None:
    for edge in edges:
        if edge.is_open:
            replay.open(edge.context, edge.t_ns)
        else:
            replay.close(edge.context, edge.t_ns)


def worst_error(truth: Truth, replay: Replay) -> float:
    """Largest error of any context, relative to what it really executed."""
    return max(abs(replay.exec_ns(i) / real - 1) for i, real in enumerate(truth.exec_ns))
