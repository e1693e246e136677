# SPDX-License-Identifier: Apache-2.0
"""Which plots a report has, and what is in them. Pure; how they look is the business of svg.py and png.py.

A tenant has one colour on the whole page. There are eight, for the eight that used most; the others are thin and grey.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.cli.text import short_uuid
from fairsched.companion.history.read import Past, Series

COLOURS = 8
MAX_SHARES = 24
"""Small plots of tenants; the table has all of them."""
MAX_LINES = 40
QUEUE_OBJECTIVE_MS = 20.0

REASON_TEXTS = {
    "over_entitlement": "ahead of its share",
    "over_quota": "quota used up",
    "deep_queue": "deep queue",
    "measuring": "another is measured",
    "over_vram": "memory beyond its limit",
}


@dataclass(frozen=True)
class Line:
    """One series of a plot."""

    label: str
    points: Series
    colour: int | None
    """Index of a colour; None = grey and thin."""
    is_due: bool = False
    """What was due, not what was: dashed, in the colour of text."""
    is_area: bool = False
    """Filled down to zero."""


@dataclass(frozen=True)
class Chart:
    """One plot. Values are in `unit`."""

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...] = ()
    bars: tuple[Line, ...] = ()
    """Stacked, in this order from below."""
    low: float = 0.0
    high: float = 0.0
    """What the axis reaches at least."""
    mark: float | None = None
    """A line across, such as an objective."""
    note: str = ""
    is_log: bool = False
    """Each step of the axis is ten times the one before; for what spans milliseconds and minutes."""

    @property
    def values(self) -> list[float]:
        """Everything that must fit on the axis."""
        found = [value for line in self.lines for _, value in line.points if value is not None]
        heights: dict[float, float] = {}
        for line in self.bars:
            for t, value in line.points:
                heights[t] = heights.get(t, 0.0) + (value or 0.0)
        return [*found, *heights.values(), self.low, self.high, *([] if self.mark is None else [self.mark])]


@dataclass(frozen=True)
class Board:
    """All plots of a report."""

    past: Past
    shares: tuple[Chart, ...]
    """Small ones, one per tenant and GPU."""
    charts: tuple[Chart, ...]
    hidden_shares: int = 0
    colours: Mapping[str, int] = field(default_factory=dict)


def make_board(past: Past) -> Board:
    """The plots that there is something to show in."""
    colours = {total.name: number for number, total in enumerate(past.totals[:COLOURS])}
    shares = _shares(past, colours)
    by_tenant = _by_tenant(past, colours)
    charts = [
        by_tenant("lag", "Lag", "ms", past.lag_ms, note="GPU time owed to a tenant; below zero it is ahead."),
        _holds(past, "holds", "Holds by reason", past.holds, "How often a tenant was held."),
        _holds(
            past,
            "dry-holds",
            "Holds of a dry run by reason",
            past.dry_holds,
            "How often a tenant would have been held in mode enforce; nobody was.",
        ),
        by_tenant(
            "queue",
            "Queue delay, 99th percentile",
            "ms",
            past.queue_delay_p99_ms,
            mark=QUEUE_OBJECTIVE_MS,
            note="How long work waited for a turn; each line of the grid is ten times the one below it. "
            "The line across is the objective.",
            is_log=True,
        ),
        by_tenant(
            "tokens", "Tokens per second", "1/s", past.tokens_per_s, note="From the tenants' own metrics."
        ),
        _busy(past),
    ]
    return Board(
        past,
        shares[:MAX_SHARES],
        tuple(chart for chart in charts if chart.lines or chart.bars),
        max(0, len(shares) - MAX_SHARES),
        colours,
    )


def _percent(series: Series) -> Series:
    return [(t, None if value is None else value * 100) for t, value in series]


def _shares(past: Past, colours: Mapping[str, int]) -> tuple[Chart, ...]:
    """Sorted as the totals are; all on one scale, so that they can be compared."""
    rank = {total.name: number for number, total in enumerate(past.totals)}
    gpus = {gpu for _, gpu in past.used}
    values = [
        v for table in (past.used, past.entitled) for one in table.values() for _, v in one if v is not None
    ]
    high = min(100.0, 110 * max(values, default=1.0))
    found: list[Chart] = []
    for tenant, gpu in sorted(past.used, key=lambda key: (rank.get(key[0], len(rank)), key)):
        title = tenant if len(gpus) == 1 else f"{tenant} on {short_uuid(gpu)}"
        used = Line("used", _percent(past.used[tenant, gpu]), colours.get(tenant), is_area=True)
        due = Line("entitled", _percent(past.entitled.get((tenant, gpu), [])), None, is_due=True)
        found.append(Chart(f"share-{len(found)}", title, "%", (used, due), high=high))
    return tuple(found)


def _by_tenant(past: Past, colours: Mapping[str, int]) -> Callable[..., Chart]:
    ranked = [total.name for total in past.totals]

    def chart(
        key: str,
        title: str,
        unit: str,
        table: Mapping[str, Series],
        *,
        mark: float | None = None,
        note: str = "",
        is_log: bool = False,
    ) -> Chart:
        names = [name for name in ranked if name in table][:MAX_LINES]
        # those with a colour last, so that they lie above the grey ones
        lines = [Line(name, table[name], colours.get(name)) for name in reversed(names)]
        return Chart(key, title, unit, tuple(lines), mark=mark if lines else None, note=note, is_log=is_log)

    return chart


def _holds(past: Past, key: str, title: str, holds: Mapping[str, Series], note: str) -> Chart:
    order = sorted(holds, key=lambda reason: -sum(value or 0 for _, value in holds[reason]))
    bars = tuple(
        Line(REASON_TEXTS.get(reason, reason.replace("_", " ")), holds[reason], number % COLOURS)
        for number, reason in enumerate(order)
    )
    return Chart(key, title, f"per {past.step_s:.0f} s", bars=bars, note=note)


def _busy(past: Past) -> Chart:
    lines = tuple(
        Line(short_uuid(gpu), _percent(series), number if number < COLOURS else None)
        for number, (gpu, series) in enumerate(sorted(past.busy.items()))
    )
    return Chart(
        "busy", "GPU busy", "%", lines, high=100.0, note="Part of the time in which it worked for anybody."
    )


def runs(points: Sequence[tuple[float, float | None]], gap_s: float) -> list[list[tuple[float, float]]]:
    """Parts of a series that a line may join: none where it was not known, or nobody was there to look."""
    found: list[list[tuple[float, float]]] = []
    last_t: float | None = None
    for t, value in points:
        if value is None:
            last_t = None
            continue
        if last_t is None or t - last_t > gap_s:
            found.append([])
        found[-1].append((t, value))
        last_t = t
    return found
