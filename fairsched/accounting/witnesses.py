# SPDX-License-Identifier: Apache-2.0
"""Checks what one tenant's work says about the GPU against the work of its neighbours (pure).

Problem. What a launch costs, and when a call returns, is in the hands of whoever makes it. A tenant that gives its
kernels more to do whenever it has company looks as if turns were unequal; one that is slow to notice the end of its
work makes anchors miss. If one tenant's claim were enough, it could have everybody let go.

Approach. A claim needs the support of more than one tenant.

*Costs.* If the claimant really were charged r times its due in company, its neighbours would be charged too little
there: what it had too much, they had too little. So its claim predicts, for each burst of a neighbour, by how much less
that is charged than it costs, and bursts with little and much of the claimant in them tell: the slope of what is seen
over what is predicted is 1 if the claim is true, and 0 if the neighbours' work costs the same whether it is there or
not. Then their account is right, and so is its own, because the time of a GPU is all there is to charge. The claim
is *rejected*. While it is examined nobody is let go; if that takes too long, it counts as *supported*.

*Anchors.* Each tenant has a hit ratio of its own. Where only one tenant's anchors miss, and those of all the others
hit as often as where all is well, the others count.

Terms. claimant: a tenant whose work costs another time in company than alone (evenness.py).
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
"""For so long nobody is let go for one tenant's claim; a rejection that is not confirmed for so long is over, too."""
_RECENT_NS = 10_000_000_000
_KEPT = 64
"""Bursts of each neighbour."""
_LEAST = 8
"""Bursts of a neighbour without the claimant, and as many with it."""
_WITHOUT, _WITH = 0.02, 0.2
"""What the claimant was charged during a burst, relative to the neighbour: at most, and at least."""
_STEADY = 0.15
"""Standard deviation of what a launch costs a neighbour, logarithms: work that varies more cannot contradict."""
_HALF = 0.5
"""Of what the claim predicts: less than that speaks against it ..."""
_SURE = 3.0
"""... if it is so many standard errors less."""
_LARGEST_PART = 0.8
"""Of what a neighbour had, that the claimant can have taken from it."""
_HIT_MEMORY = 1 / 64
_LEAST_ANCHORS = 24.0
"""Of the others, before they can speak against one."""

logger = logging.getLogger(__name__)

TenantName = Hashable
"""Tenant, or cgroup where that is not known."""


class _Burst(NamedTuple):
    """Of a neighbour."""

    t_ns: int
    is_with: bool
    """The claimant had a good part of the time; otherwise none."""
    predicted: float
    cost: float
    """Logarithm of what a launch was charged."""


@dataclass(slots=True)
class _Claim:
    """That the work of one tenant is charged too much or too little in company."""

    ratio: float
    """What its work is charged in company, relative to what it is charged alone."""
    since_ns: int
    """When it was raised, or last rejected."""
    bursts: dict[ContextKey, deque[_Burst]] = field(default_factory=dict)
    """By neighbour."""
    is_rejected: bool = False

    def note(
        self, neighbour: ContextKey, spent_ns: int, launches: int, wall_ns: int, beside_ns: int, t_ns: int
    ) -> None:
        """A burst of a neighbour, during which the claimant was charged ``beside_ns``."""
        part = beside_ns / spent_ns
        if _WITHOUT < part < _WITH:
            return
        rest_ns = max(wall_ns - beside_ns, spent_ns)
        missing = min(max(beside_ns * (1 - 1 / self.ratio) / rest_ns, -_LARGEST_PART), 1 / _LARGEST_PART)
        burst = _Burst(t_ns, part >= _WITH, -math.log1p(missing), math.log(spent_ns / launches))
        self.bursts.setdefault(neighbour, deque(maxlen=_KEPT)).append(burst)

    def is_supported(self, now_ns: int) -> bool:
        """Whether it counts as supported: not rejected for so long as it may be examined."""
        part, error = self.estimate(now_ns)
        if part + _SURE * error < _HALF:
            self.is_rejected, self.since_ns = True, now_ns
        elif now_ns - self.since_ns > EXAMINED_NS:
            self.is_rejected = False
            return True
        return False

    def estimate(self, now_ns: int) -> tuple[float, float]:
        """How much there is of what the claim predicts, and the standard error: 1 where it is true."""
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


class Claims:
    """Of one GPU: claims, and what the neighbours' bursts say of them."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._owners: dict[ContextKey, TenantName] = {}
        self._claims: dict[TenantName, _Claim] = {}
        self._marks: dict[ContextKey, tuple[int, dict[TenantName, int]]] = {}
        self._supported: set[TenantName] = set()
        """Those whose last claim was: the next one is at once, whatever it took to get there."""

    def begin(self, key: ContextKey, owner: TenantName, now_ns: int) -> None:
        """A burst of it begins."""
        self._owners[key] = owner
        if self._claims:
            self._marks[key] = now_ns, {claimant: self._exec_ns(claimant) for claimant in self._claims}

    def end(self, key: ContextKey, begun_ns: int, spent_ns: int, launches: int, now_ns: int) -> None:
        """A burst ended that no hold touched."""
        since_ns, before = self._marks.pop(key, (None, {}))
        if since_ns != begun_ns or spent_ns <= 0:
            return
        for claimant, exec_ns in before.items():
            claim = self._claims.get(claimant)
            if claim is not None and claimant != self._owners.get(key):
                beside_ns = max(0, self._exec_ns(claimant) - exec_ns)
                claim.note(key, spent_ns, launches, now_ns - begun_ns, beside_ns, now_ns)

    def forget(self, key: ContextKey) -> None:
        """The context is gone."""
        self._owners.pop(key, None)
        self._marks.pop(key, None)

    def reset(self) -> None:
        """The replay is another now: what was charged before says nothing."""
        self._claims.clear()
        self._marks.clear()

    def owners(self) -> set[TenantName]:
        """Those that worked on this GPU."""
        return set(self._owners.values())

    def are_supported(self, claims: Mapping[TenantName, float], now_ns: int) -> bool:
        """``claims``: who makes one, and what its work is charged in company relative to alone."""
        self._claims = {owner: claim for owner, claim in self._claims.items() if owner in claims}
        self._supported &= self.owners()
        is_supported = False
        for owner, ratio in claims.items():
            if owner not in self._claims:
                waited_ns = EXAMINED_NS + 1 if owner in self._supported else 0
                self._claims[owner] = _Claim(ratio, now_ns - waited_ns)
            claim = self._claims[owner]
            was_rejected = claim.is_rejected
            if claim.is_supported(now_ns):
                self._supported.add(owner)
            elif claim.is_rejected:
                self._supported.discard(owner)
            is_supported |= owner in self._supported or self.owners() <= {owner}
            if claim.is_rejected and not was_rejected:
                part, error = claim.estimate(now_ns)
                logger.warning(
                    "turns=feigned by=%s company_cost_ratio=%.2f borne_out=%.2f+-%.2f",
                    owner,
                    ratio,
                    part,
                    error,
                )
        return is_supported

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
