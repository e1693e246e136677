# SPDX-License-Identifier: Apache-2.0
"""Renders what agents of many nodes say, for ``kubectl fairsched``: at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairsched.base.printable import printable
from fairsched.base.text import counted, percent, wrap
from fairsched.cli.text import cut, cut_name, gibibytes, gpu_index, gpu_name, milliseconds

if TYPE_CHECKING:
    from fairsched.protocol.status import StatusReport, TenantStatus

_TITLES = "TENANT                   STATE   WEIGHT ENTITLED   USED     LAG   QUEUE   HELD"
_UNITS = "                                               %      %      ms  p50 ms   ms/s"
_SHARES = "TENANT                            NODES WEIGHT   USED ENTITLED   GPU TIME   VRAM"
_SHARE_UNITS = "                                               GPUs      GPUs          s    GiB"


@dataclass(frozen=True)
class Node:
    """A node and its status."""

    name: str
    report: StatusReport


def top(nodes: Iterable[Node], namespace: str | None) -> list[str]:
    """A table per node, most overdrawn first."""
    lines: list[str] = []
    for node in nodes:
        report = node.report
        lines += wrap(f"node {node.name}: mode {report.mode}, {_unfair(report)}")
        for gpu in report.gpus:
            memory = ""
            if gpu.memory_total_bytes is not None:
                memory = f"  {gibibytes(gpu.memory_used_bytes)} of {gibibytes(gpu.memory_total_bytes)} GiB"
            busy = f"busy {percent(gpu.busy_ratio):>5} %"
            lines.append(f"  GPU {gpu_index(gpu)} {cut(gpu_name(gpu), 24):<24} {busy}{memory}")
        tenants = [one for one in report.tenants if is_of(one.name, namespace)]
        if tenants:
            lines += [_TITLES, _UNITS, *map(_tenant, sorted(tenants, key=_debt_first))]
        else:
            lines.append("  no tenant" + (f" of {namespace}" if namespace else ""))
        lines.append("")
    return lines[:-1]


def _unfair(report: StatusReport) -> str:
    if report.fairness_error_ratio is None:
        return f"fairsched {report.daemon_version}"
    return f"largest unfairness {percent(report.fairness_error_ratio)} points"


def is_of(tenant: str, namespace: str | None) -> bool:
    """Whether a tenant is a namespace, or a pod of it."""
    return namespace is None or tenant == namespace or tenant.startswith(f"{namespace}/")


def _tenant(one: TenantStatus) -> str:
    return (
        f"{cut_name(printable(one.name), 24):<24} {one.state.value:<7} {cut(f'{one.weight:g}', 6):>6} "
        f"{percent(one.entitled_ratio):>8} {percent(one.used_ratio):>6} "
        f"{milliseconds(one.lag_ms, signed=True):>7} {milliseconds(one.queue_delay_p50_ms):>7} "
        f"{milliseconds(one.held_ms_per_s):>6}"
    )


def _debt_first(one: TenantStatus) -> tuple[float, str]:
    return (float("inf") if one.lag_ms is None else one.lag_ms, one.name)


@dataclass
class Share:
    """One tenant over all nodes. None: no node knows it."""

    tenant: str
    nodes: int = 0
    weights: tuple[float, ...] = ()
    used_gpus: float | None = None
    entitled_gpus: float | None = None
    gpu_time_s: float | None = None
    vram_bytes: int | None = None


def shares(nodes: Iterable[Node], namespace: str | None) -> list[Share]:
    """What each tenant has of all GPUs together, the largest first."""
    found: dict[str, Share] = {}
    for node in nodes:
        for one in node.report.tenants:
            if not is_of(one.name, namespace):
                continue
            share = found.setdefault(one.name, Share(one.name))
            share.nodes += 1
            share.weights = tuple(sorted({*share.weights, one.weight}))
            share.used_gpus = _sum(share.used_gpus, [gpu.used_ratio for gpu in one.gpus])
            share.entitled_gpus = _sum(share.entitled_gpus, [gpu.entitled_ratio for gpu in one.gpus])
            share.gpu_time_s = _sum(share.gpu_time_s, [one.gpu_time_s])
            if one.vram_by_gpu_bytes:
                share.vram_bytes = (share.vram_bytes or 0) + sum(one.vram_by_gpu_bytes.values())
    return sorted(found.values(), key=lambda one: (-(one.used_gpus or 0.0), one.tenant))


def _sum(before: float | None, values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return before if not known else (before or 0.0) + sum(known)


def shares_text(found: Sequence[Share]) -> list[str]:
    """The table."""
    if not found:
        return ["no tenant"]
    return [_SHARES, _SHARE_UNITS, *map(_share, found)]


def _share(one: Share) -> str:
    low, high = one.weights[0], one.weights[-1]
    weight = f"{low:g}" if low == high else f"{low:g}-{high:g}"
    return (
        f"{cut_name(printable(one.tenant), 33):<33} {one.nodes:>5} {cut(weight, 6):>6} {_number(one.used_gpus, 2):>6} "
        f"{_number(one.entitled_gpus, 2):>8} {_number(one.gpu_time_s, 1):>10} {gibibytes(one.vram_bytes):>6}"
    )


def _number(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def failures(errors: Mapping[str, str], total: int) -> list[str]:
    """Nodes that did not answer, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for node, why in sorted(errors.items()):
        by_reason.setdefault(why, []).append(node)
    lines: list[str] = []
    for why, names in by_reason.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        lines += wrap(f"{', '.join(names[:4])}{more}: {why}", first="! ", rest="  ")
    if errors:
        lines.append(f"{len(errors)} of {counted(total, 'node')} did not answer")
    return lines
