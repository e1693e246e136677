# SPDX-License-Identifier: Apache-2.0
"""Fills the status document from what the daemon knows. Reads only; never holds up a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from fairsched import __version__
from fairsched.accounting.queue_delay import quantile_ms
from fairsched.apply import Applier
from fairsched.gpu import GpuUse, gpu_label
from fairsched.ledger import Ledger
from fairsched.misbehaviour import Misbehaviour
from fairsched.model import Confidence, ShareView, Source, TenantSpec
from fairsched.observe import TenantView, Tree
from fairsched.sensors import Sensors
from fairsched.settings import Settings
from fairsched.status import (
    DecisionRecord,
    GpuStatus,
    StatusReport,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
)

_HELD_WINDOW_NS = 10_000_000_000


@dataclass(frozen=True)
class Vitals:
    """The daemon about itself."""

    started_ns: int
    now_ns: int
    mode: str
    mode_reason: str | None
    tick_ms: int
    cpu_ratio: float | None
    late_ticks: int
    errors: int


@dataclass
class _Past:
    """What is on record, by tenant: gone through once for all of them."""

    total_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    """GPU time by UUID."""
    last: dict[str, DecisionRecord] = field(default_factory=dict)
    recently_held_ns: dict[str, int] = field(default_factory=dict)
    """Of holds that ended in the last ten seconds."""

    @classmethod
    def of(cls, ledger: Ledger, records: Sequence[DecisionRecord], now_ns: int) -> _Past:
        past, begin_ns = cls(), now_ns - _HELD_WINDOW_NS
        for (tenant, gpu), ns in ledger.total_ns.items():
            past.total_ns.setdefault(tenant, {})[gpu] = ns
        for record in records:
            past.last[record.tenant] = record
            if record.held_ns is not None and record.t_ns >= begin_ns:
                known_ns = past.recently_held_ns.get(record.tenant, 0)
                past.recently_held_ns[record.tenant] = known_ns + min(record.held_ns, record.t_ns - begin_ns)
        return past


def build_status(
    vitals: Vitals,
    settings: Settings,
    sensors: Sensors,
    tree: Tree,
    applier: Applier,
    ledger: Ledger,
    misbehaviour: Misbehaviour,
    shares: Iterable[ShareView],
    specs: Mapping[str, TenantSpec],
) -> StatusReport:
    """One document for ``fairsched status``."""
    by_tenant: dict[str, list[ShareView]] = {}
    for share in shares:
        by_tenant.setdefault(share.tenant, []).append(share)
    delays = _delays(sensors, tree)
    inner = {name.rpartition("/")[0] for name in (*specs, *tree.tenants)}
    names = sorted({*specs, *tree.tenants} - (inner - tree.tenants.keys()))
    past = _Past.of(ledger, applier.records, vitals.now_ns)
    parts = (vitals, settings, tree, applier, past, misbehaviour)
    tenants = tuple(_tenant(name, *parts, by_tenant.get(name, []), specs, delays, sensors) for name in names)
    errors = [
        abs(gpu.entitled_ratio - gpu.used_ratio)
        for tenant in tenants
        for gpu in tenant.gpus
        if gpu.has_demand and gpu.entitled_ratio is not None and gpu.used_ratio is not None
    ]
    return StatusReport(
        daemon_version=__version__,
        pid=os.getpid(),
        t_ns=vitals.now_ns,
        wall_time_s=time.time(),
        uptime_s=(vitals.now_ns - vitals.started_ns) / 1e9,
        mode=vitals.mode,
        mode_reason=vitals.mode_reason,
        tick_ms=vitals.tick_ms,
        window_s=settings.config.window_s,
        source=sensors.source,
        source_reason=sensors.reason,
        config_path=settings.display_path,
        config_error=settings.error,
        fairness_error_ratio=max(errors, default=None),
        cpu_ratio=vitals.cpu_ratio,
        late_ticks_total=vitals.late_ticks,
        gpus=_gpus(vitals, settings, sensors, ledger),
        tenants=tenants,
        warnings=tuple(_warnings(vitals, settings, sensors)),
    )


def _gpus(vitals: Vitals, settings: Settings, sensors: Sensors, ledger: Ledger) -> tuple[GpuStatus, ...]:
    window_ns = max(1, settings.config.window_s) * 1_000_000_000
    found = []
    for slot, gpu in enumerate(sensors.gpus):
        use = sensors.nvml.use(slot) if sensors.nvml else GpuUse()
        busy = ledger.busy_ratio(gpu.uuid, window_ns, vitals.now_ns) if sensors.source else None
        found.append(
            GpuStatus(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                busy_ratio=busy[0] if busy else None,
                unmanaged_ratio=busy[1] if busy else None,
                memory_used_bytes=use.memory_used_bytes,
                memory_total_bytes=gpu.memory_total_bytes,
            )
        )
    return tuple(found)


def _tenant(
    name: str,
    vitals: Vitals,
    settings: Settings,
    tree: Tree,
    applier: Applier,
    past: _Past,
    misbehaviour: Misbehaviour,
    shares: list[ShareView],
    specs: Mapping[str, TenantSpec],
    delays: Mapping[str, list[int]],
    sensors: Sensors,
) -> TenantStatus:
    spec = specs.get(name) or TenantSpec(name)
    view = tree.tenants.get(name)
    gpus = tuple(
        TenantGpuStatus(
            uuid=share.gpu,
            entitled_ratio=share.entitlement_ratio if share.has_demand else None,
            used_ratio=share.used_ratio,
            lag_ms=share.lag_ns / 1e6,
            has_demand=share.has_demand,
            confidence=share.confidence,
        )
        for share in shares
    )
    worst = min(gpus, key=lambda gpu: gpu.lag_ms or 0.0, default=None)
    total_ns = past.total_ns.get(name, {})
    episodes = misbehaviour.statuses(name, vitals.now_ns)
    confidence = worst.confidence if worst else Confidence.NONE
    buckets = delays.get(name)
    return TenantStatus(
        name=name,
        state=_state(name, spec, view, applier, gpus, is_seen=bool(episodes)),
        weight=spec.weight,
        tenant_class=spec.tenant_class,
        entitled_ratio=worst.entitled_ratio if worst else None,
        used_ratio=worst.used_ratio if worst else None,
        lag_ms=worst.lag_ms if worst else None,
        queue_delay_p50_ms=quantile_ms(buckets, 0.5) if buckets else None,
        queue_delay_p99_ms=quantile_ms(buckets, 0.99) if buckets else None,
        held_ms_per_s=_held_ms_per_s(name, applier, past, vitals.now_ns),
        held_s=_held_s(name, applier, vitals.now_ns),
        gpu_time_s=sum(total_ns.values()) / 1e9 if total_ns else None,
        gpu_time_by_gpu_s={gpu: ns / 1e9 for gpu, ns in total_ns.items()},
        confidence=Confidence.LOW if episodes else confidence,
        quota_ratio=spec.quota_ratio,
        min_ratio=spec.min_ratio,
        is_overridden=name in settings.overrides.tenants,
        cgroups=tuple(sorted(ref.path for ref in view.refs.values())) if view else (),
        gpus=gpus,
        last=past.last.get(name),
        note=None if episodes else _note(worst, is_sampled=sensors.source is Source.NVML),
        misbehaviour=episodes[0] if episodes else None,
        misbehaviours=episodes,
        terminations=misbehaviour.terminations(name),
    )


def _note(worst: TenantGpuStatus | None, *, is_sampled: bool) -> str | None:
    if worst is None or worst.confidence is not Confidence.LOW:
        return None
    why = "NVML samples only" if is_sampled else "launches without a call that proves completion"
    return f"{why}: observed, not held"


def _state(
    name: str,
    spec: TenantSpec,
    view: TenantView | None,
    applier: Applier,
    gpus: tuple[TenantGpuStatus, ...],
    *,
    is_seen: bool,
) -> TenantState:
    """``is_seen``: the GPU works for it, though the account may know nothing of that."""
    if name in applier.holds:
        return TenantState.HELD
    if view is not None and view.foreign:
        return TenantState.FOREIGN
    if view is None or not (gpus or is_seen):
        return TenantState.UNSEEN
    if spec.is_exempt:
        return TenantState.EXEMPT
    return TenantState.RUN if is_seen or any(gpu.has_demand for gpu in gpus) else TenantState.IDLE


def _held_s(name: str, applier: Applier, now_ns: int) -> float | None:
    """Since the start, the hold in progress included."""
    if applier.is_dry_run:
        return None
    hold = applier.holds.get(name)
    return (applier.held_ns.get(name, 0) + (now_ns - hold.since_ns if hold else 0)) / 1e9


def _held_ms_per_s(name: str, applier: Applier, past: _Past, now_ns: int) -> float | None:
    """Over the last ten seconds, the hold in progress included."""
    if applier.is_dry_run:
        return None
    held_ns = past.recently_held_ns.get(name, 0)
    hold = applier.holds.get(name)
    if hold is not None:
        held_ns += now_ns - max(hold.since_ns, now_ns - _HELD_WINDOW_NS)
    return held_ns / (_HELD_WINDOW_NS / 1e9) / 1e6


def _delays(sensors: Sensors, tree: Tree) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    if sensors.probe is None:
        return found
    for key, delay in sensors.probe.delays():
        tenant = tree.tenant_of(key.cgroup_id)
        if tenant is None:
            continue
        counts, known = delay.bucket[:], found.get(tenant)
        found[tenant] = counts if known is None else [*map(add, counts, known)]
    return found


def _warnings(vitals: Vitals, settings: Settings, sensors: Sensors) -> Iterable[str]:
    if settings.error:
        yield f"the configuration on disk is not in force: {settings.error}"
    if sensors.source is None:
        yield f"GPU time is not accounted: {sensors.reason}"
    elif sensors.source is Source.NVML and vitals.mode == "enforce":
        yield "nobody is held although the mode is enforce: NVML samples are too coarse; see fairsched doctor"
    elif sensors.probe is not None and not sensors.probe.libraries:
        yield "no libcuda was found yet: GPU work cannot be seen"
    if sensors.nvml is not None and sensors.nvml.error:
        yield f"NVML is not usable ({sensors.nvml.error}): GPUs are unnamed"
    if sensors.account is not None:
        for slot, ratio in sensors.account.hit_ratios().items():
            label = gpu_label(sensors.gpus, slot)
            if sensors.account.turns[slot].is_unsure:
                yield f"{label}: takes turns in a way the account cannot follow; nobody is held there"
            elif not sensors.account.is_replay_trusted(slot):
                yield f"{label}: the time-slice replay agrees in {ratio:.0%} of cases; using the clock"
    if vitals.errors:
        yield f"{vitals.errors} ticks or actions have failed; see the log"
    if sensors.probe is not None:
        for name, count in sensors.probe.counts().items():
            if count and name in (
                "ctx_full",
                "use_full",
                "proc_full",
                "handle_full",
                "edge_dropped",
                "clock_range",
            ):
                yield f"BPF counted {name}: {count}"
