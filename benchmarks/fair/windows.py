# SPDX-License-Identifier: Apache-2.0
"""Cumulated curves, stretches of time and windows: the arithmetic under the measures (pure).

Problem. A figure over one second asks the same question 600 times of 40,000 steps and 30,000 stays.

Approach. What grows (service, tokens, what is owed, time with demand) is made into a cumulated curve once:
straight between its points, so any window is two look-ups, and a token or a slice across an edge counts by
its part inside. Windows side by side (fixed) are for variation in time, since each token is in one of them;
windows that slide are for the worst moment, since that does not begin on a full second.

Terms. span: a stretch of time, half open; spans: an (n, 2) array of them, sorted, none touching another.
Times are float64 nanoseconds: exact for the first hundred days after boot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.stats import variation
from fairsched.simgpu import Step

Array: TypeAlias = npt.NDArray[np.float64]

S = 1_000_000_000
MS = 1_000_000
SLIDE_NS = 100 * MS


@dataclass(frozen=True)
class Curve:
    """Something cumulated over time; straight between its points, level before the first and after the last."""

    at_ns: Array
    """Ascending."""
    total: Array

    def __call__(self, at_ns: npt.ArrayLike) -> Array:
        """Cumulated until then."""
        if not len(self.at_ns):
            return np.zeros(np.shape(at_ns))
        return np.asarray(np.interp(np.asarray(at_ns, np.float64), self.at_ns, self.total), dtype=np.float64)

    def grown(self, start_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> Array:
        """How much came between; an array for arrays."""
        return np.asarray(self(end_ns) - self(start_ns), dtype=np.float64)


def summed(curves: Iterable[Curve]) -> Curve:
    """One curve for all of them."""
    parts = [curve for curve in curves if len(curve.at_ns)]
    if not parts:
        return Curve(np.zeros(0), np.zeros(0))
    at = np.unique(np.concatenate([curve.at_ns for curve in parts]))
    return Curve(at, np.sum([curve(at) for curve in parts], axis=0))


def ramps(start_ns: Array, end_ns: Array, amount: Array) -> Curve:
    """Each amount comes evenly between its start and its end; they may overlap."""
    end_ns, start_ns = np.asarray(end_ns, np.float64), np.asarray(start_ns, np.float64)
    start_ns = np.minimum(start_ns, end_ns - 1)  # what has no length belongs to the moment before its end
    slope = amount / (end_ns - start_ns)
    edges = np.concatenate([start_ns, end_ns])
    at, place = np.unique(edges, return_inverse=True)
    change = np.bincount(place, weights=np.concatenate([slope, -slope]), minlength=len(at))
    grown = np.cumsum(change)[:-1] * np.diff(at)
    return Curve(at, np.concatenate([[0.0], np.cumsum(grown)])[: len(at)])


def token_curve(logs: Iterable[Iterable[Step]]) -> Curve:
    """Tokens made by all processes of a leaf.

    A step's come evenly from when it was asked for, or from when the one before it in its process was done: of eight in
    flight seven are waiting, and what waits at an edge is no part of either side.
    """
    start: list[float] = []
    end: list[float] = []
    tokens: list[float] = []
    for log in logs:
        done_ns = 0.0
        for step in sorted(log, key=lambda step: step.end_ns):
            start.append(max(step.end_ns - step.latency_ns, done_ns))
            end.append(step.end_ns)
            tokens.append(step.tokens)
            done_ns = step.end_ns
    return ramps(np.array(start), np.array(end), np.array(tokens))


# ---- spans ----


def spans(pairs: Iterable[Sequence[float]] | Array, grace_ns: float = 0.0) -> Array:
    """Sorted and joined where the gap is at most ``grace_ns``; empty ones are dropped."""
    given = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.float64).reshape(-1, 2)
    given = given[given[:, 1] > given[:, 0]]
    if not len(given):
        return given
    given = given[np.argsort(given[:, 0], kind="stable")]
    reach = np.maximum.accumulate(given[:, 1])
    begins = np.concatenate([[True], given[1:, 0] > reach[:-1] + grace_ns])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([given[begins, 0], reach[ends]], axis=1)


def covered(of: Array) -> Curve:
    """Time inside the spans, cumulated."""
    at = of.reshape(-1)
    steps = np.diff(at, prepend=at[:1])
    steps[::2] = 0.0
    return Curve(at, np.cumsum(steps))


def clipped(of: Array, start_ns: float, end_ns: float) -> Array:
    """Their parts between start and end."""
    inside = np.clip(of, start_ns, end_ns)
    return np.asarray(inside[inside[:, 1] > inside[:, 0]], dtype=np.float64)


def intersection(a: Array, b: Array) -> Array:
    """Time in both."""
    edges = np.unique(np.concatenate([a.reshape(-1), b.reshape(-1)]))
    pairs = np.stack([edges[:-1], edges[1:]], axis=1) if len(edges) > 1 else np.zeros((0, 2))
    middle = pairs.mean(axis=1)
    return spans(pairs[is_inside(a, middle) & is_inside(b, middle)])


def is_inside(of: Array, at_ns: Array) -> npt.NDArray[np.bool_]:
    """Which of the moments lie in a span."""
    return np.asarray(np.searchsorted(of.reshape(-1), at_ns, side="right") % 2 == 1, dtype=np.bool_)


# ---- windows ----


def fixed(start_ns: float, end_ns: float, length_ns: float) -> tuple[Array, Array]:
    """(starts, ends) of whole windows side by side; what is left at the end is in none."""
    return _windows(start_ns, end_ns, length_ns, length_ns)


def sliding(
    start_ns: float, end_ns: float, length_ns: float, step_ns: float = SLIDE_NS
) -> tuple[Array, Array]:
    """(starts, ends) of whole windows, one every ``step_ns``."""
    return _windows(start_ns, end_ns, length_ns, step_ns)


def _windows(start_ns: float, end_ns: float, length_ns: float, step_ns: float) -> tuple[Array, Array]:
    # A millionth of slack: a recording of 10 s that is one tick short still holds ten windows.
    count = int((end_ns - start_ns - length_ns + length_ns * 1e-6) // step_ns) + 1
    starts = start_ns + step_ns * np.arange(max(count, 0), dtype=np.float64)
    return starts, np.minimum(starts + length_ns, end_ns)


def tokens_cv_across(
    rates: Mapping[str, float | None], groups: Iterable[Sequence[str]], cost_ns: Mapping[str, float]
) -> float | None:
    """The largest of all groups; None where a rate is unknown: one that made no token is the least equal."""
    found = []
    for group in groups:
        known = [(rates[leaf], cost_ns.get(leaf, 1.0)) for leaf in group]
        given = sum(leaf in cost_ns for leaf in group)
        if given not in (0, len(group)):
            raise ValueError(
                f"token_cost_ns knows {given} of {len(group)} leaves of a group: {', '.join(group)}"
            )
        variations = variation([rate * cost for rate, cost in known if rate is not None])
        if variations is None or any(rate is None for rate, _ in known):
            return None
        found.append(variations)
    return max(found, default=None)
