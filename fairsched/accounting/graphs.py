# SPDX-License-Identifier: Apache-2.0
"""Tells which CUDA graphs a burst launched, and how long each takes (pure).

Problem. ``cuGraphLaunch`` is one launch, of a microsecond or of seconds, and a program has several graphs: an engine
for inference has one for each batch size. Where launches are only counted one graph is like the other.

Approach. BPF keeps the latest graph launches of each context: sequence number, and handle of the CUgraphExec. Between
two looks of the daemon there are few launches of long graphs, so none that matters is lost. A burst is known by the
graphs in it, and so is the time it takes. A handle is the process's own, and may come again after the graph it stood
for has gone: then what is learnt of it changes as that of any work does.

Terms. burst: what a context launched between two proofs. plain: launched, and no graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairsched.accounting.launch_time import LaunchTime
from fairsched.bpf import abi
from fairsched.model import ContextKey

MOST_OF_CONTEXT = 64
"""Graphs whose time is kept of a context: those that were proven last."""
LOST = 0
"""Stands for graphs of which no more is known than that they were launched."""


class Graphs(NamedTuple):
    """The graphs that a burst launched; false where there were none. Hashable, so that it names a kind of burst."""

    context: ContextKey = (-1, 0)
    """Whose handles they are."""
    handles: tuple[int, ...] = ()
    """In the order of their launches."""
    plain: int = 0
    """Bits of how many plain launches there were for each graph."""

    def __bool__(self) -> bool:
        return bool(self.handles)

    def apart(self) -> Iterator[Graphs]:
        """As if there had been a burst for each."""
        return (Graphs(self.context, (handle,), self.plain) for handle in self.handles)


NO_GRAPHS = Graphs()


def graphs_of(context: ContextKey, kept: abi.Graphs, after: int, last: int) -> Graphs:
    """Among the launches of a context with sequence numbers above ``after``, up to ``last``.

    ``kept``: what BPF has of its slot.
    """
    if not kept.total or kept.generation != context[1] or last <= after:
        return NO_GRAPHS
    places = kept.latest[: min(kept.total, abi.KEPT_GRAPHS)]
    launches = sorted((place.seq, place.handle) for place in places)
    if kept.total > abi.KEPT_GRAPHS and after + 1 < launches[0][0]:
        return Graphs(context, (LOST,))
    handles = tuple([handle for seq, handle in launches if after < seq <= last])
    if not handles:
        return NO_GRAPHS
    return Graphs(context, handles, ((last - after) // len(handles) - 1).bit_length())


class GraphTimes:
    """How long the graphs of one context take, each with the plain launches that come with it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], LaunchTime] = {}

    def learn(self, graphs: Graphs, spent_ns: int) -> None:
        """A burst of these took so long, as was seen: an estimate made from what is known would only confirm itself."""
        known = self._known.pop(graphs.handles, None) or LaunchTime()
        self._known[graphs.handles] = known
        if len(self._known) > MOST_OF_CONTEXT:
            del self._known[next(iter(self._known))]
        known.learn(spent_ns, len(graphs.handles))

    def of(self, graphs: Graphs) -> LaunchTime | None:
        """Per graph; None where that is not known of one of them."""
        known = self._known.get(graphs.handles)
        if known is not None or len(graphs.handles) < 2:
            return known
        parts = [self._known.get((handle,)) for handle in graphs.handles]
        if any(part is None for part in parts):
            return None
        return _together([part for part in parts if part is not None])

    def is_new(self, graphs: Graphs) -> bool:
        """Whether nothing was ever heard of these. Of who has more than are kept that cannot be told."""
        return bool(graphs) and len(self._known) < MOST_OF_CONTEXT and self.of(graphs) is None

    def all(self) -> list[LaunchTime]:
        """Of every burst of graphs that is kept."""
        return list(self._known.values())


def _together(parts: Sequence[LaunchTime]) -> LaunchTime:
    """Of a bunch of bursts of one graph each."""
    whole_ns, many = sum(part.tau_ns for part in parts), len(parts)
    sigma_ns = math.sqrt(sum((part.tau_ns * part.spread) ** 2 for part in parts))
    return LaunchTime(
        tau_ns=whole_ns / many,
        samples=min(part.samples for part in parts),
        observed=min(part.observed for part in parts),
        spread=sigma_ns / whole_ns if whole_ns else 0.0,
        launches=many,
    )
