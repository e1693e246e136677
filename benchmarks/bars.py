# SPDX-License-Identifier: Apache-2.0
"""How a bar is stated and judged, and the tables that figures are printed in (pure).

A suite has its own list of bars. A bar is a limit and its side; a figure that was not measured is neither met nor
missed. ``Side`` is that rule alone, for suites whose bars say more (fair/bars.py, gpu/figures.py).

Terms. key: the name of a figure in a document. unit: how it is shown.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 80


class Side:
    """A limit and the side on which a figure must lie."""

    limit: float | None
    """None: it is not known."""
    is_upper: bool
    """True: at most ``limit``; False: at least."""

    def is_met(self, value: float | None) -> bool | None:
        """Of a value on the line: True. None when it was not measured, or there is no limit."""
        if value is None or self.limit is None:
            return None
        return value <= self.limit if self.is_upper else value >= self.limit

    @property
    def sign(self) -> str:
        """``<=`` or ``>=``"""
        return "<=" if self.is_upper else ">="


@dataclass(frozen=True)
class Bar(Side):
    """What a figure must reach."""

    key: str
    what: str
    limit: float
    is_upper: bool
    unit: str = "ratio"
    """See :func:`show`."""


def missed(bars: Iterable[Bar], values: Mapping[str, float | None]) -> list[str]:
    """Keys of the figures that were measured and do not reach their bar."""
    return [bar.key for bar in bars if bar.is_met(values.get(bar.key)) is False]


def told(is_met: bool | None) -> str:
    """A verdict in a column."""
    return {None: "-", True: "yes", False: "NO"}[is_met]


def show(value: float | None, unit: str) -> str:
    """A ratio, percent, points, bytes, count or ms as a person wants to read it; 'n/a' for what was not measured."""
    if value is None:
        return "n/a"
    if unit == "percent":
        return f"{100 * value:.2f} %"
    if unit == "points":
        return f"{value:.2f} pt"
    if unit == "bytes":
        return f"{value / 1e6:.1f} MB"
    if unit == "ms":
        return f"{value:.2f} ms"
    return f"{value:.0f}" if unit == "count" else f"{value:.3f}"


def render(bars: Iterable[Bar], values: Mapping[str, float | None], notes: Mapping[str, str]) -> list[str]:
    """Figure, bar, met; under a figure what is worth knowing about it, such as the case it comes from."""
    lines = [f"{'figure':<42}{'value':>12}   {'bar':<12}  met", "-" * WIDTH]
    for bar in bars:
        value = values.get(bar.key)
        limit = f"{bar.sign} {show(bar.limit, bar.unit)}"
        lines.append(f"{bar.key:<42}{show(value, bar.unit):>12}   {limit:<12}  {told(bar.is_met(value))}")
        lines += noted(f"{bar.what}; {notes[bar.key]}" if bar.key in notes else bar.what)
    return lines


def noted(text: str) -> list[str]:
    """Lines under a figure."""
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")


def render_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as they need be, names (the first two) to the left; the second is cut to fit WIDTH."""
    table = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    widths[1] = min(widths[1], max(8, WIDTH - sum(widths) + widths[1] - 2 * (len(widths) - 1)))
    lines = []
    for first, second, *others in table:
        cut = second if len(second) <= widths[1] else second[: widths[1] - 1] + "~"
        cells = [first.ljust(widths[0]), cut.ljust(widths[1])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[2:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
