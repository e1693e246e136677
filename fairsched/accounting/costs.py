# SPDX-License-Identifier: Apache-2.0
"""Learns what the launches of each tenant cost, and so what it is to be charged (pure).

Problem. The replay (replay.py) divides time among those who have work as one kind of hardware does. On another GPU
(slices of another length, unequal turns, kernels that nobody interrupts, early ends of turns) it is wrong by tens of
percent, and nothing in what it is told says so.

Approach. What a launch costs does not depend on how the GPU takes turns. A burst that had the GPU to itself took what
it took, whatever the hardware; who is never alone is given the GPU for a moment (policy/solo.py). From then on each
proof of completion is settled: so many launches times what such launches cost. The replay says only how time is
divided until the next proof. A GPU of which nothing is known is charged as well as one that was studied.

Bursts of about as many launches (a power of two) are one *kind*, because prompts launch more than tokens, and cost
more for each launch. Where a kind was never alone its charges in company are scaled as those of the known ones are. Of
long kernels that vary few are ever alone, and their mean is chance: so the mean in company counts as far as it is
surer. And how one of them differs from the others counts as far as they differ alone, too: the rest is a mistake of the
replay.

*Beginnings.* Programs load and warm up, and go on with other work. So each kind counts by how much of late was of it,
and launches of a burst that goes on, or that a hold cut off, are no kind: it may be the beginning of any that has more.

*Graphs.* A graph is one launch, whatever is in it, so the number of launches says nothing. Bursts that launch the same
graphs (graphs.py) are a kind of their own, :data:`MOST_GRAPHS` of a tenant; one that has more is charged for those that
are not kept what its graphs cost in the mean.

*Gaps.* A program that waits between launches is charged its gaps while it is alone, and in company others fill them.
When its last kernel begins its queue is empty, so what it waits for in the end is one kernel's time: its cost lies
between that and what it took; the replay's charge in company says where.

*Who shows cheap work while it is alone.* Then what everybody is charged does not add up to what the GPU did. What is
missing beyond :data:`_UNEXPLAINED` goes, at each settlement, to those whom the replay charges more than they claim.

*Who was taken to be alone and was not.* Its launches seem dear, and all together are charged more than there was. What
that is beyond how far the replay is off is taken back from those whom it charges less than they are said to owe.

Terms. burst: what a context launched between two proofs. spent: what the replay charged it. owed: launches x cost.
All times in ns of GPU time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterator

from fairsched.accounting.graphs import LOST, NO_GRAPHS, Graphs
from fairsched.accounting.kinds import DRIFT, LEAST, SPREAD, Kind
from fairsched.model import GraphWork

_BIAS = 0.25
"""Relative standard deviation of what the replay charges in company, besides chance, before any was seen ..."""
_BIAS_MEMORY, _LEAST_BIAS = 0.02, 0.03
"""... and how fast it is learnt from those whose costs are known, and what it is at least."""
_MEASURED = 0.5
"""Of the time of its bursts, of kinds that are known: then a tenant is measured. As much of its launches: then what is
known of them is a mean of all."""
_SURE, _SETTLED = 0.015, 0.9
"""Relative standard deviation of a cost, and the part of the time of a tenant's bursts: then it is settled."""
_RIGHT = 0.04
"""Relative: a replay that is off by less is right about those of whom nothing else is known, too."""
_CONFIRMED = 0.1
"""Logarithm: the replay is right about somebody if what it charges in company differs by less."""
_UNEXPLAINED = 0.12
"""Of the time of a GPU, that nobody is owed: switching takes as much where slices are short."""
_LEAST_ERROR, _DEVIATIONS = 0.1, 8.0
"""Of a bound that held in 19 of 20 windows of tenants on GPUs and mixes drawn at random (docs/decisions/0023)."""
_MOST_RATIO = 4.0
"""Of what is known over what the replay charges: it is off by less. What looks like more was charged by mistake."""
MOST_GRAPHS = 64
"""Kinds of bursts with graphs that are kept of a tenant: the latest. A server captures some thirty to seventy."""
_TWO_SIGMA = 2
_TOTALS_NS = 4_000_000_000
"""Of GPU time: how far back the totals of a GPU reach. Time and not settlements, for who settles nothing a thousand
times a second would have all else forgotten: then the next one that was held, whose first proof is charged for all that
it had queued, seems to have more than it claims. So this is long beside a queue: twice the longest pause of a class."""


class Cost:
    """What the launches of one tenant cost on one GPU."""

    def __init__(self, bias: Callable[[], float] = lambda: _BIAS) -> None:
        """``bias``: how far the replay is off on this GPU, relative."""
        self._bias = bias
        self._kinds: dict[int, Kind] = {}
        """Of bursts without a graph."""
        self._graphs: dict[Graphs, Kind] = {}
        """By what they launched; the one longest unheard of comes first."""
        self._any_graph: dict[int, Kind] = {}
        """All of those again, whatever they launched, as if they were kernels."""
        self._bursts = 0

    def learn(
        self,
        spent_ns: int,
        launches: int,
        graphs: Graphs = NO_GRAPHS,
        *,
        is_alone: bool,
        waited_ns: int,
        t_ns: int = 0,
    ) -> None:
        """A burst that no hold touched. ``graphs``: that were among its launches. ``waited_ns``: of the call that
        proved it. ``t_ns``: when it ended."""
        self._bursts += 1
        if graphs:
            kind = self._graphs.pop(graphs, None) or Kind()
            self._graphs[graphs] = kind
            if len(self._graphs) > MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            kind.learn(spent_ns, launches, self._bursts, is_alone=is_alone, waited_ns=waited_ns, t_ns=t_ns)
        kinds, size = self._any_graph if graphs else self._kinds, launches.bit_length()
        kind = kinds.get(size) or kinds.setdefault(size, Kind())
        kind.learn(spent_ns, launches, self._bursts, is_alone=is_alone, waited_ns=waited_ns, t_ns=t_ns)

    def _recent_ns(self, kind: Kind) -> float:
        return kind.recent.time_ns * kind.recent.part(self._bursts)

    def _recent_launches(self, kind: Kind) -> float:
        return kind.recent.launches * kind.recent.part(self._bursts)

    def _kind(self, launches: int, graphs: Graphs) -> Kind | None:
        return self._graphs.get(graphs) if graphs else self._kinds.get(launches.bit_length())

    def graphs(self) -> GraphWork | None:
        """Those that were seen without a hold, each by itself or with kernels; None where there was none."""
        ones = [
            kind
            for graphs, kind in self._graphs.items()
            if len(graphs.handles) == 1 and LOST not in graphs.handles
        ]
        if not ones:
            return None
        longest = max(ones, key=lambda kind: kind.burst_ns)
        return GraphWork(
            len(ones),
            min(kind.burst_ns for kind in ones) / 1e6,
            longest.burst_ns / 1e6,
            _TWO_SIGMA * longest.deviation(self._bias()),
            longest.is_known,
        )

    def _all(self) -> Iterator[Kind]:
        yield from self._kinds.values()
        yield from self._graphs.values()

    def drift(self, launches: int, graphs: Graphs = NO_GRAPHS) -> float | None:
        """See :attr:`Kind.drift`."""
        kind = self._kind(launches, graphs)
        return None if kind is None else kind.drift

    def drifts(self) -> list[float]:
        """Of all kinds."""
        return [drift for kind in self._all() if (drift := kind.drift) is not None]

    def forget_alone_since(self, since_ns: int) -> None:
        """See :meth:`Kind.forget_alone_since`."""
        for kind in (*self._all(), *self._any_graph.values()):
            kind.forget_alone_since(since_ns)

    def forget_alone(self, launches: int, graphs: Graphs = NO_GRAPHS) -> None:
        """Its work is another now than when it was alone."""
        kind = self._kind(launches, graphs)
        if kind is not None:
            kind.forget_alone()

    @property
    def is_contradicted(self) -> bool:
        """Whether the replay charges something else in company than its work costs alone, by far."""
        return any(kind.is_contradicted for kind in self._all())

    def error(self, launches: int, graphs: Graphs = NO_GRAPHS) -> float | None:
        """Square of how far the replay is off in company, chance aside; None: the cost of such is not known well."""
        kind = self._kind(launches, graphs)
        if kind is None or not kind.is_known or kind.alone.variance > SPREAD**2 or kind.has_gaps:
            return None
        chance = kind.alone.variance + kind.beside.variance
        return max(0.0, math.log(kind.beside.ns / kind.alone.ns) ** 2 - chance)

    def is_confirmed(self, launches: int, graphs: Graphs = NO_GRAPHS) -> bool | None:
        """Whether the replay charges such bursts in company what they cost alone; None: that is not known."""
        kind = self._kind(launches, graphs)
        if kind is None or not kind.is_known or kind.beside.bursts < LEAST:
            return None
        return abs(math.log(kind.beside.ns / kind.alone.ns)) < _CONFIRMED

    @property
    def is_measured(self) -> bool:
        """Whether most of what it does is known."""
        return self._part(lambda kind: kind.is_known) > _MEASURED

    @property
    def is_settled(self) -> bool:
        """Whether nearly all of what it does is known so well that more of it would tell nothing."""
        return self._part(lambda kind: kind.is_known and kind.alone.variance < _SURE**2) > _SETTLED

    @property
    def deviation(self) -> float:
        """Of what it is charged, relative (standard), as far as is known."""
        bias = self._bias()
        whole_ns = sum(map(self._recent_ns, self._all()))
        parts = [self._recent_ns(kind) * kind.deviation(bias) for kind in self._all()]
        return sum(parts) / whole_ns if whole_ns else bias

    def _part(self, is_so: Callable[[Kind], bool]) -> float:
        """Of the time of its bursts, of such kinds."""
        kinds = [
            *self._kinds.values(),
            *(self._graphs.values() if self._keeps_all else self._any_graph.values()),
        ]
        whole_ns = sum(map(self._recent_ns, kinds))
        return sum(self._recent_ns(kind) for kind in kinds if is_so(kind)) / whole_ns if whole_ns else 0.0

    @property
    def _keeps_all(self) -> bool:
        """Whether there is room for every graph it launches."""
        return len(self._graphs) < MOST_GRAPHS

    def charge_ns(
        self, spent_ns: float, launches: int, graphs: Graphs = NO_GRAPHS, *, is_whole: bool
    ) -> float | None:
        """What a burst is to be charged for which the replay charged ``spent_ns``; None: nothing is known of such.

        ``is_whole``: no hold touched it; then it counts how it differs from others of its kind.
        """
        if not is_whole and not graphs:
            return self._of_more(launches, self._owed_ns)
        kind = self._kind(launches, graphs)
        owed_ns = self._of_kind_ns(kind, launches, graphs)
        if owed_ns is None or not is_whole or kind is None or not kind.is_known or not kind.beside.launches:
            return owed_ns
        return max(0.0, owed_ns + kind.kept * (spent_ns - kind.beside.ns * launches))

    def is_vague(self, launches: int, graphs: Graphs = NO_GRAPHS) -> bool:
        """Whether what such bursts cost is known less well than the replay charges: of long kernels that vary, few were
        ever alone."""
        kind = self._kind(launches, graphs)
        return kind is not None and kind.is_known and kind.alone.variance > self._bias() ** 2

    def owed_ns(self, launches: int, graphs: Graphs = NO_GRAPHS) -> float | None:
        """What bursts of so many launches cost in the mean; None while nothing is known of such."""
        return self._of_kind_ns(self._kind(launches, graphs), launches, graphs)

    def _of_kind_ns(self, kind: Kind | None, launches: int, graphs: Graphs) -> float | None:
        owed_ns = self._owed_ns(kind, launches)
        if owed_ns is not None or (kind is not None and kind.beside.launches):
            return owed_ns
        if not graphs:  # a bunch of others
            return self._of_more(launches, self._owed_ns)
        # Of other graphs nothing follows for one that was not seen yet, unless there are more than are kept.
        owed_ns = self._sum_ns(launches, graphs)
        if owed_ns is not None or self._keeps_all:
            return owed_ns
        return self._owed_ns(self._any_graph.get(launches.bit_length()), launches)

    def _owed_ns(self, kind: Kind | None, launches: int) -> float | None:
        known_ns = None if kind is None else kind.ns(self._bias())
        if known_ns is not None:
            return known_ns * launches
        ratio = self._ratio() if kind is not None and kind.beside.launches else None
        return None if kind is None or ratio is None else kind.beside.ns * ratio * launches

    def _sum_ns(self, launches: int, graphs: Graphs) -> float | None:
        """A bunch of bursts of one graph each, all of which are known."""
        each = launches // len(graphs.handles)
        parts = [self._owed_ns(self._graphs.get(one), each) for one in graphs.apart()]
        return None if None in parts else sum(part for part in parts if part is not None)

    def expected_ns(self, launches: int, graphs: Graphs = NO_GRAPHS) -> float | None:
        """Of a burst that goes on, or that a hold cut off; None where too little is known of such.

        So many launches are no kind of burst yet: it may be the beginning of any that has more.
        """
        if graphs:
            return self._expected_ns(self._kind(launches, graphs), launches) or self.owed_ns(launches, graphs)
        return self._of_more(launches, self._expected_ns)

    def _expected_ns(self, kind: Kind | None, launches: int) -> float | None:
        if kind is not None and kind.is_known and kind.has_gaps and not kind.beside.launches:
            return None  # its program did something else, and how much of it was work nobody knows
        owed_ns = self._owed_ns(kind, launches)
        if owed_ns is None and kind is not None and kind.beside.launches:
            return kind.beside.ns * launches
        return owed_ns

    def _of_more(self, launches: int, of_kind: Callable[[Kind, int], float | None]) -> float | None:
        """By how much each kind of at least as many launches is done; of all kinds where none has so many."""
        kinds = [kind for size, kind in self._kinds.items() if size >= launches.bit_length()]
        found = [
            (of_kind(kind, launches), self._recent_launches(kind)) for kind in kinds or self._kinds.values()
        ]
        known = [(ns, many) for ns, many in found if ns is not None]
        whole, weight = sum(many for _, many in found), sum(many for _, many in known)
        return sum(ns * many for ns, many in known) / weight if weight > _MEASURED * whole else None

    def _ratio(self) -> float | None:
        """Of what is known over what the replay charges, of kinds of which both are known; None where they are too
        little of what it does: a mistake of the replay is the larger, the shorter a burst."""
        bias, both = self._bias(), []
        if not self.is_measured:
            return None
        for kind in self._all():
            if kind.beside.bursts >= LEAST and (known_ns := kind.ns(bias)) is not None:
                recent_ns = self._recent_ns(kind)
                both.append((recent_ns, recent_ns * known_ns / kind.beside.ns))
        whole_ns = sum(recent_ns for recent_ns, _ in both)
        if not whole_ns:
            return None
        ratio = sum(owed_ns for _, owed_ns in both) / whole_ns
        return min(max(ratio, 1 / _MOST_RATIO), _MOST_RATIO)


_NOTHING = Cost()


class Costs:
    """Those of one GPU, and what becomes of time that nobody claims.

    Pods come and go for months: the tenant longest unheard of is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._costs: dict[Hashable, Cost] = {}
        self._spent_ns = self._owed_ns = self._excess_ns = self._surplus_ns = 0.0
        self._variance, self._judged = _BIAS**2, 0
        self.bias = _BIAS
        """How far the replay is off here with those whose costs are known, so with the others, too."""

    def of(self, owner: Hashable) -> Cost:
        """What is known of it; an empty one where nothing is."""
        return self._costs.get(owner, _NOTHING)

    def learn(
        self,
        owner: Hashable,
        spent_ns: int,
        launches: int,
        graphs: Graphs = NO_GRAPHS,
        *,
        is_alone: bool,
        waited_ns: int,
        t_ns: int = 0,
    ) -> None:
        """See :meth:`Cost.learn`."""
        cost = self._costs.pop(owner, None) or Cost(lambda: self.bias)
        cost.learn(spent_ns, launches, graphs, is_alone=is_alone, waited_ns=waited_ns, t_ns=t_ns)
        self._costs[owner] = cost
        if len(self._costs) > self._most:
            del self._costs[next(iter(self._costs))]
        if is_alone:
            return
        error = cost.error(launches, graphs)
        if error is not None:
            self._judged += 1
            self._variance += (error - self._variance) * max(_BIAS_MEMORY, 1 / (1 + self._judged))
            self.bias = max(_LEAST_BIAS, math.sqrt(self._variance))
        drift, most = cost.drift(launches, graphs), max(DRIFT, 2 * self.bias)
        # The second one asks all: only of who seems to be another, which few do.
        if drift is not None and abs(drift) > most and abs(drift - self._common_drift(cost)) > most:
            cost.forget_alone(launches, graphs)

    def forget_alone(self, since_ns: int) -> None:
        """Whoever had the GPU to itself since then shared it with somebody."""
        for cost in self._costs.values():
            cost.forget_alone_since(since_ns)

    def error_ratio(self, owner: Hashable) -> float:
        """How far what it is charged over two seconds may be off, relative, in 19 of 20 cases.

        What is known of a cost tells too little: how work changes and what holds do to it is not in there.
        """
        cost = self._costs.get(owner)
        return _LEAST_ERROR + _DEVIATIONS * (self.bias if cost is None else cost.deviation)

    @property
    def is_replay_right(self) -> bool:
        """Whether it charges in company what work costs alone, so far as that is known: then nobody need be alone."""
        return self.bias < _RIGHT

    def _common_drift(self, cost: Cost) -> float:
        """Of all others: if work that no probe sees begins, everybody seems dearer, and nobody's work is another."""
        drifts = [drift for other in self._costs.values() if other is not cost for drift in other.drifts()]
        return statistics.median(drifts) if drifts else 0.0

    def charge_ns(
        self,
        owner: Hashable,
        spent_ns: int,
        launches: int,
        graphs: Graphs = NO_GRAPHS,
        *,
        is_whole: bool = False,
    ) -> int:
        """What ``launches`` proven complete are to be charged, for which the replay charged ``spent_ns``."""
        owed_ns = self.of(owner).charge_ns(spent_ns, launches, graphs, is_whole=is_whole)
        if owed_ns is None:
            owed_ns = spent_ns
        excess_ns = max(0.0, spent_ns - owed_ns)
        kept = math.exp(-spent_ns / _TOTALS_NS)
        self._spent_ns = self._spent_ns * kept + spent_ns
        self._owed_ns = self._owed_ns * kept + owed_ns
        self._excess_ns = self._excess_ns * kept + excess_ns
        surplus_ns = max(0.0, owed_ns - spent_ns)
        self._surplus_ns = self._surplus_ns * kept + surplus_ns
        over_ns = self._owed_ns - (1 + min(self.bias, _UNEXPLAINED)) * self._spent_ns
        if over_ns > 0 and surplus_ns > 0:
            owed_ns -= surplus_ns * min(1.0, over_ns / self._surplus_ns)
        missing_ns = (1 - _UNEXPLAINED) * self._spent_ns - self._owed_ns
        if missing_ns > 0 and self._excess_ns > 0:
            owed_ns += excess_ns * min(1.0, missing_ns / self._excess_ns)
        return round(owed_ns)

    @property
    def is_contradicted(self) -> bool:
        """Whether somebody's costs say that this GPU takes turns otherwise than the replay."""
        return any(cost.is_contradicted for cost in self._costs.values())

    def forget(self) -> None:
        """What was learnt was not alone, or measured by another replay."""
        self._costs.clear()
        self._spent_ns = self._owed_ns = self._excess_ns = self._surplus_ns = 0.0
        self._variance, self._judged, self.bias = _BIAS**2, 0, _BIAS
