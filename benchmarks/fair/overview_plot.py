# SPDX-License-Identifier: Apache-2.0
"""One picture over all scenarios: how far shares and token rates were off, under every policy.

A line per scenario, a mark per policy at its mean over the seeds, a thin line from the least to the greatest.
Logarithmic, because policies differ by orders of magnitude; what is smaller than the scale stands at its edge.
A bar that applies is a black stroke.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fair.bars import BARS, OURS, Of, number, scale_of
from benchmarks.fair.plots import GRID, INK, SOFT, figure_class, save
from benchmarks.fair.results import Document, ResultError, by_policy, policies
from benchmarks.fair.rows import extent, figure_of, made, scenarios_of
from benchmarks.stats import spread

# (figure, whether it is the worst tenant's, heading, factor, least, greatest)
PANELS = (
    ("share_error_max_points", False, "share error, largest, points", 1.0, 0.03, 100.0),
    ("tokens_cv_across_ratio", False, "token/s CV over equal tenants, %", 100.0, 0.05, 200.0),
    ("tokens_cv_ratio", True, "token/s CV in time, worst tenant, %", 100.0, 0.05, 200.0),
)
_STYLES: Mapping[str, tuple[str, str, float]] = {
    "none": ("#777777", "o", 6.5),
    OURS: ("#0072B2", "o", 9.0),
    "window-sigstop": ("#E69F00", "s", 6.0),
    "token": ("#009E73", "^", 6.5),
    "nvml-feedback": ("#D55E00", "D", 5.5),
}
_OTHER = ("#CC79A7", "v", 6.5)
_GROUPS = ("hostile-", "beyond-", "nature-")
_COLUMN_FROM, _COLUMN_TO = 0.17, 0.62
"""Our numbers stand left of the scale: so many times its least value. Beside their marks they would hide others."""
_ROW_IN, _HEAD_IN, _FOOT_IN, _WIDTH_IN, _DPI = 0.27, 1.45, 0.4, 14.6, 110


def draw_overview(documents: Sequence[Document], path: Path) -> None:
    """Raises ResultError."""
    save(picture(documents), path)


def picture(documents: Sequence[Document]) -> Any:
    """A matplotlib Figure."""
    if not documents:
        raise ResultError("there is nothing to draw", remedy="measure some scenarios first")
    scenarios = scenarios_of(documents)
    names = sorted(scenarios, key=lambda name: (_group(name), name))
    height = _HEAD_IN + _FOOT_IN + _ROW_IN * len(names)
    figure = figure_class()(figsize=(_WIDTH_IN, height), facecolor="white", dpi=_DPI)
    grid = figure.subplots(1, len(PANELS), sharey=True)
    figure.subplots_adjust(
        left=0.145, right=0.985, top=1 - _HEAD_IN / height, bottom=_FOOT_IN / height, wspace=0.06
    )
    for axes, panel in zip(grid, PANELS, strict=True):
        _draw_frame(axes, panel, names)
        for row, name in enumerate(names):
            _draw_limit(axes, panel, name, row)
            _draw_scenario(axes, panel, scenarios[name], row)
    _draw_title(figure, height, documents)
    return figure


def _group(name: str) -> int:
    return next((place for place, prefix in enumerate(_GROUPS, 1) if name.startswith(prefix)), 0)


def _draw_title(figure: Any, height: float, documents: Sequence[Document]) -> None:
    from matplotlib.lines import Line2D

    title = "How far from fair, by scenario and policy"
    figure.text(0.012, 1 - 0.38 / height, title, fontsize=16, fontweight="bold", color=INK)
    about = f"{extent(documents)}  |  {made(documents)[0]}"
    figure.text(0.012, 1 - 0.64 / height, about, fontsize=9.5, color=SOFT)
    handles = []
    for policy in policies(documents):
        colour, marker, size = _STYLES.get(policy, _OTHER)
        handles.append(
            Line2D([], [], color=colour, marker=marker, markersize=size, linewidth=0, label=policy)
        )
    handles.append(
        Line2D([], [], color="black", marker="|", markersize=11, markeredgewidth=2, linewidth=0, label="bar")
    )
    place = {"loc": "center left", "bbox_to_anchor": (0.004, 1 - 0.9 / height), "ncols": len(handles)}
    figure.legend(handles=handles, frameon=False, fontsize=10, handletextpad=0.3, columnspacing=1.6, **place)


def _draw_frame(axes: Any, panel: tuple[Any, ...], names: Sequence[str]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    _, _, heading, _, least, greatest = panel
    axes.set_xscale("log")
    axes.set_xlim(least * _COLUMN_FROM, greatest)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="both", which="both", length=0, labelsize=9.5, labelcolor=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title(heading, fontsize=10.5, color=INK, loc="left", pad=8)
    for row in range(len(names)):
        if row % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color="#f5f5f5", linewidth=0, zorder=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_limit(axes: Any, panel: tuple[Any, ...], name: str, row: int) -> None:
    figure, is_worst, _, factor, *_ = panel
    of = Of.WORST_LEAF if is_worst else Of.WHOLE
    for bar in BARS:
        if bar.figure == figure and bar.of is of and fnmatch.fnmatch(name, bar.scenarios):
            axes.plot(
                [factor * bar.limit] * 2, [row - 0.42, row + 0.42], color="black", linewidth=2, zorder=2
            )


def _draw_scenario(axes: Any, panel: tuple[Any, ...], documents: Sequence[Document], row: int) -> None:
    figure, is_worst, _, factor, least, greatest = panel

    def inside(value: float) -> float:
        return float(min(max(abs(value) * factor, least), greatest))

    means = {}
    for policy, same in by_policy(documents).items():
        found = spread(figure_of(document, figure, is_worst) for document in same)
        if found is None:
            continue
        means[policy] = inside(found.mean)
        colour, marker, size = _STYLES.get(policy, _OTHER)
        ends = [inside(found.min), inside(found.max)]
        is_ours = policy == OURS
        axes.plot(ends, [row, row], color=colour, linewidth=1.4, alpha=0.7, zorder=3 + is_ours)
        axes.plot(
            [means[policy]],
            [row],
            color=colour,
            marker=marker,
            markersize=size,
            markeredgecolor="white",
            markeredgewidth=0.8,
            linewidth=0,
            zorder=4 + is_ours,
        )
    if {"none", OURS} <= set(means):
        axes.plot([means["none"], means[OURS]], [row, row], color="#bbbbbb", linewidth=1.2, zorder=1)
    if OURS in means:
        text = number(_plain_mean(documents, figure, is_worst), scale_of(figure))
        axes.text(least * _COLUMN_TO, row, text, color=_STYLES[OURS][0], fontsize=8, va="center", ha="right")


def _plain_mean(documents: Sequence[Document], figure: str, is_worst: bool) -> float | None:
    found = spread(figure_of(document, figure, is_worst) for document in by_policy(documents)[OURS])
    return found.mean if found else None
