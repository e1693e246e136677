# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells about itself: the documents behind ``status``, ``explain`` and ``--json``.

Units are in the names: ``_ratio`` is 0..1 of one GPU, ``_ms_per_s`` milliseconds in each second,
times ``_ns`` are CLOCK_MONOTONIC and ``_s`` of wall clocks are Unix seconds. What is not known is
None (null in JSON, "n/a" on the screen), never 0. Fields are only ever added; a change of meaning
raises SCHEMA_VERSION.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.model import (
    ActionKind,
    Confidence,
    MisbehaviourKind,
    Reason,
    ReasonCode,
    Source,
    TenantClass,
)

SCHEMA_VERSION = 1


class TenantState(str, enum.Enum):
    """One word for what a tenant is doing."""

    RUN = "run"
    """It has demand and is not held."""
    HELD = "held"
    """Frozen by us."""
    IDLE = "idle"
    """It has processes, but no outstanding GPU work."""
    EXEMPT = "exempt"
    """Accounted, never held."""
    UNSEEN = "unseen"
    """No cgroup matches, or it has no process that has opened a GPU."""
    FOREIGN = "foreign"
    """Frozen by somebody else; not ours to thaw."""


@dataclass(frozen=True)
class DecisionRecord:
    """One action the policy took (or, in dry_run, would have taken) on one tenant."""

    t_ns: int
    """Moment of the decision, CLOCK_MONOTONIC."""
    wall_time_s: float
    """The same moment as Unix time, for display."""
    action: ActionKind
    tenant: str
    reason: Reason
    held_ns: int | None = None
    """THAW: how long the hold lasted. HOLD: None."""
    deadline_ns: int | None = None
    """HOLD: when it ends whatever happens."""
    is_dry_run: bool = False
    """Only logged; nothing was frozen or thawed."""
    error: str | None = None
    """Why the action failed; None when it was carried out."""


@dataclass(frozen=True)
class GpuStatus:
    """One GPU."""

    uuid: str
    index: int | None = None
    """nvidia-smi's index; for display only, it can change at a reboot."""
    name: str | None = None
    busy_ratio: float | None = None
    """Part of the last window in which the GPU worked for anybody."""
    unmanaged_ratio: float | None = None
    """Part of the last window used by processes of no tenant."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class TenantGpuStatus:
    """One tenant on one GPU."""

    uuid: str
    entitled_ratio: float | None = None
    """Part of what the GPU delivers that it is entitled to now; None without demand."""
    used_ratio: float | None = None
    lag_ms: float | None = None
    """Entitled minus received; negative = it is ahead and owes."""
    has_demand: bool | None = None
    confidence: Confidence = Confidence.NONE


@dataclass(frozen=True)
class MisbehaviourStatus:
    """GPU work of a tenant that a freezer cannot end or the account cannot see."""

    kind: MisbehaviourKind
    since_s: float
    """Unix time."""
    gpu: str
    """UUID."""
    detail: str
    """What was seen, with numbers."""
    action: str
    """warn, terminate, or would_terminate (the mode is not enforce)."""


@dataclass(frozen=True)
class TenantStatus:
    """One tenant. Ratios and lag are of the GPU on which it owes most (the one that decides)."""

    name: str
    state: TenantState
    weight: float
    tenant_class: TenantClass = TenantClass.LATENCY
    entitled_ratio: float | None = None
    used_ratio: float | None = None
    lag_ms: float | None = None
    queue_delay_p50_ms: float | None = None
    """Time its work waited while others ran, median over the last window."""
    queue_delay_p99_ms: float | None = None
    held_ms_per_s: float | None = None
    """Time held by us in each second, over the last ten seconds."""
    held_s: float | None = None
    """Time held by us since the daemon started."""
    gpu_time_s: float | None = None
    """GPU time since the daemon started, over all GPUs."""
    gpu_time_by_gpu_s: Mapping[str, float] = field(default_factory=dict)
    """The same, by GPU UUID."""
    confidence: Confidence = Confidence.NONE
    quota_ratio: float | None = None
    min_ratio: float = 0.0
    is_overridden: bool = False
    """`fairsched tenant set` changed something of it."""
    processes: int | None = None
    cgroups: tuple[str, ...] = ()
    """As in /proc/PID/cgroup; empty while none matches."""
    gpus: tuple[TenantGpuStatus, ...] = ()
    last: DecisionRecord | None = None
    """The latest decision about it; None = it was never held or thawed."""
    note: str | None = None
    """Anything else a person must know ("NVML samples only: observed, not held")."""
    misbehaviour: MisbehaviourStatus | None = None
    """What goes on now, for longest; None = nothing."""
    misbehaviours: tuple[MisbehaviourStatus, ...] = ()
    """All that goes on now, `misbehaviour` first."""
    terminations: Mapping[str, int] = field(default_factory=dict)
    """Processes told to end since the daemon started, by kind of misbehaviour."""


@dataclass(frozen=True)
class StatusReport:
    """The answer to ``fairsched status``."""

    daemon_version: str
    pid: int
    t_ns: int
    wall_time_s: float
    uptime_s: float
    mode: str
    """In effect: enforce, observe or dry_run."""
    tick_ms: int
    window_s: float
    mode_reason: str | None = None
    """Why `mode` is not what the file asks for; None when it is."""
    source: Source | None = None
    """Account in use; None = there is none, nothing is known of GPU use."""
    source_reason: str | None = None
    """Why a better source is not used."""
    config_path: str | None = None
    config_error: str | None = None
    """The last reload failed with this; the configuration before it is still in effect."""
    fairness_error_ratio: float | None = None
    """Largest |used - entitled| of a tenant with demand over the last window."""
    cpu_ratio: float | None = None
    """What fairsched itself costs: part of one CPU over the last ten seconds."""
    late_ticks_total: int | None = None
    gpus: tuple[GpuStatus, ...] = ()
    tenants: tuple[TenantStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    """Things that need a person: lost events, failed thaws, overrides of unknown tenants."""
    schema_version: int = field(default=SCHEMA_VERSION)


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and mappings as data that ``json.dumps`` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    return value


def decision_from_plain(data: Mapping[str, Any]) -> DecisionRecord:
    """The inverse of :func:`to_plain`; fields of a newer daemon are ignored."""
    known = _known(DecisionRecord, data)
    reason = _known(Reason, known["reason"])
    reason["code"] = ReasonCode(reason["code"])
    known["reason"] = Reason(**reason)
    known["action"] = ActionKind(known["action"])
    return DecisionRecord(**known)


def status_from_plain(data: Mapping[str, Any]) -> StatusReport:
    """The inverse of :func:`to_plain`. Raises ValueError for a document of another version."""
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"status document version {data.get('schema_version')!r}, not {SCHEMA_VERSION}")
    known = _known(StatusReport, data)
    known["source"] = None if known.get("source") is None else Source(known["source"])
    known["gpus"] = tuple(GpuStatus(**_known(GpuStatus, gpu)) for gpu in data["gpus"])
    known["tenants"] = tuple(_tenant_from_plain(tenant) for tenant in data["tenants"])
    known["warnings"] = tuple(data["warnings"])
    return StatusReport(**known)


def _tenant_from_plain(data: Mapping[str, Any]) -> TenantStatus:
    known = _known(TenantStatus, data)
    known["state"] = TenantState(known["state"])
    known["tenant_class"] = TenantClass(known["tenant_class"])
    known["confidence"] = Confidence(known["confidence"])
    known["cgroups"] = tuple(known["cgroups"])
    known["last"] = None if known.get("last") is None else decision_from_plain(known["last"])
    known["gpus"] = tuple(
        TenantGpuStatus(**{**_known(TenantGpuStatus, gpu), "confidence": Confidence(gpu["confidence"])})
        for gpu in data["gpus"]
    )
    known["misbehaviours"] = tuple(map(_misbehaviour_from_plain, known.get("misbehaviours", ())))
    known["misbehaviour"] = next(iter(known["misbehaviours"]), None)
    return TenantStatus(**known)


def _misbehaviour_from_plain(data: Mapping[str, Any]) -> MisbehaviourStatus:
    known = _known(MisbehaviourStatus, data)
    return MisbehaviourStatus(**{**known, "kind": MisbehaviourKind(known["kind"])})


def _known(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in dataclasses.fields(cls)}
    return {key: value for key, value in data.items() if key in names}
