# SPDX-License-Identifier: Apache-2.0
"""Renders a status, of this host or of another: one screen, one line per tenant, then why.

The whole story of a busy node is longer than a terminal. What does not fit gives way in steps, so that the table
stays on one screen: first the last decision about those who are not held now, then about the others. What needs a
person (the lines with a ! and the warnings) never does.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairsched.base.printable import printable
from fairsched.base.text import WIDTH, counted, percent, wrap
from fairsched.cli.text import (
    cut,
    cut_name,
    duration,
    gibibytes,
    gpu_index,
    gpu_name,
    milliseconds,
    misbehaviour_text,
    reason_text,
    short_uuid,
    vram_text,
    with_unit,
)
from fairsched.model import Confidence

if TYPE_CHECKING:
    from fairsched.protocol.status import DecisionRecord, GpuStatus, StatusReport, TenantStatus

_MOST_NAMES = 4
SCREEN_LINES = 23
"""Of a terminal with 24, one of which the prompt takes."""


class Detail(enum.IntEnum):
    """How much is said."""

    FULL = 0
    HELD = 1
    """Why, in one line, of those who are held now."""
    TABLE = 2
    """Two GPUs in a line, and of the reasons only that there are some."""


def render(report: StatusReport, detail: Detail | None = None) -> list[str]:
    """The screen, line by line, at most 80 columns each. None: as much as fits on one, the table in any case."""
    if detail is not None:
        return _render(report, detail)
    screens = [_render(report, one) for one in Detail]
    return next((screen for screen in screens if len(screen) <= SCREEN_LINES), screens[-1])


def _render(report: StatusReport, detail: Detail) -> list[str]:
    lines = _head(report)
    lines += _gpu_lines(report.gpus, detail) or ["no GPU known"]
    lines += ["", _TITLES, _UNITS]
    for tenant in sorted(report.tenants, key=_debt_first):
        lines.append(_tenant_line(tenant))
        lines += _why(tenant, report.t_ns, report.wall_time_s, detail)
    if detail is not Detail.FULL:
        lines.append("why: fairsched status --full, fairsched explain TENANT")
    if not report.tenants:
        lines.append("no tenants in the configuration")
    for warning in report.warnings:
        lines += wrap(warning, first="warning: ", rest="         ")
    return lines


def _head(report: StatusReport) -> list[str]:
    source = report.source.value if report.source is not None else "none"
    if report.gpus and all(gpu.is_traced for gpu in report.gpus):
        source += " with trace"
    lines = wrap(
        f"fairsched {report.daemon_version}, mode {report.mode}, source {source}, tick {report.tick_ms} ms, "
        f"up {duration(report.uptime_s)}"
    )
    if report.fairness_error_ratio is not None:
        lines += wrap(
            f"largest unfairness in the last {report.window_s:g} s: "
            f"{percent(report.fairness_error_ratio)} points of a GPU{_account_error(report)}"
        )
    lines += _slis(report)
    lines += _gate(report)
    for label, text in (
        ("mode", report.mode_reason),
        ("source", report.source_reason),
        ("reload failed, the old configuration is in effect", report.config_error),
    ):
        if text and not any(text in warning for warning in report.warnings):  # said once is enough
            lines += wrap(f"{label}: {text}")
    return lines


def _account_error(report: StatusReport) -> str:
    points = report.source_error_points.get("60")
    return "" if points is None else f"; account +-{points:.0f} a minute"


def _slis(report: StatusReport) -> list[str]:
    """Nothing where nobody measures them."""
    slis = report.slis
    if slis is None:
        return []
    verdict = {True: ": fair", False: ": unfair", None: ""}[slis.is_fair]
    if slis.token_rate_reason and any(tenant.tokens for tenant in report.tenants):
        verdict = f": {slis.token_rate_reason}"
    window = "" if slis.window_s is None else f"last {slis.window_s:g} s: "
    return wrap(
        f"{window}queue delay p99 {with_unit(milliseconds(slis.queue_delay_p99_ms), 'ms')}, "
        f"SM stdev {with_unit(percent(slis.sm_utilization_stdev_ratio), '%')}, "
        f"token/s CV {with_unit(percent(slis.token_rate_cv_ratio), '%')}{verdict}"
    )


def _gate(report: StatusReport) -> list[str]:
    """Nothing where nobody asks for a gate; what keeps it from working is among the warnings."""
    gate = report.gate
    if gate is None or gate.state.value == "off":
        return []
    line = f"device gate: {gate.state.value}"
    if gate.attached:
        line += f", {counted(gate.rules, 'cgroup')} with a rule, in {', '.join(gate.attached)}"
    elif gate.reason and gate.state.value == "waiting":
        line += f" ({gate.reason})"
    refused = [f"{name or 'no tenant'} {count}" for name, count in sorted(gate.denied.items())]
    if refused:
        line += f"; opens refused: {', '.join(refused)}"
    return wrap(line)


def _gpu_lines(gpus: Sequence[GpuStatus], detail: Detail) -> list[str]:
    if detail is not Detail.TABLE or len(gpus) < 3:
        return [_gpu_line(gpu) for gpu in gpus]
    cells = [
        f"GPU {gpu_index(gpu):<2} busy {percent(gpu.busy_ratio):>5} %  "
        f"{gibibytes(gpu.memory_used_bytes):>5}/{gibibytes(gpu.memory_total_bytes):>5} GiB"
        for gpu in gpus
    ]
    return [
        f"{left:<40}{right}".rstrip() for left, right in zip(cells[::2], [*cells[1::2], ""], strict=False)
    ]


def _gpu_line(gpu: GpuStatus) -> str:
    line = f"GPU {gpu_index(gpu)} {short_uuid(gpu.uuid)} {cut(gpu_name(gpu), 18):<18} "
    line += f"busy {percent(gpu.busy_ratio):>5} %"
    if gpu.memory_total_bytes is not None:
        line += f"  {gibibytes(gpu.memory_used_bytes)} of {gibibytes(gpu.memory_total_bytes)} GiB"
    if gpu.unmanaged_ratio:
        line = f"{line.rstrip()}\n      of which {percent(gpu.unmanaged_ratio)} % by processes of no tenant"
    return line.rstrip()


_TITLES = "TENANT             STATE   WEIGHT ENTITLED   USED     LAG   QUEUE   HELD  ERR"
_UNITS = "                                         %      %      ms  p50 ms   ms/s  +-%"


def _tenant_line(tenant: TenantStatus) -> str:
    mark = "*" if tenant.is_overridden else ""
    return (
        f"{cut_name(tenant.name, 18):<18} {tenant.state.value:<7} {cut(f'{tenant.weight:g}{mark}', 6):>6} "
        f"{percent(tenant.entitled_ratio):>8} {percent(tenant.used_ratio):>6} "
        f"{milliseconds(tenant.lag_ms, signed=True):>7} {milliseconds(tenant.queue_delay_p50_ms):>7} "
        f"{milliseconds(tenant.held_ms_per_s):>6} {_error(tenant):>4}"
    )


def _error(tenant: TenantStatus) -> str:
    """How far its use may be off, in percent of it; a word where that is not known."""
    error_ratio = tenant.error_ratio
    if tenant.confidence is Confidence.NONE:
        return "none"
    if tenant.confidence is Confidence.LOW:
        return "low"
    if error_ratio is None:
        return "n/a"
    return ">99" if error_ratio >= 0.995 else f"{100 * error_ratio:.0f}"


def _why(tenant: TenantStatus, now_ns: int, now_s: float, detail: Detail) -> list[str]:
    if detail is not Detail.FULL:
        return _briefly(tenant, now_ns, now_s, detail)
    lines = _known_as(tenant)
    for one in tenant.misbehaviours:
        lines += wrap(misbehaviour_text(one, now_s), first="  ! ", rest="    ")
    for is_over, text in (vram_text(one, now_s) for one in tenant.vram):
        lines += wrap(text, first="  ! " if is_over else "  ", rest="    ")
    lines += _tokens(tenant)
    lines += wrap(f"by {tenant.policy}", first="  ", rest="    ") if tenant.policy else []
    if tenant.last is not None:
        lines += wrap(_last(tenant.last, now_ns), first="  ", rest="    ")
    if tenant.note:
        lines += wrap(tenant.note, first="  ", rest="    ")
    return lines


def _known_as(tenant: TenantStatus) -> list[str]:
    """What people call its cgroups; nothing where they have paths only."""
    if not tenant.known_as:
        return []
    more = len(tenant.known_as) - _MOST_NAMES
    text = ", ".join(tenant.known_as[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return wrap(printable(text), first="  ", rest="    ")


def _briefly(tenant: TenantStatus, now_ns: int, now_s: float, detail: Detail) -> list[str]:
    """One line for each thing."""
    lines = [f"  ! {misbehaviour_text(one, now_s)}" for one in tenant.misbehaviours]
    lines += [f"  ! {text}" for is_over, text in (vram_text(one, now_s) for one in tenant.vram) if is_over]
    if tenant.tokens is not None and tenant.tokens.note:
        lines.append(f"  ! {tenant.tokens.note}")
    if detail is Detail.HELD and tenant.state.value == "held" and tenant.last is not None:
        lines.append(f"  {_last(tenant.last, now_ns)}")
    return [cut(line, WIDTH) for line in lines]


def _tokens(tenant: TenantStatus) -> list[str]:
    """Nothing for tenants without token counters."""
    rate = tenant.tokens
    if rate is None:
        return []
    if rate.note:
        times = f" ({rate.failures} times so far)" if rate.failures > 1 else ""
        return wrap(f"{rate.note}{times}", first="  ! ", rest="    ")
    if rate.tokens_per_s is None:
        return []
    steady = "" if rate.cv_ratio is None else f", CV in time {percent(rate.cv_ratio)} %"
    return [f"  {rate.tokens_per_s:.1f} token/s{steady}"]


def _last(record: DecisionRecord, now_ns: int) -> str:
    ago = duration_ms(max(0, now_ns - record.t_ns))
    verb = "held" if record.action.value == "hold" else "thawed"
    would = "would have been " if record.is_dry_run else ""
    after = "" if record.held_ns is None else f" after {duration_ms(record.held_ns)}"
    failed = f"; failed: {record.error}" if record.error else ""
    return f"{would}{verb} {ago} ago{after}: {reason_text(record.reason)}{failed}"


def duration_ms(value_ns: int) -> str:
    """Milliseconds below 10 s, then words."""
    return f"{milliseconds(value_ns / 1e6)} ms" if value_ns < 10_000_000_000 else duration(value_ns / 1e9)


def _debt_first(tenant: TenantStatus) -> tuple[float, str]:
    return (math.inf if tenant.lag_ms is None else tenant.lag_ms, tenant.name)
