# SPDX-License-Identifier: Apache-2.0
"""From a status report to the rows of the table: which, in what order, with what numbers. Pure.

What is not known is None and sorts last, whichever way the table is sorted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fairsched.protocol.status import StatusReport, TenantState, TenantStatus

SCALES = (1.0, 0.75, 0.5, 0.25, 0.1)
"""What a full bar may stand for, as a part of one GPU."""
_SHRINK = 0.8
"""A finer scale is taken once everybody is below so much of it: a bar that hovers must not make all others jump."""


class Order(str, enum.Enum):
    """What the table is sorted by."""

    LAG = "lag"
    """Most overdrawn first."""
    USED = "used"
    ENTITLED = "entitled"
    WEIGHT = "weight"
    TOKENS = "tokens"
    QUEUE = "queue"
    VRAM = "vram"
    HELD = "held"
    NAME = "name"


@dataclass(frozen=True)
class TableRow:
    """One tenant. Ratios and lag are of the GPU on which it owes most; memory is that of all GPUs."""

    name: str
    state: TenantState
    weight: float
    is_overridden: bool
    tenant_class: str
    entitled_ratio: float | None
    used_ratio: float | None
    lag_ms: float | None
    tokens_per_s: float | None
    queue_delay_p99_ms: float | None
    vram_bytes: int | None
    held_ms_per_s: float | None
    gpus: int
    """On how many GPUs it has an account."""
    problem: str | None
    """In a word what needs a person: the kind of misbehaviour, or over_vram."""


def make_rows(
    report: StatusReport, order: Order = Order.LAG, *, is_reversed: bool = False, needle: str = ""
) -> list[TableRow]:
    """The rows of the table, sorted. `needle`: part of a name, in any case, or a state in full."""
    found = [_row(tenant) for tenant in report.tenants]
    return sort_rows((row for row in found if matches(row, needle)), order, is_reversed=is_reversed)


def matches(row: TableRow, needle: str) -> bool:
    wanted = needle.strip().casefold()
    return wanted in row.name.casefold() or wanted == row.state.value


def sort_rows(rows: Iterable[TableRow], order: Order, *, is_reversed: bool = False) -> list[TableRow]:
    """By name where the values are the same, so that rows which have none stay where they are."""
    by_name = sorted(rows, key=lambda row: row.name)
    if order is Order.NAME:
        return by_name[::-1] if is_reversed else by_name
    value = _VALUES[order]
    known = [row for row in by_name if value(row) is not None]
    unknown = [row for row in by_name if value(row) is None]
    # lag: the smallest first, which is the largest debt; all others: the largest first
    is_rising = (order is Order.LAG) is not is_reversed
    sign = 1.0 if is_rising else -1.0
    return sorted(known, key=lambda row: sign * (value(row) or 0.0)) + unknown


_VALUES: dict[Order, Callable[[TableRow], float | None]] = {
    Order.LAG: lambda row: row.lag_ms,
    Order.USED: lambda row: row.used_ratio,
    Order.ENTITLED: lambda row: row.entitled_ratio,
    Order.WEIGHT: lambda row: row.weight,
    Order.TOKENS: lambda row: row.tokens_per_s,
    Order.QUEUE: lambda row: row.queue_delay_p99_ms,
    Order.VRAM: lambda row: row.vram_bytes,
    Order.HELD: lambda row: row.held_ms_per_s,
}


def _row(tenant: TenantStatus) -> TableRow:
    problem = None
    if any(one.over_since_s is not None for one in tenant.vram):
        problem = "over_vram"
    if tenant.misbehaviour is not None:
        problem = tenant.misbehaviour.kind.value
    return TableRow(
        name=tenant.name,
        state=tenant.state,
        weight=tenant.weight,
        is_overridden=tenant.is_overridden,
        tenant_class=tenant.tenant_class.value,
        entitled_ratio=tenant.entitled_ratio,
        used_ratio=tenant.used_ratio,
        lag_ms=tenant.lag_ms,
        tokens_per_s=tenant.tokens.tokens_per_s if tenant.tokens is not None else None,
        queue_delay_p99_ms=tenant.queue_delay_p99_ms,
        vram_bytes=_vram_bytes(tenant),
        held_ms_per_s=tenant.held_ms_per_s,
        gpus=len(tenant.gpus),
        problem=problem,
    )


def _vram_bytes(tenant: TenantStatus) -> int | None:
    """From the driver's ioctls, else what the limits were checked against."""
    if tenant.vram_by_gpu_bytes:
        return sum(tenant.vram_by_gpu_bytes.values())
    known = [one.used_bytes for one in tenant.vram if one.used_bytes is not None]
    return sum(known) if known else None


def choose_scale(rows: Sequence[TableRow], before: float = SCALES[-1]) -> float:
    """What a full bar stands for: the finest of SCALES in which all bars fit, `before` as long as it suits."""
    peak = max(
        (value for row in rows for value in (row.used_ratio, row.entitled_ratio) if value), default=0.0
    )
    finest = min((scale for scale in SCALES if peak <= scale), default=SCALES[0])
    if finest < before and peak > _SHRINK * finest:
        return before
    return finest


def clamp_first(first: int, count: int, height: int) -> int:
    """The first row shown, so that no line of the table stays empty while rows are hidden above it."""
    return max(0, min(first, count - height))
