# SPDX-License-Identifier: Apache-2.0
"""The table, the sentence, and the JSON document."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fairsched.base.text import wrap
from fairsched.demo.result import SETTLE_S, HalfFigures, Result, TenantFigures
from fairsched.demo.scene import TENANTS

SCHEMA_VERSION = 1
MISSED_RATIO = 0.03
"""Share minus due of the tenant that is farthest off: more than this, and the demo has not shown what it promises."""
_RIGHT_RATIO = 0.05
"""Error of an account that can be to blame for a share."""

_Cells = tuple[str, str, str]


def points(ratio: float) -> str:
    return f"{ratio * 100:.1f}"


def _percent(ratio: float | None, *, signed: bool = False) -> str:
    if ratio is None:
        return "n/a"
    text = f"{ratio * 100:{'+' if signed else ''}.1f}"
    return text.replace("-0.0", "0.0").replace("+0.0", "0.0")


def table(result: Result) -> list[str]:
    """One line per tenant; 80 columns."""
    before, after = result.unscheduled, result.scheduled
    above = [
        f"{title} {half.seconds:.0f} s" for title, half in (("UNSCHEDULED", before), ("SCHEDULED", after))
    ]
    lines = [
        f"{'':25}{above[0]:^21}  {above[1]:^21}".rstrip(),
        _row("TENANT", "WEIGHT", "DUE", ("SHARE", "TOKEN/S", "CV"), ("SHARE", "TOKEN/S", "CV"), "ACCOUNT"),
        _row("", "", "%", ("%", "", "%"), ("%", "", "%"), "ERROR %"),
    ]
    for tenant in TENANTS:
        halves = [_half_cells(half.tenants[tenant.name], tenant.unit) for half in (before, after)]
        due = _percent(result.entitlement_ratio[tenant.name])
        error = _percent(after.tenants[tenant.name].account_error_ratio, signed=True)
        lines.append(_row(tenant.name, str(tenant.weight), due, halves[0], halves[1], error))
    return [*lines, "", *_sum_rows(before, after), ""]


def _row(name: str, weight: str, due: str, left: _Cells, right: _Cells, error: str) -> str:
    halves = [f"{share:>7}{rate:>8}{cv:>6}" for share, rate, cv in (left, right)]
    return f"{name:<9}{weight:>6}{due:>7}   {halves[0]}  {halves[1]}{error:>9}"


def _half_cells(figures: TenantFigures, unit: str) -> _Cells:
    cv = "n/a" if figures.steps_cv_ratio is None else f"{figures.steps_cv_ratio * 100:.1f}"
    mark = "" if unit == "token" else "*"
    return _percent(figures.share_ratio), f"{mark}{figures.steps_per_s:.1f}", cv


def _sum_rows(before: HalfFigures, after: HalfFigures) -> list[str]:
    """Below the shares, in their columns."""
    sums = (
        ("GPU busy, %", before.busy_ratio, after.busy_ratio),
        (
            "  without switching, %",
            before.busy_ratio - before.switch_ratio,
            after.busy_ratio - after.switch_ratio,
        ),
        ("largest error, points", before.largest_error_ratio, after.largest_error_ratio),
    )
    return [f"{name:<25}{_percent(left):>7}{_percent(right):>23}" for name, left, right in sums]


def notes(result: Result) -> list[str]:
    """What does not fit in a table, and the sentence that says what was seen."""
    daemon = result.daemon
    names = ", ".join(tenant.name for tenant in TENANTS if tenant.unit != "token")
    lines = wrap(
        f"* {names}: training steps. CV: of 1 s windows. The first {result.settle_s:.3g} s of each half are left "
        "out (settling). Shares are the simulated GPU's exact truth; account error is the daemon's against it.",
        rest="",
    )
    lines += wrap(
        f"Daemon: {daemon.cpu_ratio * 100:.1f} % of one CPU and {daemon.rss_bytes / 1e6:.0f} MB RSS "
        f"(helpers {daemon.helpers_rss_bytes / 1e6:.0f} MB) while scheduling.",
        rest="",
    )
    for warning in result.warnings:
        lines += wrap(f"Daemon warns: {warning}", rest="  ")
    return [*lines, "", *wrap(sentence(result), rest="")]


def sentence(result: Result) -> str:
    """What was seen, whichever it was."""
    before, after = result.unscheduled, result.scheduled
    name, worst = max(before.tenants.items(), key=lambda item: item[1].error_ratio)
    poorest, least = min(before.tenants.items(), key=lambda item: item[1].error_ratio)
    due = result.entitlement_ratio
    seen = (
        f"Unscheduled, {name} took {points(worst.share_ratio)} % of the GPU with {points(due[name])} % due, and "
        f"{poorest} got {points(least.share_ratio)} % of its {points(due[poorest])} %. "
    )
    if after.largest_error_ratio >= before.largest_error_ratio:
        return seen + (
            f"Scheduled, it was no better: {points(after.largest_error_ratio)} points off. "
            "Is this machine busy with something else?"
        )
    gain = after.tenants[poorest].steps_per_s / max(before.tenants[poorest].steps_per_s, 1e-9)
    return seen + (
        f"Scheduled, every tenant was within {points(after.largest_error_ratio)} points of its due, {poorest} was "
        f"{gain:.1f} times as fast, and the GPU was {after.busy_ratio * 100:.0f} % busy."
    )


def missed(result: Result, *, load_ratio: float) -> str | None:
    """Why the demo did not show what it promises; None where it did, or where its halves were too short to settle.

    ``load_ratio``: processes that ran or waited for a CPU, per CPU.
    """
    after, due = result.scheduled, result.entitlement_ratio
    if after.largest_error_ratio <= MISSED_RATIO or result.settle_s < SETTLE_S:
        return None
    name, off = max(after.tenants.items(), key=lambda item: abs(item[1].error_ratio))
    reasons = [f"the daemon warns: {warning}" for warning in result.warnings]
    for tenant, figures in after.tenants.items():
        if figures.account_error_ratio is not None and abs(figures.account_error_ratio) > _RIGHT_RATIO:
            error = _percent(figures.account_error_ratio, signed=True)
            reasons.append(f"the daemon's account of {tenant} was {error} % off")
    if load_ratio > 1:
        reasons.append(
            f"{load_ratio:.1f} processes a CPU wanted to run: this machine is busy with something else"
        )
    return (
        f"{name} ended {points(abs(off.error_ratio))} points from its due of {points(due[name])} %, "
        f"more than {points(MISSED_RATIO)}: " + ("; ".join(reasons) or "no reason was found")
    )


def document(result: Result, *, png: Path | None, has_real_gpu: bool) -> dict[str, Any]:
    """All of it for a machine. Ratios are 0..1; ``steps_per_s`` are tokens where ``unit`` says so."""
    before, after = result.unscheduled, result.scheduled
    rest = {
        key: value
        for key, value in dataclasses.asdict(result).items()
        if key not in ("unscheduled", "scheduled", "timeline", "entitlement_ratio")
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu": "simulated",
        "has_real_gpu": has_real_gpu,
        **rest,
        "tenants": [
            {
                "name": tenant.name,
                "weight": tenant.weight,
                "class": tenant.tenant_class,
                "unit": tenant.unit,
                "entitlement_ratio": result.entitlement_ratio[tenant.name],
                "unscheduled": dataclasses.asdict(before.tenants[tenant.name]),
                "scheduled": dataclasses.asdict(after.tenants[tenant.name]),
            }
            for tenant in TENANTS
        ],
        "unscheduled": _half_document(before),
        "scheduled": _half_document(after),
        "sentence": sentence(result),
        "png": None if png is None else str(png),
        "timeline": dataclasses.asdict(result.timeline),
    }


def _half_document(half: HalfFigures) -> dict[str, float]:
    return {
        "seconds": half.seconds,
        "busy_ratio": half.busy_ratio,
        "switch_ratio": half.switch_ratio,
        "largest_error_ratio": half.largest_error_ratio,
    }
