# SPDX-License-Identifier: Apache-2.0
"""From the laps of a daemon to figures, bars and the table (pure); the plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, render_rows, show, told
from benchmarks.scale_daemon import ACTIONS, LATE, PARTS, Lap
from benchmarks.stats import percentile

TENANTS = (4, 64, 1000)
GPUS = (1, 8)
_IN_TICK = ("read", "walk", "snapshot", "decide", "apply")
_BESIDE = ("housekeep", "pids", "status")
_GROWN = (64, 1000)
"""Between these growth is judged: below, what a tick costs is not the tenants."""

BARS = (
    *(Bar(f"tick_p99_ms_{gpus}x1000", "in ms", 10.0, True) for gpus in GPUS),
    *(
        Bar(f"growth_{what}_{gpus}", f"exponent of growth, {gpus} GPU", 1.1, True)
        for gpus in GPUS
        for what in ("p50", "p99")
    ),
    *(Bar(f"growth_part_{gpus}", f"worst part, {gpus} GPU", 1.1, True) for gpus in GPUS),
    Bar("cpu_ratio_8x64", "daemon and helpers, of a core", 0.05, True, "percent"),
)


@dataclass(frozen=True)
class Cell:
    """What one daemon cost. Times of ticks are wall times; ``tick_cpu_ms`` is processor time."""

    gpus: int
    tenants: int
    is_injected: bool
    seconds: float
    ticks: int
    tick_p50_ms: float
    tick_p99_ms: float
    tick_max_ms: float
    tick_cpu_p50_ms: float
    tick_cpu_p99_ms: float
    late_p99_ms: float
    """How long after it was due a tick began."""
    housekeep_p50_ms: float | None
    housekeep_max_ms: float | None
    status_ms: float
    """In the daemon, for one request; median. Nothing else happens in that time."""
    parts: dict[str, dict[str, float]]
    """By part of the loop: calls, mean wall and CPU in ms, CPU of one core."""
    actions_per_s: float
    cpu_ratio: dict[str, float]
    """Of one core, by role."""
    rss_bytes: dict[str, int]
    start_s: float
    steps_per_s: float | None
    edges_per_s: float | None
    sure: int
    """Tenants whose account is of high confidence, at the end."""
    seen: int
    """Tenants that have an account at all."""
    cpu_wait_ratio: float | None
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.gpus}x{self.tenants}" + ("" if self.is_injected else " real")


def growth(small: tuple[float, float], large: tuple[float, float]) -> float:
    """Exponent k of y = c x^k through two points (x, y): 1 is linear, 2 quadratic."""
    return math.log(large[1] / small[1]) / math.log(large[0] / small[0])


def part_growth(small: Cell, large: Cell) -> dict[str, float]:
    """Exponents of the CPU time of one call, by part: the sum of all hides a small one that grows fast.

    The tree is walked in one tick of many: the longest call is a walk. Where a part cost nothing, nothing grows.
    """
    found = {}
    for part in ("read", "walk", "snapshot", "decide", "pids"):
        what = "cpu_max_ms" if part == "walk" else "cpu_mean_ms"
        ends = [(cell.tenants, cell.parts.get(part, {}).get(what, 0.0)) for cell in (small, large)]
        if ends[0][1] > 0 and ends[1][1] > 0:
            found[part] = growth(ends[0], ends[1])
    return found


def summarise(laps: Sequence[Lap], begin_ns: int, end_ns: int) -> dict[str, Any]:
    """The fields of Cell that laps tell. Raises ValueError where there was no tick."""
    inside = [lap for lap in laps if begin_ns <= lap.begin_ns < end_ns]
    by_kind: dict[str, list[Lap]] = {}
    for lap in inside:
        by_kind.setdefault(lap.kind, []).append(lap)
    wall = [lap.wall_ns / 1e6 for lap in by_kind.get("tick", [])]
    cpu = [lap.cpu_ns / 1e6 for lap in by_kind.get("tick", [])]
    keeping = [lap.wall_ns / 1e6 for lap in by_kind.get("housekeep", [])]
    seconds = (end_ns - begin_ns) / 1e9
    return {
        "seconds": seconds,
        "ticks": len(wall),
        "tick_p50_ms": percentile(wall, 0.5),
        "tick_p99_ms": percentile(wall, 0.99),
        "tick_max_ms": max(wall),
        "tick_cpu_p50_ms": percentile(cpu, 0.5),
        "tick_cpu_p99_ms": percentile(cpu, 0.99),
        "late_p99_ms": percentile((max(0, lap.wall_ns) / 1e6 for lap in by_kind.get(LATE, [])), 0.99),
        "housekeep_p50_ms": percentile(keeping, 0.5) if keeping else None,
        "housekeep_max_ms": max(keeping, default=None),
        "parts": {part: _part(by_kind[part], seconds) for part in PARTS if part in by_kind},
        "actions_per_s": sum(lap.wall_ns for lap in by_kind.get(ACTIONS, [])) / seconds,
    }


def _part(laps: Sequence[Lap], seconds: float) -> dict[str, float]:
    cpu_ns = sum(lap.cpu_ns for lap in laps)
    return {
        "calls": len(laps),
        "wall_mean_ms": sum(lap.wall_ns for lap in laps) / len(laps) / 1e6,
        "wall_max_ms": max(lap.wall_ns for lap in laps) / 1e6,
        "cpu_mean_ms": cpu_ns / len(laps) / 1e6,
        "cpu_max_ms": max(lap.cpu_ns for lap in laps) / 1e6,
        "cpu_ratio": cpu_ns / 1e9 / seconds,
    }


def judge(cells: Sequence[Cell]) -> dict[str, float | None]:
    """The figures with a bar; None for what was not measured."""
    found = {(cell.gpus, cell.tenants): cell for cell in cells if cell.is_injected}
    values: dict[str, float | None] = {bar.key: None for bar in BARS}
    for gpus in GPUS:
        large = found.get((gpus, _GROWN[1]))
        small = found.get((gpus, _GROWN[0]))
        if large is not None:
            values[f"tick_p99_ms_{gpus}x1000"] = large.tick_p99_ms
        if large is not None and small is not None:
            for what in ("p50", "p99"):
                ends = [(cell.tenants, getattr(cell, f"tick_{what}_ms")) for cell in (small, large)]
                values[f"growth_{what}_{gpus}"] = growth(ends[0], ends[1])
            values[f"growth_part_{gpus}"] = max(part_growth(small, large).values(), default=None)
    if (8, 64) in found:
        values["cpu_ratio_8x64"] = sum(found[8, 64].cpu_ratio.values())
    return values


def cell_table(cells: Sequence[Cell]) -> list[str]:
    """One line per cell."""
    header = ("GPUs x", "tenants", "ticks/s", "p50 ms", "p99", "max", "late", "CPU", "RSS MB", "acts/s")
    rows = [
        (
            f"{cell.gpus} x",
            _tenants(cell),
            f"{cell.ticks / cell.seconds:.1f}",
            f"{cell.tick_p50_ms:.2f}",
            f"{cell.tick_p99_ms:.2f}",
            f"{cell.tick_max_ms:.1f}",
            f"{cell.late_p99_ms:.1f}",
            f"{100 * sum(cell.cpu_ratio.values()):.1f} %",
            f"{cell.rss_bytes.get('daemon', 0) / 1e6:.0f}",
            f"{cell.actions_per_s:.1f}",
        )
        for cell in cells
    ]
    return render_rows(header, rows)


def part_table(cells: Sequence[Cell]) -> list[str]:
    """Where the time goes: mean ms of wall time per call, by part; what is no part of a tick behind the bar."""
    rows = []
    for cell in cells:
        means = {part: cell.parts.get(part, {}).get("wall_mean_ms") for part in PARTS} | {
            "status": cell.status_ms
        }
        inside = [_ms(means[part]) for part in _IN_TICK]
        beside = [_ms(means[part]) for part in _BESIDE]
        rows.append((f"{cell.gpus} x", _tenants(cell), *inside, "|", *beside))
    return render_rows(
        ("ms per", "call", "read", "walk", "snap", "decide", "apply", "|", "keep", "pids", "status"), rows
    )


def _tenants(cell: Cell) -> str:
    return f"{cell.tenants}" + ("" if cell.is_injected else " real")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def bar_table(values: Mapping[str, float | None]) -> list[str]:
    """Figure, bar, met."""
    rows = [
        (
            bar.key,
            bar.what,
            show(values.get(bar.key), bar.unit),
            f"{bar.sign} {show(bar.limit, bar.unit)}",
            told(bar.is_met(values.get(bar.key))),
        )
        for bar in BARS
    ]
    return render_rows(("figure", "", "value", "bar", "met"), rows)


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Tick p50 and p99 against tenants, both axes logarithmic. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for gpus, colour in zip(GPUS, ("tab:blue", "tab:orange"), strict=True):
        chosen = sorted((c for c in cells if c.gpus == gpus and c.is_injected), key=lambda c: c.tenants)
        tenants = [cell.tenants for cell in chosen]
        label = f"{gpus} GPU" + ("s" if gpus > 1 else "")
        axes.plot(tenants, [c.tick_p99_ms for c in chosen], "o-", color=colour, label=f"{label}, p99")
        axes.plot(tenants, [c.tick_p50_ms for c in chosen], "o--", color=colour, label=f"{label}, p50")
    axes.axhline(10.0, color="grey", linewidth=0.8)
    axes.annotate("bar: 10 ms", (TENANTS[0], 10.0), xytext=(0, 3), textcoords="offset points", color="grey")
    axes.set(xscale="log", yscale="log", xlabel="tenants", ylabel="one tick, ms")
    axes.set_xticks(TENANTS, [f"{count:,}" for count in TENANTS])
    axes.minorticks_off()
    axes.legend(fontsize="small", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
