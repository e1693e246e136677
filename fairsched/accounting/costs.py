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

*Gaps.* A program that waits between launches is charged its gaps while it is alone, and in company others fill them.
When its last kernel begins its queue is empty, so what it waits for in the end is one kernel's time: its cost lies
between that and what it took; the replay's charge in company says where.

*Who shows cheap work while it is alone.* Then what everybody is charged does not add up to what the GPU did. What is
missing beyond :data:`_UNEXPLAINED` goes, at each settlement, to those whom the replay charges more than they claim.

Terms. burst: what a context launched between two proofs. spent: what the replay charged it. owed: launches x cost.
All times in ns of GPU time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

_KEPT_ALONE, _KEPT_BESIDE = 0.99, 0.97
"""Of what was learnt before, at each burst: the work itself changes over the day, and bursts alone are few."""
_LEAST = 1.5
"""Bursts alone after which they count: two, of which the older one counts a little less."""
_SPREAD = 0.1
"""Of bursts, relative, before it was seen."""
_LEAST_SPREAD = 0.02
"""The same, of what can be told from a mistake of the replay."""
_BIAS = 0.25
"""Relative standard deviation of what the replay charges in company, besides chance, before any was seen ..."""
_BIAS_MEMORY, _LEAST_BIAS = 0.02, 0.03
"""... and how fast it is learnt from those whose costs are known, and what it is at least."""
_GAPS = 0.95
"""A burst whose last wait explains less of it than this had gaps."""
_MEASURED = 0.5
"""Of the time of its bursts, of kinds that are known: then a tenant is measured."""
_SURE, _SETTLED = 0.015, 0.9
"""Relative standard deviation of a cost, and the part of the time of a tenant's bursts: then it is settled."""
_STEADY = 16
"""Bursts in company after which their mean says how it differs from that alone."""
_DRIFT = 0.25
"""Logarithm: so much dearer or cheaper in company than at first, or than alone."""
_RIGHT = 0.04
"""Relative: a replay that is off by less is right about those of whom nothing else is known, too."""
_CONFIRMED = 0.1
"""Logarithm: the replay is right about somebody if what it charges in company differs by less."""
_UNEXPLAINED = 0.12
"""Of the time of a GPU, that nobody is owed: switching takes as much where slices are short."""
_LEAST_ERROR, _DEVIATIONS = 0.1, 8.0
"""Of a bound that held in 19 of 20 windows of tenants on GPUs and mixes drawn at random (docs/decisions/0023)."""
_KEPT_TOTAL = 0.995
"""Of the totals of a GPU, at each settlement."""


@dataclass
class _Mean:
    """What a launch takes, over bursts that count less the older they are."""

    kept: float
    time_ns: float = 0.0
    launches: float = 0.0
    bursts: float = 0.0
    squares: float = 0.0
    """Sum of squared relative deviations of bursts from the mean before."""

    def learn(self, spent_ns: float, launches: int) -> None:
        if self.launches:
            deviation = min(1.0, abs(spent_ns / launches / self.ns - 1))
            self.squares = self.squares * self.kept + deviation**2
        self.time_ns = self.time_ns * self.kept + spent_ns
        self.launches = self.launches * self.kept + launches
        self.bursts = self.bursts * self.kept + 1

    @property
    def ns(self) -> float:
        """A launch; only when something was learnt."""
        return self.time_ns / self.launches

    @property
    def spread(self) -> float:
        """Of bursts: relative variance."""
        return (self.squares + _LEAST_SPREAD**2) / self.bursts

    @property
    def variance(self) -> float:
        """Of the mean, relative, as far as it is chance."""
        return (self.squares + _SPREAD**2) / self.bursts**2


@dataclass
class _Kind:
    """Bursts of about as many launches."""

    alone: _Mean = field(default_factory=lambda: _Mean(_KEPT_ALONE))
    beside: _Mean = field(default_factory=lambda: _Mean(_KEPT_BESIDE))
    least: _Mean = field(default_factory=lambda: _Mean(_KEPT_ALONE))
    """What bursts alone took without their gaps, at least."""
    ratio: float | None = None
    """The cost in company over that alone, when both were learnt first."""

    @property
    def time_ns(self) -> float:
        return self.alone.time_ns + self.beside.time_ns

    @property
    def is_known(self) -> bool:
        return self.alone.bursts >= _LEAST

    def ns(self, bias: float) -> float | None:
        """A launch; None while too little is known of it. ``bias``: how far the replay is off on this GPU."""
        if not self.is_known:
            return None
        alone = self.alone.ns
        if not self.beside.launches:
            return alone
        beside = self.beside.ns
        if self.has_gaps:
            return min(max(beside, self.least.ns), alone)
        a, b = 1 / self.alone.variance, 1 / (self.beside.variance + bias**2)
        return (alone * a + beside * b) / (a + b)

    def deviation(self, bias: float) -> float:
        """Of what such bursts are charged, relative (standard), as far as is known."""
        if not self.is_known:
            return bias
        sure = 1 / self.alone.variance
        if self.beside.launches:
            sure += 1 / (self.beside.variance + bias**2)
        gaps = (1 - self.least.ns / self.alone.ns) / 2 if self.has_gaps else 0.0
        return math.hypot(1 / math.sqrt(sure), min(gaps, bias))

    @property
    def kept(self) -> float:
        """How much of a burst's deviation in company is its own, and no mistake of the replay."""
        return min(1.0, self.alone.spread / self.beside.spread)

    @property
    def has_gaps(self) -> bool:
        """Whether it was charged pauses of its own while it was alone."""
        return self.least.ns < _GAPS * self.alone.ns

    @property
    def is_contradicted(self) -> bool:
        """Whether its charges in company are far off, and no gaps explain that."""
        if not self.is_known or self.beside.bursts < _LEAST or self.has_gaps:
            return False
        return abs(math.log(self.beside.ns / self.alone.ns)) > _DRIFT

    @property
    def drift(self) -> float | None:
        """Logarithm: how much dearer in company, relative to alone, it is now than at first; None: not known."""
        if not self.is_known or self.beside.bursts < _STEADY:
            return None
        ratio = self.beside.ns / self.alone.ns
        self.ratio = self.ratio or ratio
        return math.log(ratio / self.ratio)


class Cost:
    """What the launches of one tenant cost on one GPU."""

    def __init__(self, bias: Callable[[], float] = lambda: _BIAS) -> None:
        """``bias``: how far the replay is off on this GPU, relative."""
        self._bias = bias
        self._kinds: dict[int, _Kind] = {}

    def learn(self, spent_ns: int, launches: int, *, is_alone: bool, waited_ns: int) -> None:
        """A burst that no hold touched. ``waited_ns``: of the call that proved it."""
        kind = self._kinds.setdefault(launches.bit_length(), _Kind())
        if is_alone:
            kind.alone.learn(spent_ns, launches)
            kind.least.learn(min(spent_ns, waited_ns * launches), launches)
        else:
            kind.beside.learn(spent_ns, launches)

    def drift(self, launches: int) -> float | None:
        """See :attr:`_Kind.drift`."""
        kind = self._kinds.get(launches.bit_length())
        return None if kind is None else kind.drift

    def drifts(self) -> list[float]:
        """Of all kinds."""
        return [drift for kind in self._kinds.values() if (drift := kind.drift) is not None]

    def forget_alone(self, launches: int) -> None:
        """Its work is another now than when it was alone."""
        kind = self._kinds[launches.bit_length()]
        self._kinds[launches.bit_length()] = _Kind(beside=kind.beside)

    @property
    def is_contradicted(self) -> bool:
        """Whether the replay charges something else in company than its work costs alone, by far."""
        return any(kind.is_contradicted for kind in self._kinds.values())

    def error(self, launches: int) -> float | None:
        """Square of how far the replay is off in company, chance aside; None: the cost of such is not known well."""
        kind = self._kinds.get(launches.bit_length())
        if kind is None or not kind.is_known or kind.alone.variance > _SPREAD**2 or kind.has_gaps:
            return None
        chance = kind.alone.variance + kind.beside.variance
        return max(0.0, math.log(kind.beside.ns / kind.alone.ns) ** 2 - chance)

    def is_confirmed(self, launches: int) -> bool | None:
        """Whether the replay charges such bursts in company what they cost alone; None: that is not known."""
        kind = self._kinds.get(launches.bit_length())
        if kind is None or not kind.is_known or kind.beside.bursts < _LEAST:
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
        whole_ns = sum(kind.time_ns for kind in self._kinds.values())
        parts = [kind.time_ns * kind.deviation(bias) for kind in self._kinds.values()]
        return sum(parts) / whole_ns if whole_ns else bias

    def _part(self, is_so: Callable[[_Kind], bool]) -> float:
        """Of the time of its bursts, of such kinds."""
        whole_ns = sum(kind.time_ns for kind in self._kinds.values())
        return (
            sum(kind.time_ns for kind in self._kinds.values() if is_so(kind)) / whole_ns if whole_ns else 0.0
        )

    def charge_ns(self, spent_ns: float, launches: int, *, is_whole: bool) -> float | None:
        """What a burst is to be charged for which the replay charged ``spent_ns``; None: nothing is known of such.

        ``is_whole``: no hold touched it; then it counts how it differs from others of its kind.
        """
        owed_ns = self.owed_ns(launches)
        kind = self._kinds.get(launches.bit_length())
        if owed_ns is None or not is_whole or kind is None or not kind.is_known or not kind.beside.launches:
            return owed_ns
        return max(0.0, owed_ns + kind.kept * (spent_ns - kind.beside.ns * launches))

    def is_vague(self, launches: int) -> bool:
        """Whether what such bursts cost is known less well than the replay charges: of long kernels that vary, few were
        ever alone."""
        kind = self._kinds.get(launches.bit_length())
        return kind is not None and kind.is_known and kind.alone.variance > self._bias() ** 2

    def owed_ns(self, launches: int) -> float | None:
        """What bursts of so many launches cost in the mean; None while nothing is known of such."""
        kind = self._kinds.get(launches.bit_length())
        known_ns = None if kind is None else kind.ns(self._bias())
        if known_ns is not None:
            return known_ns * launches
        if kind is not None and kind.beside.launches:
            ratio = self._ratio()
            return None if ratio is None else kind.beside.ns * ratio * launches
        return self._mean(launches)

    def expected_ns(self, launches: int) -> float | None:
        """The same, or else what such bursts were charged in company; None where there was none."""
        owed_ns = self.owed_ns(launches)
        kind = self._kinds.get(launches.bit_length())
        if owed_ns is None and kind is not None and kind.beside.launches:
            return kind.beside.ns * launches
        return owed_ns

    def _ratio(self) -> float | None:
        """Of what is known over what the replay charges, of kinds of which both are known."""
        bias = self._bias()
        both = [
            (known_ns, kind.beside.ns)
            for kind in self._kinds.values()
            if kind.beside.launches and (known_ns := kind.ns(bias)) is not None
        ]
        return sum(known for known, _ in both) / sum(beside for _, beside in both) if both else None

    def _mean(self, launches: int) -> float | None:
        """A bunch of bursts of known kinds."""
        bias = self._bias()
        known = [
            (known_ns, kind.beside.launches or kind.alone.launches)
            for kind in self._kinds.values()
            if (known_ns := kind.ns(bias)) is not None
        ]
        weight = sum(many for _, many in known)
        return launches * sum(ns * many for ns, many in known) / weight if known else None


_NOTHING = Cost()


class Costs:
    """Those of one GPU, and what becomes of time that nobody claims.

    Pods come and go for months: the tenant longest unheard of is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._costs: dict[Hashable, Cost] = {}
        self._spent_ns = self._owed_ns = self._excess_ns = 0.0
        self._variance, self._judged = _BIAS**2, 0

    def of(self, owner: Hashable) -> Cost:
        """What is known of it; an empty one where nothing is."""
        return self._costs.get(owner, _NOTHING)

    def learn(self, owner: Hashable, spent_ns: int, launches: int, *, is_alone: bool, waited_ns: int) -> None:
        """See :meth:`Cost.learn`."""
        cost = self._costs.pop(owner, None) or Cost(lambda: self.bias)
        cost.learn(spent_ns, launches, is_alone=is_alone, waited_ns=waited_ns)
        self._costs[owner] = cost
        if len(self._costs) > self._most:
            del self._costs[next(iter(self._costs))]
        if is_alone:
            return
        error = cost.error(launches)
        if error is not None:
            self._judged += 1
            self._variance += (error - self._variance) * max(_BIAS_MEMORY, 1 / (1 + self._judged))
        drift, most = cost.drift(launches), max(_DRIFT, 2 * self.bias)
        # The second one asks all: only of who seems to be another, which few do.
        if drift is not None and abs(drift) > most and abs(drift - self._common_drift(cost)) > most:
            cost.forget_alone(launches)

    @property
    def bias(self) -> float:
        """How far the replay is off here with those whose costs are known, so with the others, too."""
        return max(_LEAST_BIAS, math.sqrt(self._variance))

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

    def charge_ns(self, owner: Hashable, spent_ns: int, launches: int, *, is_whole: bool = False) -> int:
        """What ``launches`` proven complete are to be charged, for which the replay charged ``spent_ns``."""
        owed_ns = self.of(owner).charge_ns(spent_ns, launches, is_whole=is_whole)
        if owed_ns is None:
            owed_ns = spent_ns
        excess_ns = max(0.0, spent_ns - owed_ns)
        self._spent_ns = self._spent_ns * _KEPT_TOTAL + spent_ns
        self._owed_ns = self._owed_ns * _KEPT_TOTAL + owed_ns
        self._excess_ns = self._excess_ns * _KEPT_TOTAL + excess_ns
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
        self._spent_ns = self._owed_ns = self._excess_ns = 0.0
        self._variance, self._judged = _BIAS**2, 0
