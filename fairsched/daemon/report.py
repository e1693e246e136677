# SPDX-License-Identifier: Apache-2.0
"""Fills the status document from what the daemon knows. Reads only; never holds up a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairsched import __version__
from fairsched.act.holds import Applier
from fairsched.act.misbehaviour import Misbehaviour, lowered
from fairsched.act.vram import VramLimits
from fairsched.config.settings import Settings
from fairsched.daemon.cost import OwnCost
from fairsched.daemon.ledger import Ledger
from fairsched.driver.gate import is_asked_for
from fairsched.gpu.nvml import GpuUse, gpu_label
from fairsched.model import ActionKind, Confidence, ReasonCode, ShareView, Source, TenantSpec
from fairsched.observe.sensors import Sensors
from fairsched.observe.tree import TenantView, Tree
from fairsched.protocol.delays import delay_between_ms
from fairsched.protocol.losses import DRIVER_LOSSES, GPU_TIME_LOSSES
from fairsched.protocol.own import Log2Histogram
from fairsched.protocol.status import (
    DecisionRecord,
    DriverCallsStatus,
    GateState,
    GateStatus,
    GpuStatus,
    StatusReport,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
)

_HELD_WINDOW_NS = 10_000_000_000
CONTEXTS_ONLY = "has contexts, no launch of it was seen: idle since, or it works past the libcuda we watch"


@dataclass(frozen=True)
class Vitals:
    """The daemon about itself."""

    started_ns: int
    now_ns: int
    mode: str
    mode_reason: str | None
    tick_ms: int
    errors: int
    cost: OwnCost


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


@dataclass
class _Driver:
    """What the driver's ioctls say, by tenant and UUID."""

    contexts: dict[str, dict[str, int]] = field(default_factory=dict)
    vram_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    calls: dict[str, DriverCallsStatus] = field(default_factory=dict)

    @classmethod
    def of(cls, sensors: Sensors, tree: Tree) -> _Driver:
        found = cls()
        for use in sensors.driver.uses():
            tenant = tree.tenant_of(use.cgroup_id)
            if tenant is not None and use.gpu is not None:
                gpu = gpu_label(sensors.gpus, use.gpu)
                for table, value in ((found.contexts, use.contexts), (found.vram_bytes, use.vram_bytes)):
                    mine = table.setdefault(tenant, {})
                    mine[gpu] = mine.get(gpu, 0) + value
        for tenant, calls in sensors.driver.calls().items():
            found.calls[tenant] = DriverCallsStatus(
                calls.ioctls, calls.failed, calls.time_ns / 1e9, calls.opens
            )
        return found


def build_status(
    vitals: Vitals,
    settings: Settings,
    sensors: Sensors,
    tree: Tree,
    applier: Applier,
    ledger: Ledger,
    misbehaviour: Misbehaviour,
    vram: VramLimits,
    shares: Iterable[ShareView],
    specs: Mapping[str, TenantSpec],
    gate: GateStatus | None = None,
) -> StatusReport:
    """One document for ``fairsched status``."""
    by_tenant: dict[str, list[ShareView]] = {}
    for share in shares:
        by_tenant.setdefault(share.tenant, []).append(share)
    delays = _Delays.of(sensors, tree, specs, vitals.now_ns)
    drains = _drains(ledger)
    inner = {name.rpartition("/")[0] for name in (*specs, *tree.tenants)}
    names = sorted({*specs, *tree.tenants} - (inner - tree.tenants.keys()))
    past = _Past.of(ledger, applier.records, vitals.now_ns)
    parts = (vitals, settings, tree, applier, past, misbehaviour, vram)
    driver = _Driver.of(sensors, tree)
    tenants = tuple(
        _tenant(name, *parts, by_tenant.get(name, []), specs, delays, sensors, driver, drains)
        for name in names
    )
    errors = [
        abs(gpu.entitled_ratio - gpu.used_ratio)
        for tenant in tenants
        if tenant.state is not TenantState.EXEMPT
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
        cpu_ratio=vitals.cost.cpu_ratio,
        late_ticks_total=vitals.cost.late_ticks,
        driver_hook=sensors.driver.hook,
        driver_reason=sensors.driver.reason,
        driver_refused=sensors.driver.refused,
        driver_counts=sensors.driver.counts(),
        bpf_counts=sensors.probe.counts() if sensors.probe is not None else {},
        gate=gate,
        gpus=_gpus(vitals, settings, sensors, ledger, tenants),
        tenants=tenants,
        warnings=(*_warnings(vitals, settings, sensors), *_gate_warnings(settings, gate)),
    )


def _gpus(
    vitals: Vitals,
    settings: Settings,
    sensors: Sensors,
    ledger: Ledger,
    tenants: Iterable[TenantStatus],
) -> tuple[GpuStatus, ...]:
    window_ns = max(1, settings.config.window_s) * 1_000_000_000
    found = []
    jain = _jain_by_gpu(tenants)
    for slot, gpu in enumerate(sensors.gpus):
        use = sensors.gpu_watch.use(slot) if sensors.gpu_watch is not None else GpuUse()
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
                is_up=use.is_up,
                utilization_ratio=use.busy_ratio,
                temperature_celsius=use.temperature_celsius,
                jain_ratio=jain.get(gpu.uuid),
            )
        )
    return tuple(found)


def _jain_by_gpu(tenants: Iterable[TenantStatus]) -> dict[str, float]:
    """Jain's index of what each tenant with demand got by what it was entitled to: (sum x)^2 / (n sum x^2).

    1 when all got the same part of their due, 1/n when one got everything. A GPU that nobody got anything of has none.
    """
    parts: dict[str, list[float]] = {}
    for tenant in tenants:
        for gpu in tenant.gpus if tenant.state is not TenantState.EXEMPT else ():
            if gpu.has_demand and gpu.entitled_ratio and gpu.used_ratio is not None:
                parts.setdefault(gpu.uuid, []).append(gpu.used_ratio / gpu.entitled_ratio)
    return {
        uuid: sum(values) ** 2 / (len(values) * sum(value * value for value in values))
        for uuid, values in parts.items()
        if any(values)
    }


def _tenant(
    name: str,
    vitals: Vitals,
    settings: Settings,
    tree: Tree,
    applier: Applier,
    past: _Past,
    misbehaviour: Misbehaviour,
    vram: VramLimits,
    shares: list[ShareView],
    specs: Mapping[str, TenantSpec],
    delays: _Delays,
    sensors: Sensors,
    driver: _Driver,
    drains: Mapping[tuple[str, str], int],
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
            drain_ms=drains[name, share.gpu] / 1e6 if (name, share.gpu) in drains else None,
        )
        for share in shares
    )
    worst = min(gpus, key=lambda gpu: gpu.lag_ms or 0.0, default=None)
    total_ns = past.total_ns.get(name, {})
    episodes = misbehaviour.statuses(name, vitals.now_ns)
    confidence = worst.confidence if worst else Confidence.NONE
    contexts = driver.contexts.get(name, {})
    is_unlaunched = not gpus and not episodes and any(contexts.values())
    if is_unlaunched:
        confidence = Confidence.LOW
    note = CONTEXTS_ONLY if is_unlaunched else _note(worst, is_sampled=sensors.source is Source.NVML)
    return TenantStatus(
        name=name,
        state=_state(name, spec, view, applier, gpus, is_seen=bool(episodes), is_open=is_unlaunched),
        weight=spec.weight,
        tenant_class=spec.tenant_class,
        entitled_ratio=worst.entitled_ratio if worst else None,
        used_ratio=worst.used_ratio if worst else None,
        lag_ms=worst.lag_ms if worst else None,
        queue_delay_p50_ms=delays.quantile_ms(name, 0.5),
        queue_delay_p99_ms=delays.quantile_ms(name, 0.99),
        queue_delays=delays.now.get(name, {}),
        held_ms_per_s=_held_ms_per_s(name, applier, past, vitals.now_ns),
        held_s=_held_s(name, applier, vitals.now_ns),
        held_by_reason_s=_held_by_reason_s(name, applier, vitals.now_ns),
        holds=_done(name, applier, ActionKind.HOLD),
        thaws=_done(name, applier, ActionKind.THAW),
        hold_age_s=_hold_age_s(name, applier, vitals.now_ns),
        hold_limit_s=_hold_limit_s(name, spec, applier),
        gpu_time_s=sum(total_ns.values()) / 1e9 if total_ns else None,
        gpu_time_by_gpu_s={gpu: ns / 1e9 for gpu, ns in total_ns.items()},
        confidence=lowered(confidence, episodes),
        quota_ratio=spec.quota_ratio,
        min_ratio=spec.min_ratio,
        is_overridden=name in settings.overrides.tenants,
        cgroups=tuple(sorted(ref.path for ref in view.refs.values())) if view else (),
        gpus=gpus,
        last=past.last.get(name),
        note=None if episodes else note,
        misbehaviour=episodes[0] if episodes else None,
        misbehaviours=episodes,
        contexts_by_gpu=contexts,
        vram_by_gpu_bytes=driver.vram_bytes.get(name, {}),
        driver_calls=driver.calls.get(name),
        terminations=misbehaviour.terminations(name) | vram.terminations(name),
        vram_limit_bytes=spec.vram_limit_bytes,
        vram=vram.statuses(name, vitals.now_ns),
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
    is_open: bool,
) -> TenantState:
    """``is_seen``: the GPU works for it, though the account may know nothing of that. ``is_open``: it has a context
    of which the account knows nothing."""
    if name in applier.holds:
        return TenantState.HELD
    if view is not None and view.foreign:
        return TenantState.FOREIGN
    if view is None or not (gpus or is_seen or is_open):
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


def _held_by_reason_s(name: str, applier: Applier, now_ns: int) -> dict[str, float]:
    """Time in a hold over its entitlement is known from the start: 0 as well."""
    if applier.is_dry_run:
        return {}
    held = {ReasonCode.OVER_ENTITLEMENT: 0, **applier.held_for_ns(name, now_ns)}
    return {reason.value: ns / 1e9 for reason, ns in held.items()}


def _done(name: str, applier: Applier, kind: ActionKind) -> dict[str, int]:
    done = applier.done.get(name, {})
    return {reason.value: count for (what, reason), count in done.items() if what is kind}


def _hold_age_s(name: str, applier: Applier, now_ns: int) -> float | None:
    if applier.is_dry_run:
        return None
    hold = applier.holds.get(name)
    return (now_ns - hold.since_ns) / 1e9 if hold is not None else 0.0


def _hold_limit_s(name: str, spec: TenantSpec, applier: Applier) -> float:
    """Of the hold that lasts, which may be a longer one (a deep queue); else what is promised."""
    hold = applier.holds.get(name)
    now_ns = 0 if hold is None else hold.deadline_ns - hold.since_ns
    return max(spec.max_freeze_ns, now_ns) / 1e9


def _drains(ledger: Ledger) -> dict[tuple[str, str], int]:
    """What each (tenant, GPU) has queued in ns, as of the last tick."""
    uses = ledger.last.uses if ledger.last is not None else ()
    return {(use.tenant, use.gpu): use.outstanding_ns for use in uses}


@dataclass
class _Delays:
    """Queue delays by tenant, each by UUID."""

    now: dict[str, dict[str, Log2Histogram]] = field(default_factory=dict)
    """Since the start."""
    before: Mapping[str, Mapping[str, Log2Histogram]] = field(default_factory=dict)
    """As they were a minute ago."""

    @classmethod
    def of(cls, sensors: Sensors, tree: Tree, specs: Mapping[str, TenantSpec], now_ns: int) -> _Delays:
        found = cls()
        counts = sensors.queue_delays(tree.tenant_of, tree.has_cgroup, {*specs, *tree.tenants})
        for (tenant, slot), (*buckets, sum_ns) in counts.items():
            mine = found.now.setdefault(tenant, {})
            mine[gpu_label(sensors.gpus, slot)] = Log2Histogram.of(buckets, sum_ns)
        found.before = sensors.a_minute_ago.take(now_ns, found.now)
        return found

    def quantile_ms(self, tenant: str, q: float) -> float | None:
        """Of the last minute."""
        return delay_between_ms(self.before.get(tenant, {}), self.now.get(tenant, {}), q)


def _warnings(vitals: Vitals, settings: Settings, sensors: Sensors) -> Iterable[str]:
    if settings.error:
        yield f"the configuration on disk is not in force: {settings.error}"
    if settings.overrides_warning:
        yield settings.overrides_warning
    if sensors.source is None:
        yield f"GPU time is not accounted: {sensors.reason}"
    elif sensors.source is Source.NVML and vitals.mode == "enforce":
        yield "nobody is held although the mode is enforce: NVML samples are too coarse; see fairsched doctor"
    elif sensors.probe is not None and not sensors.probe.libraries:
        yield "no libcuda was found yet: GPU work cannot be seen"
    if sensors.unprobed_libraries:
        yield f"{sensors.unprobed_libraries} libcuda could not be probed, calls through them are not seen: see the log"
    if sensors.nvml is not None and sensors.nvml.error:
        yield f"NVML is not usable ({sensors.nvml.error}): GPUs are unnamed"
    silent_s = sensors.gpu_watch.silent_s() if sensors.gpu_watch is not None else None
    if silent_s is not None:
        yield f"NVML has not answered for {silent_s:.0f} s: a GPU may be lost; memory and load are not known"
    if sensors.account is not None:
        for slot, ratio in sensors.account.hit_ratios().items():
            label = gpu_label(sensors.gpus, slot)
            if sensors.account.trust[slot].is_unsure:
                yield f"{label}: takes turns in a way the account cannot follow; nobody is held there"
            elif slot in sensors.account.intruded:
                yield f"{label}: work that comes and goes there is in no account; nobody is held there"
            elif not sensors.account.trust[slot].is_replay_trusted:
                yield f"{label}: the time-slice replay agrees in {ratio:.0%} of cases; using the clock"
    if vitals.errors:
        yield f"{vitals.errors} ticks or actions have failed; see the log"
    if sensors.probe is not None:
        for name, count in sensors.probe.counts().items():
            if count and name in GPU_TIME_LOSSES:
                yield f"BPF counted {name}: {count}"
    if sensors.driver.lost:
        yield f"contexts, VRAM and calls are not seen: {sensors.driver.lost}"
    lost = {name: n for name, n in sensors.driver.counts().items() if n and name in DRIVER_LOSSES}
    for name, count in lost.items():
        yield f"calls to the driver: BPF counted {name}: {count}; contexts and VRAM may be wrong"


def _gate_warnings(settings: Settings, gate: GateStatus | None) -> Iterable[str]:
    if gate is None:
        return
    yield from gate.warnings
    if gate.state is GateState.FAILED:
        yield f"the device gate is not wholly in force: {gate.reason}"
    elif gate.state is GateState.OFF and is_asked_for(settings.config):
        yield f"GPUs are not gated as the configuration says: {gate.reason}"
    if gate.blind:
        yield f"opens of GPUs let through because the cgroup could not be read: {gate.blind}"
