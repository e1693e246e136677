# SPDX-License-Identifier: Apache-2.0
"""Whether the neighbours bear out what one tenant's work says about the GPU (pure).

Problem. What a launch costs, and when a call returns, is in the hands of whoever makes it. A tenant that gives its
kernels more to do whenever it has company looks as if turns were unequal; one that is slow to notice the end of its
work makes anchors miss. If one tenant's word were enough, it could have everybody let go.

Approach. An objection needs witnesses of more than one tenant.

*Costs.* If the objector really were charged r times its due in company, its neighbours would be charged too little
there: what it had too much, they had too little. So its word predicts, for each burst of a neighbour, by how much less
that is charged than it costs, and bursts with little and much of the objector in them tell: the slope of what is seen
over what is predicted is 1 if it speaks the truth, and 0 if the neighbours' work costs the same whether it is there or
not. Then their account is right, and so is its own, because the time of a GPU is all there is to charge. The objection
is *dismissed*. While it is examined nobody is let go; if that takes too long, the objector is believed.

*Anchors.* Each tenant has a hit ratio of its own. Where only one tenant's anchors miss, and those of all the others
hit as often as where all is well, the others count.

Terms. objector: a tenant whose work costs another time in company than alone (evenness.py).
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.accounting.replay import Replay
from fairsched.accounting.tuner import GOOD_HIT_RATIO
from fairsched.model import ContextKey

EXAMINED_NS = 4_000_000_000
"""For so long nobody is let go for one tenant's word; a dismissal that is not confirmed for so long is over, too."""
_RECENT_NS = 10_000_000_000
_KEPT = 64
"""Bursts of each witness."""
_LEAST = 8
"""Bursts of a witness without the objector, and as many with it."""
_WITHOUT, _WITH = 0.02, 0.2
"""What the objector was charged during a burst, relative to the witness: at most, and at least."""
_STEADY = 0.15
"""Standard deviation of what a launch costs a witness, logarithms: whose work varies more cannot contradict."""
_HALF = 0.5
"""Of what the objection predicts: less than that speaks against it ..."""
_SURE = 3.0
"""... if it is so many standard errors less."""
_LARGEST_PART = 0.8
"""Of what a neighbour had, that the objector can have taken from it."""
_HIT_MEMORY = 1 / 64
_LEAST_ANCHORS = 24.0
"""Of the others, before they can speak against one."""

logger = logging.getLogger(__name__)

TenantName = Hashable
"""Tenant, or cgroup where that is not known."""


class _Burst(NamedTuple):
    """Of a witness."""

    t_ns: int
    is_with: bool
    """The objector had a good part of the time; otherwise none."""
    predicted: float
    cost: float
    """Logarithm of what a launch was charged."""


@dataclass(slots=True)
class _Trial:
    """Of one objection."""

    ratio: float
    """What its work is charged in company, relative to what it is charged alone."""
    since_ns: int
    """When it was raised, or last refuted."""
    bursts: dict[ContextKey, deque[_Burst]] = field(default_factory=dict)
    """By witness."""
    is_dismissed: bool = False

    def note(
        self, witness: ContextKey, spent_ns: int, launches: int, wall_ns: int, beside_ns: int, t_ns: int
    ) -> None:
        """A burst of a neighbour, during which the objector was charged ``beside_ns``."""
        part = beside_ns / spent_ns
        if _WITHOUT < part < _WITH:
            return
        rest_ns = max(wall_ns - beside_ns, spent_ns)
        missing = min(max(beside_ns * (1 - 1 / self.ratio) / rest_ns, -_LARGEST_PART), 1 / _LARGEST_PART)
        burst = _Burst(t_ns, part >= _WITH, -math.log1p(missing), math.log(spent_ns / launches))
        self.bursts.setdefault(witness, deque(maxlen=_KEPT)).append(burst)

    def judge(self, now_ns: int) -> bool:
        """Whether the objector is to be believed."""
        part, error = self.refutation(now_ns)
        if part + _SURE * error < _HALF:
            self.is_dismissed, self.since_ns = True, now_ns
        elif now_ns - self.since_ns > EXAMINED_NS:
            self.is_dismissed = False
            return True
        return False

    def refutation(self, now_ns: int) -> tuple[float, float]:
        """How much there is of what the objection predicts, and the standard error: 1 where it is true."""
        sxx = sxy = syy = 0.0
        count = 0
        for bursts in self.bursts.values():
            recent = [burst for burst in bursts if now_ns - burst.t_ns < _RECENT_NS]
            together = sum(burst.is_with for burst in recent)
            if min(together, len(recent) - together) < _LEAST:
                continue
            if statistics.stdev(burst.cost for burst in recent) > _STEADY:
                continue
            mean_x = statistics.fmean(burst.predicted for burst in recent)
            mean_y = statistics.fmean(burst.cost for burst in recent)
            sxx += sum((burst.predicted - mean_x) ** 2 for burst in recent)
            sxy += sum((burst.predicted - mean_x) * (burst.cost - mean_y) for burst in recent)
            syy += sum((burst.cost - mean_y) ** 2 for burst in recent)
            count += len(recent) - 1
        if not sxx:
            return 1.0, math.inf
        slope = sxy / sxx
        return slope, math.sqrt(max(0.0, syy - slope * sxy) / (count - 1) / sxx)


class Trials:
    """Of one GPU: objections, and what the neighbours' bursts say to them."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._owners: dict[ContextKey, TenantName] = {}
        self._trials: dict[TenantName, _Trial] = {}
        self._marks: dict[ContextKey, tuple[int, dict[TenantName, int]]] = {}
        self._believed: set[TenantName] = set()
        """Those whose last objection was: the next one is at once, whatever it took to get there."""

    def begin(self, key: ContextKey, owner: TenantName, now_ns: int) -> None:
        """A burst of it begins."""
        self._owners[key] = owner
        if self._trials:
            self._marks[key] = now_ns, {suspect: self._exec_ns(suspect) for suspect in self._trials}

    def end(self, key: ContextKey, begun_ns: int, spent_ns: int, launches: int, now_ns: int) -> None:
        """A burst ended that no hold touched."""
        since_ns, before = self._marks.pop(key, (None, {}))
        if since_ns != begun_ns or spent_ns <= 0:
            return
        for suspect, exec_ns in before.items():
            trial = self._trials.get(suspect)
            if trial is not None and suspect != self._owners.get(key):
                beside_ns = max(0, self._exec_ns(suspect) - exec_ns)
                trial.note(key, spent_ns, launches, now_ns - begun_ns, beside_ns, now_ns)

    def forget(self, key: ContextKey) -> None:
        """The context is gone."""
        self._owners.pop(key, None)
        self._marks.pop(key, None)

    def reset(self) -> None:
        """The replay is another now: what was charged before says nothing."""
        self._trials.clear()
        self._marks.clear()

    def owners(self) -> set[TenantName]:
        """Those that worked on this GPU."""
        return set(self._owners.values())

    def are_upheld(self, objections: Mapping[TenantName, float], now_ns: int) -> bool:
        """``objections``: who objects, and what its work is charged in company relative to alone."""
        self._trials = {owner: trial for owner, trial in self._trials.items() if owner in objections}
        self._believed &= self.owners()
        is_upheld = False
        for owner, ratio in objections.items():
            if owner not in self._trials:
                waited_ns = EXAMINED_NS + 1 if owner in self._believed else 0
                self._trials[owner] = _Trial(ratio, now_ns - waited_ns)
            trial = self._trials[owner]
            was_dismissed = trial.is_dismissed
            if trial.judge(now_ns):
                self._believed.add(owner)
            elif trial.is_dismissed:
                self._believed.discard(owner)
            is_upheld |= owner in self._believed or self.owners() <= {owner}
            if trial.is_dismissed and not was_dismissed:
                part, error = trial.refutation(now_ns)
                logger.warning(
                    "turns=feigned by=%s company_cost_ratio=%.2f borne_out=%.2f+-%.2f",
                    owner,
                    ratio,
                    part,
                    error,
                )
        return is_upheld

    def _exec_ns(self, owner: TenantName) -> int:
        replay = self._replay
        return sum(replay.exec_ns(key) for key, whose in self._owners.items() if whose == owner)


class Anchors:
    """Of one GPU: hits and misses by tenant."""

    def __init__(self) -> None:
        self._tallies: dict[TenantName, tuple[float, float]] = {}
        """(hits, anchors) of late."""

    def hear(self, owner: TenantName, is_hit: bool) -> None:
        hits, count = self._tallies.get(owner, (0.0, 0.0))
        kept = 1 - _HIT_MEMORY
        self._tallies[owner] = hits * kept + is_hit, count * kept + 1

    def reset(self) -> None:
        """The replay is another now."""
        self._tallies.clear()

    def without_one(self, owners: set[TenantName]) -> float | None:
        """The hit ratio of the others, if there is one tenant that misses alone; ``owners``: who is there."""
        self._tallies = {owner: tally for owner, tally in self._tallies.items() if owner in owners}
        if len(self._tallies) < 2:
            return None
        odd = min(self._tallies, key=lambda owner: self._tallies[owner][0] / self._tallies[owner][1])
        hits = sum(tally[0] for owner, tally in self._tallies.items() if owner != odd)
        count = sum(tally[1] for owner, tally in self._tallies.items() if owner != odd)
        is_fine = count >= _LEAST_ANCHORS and hits >= GOOD_HIT_RATIO * count
        return hits / count if is_fine else None
