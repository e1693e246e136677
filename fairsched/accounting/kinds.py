# SPDX-License-Identifier: Apache-2.0
"""What bursts of one kind take, alone and in company (pure). See costs.py, whose words these are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

_KEPT_ALONE, _KEPT_BESIDE = 0.99, 0.97
"""Of what was learnt before, at each burst: the work itself changes over the day, and bursts alone are few."""
LEAST = 1.5
"""Bursts alone after which they count: two, of which the older one counts a little less."""
SPREAD = 0.1
"""Of bursts, relative, before it was seen."""
_LEAST_SPREAD = 0.02
"""The same, of what can be told from a mistake of the replay."""
_GAPS = 0.95
"""A burst whose last wait explains less of it than this had gaps."""
_STEADY = 16
"""Bursts in company after which their mean says how it differs from that alone."""
_APART_NS = 1_000_000_000
"""Bursts alone that are so far apart were alone at two moments."""
DRIFT = 0.25
"""Logarithm: so much dearer or cheaper in company than at first, or than alone."""


@dataclass(slots=True)
class Mean:
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
        return (self.squares + SPREAD**2) / self.bursts**2


@dataclass(slots=True)
class Recent:
    """How much of what a tenant does is of one kind: programs begin with other work than they go on with."""

    time_ns: float = 0.0
    launches: float = 0.0
    at: int = 0
    """Bursts of the tenant, of any kind, when the two were right."""

    def part(self, at: int) -> float:
        """Of the two that still counts after so many bursts of the tenant."""
        return _KEPT_BESIDE ** (at - self.at)

    def learn(self, spent_ns: float, launches: int, at: int) -> None:
        part = self.part(at)
        self.time_ns, self.launches = self.time_ns * part + spent_ns, self.launches * part + launches
        self.at = at


@dataclass(slots=True)
class Kind:
    """Bursts of about as many launches."""

    alone: Mean = field(default_factory=lambda: Mean(_KEPT_ALONE))
    beside: Mean = field(default_factory=lambda: Mean(_KEPT_BESIDE))
    least: Mean = field(default_factory=lambda: Mean(_KEPT_ALONE))
    """What bursts alone took without their gaps, at least."""
    ratio: float | None = None
    """The cost in company over that alone, when both were learnt first."""
    recent: Recent = field(default_factory=Recent)
    alone_ns: int = -_APART_NS
    """When it was last alone ..."""
    moment: tuple[int, Mean, Mean] | None = None
    """... and of the moment before that: when it ended, and what was known by then, alone and at least."""

    def learn(
        self, spent_ns: int, launches: int, at: int, *, is_alone: bool, waited_ns: int, t_ns: int = 0
    ) -> None:
        """``at``: how many bursts the tenant had, of any kind. ``t_ns``: when it ended."""
        self.recent.learn(spent_ns, launches, at)
        if is_alone:
            if t_ns - self.alone_ns >= _APART_NS:
                self.moment = (self.alone_ns, replace(self.alone), replace(self.least))
            self.alone_ns = t_ns
            self.alone.learn(spent_ns, launches)
            self.least.learn(min(spent_ns, waited_ns * launches), launches)
        else:
            self.beside.learn(spent_ns, launches)

    def forget_alone_since(self, since_ns: int) -> None:
        """Whatever seemed to be alone since then was not."""
        if self.alone_ns < since_ns:
            return
        moment, self.moment = self.moment, None
        self.forget_alone()
        if moment is not None and moment[0] < since_ns:
            self.alone_ns, self.alone, self.least = moment

    def forget_alone(self) -> None:
        """What was measured alone is of other work."""
        self.alone, self.least, self.ratio = Mean(_KEPT_ALONE), Mean(_KEPT_ALONE), None

    @property
    def burst_ns(self) -> float:
        """A burst; alone, if that is known."""
        mean = self.alone if self.is_known else self.beside
        return mean.time_ns / mean.bursts if mean.bursts else self.alone.time_ns / self.alone.bursts

    @property
    def is_known(self) -> bool:
        return self.alone.bursts >= LEAST

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
        if not self.is_known or self.beside.bursts < LEAST or self.has_gaps:
            return False
        return abs(math.log(self.beside.ns / self.alone.ns)) > DRIFT

    @property
    def drift(self) -> float | None:
        """Logarithm: how much dearer in company, relative to alone, it is now than at first; None: not known."""
        if not self.is_known or self.beside.bursts < _STEADY:
            return None
        ratio = self.beside.ns / self.alone.ns
        self.ratio = self.ratio or ratio
        return math.log(ratio / self.ratio)
