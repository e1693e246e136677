# SPDX-License-Identifier: Apache-2.0
"""How soon a leaf that lent its GPU time has it back when it wants it again (pure).

Problem. "Soon" must mean the same under a policy that freezes, one that passes a token and none at all, and
must not be met by a first slice after which nothing follows.

Approach. A take-back begins at t0, the first submission after at least ABSENCE_NS without demand, if at t0
another leaf wants the same GPU (otherwise there is nothing to take). The leaf is back at the first moment, in
steps of a millisecond, at which it executes and from which on it receives at least ENOUGH_RATIO of what it is
owed over WINDOW_NS (or over the rest of its demand, if that is shorter). If that never comes, the take-back
lasts as long as its demand did, or as the recording: too short a figure, never too long.

beyond drain: less the time in which others executed that were held already. They had queued that work before
they were stopped; no policy that stops CPUs can have it back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.fair.reference import Fluid, Truth
from benchmarks.fair.windows import MS, Array, Curve, covered, intersection, spans

ABSENCE_NS = 100 * MS
WINDOW_NS = 50 * MS
ENOUGH_RATIO = 0.8
_STEP_NS = 1 * MS


@dataclass(frozen=True)
class TakeBack:
    """One return of one leaf."""

    leaf: str
    gpu: int
    at_ns: float
    """t0."""
    took_ns: float
    drain_ns: float
    """Of it: others that were held executed."""

    @property
    def beyond_drain_ns(self) -> float:
        return self.took_ns - self.drain_ns


def take_backs(truth: Truth, flow: Fluid) -> list[TakeBack]:
    """All on one GPU, by leaf and time."""
    drains = {leaf: intersection(truth.stays(leaf, flow.gpu), truth.held[leaf]) for leaf in flow.leaves}
    found = []
    for column, leaf in enumerate(flow.leaves):
        others = [drain for name, drain in drains.items() if name != leaf]
        drained = covered(spans(np.concatenate([np.zeros((0, 2)), *others])))
        for start, end in _returns(truth.demand_on(leaf, flow.gpu)):
            if _is_contended(flow, column, start):
                took = _took_ns(flow, leaf, start, end)
                drain = float(drained.grown(start, start + took))
                found.append(TakeBack(leaf, flow.gpu, start, took, drain))
    return found


def _returns(demand: Array) -> list[tuple[float, float]]:
    """(first submission, end of that demand) after an absence; the first appearance is one."""
    before = np.concatenate([[-np.inf], demand[:-1, 1]]) if len(demand) else np.zeros(0)
    return [(start, end) for start, end in demand[demand[:, 0] - before >= ABSENCE_NS].tolist()]


def _is_contended(flow: Fluid, column: int, at_ns: float) -> bool:
    """False outside the measured part, too."""
    first, last = flow.edges_ns[0], flow.edges_ns[-1]
    # What was in demand when measuring began has not come back then; at the end there is no time to see it.
    if not first < at_ns < last - WINDOW_NS:
        return False
    interval = int(np.searchsorted(flow.edges_ns, at_ns, side="right")) - 1
    return bool(np.delete(flow.wants[interval], column).any())


def _took_ns(flow: Fluid, leaf: str, start: float, end: float) -> float:
    last = float(flow.edges_ns[-1])
    limit = min(end, last)
    moments = np.arange(start, limit if end < last else last - WINDOW_NS, _STEP_NS)
    got = _ahead(flow.received[leaf], moments, last)
    due = _ahead(flow.owed[leaf], moments, last)
    executes = flow.received[leaf].grown(moments, moments + _STEP_NS) > 1
    is_back = executes & (got >= ENOUGH_RATIO * due)
    return float(moments[is_back.argmax()] - start) if is_back.any() else limit - start


def _ahead(curve: Curve, moments: Array, last: float) -> Array:
    return curve.grown(moments, np.minimum(moments + WINDOW_NS, last))
