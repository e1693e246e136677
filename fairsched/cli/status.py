# SPDX-License-Identifier: Apache-2.0
"""``fairsched status``: one screen, one line per tenant, then why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import daemon_options, echo_json, json_option
from fairsched.cli.text import (
    cut,
    duration,
    gibibytes,
    milliseconds,
    misbehaviour_text,
    percent,
    reason_text,
    short_uuid,
    wrap,
)

if TYPE_CHECKING:
    from fairsched.control_client import ControlClient
    from fairsched.status import DecisionRecord, GpuStatus, StatusReport, TenantStatus

EPILOG = """\b
Columns:
  STATE     run, held, idle, exempt, unseen (no process of it opened a GPU),
            foreign (frozen by somebody else)
  ENTITLED  percent of what the GPU delivers that is its due now
  USED      percent it got in the last window
  LAG       ms of GPU time it is owed; negative = it is ahead
  QUEUE     ms its work waited while others ran, median
  HELD      ms it was held, per second
  CONF      how far its account can be believed; only "high" is held
A line that begins with ! names GPU work that never ends or cannot be seen.
Most overdrawn first. n/a = not known, which is not 0.
\b
Examples:
  fairsched status
  fairsched status --json | jq '.tenants[] | {name, used_ratio}'"""


@click.command("status", epilog=EPILOG)
@daemon_options
@json_option
def command(client: ControlClient, as_json: bool) -> None:
    """Who uses what, who is entitled to what, who is held and why."""
    from fairsched.errors import ControlError
    from fairsched.status import status_from_plain

    document = client.request("status")
    if as_json:
        echo_json(document)
        return
    try:
        report = status_from_plain(document)
    except (ValueError, TypeError, KeyError) as error:
        raise ControlError(
            f"the daemon's status cannot be understood: {error}",
            remedy="use the fairsched command of the same version as the daemon",
        ) from None
    click.echo("\n".join(render(report)))


def render(report: StatusReport) -> list[str]:
    """The screen, line by line, at most 80 columns each."""
    lines = _head(report)
    lines += [_gpu_line(gpu) for gpu in report.gpus] or ["no GPU known"]
    lines += ["", _TITLES, _UNITS]
    for tenant in sorted(report.tenants, key=_debt_first):
        lines.append(_tenant_line(tenant))
        lines += _why(tenant, report.t_ns, report.wall_time_s)
    if not report.tenants:
        lines.append("no tenants in the configuration")
    for warning in report.warnings:
        lines += wrap(warning, first="warning: ", rest="         ")
    return lines


def _head(report: StatusReport) -> list[str]:
    source = report.source.value if report.source is not None else "none"
    lines = wrap(
        f"fairsched {report.daemon_version}, mode {report.mode}, source {source}, tick {report.tick_ms} ms, "
        f"up {duration(report.uptime_s)}"
    )
    if report.fairness_error_ratio is not None:
        lines += wrap(
            f"largest unfairness in the last {report.window_s:g} s: "
            f"{percent(report.fairness_error_ratio)} points of a GPU"
        )
    for label, text in (
        ("mode", report.mode_reason),
        ("source", report.source_reason),
        ("reload failed, the old configuration is in effect", report.config_error),
    ):
        if text and not any(text in warning for warning in report.warnings):  # said once is enough
            lines += wrap(f"{label}: {text}")
    return lines


def _gpu_line(gpu: GpuStatus) -> str:
    index = "-" if gpu.index is None else str(gpu.index)
    line = f"GPU {index} {short_uuid(gpu.uuid)} {cut(gpu.name or '', 18):<18} "
    line += f"busy {percent(gpu.busy_ratio):>5} %"
    if gpu.memory_total_bytes is not None:
        line += f"  {gibibytes(gpu.memory_used_bytes)} of {gibibytes(gpu.memory_total_bytes)} GiB"
    if gpu.unmanaged_ratio:
        line = f"{line.rstrip()}\n      of which {percent(gpu.unmanaged_ratio)} % by processes of no tenant"
    return line.rstrip()


_TITLES = "TENANT             STATE   WEIGHT ENTITLED   USED     LAG   QUEUE   HELD  CONF"
_UNITS = "                                         %      %      ms  p50 ms   ms/s"


def _tenant_line(tenant: TenantStatus) -> str:
    mark = "*" if tenant.is_overridden else ""
    return (
        f"{cut(tenant.name, 18):<18} {tenant.state.value:<7} {cut(f'{tenant.weight:g}{mark}', 6):>6} "
        f"{percent(tenant.entitled_ratio):>8} {percent(tenant.used_ratio):>6} "
        f"{milliseconds(tenant.lag_ms, signed=True):>7} {milliseconds(tenant.queue_delay_p50_ms):>7} "
        f"{milliseconds(tenant.held_ms_per_s):>6}  {tenant.confidence.value}"
    )


def _why(tenant: TenantStatus, now_ns: int, now_s: float) -> list[str]:
    lines: list[str] = []
    for one in tenant.misbehaviours:
        lines += wrap(misbehaviour_text(one, now_s), first="  ! ", rest="    ")
    if tenant.last is not None:
        lines += wrap(_last(tenant.last, now_ns), first="  ", rest="    ")
    if tenant.note:
        lines += wrap(tenant.note, first="  ", rest="    ")
    return lines


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
