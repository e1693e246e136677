# SPDX-License-Identifier: Apache-2.0
"""Pictures of results: a page per scenario, and one over all of them.

A page has a row per policy and four columns: shares over time, token/s, latency of a step, Jain's index. The
rows share their axes, so that policies can be compared by eye; a tenant has one colour everywhere. With more
tenants than colours their range stands for them: all of it, the middle eight tenths, the median; hostile
tenants keep a line of their own.

matplotlib is asked for when a picture is drawn, not before: tables and bars do without it.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fair.bars import hostile_leaves
from benchmarks.fair.results import Document, ResultError, by_policy
from benchmarks.fair.rows import figure_of
from benchmarks.fair.scenario import DIRECTORY, load
from fairsched.base.files import replacing
from fairsched.errors import ConfigError

INK, SOFT, GRID = "#333333", "#666666", "#dddddd"
# Okabe and Ito's, which stay apart for colour-blind eyes, in the order of the demo; then its light ones.
COLOURS = ("#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#56B4E9", "#8C7A00", "#555555")
CROWD = "#0072B2"
HOSTILE = "#D55E00"
_DPI = 110
_COLOURS = 64
_WIDTH_IN = 14.6
_ROW_IN = 2.4
_HEAD_IN, _FOOT_IN = 1.86, 0.62
_JAIN_FLOOR = 0.9
_FAINT = 0.7
_FIGURES = (
    ("share_error_max_points", False, "share error {:.1f} points", 1),
    ("tokens_cv_across_ratio", False, "token/s CV across {:.1f} %", 100),
    ("tokens_cv_ratio", True, "in time {:.1f} %", 100),
    ("jain_1s_mean", False, "Jain {:.3f}", 1),
    ("busy_ratio", False, "GPU busy {:.1f} %", 100),
    ("held_ms_per_s", False, "held {:.0f} ms/s", 1),
)


def draw_scenario(documents: Sequence[Document], path: Path) -> None:
    """A page: the lowest seed that every policy has been played with. Raises ResultError."""
    save(page(documents), path)


def page(documents: Sequence[Document]) -> Any:
    """A matplotlib Figure; without pyplot, so there is no display and no global state to mind."""
    chosen = _one_seed(documents)
    new_figure = figure_class()
    height = _HEAD_IN + _FOOT_IN + _ROW_IN * len(chosen)
    figure = new_figure(figsize=(_WIDTH_IN, height), facecolor="white", dpi=_DPI)
    grid = figure.subplots(
        len(chosen), 4, squeeze=False, sharex="col", sharey="col", width_ratios=(5, 4, 3, 3)
    )
    figure.subplots_adjust(
        left=0.034, right=0.988, top=1 - _HEAD_IN / height, bottom=_FOOT_IN / height, hspace=0.34, wspace=0.14
    )
    leaves = list(dict.fromkeys(leaf for document in chosen for leaf in document["measures"]["leaves"]))
    hostile = {leaf for document in chosen for leaf in hostile_leaves(document)}
    colours = _colours(leaves, hostile)
    _draw_title(figure, height, chosen, leaves, colours)
    for row, document in zip(grid, chosen, strict=True):
        _draw_row(row, document, colours)
    _finish(grid, chosen)
    return figure


def _one_seed(documents: Sequence[Document]) -> list[Document]:
    columns = by_policy(documents)
    if not columns:
        raise ResultError("there is nothing to draw", remedy="measure the scenario first")
    common = set.intersection(*({d["seed"] for d in same} for same in columns.values()))
    chosen = []
    for same in columns.values():
        seed = min(common) if common else min(d["seed"] for d in same)
        chosen.append(next(d for d in same if d["seed"] == seed))
    return chosen


def _colours(leaves: Sequence[str], hostile: set[str]) -> dict[str, str]:
    """By leaf; in a crowd only the hostile ones have one."""
    if len(leaves) > len(COLOURS):
        return {leaf: HOSTILE for leaf in leaves if leaf in hostile}
    # Whoever is hostile is vermilion on every page; the others get the rest.
    others = iter([colour for colour in COLOURS if not hostile or colour != HOSTILE] + [HOSTILE])
    first = next(iter(sorted(hostile)), None)
    return {leaf: HOSTILE if leaf == first else next(others) for leaf in leaves}


# ---- a page ----


def _draw_title(
    figure: Any, height: float, chosen: Sequence[Document], leaves: Sequence[str], colours: Mapping[str, str]
) -> None:
    first = chosen[0]
    seeds = ", ".join(sorted({str(document["seed"]) for document in chosen}))
    name = first["scenario"]
    title = figure.text(
        0.012, 1 - 0.36 / height, name, fontsize=16, fontweight="bold", color=INK, va="baseline"
    )
    beside = {"textcoords": "offset points", "fontsize": 12, "color": INK, "annotation_clip": False}
    figure.axes[0].annotate(_description(name), (1, 0), xycoords=title, xytext=(12, 4), **beside)
    about = [f"seed {seeds}", f"{first['seconds']:g} s", str(first["machine"] or "unknown machine")]
    about += [f"Linux {first['kernel']}", f"commit {first['commit']}"]
    figure.text(0.012, 1 - 0.62 / height, "  |  ".join(about), fontsize=9.5, color=SOFT, va="baseline")
    hostile = {leaf for document in chosen for leaf in hostile_leaves(document)}
    _draw_legend(figure, 1 - 0.93 / height, leaves, colours, hostile)


def _description(name: str) -> str:
    """What the scenario's file says; nothing where there is none, or none that can be read any more."""
    path = DIRECTORY / f"{name}.yaml"
    with contextlib.suppress(ConfigError):
        return load(path).scenario.description if path.exists() else ""
    return ""


def _draw_legend(
    figure: Any, y: float, leaves: Sequence[str], colours: Mapping[str, str], hostile: set[str]
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    is_crowd = len(leaves) > len(COLOURS)
    names = {leaf: _short(leaf) + (" (hostile)" if leaf in hostile else "") for leaf in colours}
    handles: list[Any] = [Patch(color=colour, label=names[leaf]) for leaf, colour in colours.items()]
    if is_crowd:
        ordinary = len(leaves) - len(colours)
        handles = [
            Patch(color=CROWD, alpha=0.2, label=f"all of {ordinary} tenants"),
            Patch(color=CROWD, alpha=0.45, label="the middle 80 %"),
            Line2D([], [], color=CROWD, linewidth=2, label="median"),
            *handles,
        ]
    else:
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="due"))
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(0.005, y),
        ncols=len(handles),
        frameon=False,
        fontsize=10,
        handlelength=1.3,
        handletextpad=0.5,
        columnspacing=1.6,
    )


def _short(text: str, most: int = 22) -> str:
    return text if len(text) <= most else f"...{text[3 - most :]}"


def _draw_row(row: Sequence[Any], document: Document, colours: Mapping[str, str]) -> None:
    shares, rates, latencies, jain = row
    leaves = list(document["measures"]["leaves"])
    is_crowd = len(leaves) > len(COLOURS)
    series = document["series"]
    if is_crowd:
        errors = {leaf: _errors(series, leaf) for leaf in leaves if leaf in series.get("share", {})}
        _draw_crowd(shares, _times(series), errors, colours)
        shares.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        _draw_crowd(rates, _times(series), series.get("tokens_per_s", {}), colours)
    else:
        _draw_shares(shares, series, leaves, colours)
        for place, leaf in enumerate(leaves):
            values = series.get("tokens_per_s", {}).get(leaf)
            _plot(rates, _times(series), values, colours[leaf], _line_width(place, len(leaves)))
    for place, leaf in enumerate(leaves):
        values = series.get("latency_cdf_ms", {}).get(leaf)
        width = _FAINT if is_crowd and leaf not in colours else _line_width(place, len(leaves))
        _draw_cdf(latencies, values, colours.get(leaf, CROWD), width)
    _plot(jain, _times(series), series.get("jain_1s"), INK, fill_to=1.0)
    _draw_row_title(shares, document)


def _line_width(place: int, count: int) -> float:
    """Ever thinner: tenants that get the same must not hide each other."""
    return 1.4 + (0.0 if count > len(COLOURS) else 0.9 * min(count - 1 - place, 4))


def _times(series: Mapping[str, Any]) -> Sequence[float]:
    times: Sequence[float] = series.get("at_s", ())
    return times


def _known(values: Sequence[float | None]) -> list[float]:
    """What is not known is a gap in a line."""
    return [math.nan if value is None else value for value in values]


def _errors(series: Mapping[str, Any], leaf: str) -> list[float | None]:
    pairs = zip(series["share"][leaf], series["entitlement"][leaf], strict=True)
    return [None if share is None or due is None else 100 * (share - due) for share, due in pairs]


def _plot(
    axes: Any,
    times: Sequence[float],
    values: Sequence[float | None] | None,
    colour: str,
    width: float = 1.6,
    fill_to: float | None = None,
) -> None:
    if not values or not times:
        return
    axes.plot(times, _known(values), color=colour, linewidth=width, solid_joinstyle="round")
    if fill_to is not None:
        axes.fill_between(times, _known(values), fill_to, color=colour, alpha=0.15, linewidth=0)


def _draw_shares(
    axes: Any, series: Mapping[str, Any], leaves: Sequence[str], colours: Mapping[str, str]
) -> None:
    """Stacked: who has grown at whose cost is seen at once. Dashed: where the borders ought to be."""
    times = _times(series)
    if not times:
        return
    floor = [0.0] * len(times)
    due_floor = [0.0] * len(times)
    borders = []
    for leaf in leaves:
        got, due = (_zeros(series.get(key, {}).get(leaf), len(times)) for key in ("share", "entitlement"))
        top = [low + 100 * value for low, value in zip(floor, got, strict=True)]
        due_floor = [low + 100 * value for low, value in zip(due_floor, due, strict=True)]
        axes.fill_between(times, floor, top, color=colours[leaf], linewidth=0)
        borders.append(due_floor)
        floor = top
    for border in borders[:-1]:
        axes.plot(times, border, color="white", linewidth=2.6)
        axes.plot(times, border, color=INK, linewidth=1.1, linestyle=(0, (4, 3)))


def _zeros(values: Sequence[float | None] | None, count: int) -> list[float]:
    """In a stack, who is not there takes no room."""
    return [value or 0.0 for value in values] if values else [0.0] * count


def _draw_crowd(
    axes: Any,
    times: Sequence[float],
    values: Mapping[str, Sequence[float | None]],
    colours: Mapping[str, str],
) -> None:
    """The range of the ordinary ones, and lines for the hostile."""
    ordinary = [_known(line) for leaf, line in values.items() if leaf not in colours]
    if not times:
        return
    if ordinary:
        moments = [sorted(v for v in moment if not math.isnan(v)) for moment in zip(*ordinary, strict=True)]
        for low, high, alpha in ((0.0, 1.0, 0.2), (0.1, 0.9, 0.3)):
            axes.fill_between(
                times,
                [_quantile(moment, low) for moment in moments],
                [_quantile(moment, high) for moment in moments],
                color=CROWD,
                alpha=alpha,
                linewidth=0,
            )
        axes.plot(times, [_quantile(moment, 0.5) for moment in moments], color=CROWD, linewidth=1.8)
    for leaf, colour in colours.items():
        _plot(axes, times, values.get(leaf), colour)


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[round(part * (len(ordered) - 1))] if ordered else math.nan


def _draw_cdf(axes: Any, values: Sequence[float | None] | None, colour: str, width: float) -> None:
    known = [value for value in values or () if value is not None and value > 0]
    if len(known) < 2:
        return
    percent = [100 * place / (len(known) - 1) for place in range(len(known))]
    axes.plot(known, percent, color=colour, linewidth=width, alpha=0.5 if width == _FAINT else 1.0)
    if width != _FAINT:
        p99 = known[round(0.99 * (len(known) - 1))]
        axes.plot([p99], [99], color=colour, marker="o", markersize=6, markeredgecolor="white", clip_on=False)


def _draw_row_title(axes: Any, document: Document) -> None:
    found = [(text, factor, figure_of(document, name, worst)) for name, worst, text, factor in _FIGURES]
    figures = [text.format(factor * value) for text, factor, value in found if value is not None]
    place = {"textcoords": "offset points", "va": "baseline", "annotation_clip": False}
    bold = {"fontsize": 12, "fontweight": "bold", "color": INK}
    axes.annotate(document["policy"], (0, 1), xytext=(0, 8), xycoords="axes fraction", **bold, **place)
    said = {"fontsize": 9.5, "color": SOFT}
    axes.annotate("    ".join(figures), (0, 1), xytext=(128, 8), xycoords="axes fraction", **said, **place)


def _finish(grid: Any, chosen: Sequence[Document]) -> None:
    is_crowd = len(chosen[0]["measures"]["leaves"]) > len(COLOURS)
    share_head = "share of GPU time less what was due, points" if is_crowd else "share of GPU time, %"
    heads = (share_head, "tokens per second", "steps that took no longer, %", "Jain's index in 1 s")
    for axes, head in zip(grid[0], heads, strict=True):
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(head, (0, 1), xytext=(0, 30), fontsize=10, color=INK, **place)
    for axes in grid.flat:
        axes.tick_params(labelsize=9, color=SOFT, labelcolor=INK)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    shares, rates, latencies, jain = grid[-1]
    for axes in (shares, rates, jain):
        axes.set_xlabel("seconds", fontsize=9.5, color=INK)
        _limit_times(axes, chosen)
    latencies.set_xlabel("latency of a step, ms; dot: 99 %", fontsize=9.5, color=INK)
    if not is_crowd:
        shares.set_ylim(0, 100)
    rates.set_ylim(bottom=0)
    latencies.set_xscale("log")
    latencies.set_ylim(0, 100)
    _plain_log_ticks(latencies)
    lowest = min((v for d in chosen for v in d["series"].get("jain_1s", ()) if v is not None), default=1.0)
    jain.set_ylim(min(_JAIN_FLOOR, math.floor(20 * lowest) / 20), 1.0)
    jain.locator_params(axis="y", nbins=5)


def _limit_times(axes: Any, chosen: Sequence[Document]) -> None:
    from matplotlib.ticker import MaxNLocator

    times = [t for document in chosen for t in _times(document["series"])]
    if len(set(times)) > 1:
        axes.set_xlim(min(times), max(times))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))


def _plain_log_ticks(axes: Any) -> None:
    """1, 2, 5, 10 rather than powers of ten: nobody counts latencies in exponents."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


# ---- files ----


def figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ResultError(
            "no picture: matplotlib is not installed", remedy="pip install 'fairsched[bench]', or --no-plots"
        ) from error
    return Figure


def save(figure: Any, path: Path) -> None:
    """Never half a picture; in so few colours that the pictures of all scenarios may lie in the repository."""
    from PIL import Image  # matplotlib cannot do without it

    remedy = "free the space or name another directory"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=_DPI)
            with Image.open(drawn) as picture:
                picture.convert("RGB").quantize(_COLOURS).save(scratch, format="png", optimize=True)
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}", remedy=remedy) from error
