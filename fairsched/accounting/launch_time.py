# SPDX-License-Identifier: Apache-2.0
"""Learns how long a launch of a context takes, and settles what drains were estimated wrongly (pure).

Problem: a held context says nothing, so how long its queue drains is an estimate: launches queued x time per
launch. A tenant that is nearly always held is hardly ever observed without a hold in between; its time per launch
may rest on one sample that is off by the length of a slice, and each drain is then wrong by the same part.

Approach: an error there must show elsewhere. The replay gave the missing time to whoever ran meanwhile, so a context
whose work is known (so many launches, so long each) comes out longer than it can be. That surplus is evidence about
the drains that overlapped it, weighed against its own uncertainty as in a scalar Kalman filter:

    gain = Q / (Q + R),  Q = sum over drains of (drain x relative uncertainty)^2
                         R = (expected x own relative spread)^2 + slice^2

The part gain x surplus is moved to the drained contexts, in proportion to their share of Q, and corrects their time
per launch. Time moved within one tenant (a gang always drains together) does not matter to anybody.

Terms: *tau* is execution time per launch, in ns; *surplus* is what a burst was charged beyond launches x tau.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MEMORY = 0.1
_SPREAD_MEMORY = 0.1
_FIRST_SPREAD = 0.1
_LEAST_UNCERTAINTY = 0.02
_LARGEST_STEP = 1.25
_TRUSTED = 3


@dataclass
class LaunchTime:
    """What is known of one context's time per launch."""

    tau_ns: float = 0.0
    samples: float = 0.0
    """Bursts observed; evidence from others counts as a part of one."""
    spread: float = _FIRST_SPREAD
    """Standard deviation of a burst relative to its mean."""

    def learn(self, spent_ns: int, launches: int) -> None:
        """One burst, observed from beginning to end without a hold."""
        sample = spent_ns / launches
        if self.samples >= _TRUSTED:
            deviation = abs(sample / self.tau_ns - 1.0)
            self.spread += (min(deviation * 1.25, 1.0) - self.spread) * _SPREAD_MEMORY
            # One far-off sample says more about a neighbour than about this context.
            sample = min(max(sample, self.tau_ns / _LARGEST_STEP), self.tau_ns * _LARGEST_STEP)
        self.samples += 1
        self.tau_ns += (sample - self.tau_ns) * max(_MEMORY, 1 / self.samples)

    @property
    def uncertainty(self) -> float:
        """Of tau, relative: one burst is off by half a slice or so, many bursts average that out."""
        return max(_LEAST_UNCERTAINTY, 0.4 / (1.0 + self.samples))

    def correct(self, ratio: float, gain: float) -> None:
        """Evidence from others: tau was off by ``ratio``."""
        self.tau_ns *= min(max(ratio, 1 / _LARGEST_STEP), _LARGEST_STEP)
        self.samples += gain


@dataclass(frozen=True)
class Drain:
    """A drain that overlapped the burst: its estimate and whose it was."""

    estimate_ns: int
    of: LaunchTime


def settle(
    known: LaunchTime, spent_ns: int, launches: int, drains: Sequence[Drain], slice_ns: int
) -> tuple[list[int], float]:
    """How much of a burst's charge belongs to each drain (negative: the drain was charged too much), and the gain."""
    expected_ns = known.tau_ns * launches
    surplus_ns = spent_ns - expected_ns
    doubts = [(drain.estimate_ns * drain.of.uncertainty) ** 2 for drain in drains]
    doubt = sum(doubts)
    own = (expected_ns * max(known.spread, known.uncertainty)) ** 2 + slice_ns**2
    if doubt <= 0.0:
        return [0] * len(drains), 0.0
    gain = doubt / (doubt + own)
    return [round(gain * surplus_ns * part / doubt) for part in doubts], gain
