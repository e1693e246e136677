# SPDX-License-Identifier: Apache-2.0
"""The picture: shares over time, both halves on one axis, and below it what the tenants made of them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from fairsched.base.files import replacing
from fairsched.base.package import how_to_install
from fairsched.demo.report import points
from fairsched.demo.result import WINDOW_S, Result
from fairsched.demo.scene import TENANTS
from fairsched.errors import FairschedError

HOW_TO_INSTALL = f"no picture: matplotlib is not installed; {how_to_install('matplotlib')}"
_NAME_ANOTHER = "name a file that can be written: --png FILE"
_INK = "#333333"


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_place(path: Path) -> None:
    """Raise FairschedError now rather than after the show."""
    if not os.access(path.parent, os.W_OK):
        raise FairschedError(
            f"{path}: no such directory, or no permission to write there", remedy=_NAME_ANOTHER
        )


def save_picture(result: Result, path: Path) -> None:
    """Write a PNG. Raises FairschedError when the file cannot be written."""
    figure = draw(result)
    try:
        with replacing(path) as scratch:
            figure.savefig(scratch, format="png", dpi=150)
    except OSError as error:
        raise FairschedError(f"{path}: {error.strerror}", remedy=_NAME_ANOTHER) from error


def draw(result: Result) -> Any:
    """A matplotlib Figure; without pyplot, so there is no display and no global state to mind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.2), facecolor="white")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.subplots_adjust(left=0.075, right=0.795, top=0.835, bottom=0.08, hspace=0.16)
    _title(figure, result)
    _draw_shares(upper, result)
    _draw_rates(lower, result)
    for axes in (upper, lower):
        _draw_halves(axes, result)
    lower.set_xlabel("seconds")
    return figure


def _title(figure: Any, result: Result) -> None:
    before, after = result.unscheduled, result.scheduled
    weights = ":".join(str(tenant.weight) for tenant in TENANTS)
    figure.text(
        0.075,
        0.945,
        f"Weights {weights}: shares off by {points(before.largest_error_ratio)} points unscheduled, "
        f"by {points(after.largest_error_ratio)} with fairsched",
        fontsize=14.5,
        fontweight="bold",
        color=_INK,
    )
    figure.text(
        0.075,
        0.905,
        f"Four tenants on one GPU (simulated; processes, cgroups, eBPF and daemon are real), busy "
        f"{before.busy_ratio * 100:.1f} and {after.busy_ratio * 100:.1f} % of the time. Dashed: due.",
        fontsize=10,
        color="#666666",
    )


def _draw_shares(axes: Any, result: Result) -> None:
    timeline = result.timeline
    edges = [*timeline.t_s, timeline.t_s[-1] + WINDOW_S]
    floor = [0.0] * len(timeline.t_s)
    due_floor = 0.0
    for tenant in TENANTS:
        shares = [share * 100 for share in timeline.share_ratio[tenant.name]]
        top = [low + share for low, share in zip(floor, shares, strict=True)]
        axes.stairs(top, edges, baseline=floor, fill=True, color=tenant.colour, linewidth=0)
        due = result.entitlement_ratio[tenant.name] * 100
        if due_floor:
            axes.axhline(due_floor, color="white", linewidth=3)
            axes.axhline(due_floor, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
        got = points(result.scheduled.tenants[tenant.name].share_ratio)
        _label(axes, due_floor + due / 2, tenant.colour, tenant.name, f"{got} %, due {due:.1f}")
        floor, due_floor = top, due_floor + due
    axes.set_ylim(0, 100)
    axes.set_xlim(0, edges[-1])
    axes.set_ylabel("share of GPU time, %")
    axes.text(1.015, 1.02, "scheduled", transform=axes.transAxes, fontsize=9, color="#666666", va="bottom")


def _draw_rates(axes: Any, result: Result) -> None:
    timeline = result.timeline
    middles = [t + WINDOW_S / 2 for t in timeline.t_s]
    ends = {}
    # Ever thinner: tenants that get the same must not hide each other.
    for tenant, width in zip(TENANTS, (5.0, 3.2, 1.6, 1.6), strict=True):
        rates = timeline.steps_per_s[tenant.name]
        style = "-" if tenant.unit == "token" else (0, (2, 1.2))
        axes.plot(middles, rates, color=tenant.colour, linewidth=width, linestyle=style)
        ends[tenant.name] = result.scheduled.tenants[tenant.name].steps_per_s
    top = max(max(rates) for rates in timeline.steps_per_s.values()) * 1.18
    axes.set_ylim(0, top)
    places = _apart(ends, top * 0.12)
    for tenant in TENANTS:
        text = f"{ends[tenant.name]:.1f} {tenant.unit}/s"
        _label(axes, places[tenant.name], tenant.colour, tenant.name, text)
    axes.set_ylabel("tokens (steps) per second")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def _label(axes: Any, y: float, colour: str, name: str, text: str) -> None:
    """Beside the axes, where the eye ends: no legend to look up."""
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    axes.annotate(name, (1.015, y), xytext=(0, 0), color=colour, fontsize=11.5, fontweight="bold", **where)
    axes.annotate(text, (1.015, y), xytext=(54, 0), color=_INK, fontsize=9.5, **where)


def _apart(values: dict[str, float], gap: float) -> dict[str, float]:
    """Places for labels near their values, at least ``gap`` from each other."""
    places: dict[str, float] = {}
    last = gap / 2 - gap
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        last = max(value, last + gap)
        places[name] = last
    return places


def _draw_halves(axes: Any, result: Result) -> None:
    timeline = result.timeline
    end = timeline.t_s[-1] + WINDOW_S
    axes.axvline(timeline.switched_s, color="white", linewidth=4)
    axes.axvline(timeline.switched_s, color=_INK, linewidth=1.6)
    for begin, finish, text in (
        (0.0, timeline.switched_s, "unscheduled"),
        (timeline.switched_s, end, "scheduled by fairsched"),
    ):
        if not axes.get_subplotspec().is_first_row():
            continue
        # The part that is in no figure: said in the table, shown here.
        axes.axvspan(begin, begin + result.settle_s, color="white", alpha=0.35, linewidth=0)
        place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
        middle = (begin + finish) / 2
        axes.annotate(text, (middle, 1.02), fontsize=11, fontweight="bold", color=_INK, **place)
        settling = begin + result.settle_s / 2
        axes.annotate("settling", (settling, 0.015), fontsize=8, color="white", **place)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
