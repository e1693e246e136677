# SPDX-License-Identifier: Apache-2.0
"""Fills the status document from what the daemon knows. Reads only; never holds up a tick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from fairsched import __version__
from fairsched.bpf.attachments import BUDGET
from fairsched.config.settings import Settings
from fairsched.daemon.ledger import Ledger
from fairsched.daemon.parts import Parts, Vitals
from fairsched.daemon.tenants import TenantReports
from fairsched.driver.gate import is_asked_for
from fairsched.gpu.nvml import MAX_SLOTS, GpuUse, gpu_label
from fairsched.host.mode import Mode
from fairsched.model import Source, Unseen
from fairsched.observe.owners import follows_of, tables_of
from fairsched.observe.sensors import Sensors
from fairsched.observe.tree import MOST_CGROUPS
from fairsched.policy.watchdog import Doubt
from fairsched.protocol.losses import DRIVER_LOSSES, GPU_TIME_LOSSES
from fairsched.protocol.status import (
    GateState,
    GateStatus,
    GpuStatus,
    StatusReport,
    TenantState,
    TenantStatus,
)

_TOLD_S = 60.0
"""How long a contradiction of the account is a warning."""


def status_line(mode: Mode, tenants: int, config_error: str | None) -> str:
    """What systemctl status shows: the mode as ``status`` has it, and that the file on disk is another."""
    line = mode.name if mode.reason is None else f"{mode.name} ({mode.reason})"
    line += f", {tenants} tenants"
    return line if config_error is None else f"{line}; configuration refused: {config_error}"


def build_status(parts: Parts) -> StatusReport:
    """Make the document for ``fairsched status``."""
    vitals, settings, sensors, gate = parts.vitals, parts.settings, parts.sensors, parts.gate
    tenants = TenantReports(parts).all()
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
        window_s=sensors.law(settings.config.policy_params()).window_ns / 1e9,
        source=sensors.source,
        source_reason=sensors.reason,
        source_error_points=sensors.error_points(),
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
        trace_counts=sensors.traced.counts() if sensors.traced is not None else {},
        nvml_counts=sensors.sampled.counts() if sensors.sampled is not None else {},
        gate=gate,
        gpus=_gpus(vitals, settings, sensors, parts.ledger, tenants, parts.doubts),
        tenants=tenants,
        warnings=(
            *_warnings(vitals, settings, sensors),
            *_contradictions(parts),
            *_unseen_warnings(parts.misbehaviour.unseen),
            *_crowd_warnings(parts.tree.crowded),
            *_gate_warnings(settings, gate),
        ),
    )


def _gpus(
    vitals: Vitals,
    settings: Settings,
    sensors: Sensors,
    ledger: Ledger,
    tenants: Iterable[TenantStatus],
    doubts: Mapping[int, Doubt],
) -> tuple[GpuStatus, ...]:
    window_ns = max(1, settings.config.window_s) * 1_000_000_000
    found = []
    jain = _jain_by_gpu(tenants)
    for slot, gpu in enumerate(sensors.gpus):
        if gpu.is_gone:
            continue
        mig = gpu.mig
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
                contradictions_total=doubts.get(slot, Doubt()).times
                if sensors.source is Source.EBPF
                else None,
                jain_ratio=jain.get(gpu.uuid),
                is_traced=sensors.trace_told(slot),
                parent_uuid=None if mig is None else mig.parent_uuid,
                gpu_instance=None if mig is None else mig.gpu_instance,
                compute_instance=None if mig is None else mig.compute_instance,
                mig_profile=None if mig is None else mig.profile,
                power_watts=use.power_watts,
                power_limit_watts=use.power_limit_watts,
                pcie_bytes_per_s=use.pcie_bytes_per_s,
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


def _warnings(vitals: Vitals, settings: Settings, sensors: Sensors) -> Iterable[str]:
    if settings.error:
        yield f"the configuration on disk is not in force: {settings.error}"
    if settings.overrides_warning:
        yield settings.overrides_warning
    if settings.pods_warning:
        yield settings.pods_warning
    if sensors.source is None:
        yield f"GPU time is not accounted: {sensors.reason}"
    elif sensors.source.is_sampled and settings.config.gpu.source == "auto":
        yield f"samples are the account, so shares are only right over a minute: {sensors.reason}"
        if sensors.traced is not None and sensors.traces.reason is not None:
            yield f"the GPU's trace of context switches is not the account: {sensors.traces.reason}"
    elif sensors.probe is not None and not sensors.probe.libraries:
        yield "no libcuda was found yet: GPU work cannot be seen"
    if sensors.libraries.unprobed:
        yield f"{sensors.libraries.unprobed} libcuda could not be probed, calls through them are not seen: see the log"
    for tenant in sorted(sensors.libraries.over_budget):
        yield f"tenant {tenant}: has more than {BUDGET} libcuda files in use; calls through the others are not seen"
    if sensors.nvml is not None and sensors.nvml.error:
        yield f"NVML is not usable ({sensors.nvml.error}): GPUs are unnamed"
    if sensors.nvml is not None and sensors.nvml.left_out:
        yield (
            f"{sensors.nvml.left_out} GPUs or MIG instances are beyond the {MAX_SLOTS} that one run of the daemon "
            "tells apart: work there is not accounted; restart the daemon"
        )
    if sensors.source is not None and sensors.source.is_sampled and sensors.nvml and sensors.nvml.has_mig:
        yield from _unsampled(sensors)
    silent_s = sensors.gpu_watch.silent_s() if sensors.gpu_watch is not None else None
    if silent_s is not None:
        yield f"NVML has not answered for {silent_s:.0f} s: a GPU may be lost; memory and load are not known"
    if vitals.errors:
        yield f"{vitals.errors} ticks or actions have failed; see the log"
    if sensors.probe is not None:
        for name, count in sensors.probe.counts().items():
            if count and name in GPU_TIME_LOSSES:
                yield f"BPF counted {name}: {count}"
    for tenant, tables in sorted(sensors.owners.over.items()):
        yield f"{tenant} is over its budget of {', '.join(tables_of(tables))}: {follows_of(tables)}"
    if sensors.driver.lost:
        yield f"contexts, VRAM and calls are not seen: {sensors.driver.lost}"
    lost = {name: n for name, n in sensors.driver.counts().items() if n and name in DRIVER_LOSSES}
    for name, count in lost.items():
        yield f"calls to the driver: BPF counted {name}: {count}; contexts and VRAM may be wrong"


def _unsampled(sensors: Sensors) -> Iterable[str]:
    """What becomes of MIG instances, of which NVML has no samples."""
    parts = [slot for slot, gpu in enumerate(sensors.gpus) if gpu.mig is not None and not gpu.is_gone]
    if sensors.loads is not None and parts and all(sensors.loads.load(slot) is not None for slot in parts):
        yield (
            "MIG instances have no samples: the load of each, which DCGM tells, is charged to who is on it; "
            "tenants that share one are not told apart there, and not held for it"
        )
    else:
        yield "NVML has no samples of GPUs in MIG mode: work there is not accounted, and nobody is held for it"


def _contradictions(parts: Parts) -> Iterable[str]:
    for slot, doubt in parts.doubts.items():
        ago_s = (parts.vitals.now_ns - doubt.at_ns) / 1e9
        if doubt.times and ago_s < _TOLD_S:
            label = gpu_label(parts.sensors.gpus, slot)
            yield f"{label}: its load contradicted the account {ago_s:.0f} s ago; all were let go ({doubt.said})"


def _unseen_warnings(unseen: Unseen) -> Iterable[str]:
    for (tenant, gpu), rate in sorted(unseen.rates.items()):
        yield (
            f"{tenant}: while it runs, NVML sees it have {min(rate, 1.0):.0%} of {gpu} beyond what its calls account"
            " for; it is charged that, and held for it"
        )


def _crowd_warnings(crowded: Iterable[str]) -> Iterable[str]:
    for tenant in sorted(crowded):
        yield f"tenant {tenant}: has {MOST_CGROUPS} cgroups or more; what is beyond is looked at once it uses a GPU"


def _gate_warnings(settings: Settings, gate: GateStatus) -> Iterable[str]:
    yield from gate.warnings
    if gate.state is GateState.FAILED:
        yield f"the device gate is not wholly in force: {gate.reason}"
    elif gate.state is GateState.OFF and is_asked_for(settings.config):
        yield f"GPUs are not gated as the configuration says: {gate.reason}"
    if gate.blind:
        yield f"opens of GPUs let through because the cgroup could not be read: {gate.blind}"
