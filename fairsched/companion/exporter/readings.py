# SPDX-License-Identifier: Apache-2.0
"""From a status report to the rows of a page (pure). Nothing is kept: who is not in the report is not on the page.

Cardinality: a tenant that is not there any more is gone from the next page. There may be more tenants than a Prometheus
wants series of: the first ``most_tenants`` by name have series of their own; the
others are counted in fairsched_exporter_tenants_left_out and are in no other series. They are not added up under a
made-up name: a sum of counters falls when a tenant goes, and a rate of it would be nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairsched.companion.exporter.book import Book
from fairsched.model import Confidence
from fairsched.protocol.losses import DRIVER_LOSSES, GPU_TIME_LOSSES
from fairsched.protocol.status import GateState, StatusReport, TenantState, TenantStatus

MOST_TENANTS = 256


@dataclass(frozen=True)
class Own:
    """What the exporter knows of itself."""

    requests: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    render_s: float | None = None
    age_s: float | None = None
    """Of the report."""


def read(report: StatusReport | None, own: Own, most_tenants: int = MOST_TENANTS) -> Book:
    """One page. ``report`` None: the daemon does not answer."""
    book = Book()
    book.add("fairsched_up", (), int(report is not None))
    _exporter(book, own)
    if report is None:
        return book
    tenants = report.tenants[:most_tenants]
    book.add("fairsched_exporter_tenants_left_out", (), len(report.tenants) - len(tenants))
    book.add("fairsched_snapshot_age_seconds", (), own.age_s)
    _daemon(book, report)
    _cost(book, report)
    _bpf(book, report)
    _gate(book, report)
    _gpus(book, report)
    _slis(book, report)
    for tenant in tenants:
        _shares(book, tenant)
        _holds(book, tenant)
        _vram(book, tenant)
        if report.driver_hook is not None:
            _driver(book, tenant)
    if report.driver_hook is not None:
        book.add_all("fairsched_driver_missed", (), report.driver_counts)
    return book


def _exporter(book: Book, own: Own) -> None:
    book.add_all("fairsched_exporter_requests", (), own.requests)
    book.add_all("fairsched_exporter_refused", (), own.refused)
    book.add("fairsched_exporter_render_seconds", (), own.render_s)


def _daemon(book: Book, report: StatusReport) -> None:
    book.add("fairsched_build", (report.daemon_version,), 1)
    book.add("fairsched_mode", (report.mode,), 1)
    if report.source is not None:
        book.add("fairsched_source", (report.source.value,), 1)
        for window_s, points in report.source_error_points.items():
            book.add("fairsched_source_error_points", (window_s,), points)
    book.add_all("fairsched_nvml_odd_answers", (), report.nvml_counts)
    book.add_all("fairsched_trace_oddities", (), report.trace_counts)
    book.add("fairsched_start_time_seconds", (), report.wall_time_s - report.uptime_s)
    book.add("fairsched_config_error", (), int(report.config_error is not None))
    book.add("fairsched_warnings", (), len(report.warnings))
    book.add("fairsched_window_seconds", (), report.window_s)
    book.add("fairsched_fairness_error_ratio", (), report.fairness_error_ratio)
    if report.pid_view is not None:
        book.add("fairsched_pid_view", (), int(report.pid_view["is_on"]))
    if report.companion is not None:
        book.add("fairsched_companion_up", (), int(report.companion.pid is not None))
        book.add("fairsched_companion_restarts", (), max(0, report.companion.starts - 1))


def _cost(book: Book, report: StatusReport) -> None:
    book.add("fairsched_cpu_ratio", (), report.cpu_ratio)
    book.add("fairsched_late_ticks", (), report.late_ticks_total)
    own = report.own
    if own is None:
        return
    for process in own.processes:
        book.add("fairsched_process_cpu_seconds", (process.role,), process.cpu_s)
        book.add("fairsched_process_resident_bytes", (process.role,), process.resident_bytes)
    book.add_histogram("fairsched_tick_duration_seconds", (), own.ticks)
    book.add("fairsched_failed_ticks", (), own.errors.get("tick"))
    book.add_all("fairsched_errors", (), own.errors)
    book.add_all("fairsched_control_requests", (), own.control)
    for one in own.maps:
        book.add("fairsched_bpf_map_entries", (one.name,), one.entries)
        book.add("fairsched_bpf_map_capacity_entries", (one.name,), one.capacity)
        book.add("fairsched_bpf_map_memory_bytes", (one.name,), one.memory_bytes)


def _bpf(book: Book, report: StatusReport) -> None:
    counts = {"gpu_time": report.bpf_counts}
    if report.driver_hook is not None:
        counts["driver"] = report.driver_counts
    if report.pid_view is not None:
        view = report.pid_view.get("counts", {})
        counts["pid_view"] = {what: count for what, count in view.items() if what not in _VIEW_WORK}
    losses = {"gpu_time": GPU_TIME_LOSSES, "driver": DRIVER_LOSSES, "pid_view": ()}
    for programs, by_what in counts.items():
        for what, count in by_what.items():
            is_loss = what in losses[programs]
            name = "fairsched_bpf_dropped" if is_loss else "fairsched_bpf_errors"
            book.add(name, (programs, what), count)


_VIEW_WORK = ("lists", "infos", "samples", "hidden", "changed")
"""What the programs for containers' process lists do all day."""


def _gate(book: Book, report: StatusReport) -> None:
    if report.gate is None or report.gate.state is GateState.OFF:
        return
    book.add("fairsched_device_gate", (), int(report.gate.state is GateState.ON))
    book.add_all("fairsched_denied_opens", (), report.gate.denied)
    book.add("fairsched_blind_opens", (), report.gate.blind)


def _gpus(book: Book, report: StatusReport) -> None:
    for gpu in report.gpus:
        uuid = (gpu.uuid,)
        index = "" if gpu.index is None else str(gpu.index)
        book.add("fairsched_gpu", (gpu.uuid, index, gpu.name or ""), 1)
        if gpu.parent_uuid is not None:
            ids = (str(gpu.gpu_instance), str(gpu.compute_instance), gpu.mig_profile or "")
            book.add("fairsched_mig", (gpu.uuid, gpu.parent_uuid, *ids), 1)
        book.add("fairsched_gpu_up", uuid, None if gpu.is_up is None else int(gpu.is_up))
        book.add("fairsched_gpu_busy_ratio", uuid, gpu.busy_ratio)
        book.add("fairsched_gpu_unmanaged_ratio", uuid, gpu.unmanaged_ratio)
        book.add("fairsched_gpu_traced", uuid, None if gpu.is_traced is None else int(gpu.is_traced))
        book.add("fairsched_account_contradictions", uuid, gpu.contradictions_total)
        book.add("fairsched_gpu_utilization_ratio", uuid, gpu.utilization_ratio)
        book.add("fairsched_gpu_memory_used_bytes", uuid, gpu.memory_used_bytes)
        book.add("fairsched_gpu_memory_total_bytes", uuid, gpu.memory_total_bytes)
        book.add("fairsched_gpu_temperature_celsius", uuid, gpu.temperature_celsius)
        book.add("fairsched_gpu_power_watts", uuid, gpu.power_watts)
        book.add("fairsched_gpu_power_limit_watts", uuid, gpu.power_limit_watts)
        book.add_all("fairsched_gpu_pcie_bytes_per_second", uuid, gpu.pcie_bytes_per_s)
        book.add("fairsched_fairness_jain_ratio", uuid, gpu.jain_ratio)


def _slis(book: Book, report: StatusReport) -> None:
    slis = report.slis
    if slis is None:
        return
    p99_ms = slis.queue_delay_p99_ms
    book.add("fairsched_sli_queue_delay_p99_seconds", (), None if p99_ms is None else p99_ms / 1e3)
    floor_ms = slis.queue_delay_floor_ms
    book.add("fairsched_sli_queue_delay_floor_seconds", (), None if floor_ms is None else floor_ms / 1e3)
    book.add("fairsched_sli_sm_utilization_stdev_ratio", (), slis.sm_utilization_stdev_ratio)
    book.add("fairsched_sli_token_rate_cv_ratio", (), slis.token_rate_cv_ratio)
    book.add("fairsched_is_fair", (), None if slis.is_fair is None else int(slis.is_fair))


def _shares(book: Book, tenant: TenantStatus) -> None:
    name = (tenant.name,)
    book.add_all("fairsched_gpu_time_seconds", name, tenant.gpu_time_by_gpu_s)
    for gpu in tenant.gpus:
        where = (tenant.name, gpu.uuid)
        book.add("fairsched_entitlement_ratio", where, gpu.entitled_ratio)
        book.add("fairsched_share_ratio", where, gpu.used_ratio)
        book.add("fairsched_share_error_ratio", where, gpu.error_ratio)
        book.add("fairsched_lag_seconds", where, None if gpu.lag_ms is None else gpu.lag_ms / 1e3)
        book.add("fairsched_drain_seconds", where, None if gpu.drain_ms is None else gpu.drain_ms / 1e3)
    for uuid, histogram in tenant.queue_delays.items():
        book.add_histogram("fairsched_queue_delay_seconds", (tenant.name, uuid), histogram)
    book.add("fairsched_tenant", (tenant.name, tenant.tenant_class.value), 1)
    book.add("fairsched_weight", name, tenant.weight)
    book.add("fairsched_quota_ratio", name, tenant.quota_ratio)
    for state in TenantState:
        book.add("fairsched_tenant_state", (tenant.name, state.value), int(tenant.state is state))
    known = {tenant.confidence, *(gpu.confidence for gpu in tenant.gpus)} - {Confidence.NONE}
    if known:
        book.add("fairsched_low_confidence", name, int(Confidence.LOW in known))
    if tenant.tokens is not None:
        book.add("fairsched_tokens_per_second", name, tenant.tokens.tokens_per_s)
        book.add("fairsched_token_rate_cv_ratio", name, tenant.tokens.cv_ratio)
        book.add("fairsched_token_page_failures", name, tenant.tokens.failures)


def _holds(book: Book, tenant: TenantStatus) -> None:
    name = (tenant.name,)
    book.add_all("fairsched_holds", name, tenant.holds)
    book.add_all("fairsched_thaws", name, tenant.thaws)
    book.add_all("fairsched_held_seconds", name, tenant.held_by_reason_s)
    book.add("fairsched_hold_age_seconds", name, tenant.hold_age_s)
    book.add("fairsched_hold_limit_seconds", name, tenant.hold_limit_s)
    for one in tenant.misbehaviours:
        book.add("fairsched_misbehaving", (tenant.name, one.gpu, one.kind.value), 1)
    book.add_all("fairsched_terminations", name, tenant.terminations)


def _driver(book: Book, tenant: TenantStatus) -> None:
    """Only where calls to the driver are seen."""
    name = (tenant.name,)
    book.add_all("fairsched_contexts", name, tenant.contexts_by_gpu)
    book.add_all("fairsched_vram_bytes", name, tenant.vram_by_gpu_bytes)
    calls = tenant.driver_calls
    if calls is not None:
        book.add("fairsched_driver_ioctls", name, calls.ioctls)
        book.add("fairsched_driver_ioctls_failed", name, calls.failed)
        book.add("fairsched_driver_ioctl_seconds", name, calls.time_s)
        book.add("fairsched_driver_opens", name, calls.opens)


def _vram(book: Book, tenant: TenantStatus) -> None:
    """Only of tenants that have a limit."""
    book.add("fairsched_vram_limit_bytes", (tenant.name,), tenant.vram_limit_bytes)
    for one in tenant.vram:
        where = (tenant.name, one.gpu)
        book.add("fairsched_vram_limited_bytes", where, one.used_bytes)
        book.add("fairsched_vram_over", where, int(one.over_since_s is not None))
        book.add("fairsched_vram_refused", where, one.refused)
