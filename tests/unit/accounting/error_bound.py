# SPDX-License-Identifier: Apache-2.0
"""Measures whether the error that the eBPF account tells of itself holds: on GPUs and mixes drawn at random.

Problem. The account says how far what a tenant is charged may be off, in 19 of 20 windows (costs.py), and how far a
share may be (error.py). Neither follows from a formula, so each is as good as what it was measured on.

Approach. Draws of :mod:`tests.unit.accounting.drawn_loop` in the closed loop. Every two seconds: what each tenant was
charged, what it had, and the bound that the account told at the end. Over 2, 10 and 26 s: how far each share is off.

``python -m tests.unit.accounting.error_bound --draws 30 --seed 81 82`` prints how often the bounds held, by seed, and
the quantiles of both. docs/decisions/0023-the-error-is-a-number.md has what was measured with it.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairsched.accounting.error import probed_points
from tests.unit.accounting.closed_loop import Totals
from tests.unit.accounting.drawn_loop import DrawnLoop, S, draw
from tests.unit.accounting.draws import play_all

WINDOW_NS = 2 * S
SETTLE_NS, MEASURED_NS = 8 * S, 26 * S
POINTS_WINDOWS_S = (2, 10, 26)


class Window(NamedTuple):
    """Two seconds of one tenant."""

    charged_ns: int
    had_ns: int
    bound: float
    """In parts of what was charged."""

    @property
    def error(self) -> float:
        """In parts of what was charged; one that was charged nothing of what it had is off by any measure."""
        if not self.charged_ns:
            return math.inf if self.had_ns else 0.0
        return abs(self.charged_ns - self.had_ns) / self.charged_ns

    @property
    def is_within(self) -> bool:
        """Whether the bound held."""
        return self.error <= self.bound


@dataclass(frozen=True)
class Draw:
    """What one draw showed."""

    windows: tuple[Window, ...]
    points: Mapping[int, tuple[tuple[float, ...], ...]]
    """By seconds, for each window of that length: the error of each tenant's share, in points."""


Told = Callable[[DrawnLoop, str], float]
"""The bound of a tenant, now."""


def error_ratio(loop: DrawnLoop, name: str) -> float:
    """The one that the account tells."""
    found = loop.account.error_ratio(name, 0)
    return math.inf if found is None else found


def play(seed: int, number: int, told: Told = error_ratio) -> Draw:
    """One draw, the same for the same arguments."""
    nature, tenants = draw(seed, number)
    loop = DrawnLoop(tenants, nature, seed=1000 + number)
    loop.account.tenant_of = loop.names.get
    bounds: list[dict[str, float]] = []
    end_ns = SETTLE_NS + MEASURED_NS
    marks = loop.marks(
        range(SETTLE_NS, end_ns, WINDOW_NS),
        end_ns,
        lambda: bounds.append({name: told(loop, name) for name in loop.tenants}),
    )
    spans = [end.since(begin) for begin, end in itertools.pairwise(marks)]
    windows = [
        Window(span.charged[name], span.had[name], bound[name])
        for span, bound in zip(spans, bounds[1:], strict=True)
        for name in loop.tenants
    ]
    points = {seconds: _points(marks, seconds * S // WINDOW_NS) for seconds in POINTS_WINDOWS_S}
    return Draw(tuple(windows), points)


def _points(marks: Sequence[Totals], step: int) -> tuple[tuple[float, ...], ...]:
    spans = [end.since(begin) for begin, end in itertools.pairwise(marks[::step])]
    return tuple(tuple(span.account_errors().values()) for span in spans)


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def report(name: str, draws: Sequence[Draw]) -> list[str]:
    """Lines for people."""
    windows = [window for one in draws for window in one.windows]
    within = sum(window.is_within for window in windows) / len(windows)
    bounds, errors = [window.bound for window in windows], [window.error for window in windows]
    lines = [
        f"{name}: {len(windows)} windows of 2 s, {100 * within:.1f} % within their bound",
        f"  bound  median {quantile(bounds, 0.5):.3f}, p90 {quantile(bounds, 0.9):.3f}",
        f"  error  median {quantile(errors, 0.5):.3f}, p90 {quantile(errors, 0.9):.3f}, "
        f"p95 {quantile(errors, 0.95):.3f}",
    ]
    for seconds in POINTS_WINDOWS_S:
        shares = [value for one in draws for values in one.points[seconds] for value in values]
        largest = [max(values) for one in draws for values in one.points[seconds]]
        bound = probed_points(seconds)
        held = sum(value <= bound for value in shares) / len(shares)
        lines.append(
            f"  share over {seconds:2} s: p95 {quantile(shares, 0.95):4.1f} points, of the one furthest off "
            f"{quantile(largest, 0.95):4.1f}; {100 * held:.1f} % of all within {bound:.1f}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Does the error that the eBPF account tells hold?")
    parser.add_argument("--draws", type=int, default=30, help="of each seed")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    chosen = parser.parse_args()
    plays = [(seed, number) for seed in chosen.seed for number in range(chosen.draws)]
    found = list(zip(plays, play_all(play, plays), strict=True))
    for seed in chosen.seed:
        draws = [one for (of, _), one in found if of == seed]
        print("\n".join(report(f"seed {seed}", draws)))
    if len(chosen.seed) > 1:
        print("\n".join(report("all", [one for _, one in found])))


if __name__ == "__main__":
    main()
