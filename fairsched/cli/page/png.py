# SPDX-License-Identifier: Apache-2.0
"""The same plots as one picture, for a chat or a slide. Needs matplotlib, of which a node has no other use."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from fairsched.base.package import how_to_install
from fairsched.cli.page.charts import Board, Chart, Line, runs
from fairsched.cli.page.page import LIGHT
from fairsched.cli.page.scale import log_ticks, time_ticks
from fairsched.cli.page.tiles import tiles
from fairsched.errors import FairschedError

_INK, _SOFT, _RULE, _CARD = "#1d2329", "#59636e", "#d8dee4", "#f5f7f9"
_DASHES = ("solid", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
_ACROSS = 4
"""Small plots side by side."""
_MAX_SMALL = 12


def check_can_draw() -> None:
    """Raises FairschedError where there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise FairschedError(
            "a PNG needs matplotlib, which is not installed",
            remedy=f"write a page instead (--output FILE.html), or: {how_to_install('matplotlib')}",
        )


def save(board: Board, path: Path, *, node: str) -> None:
    """Write the picture. Raises OSError."""
    draw(board, node=node).savefig(path, format="png", dpi=110)


def draw(board: Board, *, node: str) -> Any:
    """A matplotlib Figure; without pyplot, so there is no display and no global state to mind."""
    from matplotlib.figure import Figure

    small = board.shares[:_MAX_SMALL]
    lines = -(-len(small) // _ACROSS)
    heights = [0.6] + [1.3] * lines + [1.7] * len(board.charts)
    figure = Figure(figsize=(12, 1.1 + sum(heights) * 1.25), facecolor="white", layout="constrained")
    past = board.past
    begin, end = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t)) for t in (past.begin_s, past.end_s))
    figure.suptitle(
        f"GPU shares on {node}, {begin} to {end}", fontsize=14, fontweight="bold", color=_INK, x=0.5
    )
    grid = figure.add_gridspec(len(heights), _ACROSS, height_ratios=heights)
    figures = tiles(past)
    row = grid[0, :].subgridspec(1, len(figures))
    for number, (value, text) in enumerate(figures):
        _tile(figure.add_subplot(row[number]), value, text)
    for number, chart in enumerate(small):
        axes = figure.add_subplot(grid[1 + number // _ACROSS, number % _ACROSS])
        _draw(axes, chart, board, is_small=True)
    for number, chart in enumerate(board.charts):
        _draw(figure.add_subplot(grid[1 + lines + number, :]), chart, board, is_small=False)
    return figure


def _tile(axes: Any, value: str, text: str) -> None:
    axes.set_facecolor(_CARD)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    for y, words, size, weight, colour in (
        (0.68, value, 14, "bold", _INK),
        (0.24, text, 8, "normal", _SOFT),
    ):
        place = {"ha": "center", "va": "center", "transform": axes.transAxes}
        axes.text(0.5, y, words, fontsize=size, fontweight=weight, color=colour, **place)


def _draw(axes: Any, chart: Chart, board: Board, *, is_small: bool) -> None:
    past = board.past
    axes.set_title(f"{chart.title}, {chart.unit}", fontsize=9 if is_small else 11, loc="left", color=_INK)
    ground: dict[float, float] = {}
    for line in chart.bars:
        heights = [value or 0.0 for _, value in line.points]
        times = [t for t, _ in line.points]
        bottoms = [ground.get(t, 0.0) for t in times]
        axes.bar(times, heights, past.step_s * 0.9, bottoms, color=LIGHT[line.colour or 0], label=line.label)
        for t, height in zip(times, heights, strict=True):
            ground[t] = ground.get(t, 0.0) + height
    for line in chart.lines:
        _line(axes, line, past.gap_s, is_small=is_small)
    if chart.mark is not None:
        axes.axhline(chart.mark, color=_INK, linewidth=1, linestyle=(0, (2, 3)))
    axes.set_xlim(past.begin_s, past.end_s)
    if chart.is_log:
        axes.set_yscale("log")
        decades = log_ticks(chart.values)
        axes.set_ylim(decades[0], decades[-1])
    else:
        axes.set_ylim(bottom=min(0.0, *chart.values) * 1.04, top=max(chart.values) * 1.04 or 1.0)
    marks = time_ticks(past.begin_s, past.end_s, 3 if is_small else 10)
    axes.set_xticks([t for t, _ in marks], [text for _, text in marks])
    axes.tick_params(colors=_SOFT, labelsize=8)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not is_small:
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            axes.legend(
                handles[::-1],
                labels[::-1],
                fontsize=8,
                frameon=False,
                loc="center left",
                bbox_to_anchor=(1, 0.5),
            )


def _line(axes: Any, line: Line, gap_s: float, *, is_small: bool) -> None:
    colour = _SOFT if line.colour is None else LIGHT[line.colour]
    style: Any = (
        _DASHES[line.colour % len(_DASHES)] if line.colour is not None and not line.is_area else "solid"
    )
    width = 0.7 if line.colour is None else 1.5
    if line.is_due:
        colour, style, width = _INK, (0, (4, 3)), 1.1
    label = line.label if line.colour is not None and not is_small else None
    for run in runs(line.points, gap_s):
        times, values = [t for t, _ in run], [value for _, value in run]
        axes.plot(times, values, color=colour, linestyle=style, linewidth=width, label=label)
        if line.is_area:
            axes.fill_between(times, values, color=colour, alpha=0.2, linewidth=0)
        label = None  # one entry in the legend, however many pieces
