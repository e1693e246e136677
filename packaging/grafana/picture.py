# SPDX-License-Identifier: Apache-2.0
"""Draws the dashboard without Grafana: ``python packaging/grafana/picture.py http://127.0.0.1:9090 board.png``.

Problem: Grafana cannot be had everywhere, and a board that nobody has looked at has panels that say nothing.

Approach: every panel is drawn at its place of the grid from what a real Prometheus answers to its own expressions, all
variables at All. Titles, units, legends and limits are those of fairsched.json; the look is matplotlib's.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter

BOARD = Path(__file__).resolve().parent / "fairsched.json"
POINTS = 60
CELL_INCHES = (0.62, 0.3)
SHORT = 26
"""Characters of a legend."""


def ask(url: str, expression: str, seconds: float) -> list[dict[str, Any]]:
    """The series of one expression over the last `seconds`. Raises OSError when Prometheus does not answer."""
    end, step = time.time(), seconds / POINTS
    for name, value in (
        ("__rate_interval", f"{max(4, round(4 * step))}s"),
        ("node", ".*"),
        ("gpu", ".*"),
        ("tenant", ".*"),
    ):
        expression = expression.replace(f"${name}", value)
    query = urllib.parse.urlencode({"query": expression, "start": end - seconds, "end": end, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target.get("legendFormat", ""))
    return text if len(text) <= SHORT else text[: SHORT - 2] + ".."


def draw_number(axes: Any, panel: dict[str, Any], values: list[float]) -> None:
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    last = values[-1] if values else None
    colour = next(
        (one["color"] for one in reversed(steps) if last is not None and last >= (one["value"] or 0)), "grey"
    )
    axes.set_facecolor({"green": "#cfe8cf", "red": "#f3c6c6"}.get(colour, "#e8e8e8"))
    unit = panel["fieldConfig"]["defaults"]["unit"]
    text = "no data" if last is None else f"{last * 100:.1f} %" if unit == "percentunit" else f"{last:.4g}"
    axes.text(
        0.5, 0.45, text + (" s" if unit == "s" and values else ""), ha="center", va="center", fontsize=15
    )
    axes.set_xticks([])
    axes.set_yticks([])


def draw_lines(axes: Any, panel: dict[str, Any], series: list[tuple[str, list[list[Any]]]]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    scale = 100 if defaults["unit"] == "percentunit" else 1
    for name, points in series:
        axes.plot(
            [point[0] for point in points], [scale * float(point[1]) for point in points], label=name, lw=1
        )
    limit = next(
        (one["value"] for one in defaults.get("thresholds", {}).get("steps", []) if one["value"]), None
    )
    if limit is not None:
        axes.axhline(scale * limit, color="red", ls="--", lw=0.7)
    axes.set_ylabel("%" if scale == 100 else defaults["unit"], fontsize=6)
    axes.tick_params(labelsize=6)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(y=0.25)
    axes.set_xticks([])
    if series:
        axes.legend(fontsize=5, ncols=3, loc="upper left", framealpha=0.6)


def draw(url: str, path: Path, seconds: float) -> None:
    """The picture of the last `seconds`, as PNG."""
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    rows = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels)
    figure = plt.figure(figsize=(24 * CELL_INCHES[0], rows * CELL_INCHES[1]))
    for panel in panels:
        at = panel["gridPos"]
        bottom = 1 - (at["y"] + at["h"]) / rows
        if panel["type"] == "row":
            figure.text(0.01, bottom + 0.3 / rows, panel["title"], fontsize=11, weight="bold")
            continue
        axes = figure.add_axes(
            (at["x"] / 24 + 0.025, bottom + 0.35 / rows, at["w"] / 24 - 0.035, (at["h"] - 1.15) / rows)
        )
        axes.set_title(panel["title"], fontsize=8, loc="left", pad=3)
        series = [
            (legend(target, one["metric"]), one["values"])
            for target in panel["targets"]
            for one in ask(url, target["expr"], seconds)
        ]
        if panel["type"] == "stat":
            draw_number(axes, panel, [float(point[1]) for _, points in series for point in points])
        else:
            draw_lines(axes, panel, series)
    figure.savefig(path, dpi=75)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the dashboard without Grafana.")
    parser.add_argument("prometheus", help="such as http://127.0.0.1:9090")
    parser.add_argument("picture", type=Path, help="PNG to write")
    parser.add_argument("--seconds", type=float, default=1800, help="how far to look back (1800)")
    options = parser.parse_args()
    draw(options.prometheus.rstrip("/"), options.picture, options.seconds)


if __name__ == "__main__":
    main()
