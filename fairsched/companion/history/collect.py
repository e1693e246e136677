# SPDX-License-Identifier: Apache-2.0
"""The moments of one interval, summed up into the rows that stand for it. Pure.

How: levels (shares, lag, memory) are averaged over the moments in which they were known; counters (GPU time, time
held, the histograms of delays) are differences, so nothing between two moments is lost.
An entitlement without demand is 0, as nothing was due; so what was used and what was due can be compared over the
whole interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairsched.model import ActionKind
from fairsched.protocol.delays import median_and_p99_ms
from fairsched.protocol.status import DecisionRecord, StatusReport, TenantStatus


@dataclass(frozen=True)
class NodeRow:
    span_s: float
    """Time that the rows stand for."""
    mode: str
    is_gapless: bool
    """False: decisions of the interval may be missing."""
    fairness_error_ratio: float | None
    queue_delay_p99_ms: float | None
    sm_utilization_stdev_ratio: float | None
    token_rate_cv_ratio: float | None
    cpu_ratio: float | None


@dataclass(frozen=True)
class GpuRow:
    gpu: str
    """UUID."""
    busy_ratio: float | None
    unmanaged_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True)
class TenantRow:
    tenant: str
    state: str
    """The one it was in most often."""
    weight: float
    held_s: float | None
    queue_delay_p50_ms: float | None
    queue_delay_p99_ms: float | None
    tokens_per_s: float | None
    vram_bytes: int | None


@dataclass(frozen=True)
class ShareRow:
    tenant: str
    gpu: str
    used_ratio: float | None
    entitled_ratio: float | None
    lag_ms: float | None
    """The largest debt or credit of the moments."""
    gpu_time_s: float | None


@dataclass(frozen=True)
class DecisionRow:
    tenant: str
    action: str
    reason: str
    is_dry_run: bool
    count: int
    failed: int
    held_s: float | None
    """Length of the holds that ended with it; None for holds."""


@dataclass(frozen=True)
class Rows:
    """What is kept of one interval."""

    t: int
    """Its end, in Unix seconds."""
    node: NodeRow
    gpus: tuple[GpuRow, ...] = ()
    tenants: tuple[TenantRow, ...] = ()
    shares: tuple[ShareRow, ...] = ()
    decisions: tuple[DecisionRow, ...] = ()


@dataclass
class Collector:
    """Hand it every moment; it hands back rows when an interval is over."""

    interval_s: float
    _first: StatusReport | None = None
    """Of the interval before, or the first ever: what the counters are counted from."""
    _reports: list[StatusReport] = field(default_factory=list)
    _decisions: list[DecisionRecord] = field(default_factory=list)
    _is_gapless: bool = True

    def add(
        self, report: StatusReport, decisions: Iterable[DecisionRecord] = (), *, is_gapless: bool = True
    ) -> Rows | None:
        """The rows of the interval that ends with this moment, if one does."""
        if self._first is not None and self._first.pid != report.pid:
            self._begin(report)  # another daemon: its counters begin anew
            self._is_gapless = False
        if self._first is None:
            self._begin(report)
            self._is_gapless = is_gapless
            self._decisions += decisions
            return None
        self._reports.append(report)
        self._decisions += decisions
        self._is_gapless = self._is_gapless and is_gapless
        if (report.t_ns - self._first.t_ns) / 1e9 < self.interval_s:
            return None
        rows = sum_up(self._first, self._reports, self._decisions, is_gapless=self._is_gapless)
        self._begin(report)
        return rows

    def _begin(self, report: StatusReport) -> None:
        self._first = report
        self._reports, self._decisions, self._is_gapless = [], [], True


def sum_up(
    before: StatusReport,
    reports: Sequence[StatusReport],
    decisions: Iterable[DecisionRecord],
    *,
    is_gapless: bool = True,
) -> Rows:
    """`reports` are the moments of the interval, at least one; `before` is the one before it."""
    last = reports[-1]
    slis = [report.slis for report in reports if report.slis is not None]
    node = NodeRow(
        span_s=(last.t_ns - before.t_ns) / 1e9,
        mode=last.mode,
        is_gapless=is_gapless,
        fairness_error_ratio=_mean(report.fairness_error_ratio for report in reports),
        queue_delay_p99_ms=_most(one.queue_delay_p99_ms for one in slis),
        sm_utilization_stdev_ratio=_mean(one.sm_utilization_stdev_ratio for one in slis),
        token_rate_cv_ratio=_mean(one.token_rate_cv_ratio for one in slis),
        cpu_ratio=_mean(report.cpu_ratio for report in reports),
    )
    first = {tenant.name: tenant for tenant in before.tenants}
    moments: dict[str, list[TenantStatus]] = {}
    for report in reports:
        for tenant in report.tenants:
            moments.setdefault(tenant.name, []).append(tenant)
    return Rows(
        t=round(last.wall_time_s),
        node=node,
        gpus=tuple(_gpus(reports)),
        tenants=tuple(_tenant(first.get(name, seen[0]), seen) for name, seen in moments.items()),
        shares=tuple(
            row for name, seen in moments.items() for row in _shares(first.get(name, seen[0]), seen)
        ),
        decisions=tuple(_decisions(decisions)),
    )


def _gpus(reports: Sequence[StatusReport]) -> Iterable[GpuRow]:
    for gpu in reports[-1].gpus:
        seen = [one for report in reports for one in report.gpus if one.uuid == gpu.uuid]
        yield GpuRow(
            gpu.uuid,
            _mean(one.busy_ratio for one in seen),
            _mean(one.unmanaged_ratio for one in seen),
            gpu.memory_used_bytes,
            gpu.memory_total_bytes,
        )


def _tenant(before: TenantStatus, seen: Sequence[TenantStatus]) -> TenantRow:
    last = seen[-1]
    states = [one.state.value for one in seen]
    rates = [one.tokens.tokens_per_s if one.tokens is not None else None for one in seen]
    median_ms, p99_ms = median_and_p99_ms(before.queue_delays, last.queue_delays)
    return TenantRow(
        tenant=last.name,
        state=max(states, key=states.count),
        weight=last.weight,
        held_s=_grown(before.held_s, last.held_s),
        queue_delay_p50_ms=median_ms,
        queue_delay_p99_ms=p99_ms,
        tokens_per_s=_mean(rates),
        vram_bytes=sum(last.vram_by_gpu_bytes.values()) if last.vram_by_gpu_bytes else None,
    )


def _shares(before: TenantStatus, seen: Sequence[TenantStatus]) -> Iterable[ShareRow]:
    last = seen[-1]
    uuids = dict.fromkeys(gpu.uuid for one in seen for gpu in one.gpus)
    for uuid in uuids:
        moments = [gpu for one in seen for gpu in one.gpus if gpu.uuid == uuid]
        lags = [gpu.lag_ms for gpu in moments if gpu.lag_ms is not None]
        yield ShareRow(
            tenant=last.name,
            gpu=uuid,
            used_ratio=_mean(gpu.used_ratio for gpu in moments),
            entitled_ratio=_mean(
                0.0 if gpu.entitled_ratio is None and gpu.has_demand is False else gpu.entitled_ratio
                for gpu in moments
            ),
            lag_ms=max(lags, key=abs, default=None),
            gpu_time_s=_grown(before.gpu_time_by_gpu_s.get(uuid, 0.0), last.gpu_time_by_gpu_s.get(uuid)),
        )


def _decisions(decisions: Iterable[DecisionRecord]) -> Iterable[DecisionRow]:
    groups: dict[tuple[str, str, str, bool], list[DecisionRecord]] = {}
    for one in decisions:
        key = (one.tenant, one.action.value, one.reason.code.value, one.is_dry_run)
        groups.setdefault(key, []).append(one)
    for (tenant, action, reason, is_dry_run), group in groups.items():
        held = None
        if action == ActionKind.THAW.value:
            held = sum(one.held_ns or 0 for one in group) / 1e9
        failed = sum(one.error is not None for one in group)
        yield DecisionRow(tenant, action, reason, is_dry_run, len(group), failed, held)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _grown(before: float | None, now: float | None) -> float | None:
    """How much a counter grew; one that is smaller than before has begun anew."""
    if before is None or now is None:
        return None
    return now - before if before <= now else now
