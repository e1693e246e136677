# SPDX-License-Identifier: Apache-2.0
"""Learns how long a launch of a context takes, and settles what drains were estimated wrongly (pure).

Problem: a held context says nothing, so how long its queue drains is an estimate: launches queued x time per
launch. A tenant that is nearly always held is hardly ever observed without a hold in between; its time per launch
may rest on one sample that is off by the length of a slice, and each drain is then wrong by the same part.

Approach: an error there must show elsewhere. The replay gave the missing time to whoever ran meanwhile, so a context
whose work is known (so many launches, so long each) comes out longer than it can be. That surplus is evidence about
the drains that overlapped it, weighed against its own uncertainty as in a scalar Kalman filter:

    gain = Q / (Q + R),  Q = sum over drains of doubt^2
                         R = (expected x own relative spread)^2 + slice^2

The part gain x surplus is moved to the drained contexts, in proportion to their share of Q, and corrects their time
per launch as far as that, and not the chance of the single burst, was in doubt. Time moved within one tenant (a gang
always drains together) does not matter to anybody.

What remains of a burst that has already run for s is not mean - s: long bursts are the ones that are met running. With
mean m and standard deviation d it is m - s + d x h((s - m) / d), h the hazard of the normal distribution. What has run
for far longer than that is of another kind than is known: it runs on for a part of what it has run.

Terms: *tau* is execution time per launch, in ns; *surplus* is what a burst was charged beyond launches x tau; *doubt*
is a standard deviation in ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

_MEMORY = 0.1
_METERED = 0.9
"""Of the sums so far, at each proof."""
_FIRST_SPREAD = 0.1
_LEAST_SPREAD = 0.01
_UNKNOWN_SPREAD = 0.6
_LEAST_UNCERTAINTY = 0.02
_LARGEST_STEP = 1.25
_LEAST_STEP = 0.05
_TRUSTED = 3
_OTHER_KIND = 4.0
"""Standard deviations beyond the mean: no burst of the kind that is known takes so long."""
LINDY = 0.2
"""Of what it has run beyond that, a burst is taken to run on for."""
_OTHER_WORK = 4
"""Times as many launches as usual: no neighbour makes so long a burst seem another."""


@dataclass
class LaunchTime:
    """What is known of one context's time per launch."""

    tau_ns: float = 0.0
    samples: float = 0.0
    """Bursts observed or imputed; evidence from others counts as a part of one."""
    observed: int = 0
    """Bursts observed from beginning to end without a hold."""
    spread: float = _FIRST_SPREAD
    """Standard deviation of a burst relative to its mean."""
    launches: float = 1.0
    """Of a typical burst."""
    metered_ns: float = 0.0
    metered_launches: float = 0.0
    """Lately, see :meth:`meter`."""

    def meter(self, spent_ns: int, launches: int) -> None:
        """So much was charged, exactly, from one proof to the next.

        Proofs come late and in bunches, after a hold at the latest: what one has too much the next has too little. So
        the sums count.
        """
        self.observed += 1
        self.samples += 1
        self.launches += (launches - self.launches) * max(_MEMORY, 1 / self.samples)
        self.metered_ns = self.metered_ns * _METERED + spent_ns
        self.metered_launches = self.metered_launches * _METERED + launches
        self.tau_ns = self.metered_ns / self.metered_launches
        if self.tau_ns:
            deviation = abs(spent_ns / launches / self.tau_ns - 1.0)
            self.spread += (min(deviation * 1.25, 3 * self.spread + _LEAST_SPREAD) - self.spread) * max(
                _MEMORY, 1 / (self.observed + 1)
            )

    def learn(self, spent_ns: int, launches: int) -> None:
        """One burst, observed from beginning to end without a hold."""
        sample = spent_ns / launches
        self.observed += 1
        if self.observed > _TRUSTED and self.tau_ns:  # 0: of what never had a turn (meter)
            deviation = abs(sample / self.tau_ns - 1.0)
            memory = max(_MEMORY, 1 / (self.observed - _TRUSTED + 1))
            # 1.25 x the mean absolute deviation is the standard deviation (of a normal distribution)
            # One far-off sample says more about a neighbour than about this context; many do widen the limit.
            self.spread += (min(deviation * 1.25, 3 * self.spread + _LEAST_SPREAD) - self.spread) * memory
            if launches <= _OTHER_WORK * self.launches:
                step = 1 + max(_LEAST_STEP, 3 * self.spread)
                sample = min(max(sample, self.tau_ns / step), self.tau_ns * step)
        self._take(sample, launches)

    def impute(self, spent_ns: int, launches: int) -> None:
        """One burst that was held in between, as it was estimated.

        Holds cut long bursts short more often than short ones; learning from the others alone would shrink tau.
        """
        self._take(spent_ns / launches, launches)

    def _take(self, sample: float, launches: int) -> None:
        self.samples += 1
        memory = max(_MEMORY, 1 / self.samples)
        self.launches += (launches - self.launches) * memory
        # By launches, as whoever asks for so many of them means it: programs begin with bursts of another kind.
        self.tau_ns += (sample - self.tau_ns) * memory * launches / self.launches

    @property
    def uncertainty(self) -> float:
        """Of tau, relative: one burst is off by half a slice or so, many bursts average that out."""
        return max(_LEAST_UNCERTAINTY, 0.4 / (1.0 + self.samples))

    def remaining(self, launches: int, spent_ns: int, mean_ns: float | None = None) -> tuple[int, int]:
        """Execution time left of ``launches`` that have run for ``spent_ns``, and the doubt about it, in ns.

        ``mean_ns``: what so many launches take, where more is known of that.
        """
        mean_ns = self.tau_ns * launches if mean_ns is None else mean_ns
        if launches <= 0 or not mean_ns:
            return 0, 0
        left, sigma, z, hazard = self._left(launches, spent_ns, mean_ns)
        chance = sigma * math.sqrt(max(0.0, 1.0 - hazard * (hazard - z)))
        doubt = math.hypot(chance, left * self.uncertainty)
        return round(left), round(doubt if z < _OTHER_KIND else max(doubt, left))

    def left_ns(self, launches: int, spent_ns: int) -> int:
        """The first of :meth:`remaining`, for whoever asks for no more."""
        if launches <= 0 or not self.tau_ns:
            return 0
        return round(self._left(launches, spent_ns, self.tau_ns * launches)[0])

    def _left(self, launches: int, spent_ns: int, mean: float) -> tuple[float, float, float, float]:
        # Until the spread has been observed it is taken to be large.
        spread = max(_LEAST_SPREAD, self.spread, _UNKNOWN_SPREAD / (1 + self.observed))
        sigma = mean * spread * math.sqrt(self.launches / launches)
        z = (spent_ns - mean) / sigma
        hazard = _hazard(z)
        beyond = LINDY * (z - _OTHER_KIND) * sigma
        return max(0.0, mean - spent_ns + sigma * hazard, beyond), sigma, z, hazard

    def correct(self, ratio: float, gain: float) -> None:
        """Evidence from others: tau was off by ``ratio``."""
        self.tau_ns *= min(max(ratio, 1 / _LARGEST_STEP), _LARGEST_STEP)
        self.samples += gain


class LaunchMemory:
    """Times per launch by owner, for its next process. Pods come and go for months: the one longest unheard of is
    forgotten."""

    def __init__(self, most: int, owner_of: Callable[[int], Hashable] = lambda cgroup_id: cgroup_id) -> None:
        """``owner_of`` a cgroup: whose it is."""
        self._most, self._owner_of = most, owner_of
        self._known: dict[Hashable, LaunchTime] = {}

    def clear(self) -> None:
        """All that was learnt was wrong."""
        self._known.clear()

    def remember(self, cgroup_id: int, launch: LaunchTime) -> None:
        """The latest is kept."""
        owner = self._owner_of(cgroup_id)
        self._known.pop(owner, None)
        self._known[owner] = launch
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def borrow(self, cgroup_id: int) -> LaunchTime | None:
        """A copy: one sample's worth at most, because it is another's; None when nothing is known."""
        known = self._known.get(self._owner_of(cgroup_id))
        return None if known is None else replace(known, samples=1.0)


def _hazard(z: float) -> float:
    """Density over upper tail of the standard normal distribution; far out the tail is below the smallest float."""
    if z > 8.0:
        return z + 1.0 / z
    return math.exp(-z * z / 2) / (math.sqrt(math.pi / 2) * math.erfc(z / math.sqrt(2)))


@dataclass(frozen=True)
class Drain:
    """A drain that overlapped the burst: its estimate, the doubt about it, and whose it was."""

    estimate_ns: int
    doubt_ns: int
    of: LaunchTime

    def blame(self, part_ns: int, gain: float) -> None:
        """Correct tau by as much of ``part_ns`` as tau can be blamed for."""
        if self.estimate_ns <= 0 or self.doubt_ns <= 0:
            return
        of_tau = min(1.0, (self.estimate_ns * self.of.uncertainty / self.doubt_ns) ** 2)
        self.of.correct(1 + of_tau * part_ns / self.estimate_ns, of_tau * gain)


def settle(
    known: LaunchTime, spent_ns: int, launches: int, drains: Sequence[Drain], slice_ns: int
) -> tuple[list[int], float]:
    """How much of a burst's charge belongs to each drain (negative: it was charged too much), and the gain."""
    expected_ns = known.tau_ns * launches
    surplus_ns = spent_ns - expected_ns
    doubts = [drain.doubt_ns**2 for drain in drains]
    doubt = sum(doubts)
    own = (expected_ns * max(known.spread, known.uncertainty)) ** 2 + slice_ns**2
    if doubt <= 0:
        return [0] * len(drains), 0.0
    gain = doubt / (doubt + own)
    return [round(gain * surplus_ns * part / doubt) for part in doubts], gain
