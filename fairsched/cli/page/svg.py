# SPDX-License-Identifier: Apache-2.0
"""A plot that takes its colours and its size from the page's style sheet. Pure.

Problem: a picture that is scaled as a whole to the width of a telephone has letters of four pixels.

Approach: only lines and bars are SVG, in units of their own, and stretched to whatever room there is. What is written
beside them is text of the page, placed by percent, so that it has one size everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from fairsched.cli.page.charts import Chart, Line, runs
from fairsched.cli.page.scale import log_ticks, number_text, ticks, time_ticks

DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""By colour: neighbours that look alike to somebody are dashed differently."""
WIDTH, HEIGHT = 1000, 200
"""Of what is drawn, in its own units."""


@dataclass(frozen=True)
class Size:
    """Of a plot."""

    name: str
    """Its class in the style sheet."""
    time_ticks: int
    value_ticks: int
    letters: int
    """For so many there is room below it."""


LARGE = Size("large", time_ticks=9, value_ticks=5, letters=80)
SMALL = Size("small", time_ticks=4, value_ticks=4, letters=21)


@dataclass(frozen=True)
class _Axes:
    """From time and value to a place."""

    begin_s: float
    end_s: float
    values: list[float]
    """Ticks of the value axis."""
    is_log: bool = False

    def x(self, t: float) -> float:
        part = (t - self.begin_s) / max(1e-9, self.end_s - self.begin_s)
        return WIDTH * min(1.0, max(0.0, part))

    def y(self, value: float) -> float:
        low, high = self.values[0], self.values[-1]
        if self.is_log:  # what is below the axis lies on it
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return HEIGHT * (1 - (value - low) / (high - low))


def draw(chart: Chart, begin_s: float, end_s: float, step_s: float, gap_s: float, size: Size = LARGE) -> str:
    """One element: an ``<svg>`` and what is written beside it."""
    axes = _Axes(begin_s, end_s, _value_ticks(chart, size), chart.is_log)
    parts = [
        f'<div class="plot {size.name}"><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(_label(chart))}">',
        *(
            f'<path class="{"zero" if value == 0 else "grid"}" d="M0 {axes.y(value):.1f}H{WIDTH}"/>'
            for value in axes.values
        ),
    ]
    for number, line in enumerate(chart.bars):
        parts.append(_bars(chart.bars[:number], line, axes, step_s))
    for line in chart.lines:
        parts += _line(line, axes, gap_s)
    if chart.mark is not None:
        y = axes.y(chart.mark)
        parts.append(f'<path class="mark" d="M0 {y:.1f}H{WIDTH}"/>')
    return "".join([*parts, "</svg>", *_words(axes, size), "</div>"])


def _value_ticks(chart: Chart, size: Size) -> list[float]:
    if chart.is_log:
        return log_ticks(chart.values)
    low, high = min(chart.values), max(chart.values)
    return ticks(low, high if high > low else low + 1, size.value_ticks)


def _label(chart: Chart) -> str:
    return f"{chart.title}, {chart.unit}: {', '.join(line.label for line in (*chart.lines, *chart.bars))}"


def _words(axes: _Axes, size: Size) -> Iterator[str]:
    """Ticks of both axes. Where there is little room for it every other time is left out."""
    for value in axes.values:
        place = f"top:{100 * axes.y(value) / HEIGHT:.2f}%"
        yield f'<span class="v" style="{place}">{number_text(value)}</span>'
    times = time_ticks(axes.begin_s, axes.end_s, size.time_ticks)
    if sum(len(text) for _, text in times) > size.letters:
        times = times[::2]
    for number, (t, text) in enumerate(times):
        place = f"left:{100 * axes.x(t) / WIDTH:.2f}%"
        yield f'<span class="t{" odd" if number % 2 else ""}" style="{place}">{escape(text)}</span>'


def _line(line: Line, axes: _Axes, gap_s: float) -> Iterator[str]:
    if line.is_due:
        style, dash = "due", "5 4"
    else:
        style = "other" if line.colour is None else f"c{line.colour}"
        dash = DASHES[line.colour % len(DASHES)] if line.colour is not None and not line.is_area else ""
    pieces, areas = [], []
    for run in runs(line.points, gap_s):
        places = [f"{axes.x(t):.1f} {axes.y(value):.1f}" for t, value in run]
        # a single point would be no line at all: a short one stands for it
        pieces.append("M" + "L".join(places) + ("h1.5" if len(run) == 1 else ""))
        if line.is_area:
            ground = axes.y(max(0.0, axes.values[0]))
            first, last = axes.x(run[0][0]), axes.x(run[-1][0])
            areas.append(f"M{first:.1f} {ground:.1f}L{'L'.join(places)}L{last:.1f} {ground:.1f}Z")
    if areas:
        yield f'<path class="area {style}" d="{"".join(areas)}"/>'
    if pieces:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        title = f"<title>{escape(line.label)}</title>"
        yield f'<path class="line {style}" d="{"".join(pieces)}"{dashes}>{title}</path>'


def _bars(below: tuple[Line, ...], line: Line, axes: _Axes, step_s: float) -> str:
    ground: dict[float, float] = {}
    for one in below:
        for t, value in one.points:
            ground[t] = ground.get(t, 0.0) + (value or 0.0)
    pieces = []
    for t, value in line.points:
        if value:
            left, right = axes.x(t - step_s / 2), axes.x(t + step_s / 2)
            low, high = axes.y(ground.get(t, 0.0)), axes.y(ground.get(t, 0.0) + value)
            # a hair apart where there is room, so that one can count them
            width = max(0.8, right - left - (1.0 if right - left > 4 else 0.0))
            pieces.append(f"M{left:.1f} {low:.1f}V{high:.1f}h{width:.1f}V{low:.1f}Z")
    return (
        f'<path class="bar c{line.colour}" d="{"".join(pieces)}"><title>{escape(line.label)}</title></path>'
    )
