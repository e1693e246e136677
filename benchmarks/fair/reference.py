# SPDX-License-Identifier: Apache-2.0
"""Who was entitled to what, and who got what: the fluid reference that a policy is judged by (pure).

Problem. The policy under test has a notion of demand and entitlement of its own. Judged by it, it would
always be right. So this is a second one, from the engine's truth and the programs' own step logs.

Approach. For each GPU, between two changes of the set A(t) of leaves that want it, the GPU time that was
delivered to all leaves together is owed to those in A(t), in the proportion of their entitlements (weighted
processor sharing, normalised on delivery: what the hardware loses on switches is nobody's debt).

What a leaf wants. From the first submission of a step to its end, as the step log says. Pauses between its launches
(``launch_gap_us``) are in it, so a scenario must not owe a launch-bound leaf more than it can use. Gaps up to
GRACE_NS are the think time of a closed loop and belong to the demand. Time in which the leaf was held does not
count as gap: who was frozen between two steps could not go on. A step that had not finished is in no log: after the
last step of a process, those sample intervals count in which the leaf's contexts ran or waited for at least
half of it. A leaf whose logs tell nothing (``is_always_wanting``) wants from its first work to its end. On
more than one GPU, demand for one of them is further limited to when the leaf's contexts there had work.

What comes from outside. Requests that come at times of their own do not become more by waiting. Served late, their leaf
wants the GPU for longer, and would be owed for all that time more than was ever asked of it; served at once it would
be owed nothing. So such a leaf (all of its logs ``Recording.comes``) wants the GPU here while it has not been owed all
that has come.

Entitlement. Shared out from the root: among siblings clamp(level x weight, low, high) with the level, found
by bisection, that hands out just what the parent got. low: own min, at least the children's together. high:
own quota, at most the children's together. Floors that do not fit are scaled alike.

Quotas. Where all of A(t) are at their quotas, the rest of the GPU is owed to nobody, and what is owed is a
part of time, not of what was delivered (they may use less than they could: then all of it is scaled alike,
once for all such time, because a quota is kept over a second and not over a slice).

Terms. pie: what the shares are parts of: GPU time delivered to leaves, or plain time where quotas cap all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from benchmarks.fair.recording import Recording, Sample
from benchmarks.fair.windows import (
    MS,
    Array,
    Curve,
    clipped,
    covered,
    intersection,
    is_inside,
    spans,
    summed,
)
from fairsched.model import TenantSpec

GRACE_NS = 5 * MS
_GRID_NS = 10 * MS
"""Where A(t) does not change for long, the curves still get a point so often."""
_BISECTIONS = 64
_LEAST_WEIGHT = 1e-9
_SPARE = 1e-9

# ---- entitlement ----


@dataclass
class _Node:
    weight: float
    quota: float
    least: float
    column: int | None = None
    children: dict[str, _Node] = field(default_factory=dict)


@dataclass
class _Claims:
    """Of one node, one entry per case."""

    weight: Array
    low: Array
    high: Array
    children: list[_Claims]
    column: int | None


def entitled(wants: npt.NDArray[np.bool_], leaves: Sequence[str], specs: Mapping[str, TenantSpec]) -> Array:
    """Part of a GPU owed to each leaf (columns) in each case (rows) of who wants it."""
    root = _Node(1.0, 1.0, 0.0)
    for column, leaf in enumerate(leaves):
        node, path = root, ""
        for part in leaf.split("/"):
            path = f"{path}/{part}" if path else part
            if part not in node.children:
                spec = specs[path]
                quota = 1.0 if spec.quota_ratio is None else spec.quota_ratio
                node.children[part] = _Node(max(spec.weight, _LEAST_WEIGHT), quota, spec.min_ratio)
            node = node.children[part]
        node.column = column
    owed = np.zeros(wants.shape)
    _hand_out(_claims(root, wants), np.ones(len(wants)), owed)
    return owed


def _claims(node: _Node, wants: npt.NDArray[np.bool_]) -> _Claims:
    if node.column is not None:
        on = wants[:, node.column].astype(np.float64)
        low = on * min(node.least, node.quota)
        return _Claims(on * node.weight, low, on * node.quota, [], node.column)
    children = [_claims(child, wants) for child in node.children.values()]
    on = np.any([child.weight > 0 for child in children], axis=0).astype(np.float64)
    high = np.minimum(node.quota, np.sum([child.high for child in children], axis=0))
    low = np.maximum(on * node.least, np.sum([child.low for child in children], axis=0))
    return _Claims(on * node.weight, np.minimum(low, high), high, children, None)


def _hand_out(claims: _Claims, total: Array, owed: Array) -> None:
    if claims.column is not None:
        owed[:, claims.column] = total
        return
    weight, low, high = (
        np.stack([getattr(child, name) for child in claims.children], axis=1)
        for name in ("weight", "low", "high")
    )
    dry = np.zeros(len(total))
    full = np.max(np.divide(high, weight, out=np.zeros_like(high), where=weight > 0), axis=1)
    for _ in range(_BISECTIONS):
        level = (dry + full) / 2
        fits = np.clip(level[:, None] * weight, low, high).sum(axis=1) <= total
        dry, full = np.where(fits, level, dry), np.where(fits, full, level)
    parts = np.clip(dry[:, None] * weight, low, high)
    floor = low.sum(axis=1)
    scaled = low * (total / np.where(floor > 0, floor, 1.0))[:, None]
    parts = np.where((floor >= total)[:, None] & (floor > 0)[:, None], scaled, parts)
    for child, part in zip(claims.children, parts.T, strict=True):
        _hand_out(child, part, owed)


# ---- what the truth says ----


class Truth:
    """The recording's counters and logs as curves and spans."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.samples = _distinct(recording.samples)
        self.at_ns = np.array([sample.at_ns for sample in self.samples], dtype=np.float64)
        self._stays: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for stay in recording.stays:
            self._stays.setdefault((stay.leaf, stay.gpu), []).append((stay.start_ns, stay.end_ns))
        pairs = set(self._stays)
        for sample in self.samples[-1:]:
            used = (*sample.exec_ns.items(), *sample.wait_ns.items())
            pairs |= {pair for pair, spent_ns in used if spent_ns > 0}
        self.gpus: dict[str, tuple[int, ...]] = {
            leaf: tuple(sorted(gpu for name, gpu in pairs if name == leaf)) for leaf in recording.leaves
        }
        """Leaf -> the GPUs it has used or waited for."""
        self._exec = {pair: self._counter(pair, "exec_ns") for pair in pairs}
        self._wait = {pair: self._counter(pair, "wait_ns") for pair in pairs}
        self.received = {pair: self._service(pair) for pair in pairs}
        """(leaf, GPU) -> execution time."""
        self.waited = {pair: Curve(self.at_ns, self._wait[pair]) for pair in pairs}
        self.held = {
            leaf: spans([(hold.start_ns, hold.end_ns) for hold in recording.held if hold.leaf == leaf])
            for leaf in recording.leaves
        }
        self.demand = {leaf: self._demand(leaf) for leaf in recording.leaves}
        """Leaf -> when it wants a GPU, whichever."""

    def stays(self, leaf: str, gpu: int) -> Array:
        """When it executed there."""
        return spans(self._stays.get((leaf, gpu), ()))

    def service(self, leaf: str) -> Curve:
        """On all GPUs together."""
        return summed(self.received[leaf, gpu] for gpu in self.gpus[leaf])

    def demand_on(self, leaf: str, gpu: int) -> Array:
        """When it wants this GPU."""
        if len(self.gpus[leaf]) < 2:
            return self.demand[leaf]
        return intersection(self.demand[leaf], self._joined(leaf, self._activity(leaf, gpu, 0.0)))

    def asked(self, leaf: str) -> Curve | None:
        """GPU time of the steps that have come; None where it depends on when they are served, or on which GPU.

        Who was served late has logged what came first; after that it is the rate at which they come.
        """
        comes, logs = self.recording.comes.get(leaf, ()), self.recording.steps.get(leaf, ())
        if not comes or None in comes or len(self.gpus[leaf]) > 1 or leaf not in self.recording.present_ns:
            return None
        present_ns, end_ns = self.recording.present_ns[leaf]
        curves = []
        for each, log in zip(comes, logs, strict=True):
            if each is None:
                return None
            rate_per_s, step_ns = each
            at = np.sort(
                np.array([present_ns, *(step.end_ns - step.latency_ns for step in log)], dtype=np.float64)
            )
            rest_ns = max(end_ns - at[-1], 1.0)
            total = step_ns * np.append(np.arange(len(at)), len(at) - 1 + rate_per_s * rest_ns / 1e9)
            curves.append(Curve(np.append(at, at[-1] + rest_ns), total))
        return summed(curves)

    def _counter(self, pair: tuple[str, int], name: str) -> Array:
        values = [getattr(sample, name).get(pair, 0) for sample in self.samples]
        # A counter that vanishes with its processes must not take back what was delivered.
        return np.maximum.accumulate(np.array(values, dtype=np.float64))

    def _service(self, pair: tuple[str, int]) -> Curve:
        """The samples say how much, the stays when: a stay is logged at its end, the last one never."""
        stays = spans(self._stays.get(pair, ()))
        spent = self._exec[pair]
        if len(self.at_ns) < 2:
            return covered(stays)
        if self.recording.overlap > 1 or not len(stays):
            return Curve(self.at_ns, spent)
        inside = clipped(stays, self.at_ns[0], self.at_ns[-1])
        at = np.unique(np.concatenate([self.at_ns, inside.reshape(-1)]))
        resident = covered(stays)
        before = np.clip(np.searchsorted(self.at_ns, at, side="right") - 1, 0, len(self.at_ns) - 2)
        ran = np.diff(resident(self.at_ns))
        known = np.minimum(np.diff(spent), ran)
        along = (resident(at) - resident(self.at_ns)[before]) / np.where(ran > 0, ran, 1.0)[before]
        even = (at - self.at_ns[before]) / np.diff(self.at_ns)[before]
        return Curve(at, spent[before] + known[before] * along + (np.diff(spent) - known)[before] * even)

    def _activity(self, leaf: str, gpu: int, least_ratio: float) -> Array:
        """Sample intervals in which its contexts ran or waited, for more than so much of it."""
        if len(self.at_ns) < 2:
            return np.zeros((0, 2))
        had_work = np.diff(self._exec[leaf, gpu] + self._wait[leaf, gpu])
        pairs = np.stack([self.at_ns[:-1], self.at_ns[1:]], axis=1)
        return spans(pairs[had_work > least_ratio * np.diff(self.at_ns)])

    def _joined(self, leaf: str, of: Array) -> Array:
        """Gaps that are think time, or a hold and think time, are demand."""
        if len(of) < 2:
            return of
        gaps = np.stack([of[:-1, 1], of[1:, 0]], axis=1)
        idle_ns = gaps[:, 1] - gaps[:, 0] - covered(self.held[leaf]).grown(gaps[:, 0], gaps[:, 1])
        return spans(np.concatenate([of, gaps[idle_ns <= GRACE_NS]]))

    def _demand(self, leaf: str) -> Array:
        if leaf not in self.recording.present_ns:
            return np.zeros((0, 2))
        present = np.array(self.recording.present_ns[leaf], dtype=np.float64)
        gpus = self.gpus[leaf]
        if self.recording.is_always_wanting.get(leaf, False):
            first = min((self._first_work_ns(leaf, gpu) for gpu in gpus), default=np.inf)
            return spans([(max(present[0], first), present[1])])
        logs = [log for log in self.recording.steps.get(leaf, ()) if log]
        steps = spans([(step.end_ns - step.latency_ns, step.end_ns) for log in logs for step in log])
        # A process that never finished a step has been at its first one all the time.
        silent = len(logs) < len(self.recording.steps.get(leaf, ())) or not logs
        last = present[0] if silent else min(max(step.end_ns for step in log) for log in logs)
        busy = [self._activity(leaf, gpu, 0.5) for gpu in gpus]
        tail = clipped(spans(np.concatenate([np.zeros((0, 2)), *busy])), last, max(last, present[1]))
        return self._joined(leaf, spans(np.concatenate([steps, tail])))

    def _first_work_ns(self, leaf: str, gpu: int) -> float:
        if len(self.at_ns) and self._exec[leaf, gpu][0] + self._wait[leaf, gpu][0] > 0:
            return -np.inf
        first = [*self._activity(leaf, gpu, 0.0)[:1, 0], *self.stays(leaf, gpu)[:1, 0]]
        return min(first, default=np.inf)


def _distinct(samples: Sequence[Sample]) -> list[Sample]:
    """The engine's clock stands still while nothing happens: of equal moments the last one."""
    return [a for a, b in pairwise(samples) if a.at_ns < b.at_ns] + list(samples[-1:])


# ---- the fluid reference ----


@dataclass(frozen=True)
class Fluid:
    """One GPU over the measured part."""

    gpu: int
    edges_ns: Array
    leaves: tuple[str, ...]
    """Those that use it; the order of the columns."""
    wants: npt.NDArray[np.bool_]
    """By interval between two edges, by leaf."""
    owed: Mapping[str, Curve]
    received: Mapping[str, Curve]
    wanted: Mapping[str, Curve]
    """Time in which it wanted the GPU."""
    pie: Curve

    def lag_ns(self, leaf: str) -> Array:
        """Owed less received since the start, at the edges."""
        return np.asarray(self.owed[leaf](self.edges_ns) - self._since_start(leaf), dtype=np.float64)

    def _since_start(self, leaf: str) -> Array:
        return self.received[leaf].grown(self.edges_ns[0], self.edges_ns)


def fluid(truth: Truth, gpu: int) -> Fluid:
    """What each leaf was owed of this GPU."""
    recording = truth.recording
    start, end = float(recording.start_ns), float(recording.end_ns)
    leaves = tuple(leaf for leaf in recording.leaves if gpu in truth.gpus[leaf])
    demand = [clipped(truth.demand_on(leaf, gpu), start, end) for leaf in leaves]
    grid = np.append(np.arange(start, end, _GRID_NS), end)
    edges = np.unique(np.concatenate([grid, *(part.reshape(-1) for part in demand)]))
    middle, lasted = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    wants = np.zeros((len(middle), len(leaves)), dtype=np.bool_)
    delivered = np.zeros(len(middle))
    for column, leaf in enumerate(leaves):
        wants[:, column] = is_inside(demand[column], middle)
        delivered += np.diff(truth.received[leaf, gpu](edges))
    due = _due(wants, leaves, edges, delivered, truth)
    cases, case = np.unique(due, axis=0, return_inverse=True)
    parts = entitled(cases, leaves, recording.specs)[case.reshape(-1)]
    pie = _pie(parts, delivered, lasted)
    return Fluid(
        gpu,
        edges,
        leaves,
        wants,
        owed={leaf: _cumulated(edges, parts[:, n] * pie) for n, leaf in enumerate(leaves)},
        received={leaf: truth.received[leaf, gpu] for leaf in leaves},
        wanted={leaf: _cumulated(edges, np.where(wants[:, n], lasted, 0.0)) for n, leaf in enumerate(leaves)},
        pie=_cumulated(edges, pie),
    )


def _due(
    wants: npt.NDArray[np.bool_], leaves: Sequence[str], edges: Array, delivered: Array, truth: Truth
) -> npt.NDArray[np.bool_]:
    """Who is owed something: of those to whom work comes from outside, who has not been owed all of it; of the others,
    who wants it. By interval, for one depends on those before."""
    limits = {
        column: asked(edges[1:]) - truth.service(leaf)(edges[0])
        for column, leaf in enumerate(leaves)
        if (asked := truth.asked(leaf)) is not None
    }
    if not limits:
        return wants
    due: npt.NDArray[np.bool_] = wants.copy()
    owed, known = np.zeros(len(leaves)), dict[bytes, Array]()
    for row, ns in enumerate(delivered):
        for column, limit in limits.items():
            due[row, column] = owed[column] < limit[row]
        key = due[row].tobytes()
        if key not in known:
            known[key] = entitled(due[row : row + 1], leaves, truth.recording.specs)[0]
        owed += known[key] * ns
    return due


def _pie(parts: Array, delivered: Array, lasted: Array) -> Array:
    given = parts.sum(axis=1)
    is_capped = (given > 0) & (given < 1 - _SPARE)
    could = float((given * lasted)[is_capped].sum())
    used_ratio = min(1.0, float(delivered[is_capped].sum()) / could) if could > 0 else 0.0
    return np.where(is_capped, used_ratio * lasted, delivered)


def _cumulated(edges: Array, grown: Array) -> Curve:
    return Curve(edges, np.concatenate([[0.0], np.cumsum(grown)]))
