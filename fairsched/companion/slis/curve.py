# SPDX-License-Identifier: Apache-2.0
"""Tokens of one page, cumulated over time (pure).

Problem. A counter is read at odd moments, starts again from 0 with its server, and belongs to a page with several
series of which some come and go. A rate must come out right, or not at all.

Approach. A curve, straight between two readings, so that a token across the edge of a window counts by its part
inside. Each series is compared with itself. Where one fell (a restart) or the set of series changed, nobody knows
what was counted in between: the curve is broken there, and no window reaches across.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

_MOST_POINTS = 4096


class Curve:
    """Call :meth:`add` with readings in the order of time."""

    def __init__(self, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._t_ns: list[int] = []
        self._total: list[float] = []
        self._from_ns = 0
        """Of the stretch that is not broken: since when."""
        self._series: Mapping[str, float] = {}
        self.breaks = 0
        """Restarts, and series that came or went."""

    @property
    def known_ns(self) -> tuple[int, int] | None:
        """(first, last) moment of the unbroken stretch that ends with the last reading; None before two readings."""
        if not self._t_ns or self._from_ns >= self._t_ns[-1]:
            return None
        return max(self._from_ns, self._t_ns[0]), self._t_ns[-1]

    def add(self, t_ns: int, series: Mapping[str, float]) -> None:
        """A reading: cumulated tokens by series. One that is not later than the last is left out."""
        if self._t_ns and t_ns <= self._t_ns[-1]:
            return
        total = self._total[-1] if self._total else 0.0
        known = self._series
        if series.keys() == known.keys() and all(value >= known[key] for key, value in series.items()):
            total += sum(value - known[key] for key, value in series.items())
        else:
            self.breaks += bool(self._t_ns)
            self._from_ns = t_ns
        self._t_ns.append(t_ns)
        self._total.append(total)
        self._series = dict(series)
        self._forget(t_ns)

    def _forget(self, now_ns: int) -> None:
        old = (
            bisect_right(self._t_ns, now_ns - self._keep_ns) - 1
        )  # one before the edge stays: the curve reaches it
        old = max(old, len(self._t_ns) - _MOST_POINTS)
        if old > 0:
            del self._t_ns[:old], self._total[:old]

    def grown(self, start_ns: int, end_ns: int, longest_step_ns: int | None = None) -> float | None:
        """Tokens between two moments of the unbroken stretch; None outside of it.

        ``longest_step_ns``: None also where the edges lie between readings that are further apart than that.
        """
        known = self.known_ns
        if known is None or start_ns < known[0] or end_ns > known[1] or start_ns > end_ns:
            return None
        edges = []
        for at_ns in (start_ns, end_ns):
            after = min(max(1, bisect_right(self._t_ns, at_ns)), len(self._t_ns) - 1)
            begin_ns, step_ns = self._t_ns[after - 1], self._t_ns[after] - self._t_ns[after - 1]
            if longest_step_ns is not None and step_ns > longest_step_ns:
                return None
            part = (at_ns - begin_ns) / step_ns
            edges.append(self._total[after - 1] + part * (self._total[after] - self._total[after - 1]))
        return edges[1] - edges[0]
