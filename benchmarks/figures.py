# SPDX-License-Identifier: Apache-2.0
"""The figures, their bars, and the table they are printed in (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 80


@dataclass(frozen=True)
class Bar:
    """What a figure must reach."""

    key: str
    what: str
    limit: float
    is_upper: bool
    """True: at most ``limit``; False: at least."""
    unit: str = "ratio"
    """ratio, percent, points, bytes or count: how it is shown."""

    def is_met(self, value: float | None) -> bool | None:
        """None when it was not measured."""
        if value is None:
            return None
        return value <= self.limit if self.is_upper else value >= self.limit


BARS = (
    Bar("account_error_max", "account, largest error of a tenant", 0.02, True, "percent"),
    Bar("account_error_others_max", "the same beside a hostile one", 0.05, True, "percent"),
    Bar("account_unsure_count", "seeable tenants not of high confidence", 0, True, "count"),
    Bar("unseeable_trusted_error_max", "who cannot be seen, wherever it was trusted", 0.05, True, "percent"),
    Bar("share_error_max_points", "weights 4:2:1:1, largest error", 1.5, True, "points"),
    Bar("busy_ratio", "GPU busy, scheduled / not", 0.98, False),
    Bar("probe_ratio", "probe at +10 / at +0", 0.4, True),
    Bar("observe_throughput_ratio", "tokens, observed / not", 0.985, False),
    Bar("daemon_cpu_ratio", "daemon's CPU time, of one CPU", 0.03, True, "percent"),
    Bar("daemon_rss_bytes", "daemon's memory, with helpers", 150e6, True, "bytes"),
)


def show(value: float | None, unit: str) -> str:
    """As a person wants to read it; 'n/a' for what was not measured."""
    if value is None:
        return "n/a"
    if unit == "percent":
        return f"{100 * value:.2f} %"
    if unit == "points":
        return f"{value:.2f} pt"
    if unit == "bytes":
        return f"{value / 1e6:.1f} MB"
    return f"{value:.0f}" if unit == "count" else f"{value:.3f}"


def render(values: Mapping[str, float | None], notes: Mapping[str, str]) -> list[str]:
    """Figure, bar, met; under a figure what is worth knowing about it, such as the case it comes from."""
    lines = [f"{'figure':<42}{'value':>12}   {'bar':<12}  met", "-" * WIDTH]
    for bar in BARS:
        value = values.get(bar.key)
        limit = ("<= " if bar.is_upper else ">= ") + show(bar.limit, bar.unit)
        met = {None: "-", True: "yes", False: "NO"}[bar.is_met(value)]
        lines.append(f"{bar.key:<42}{show(value, bar.unit):>12}   {limit:<12}  {met}")
        note = f"{bar.what}; {notes[bar.key]}" if bar.key in notes else bar.what
        lines += textwrap.wrap(note, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines


def missed(values: Mapping[str, float | None]) -> list[str]:
    """Keys of the figures that were measured and do not reach their bar."""
    return [bar.key for bar in BARS if bar.is_met(values.get(bar.key)) is False]


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
