# SPDX-License-Identifier: Apache-2.0
"""Defines the documents behind ``status``, ``explain`` and ``--json``: what the daemon tells about itself.

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
    GraphWork,
    MisbehaviourKind,
    Reason,
    ReasonCode,
    Source,
    TenantClass,
)
from fairsched.protocol.gate import GateState as GateState
from fairsched.protocol.gate import GateStatus as GateStatus
from fairsched.protocol.gate import gate_from_plain
from fairsched.protocol.own import Histogram, OwnStatus, histogram_from_plain, own_from_plain
from fairsched.protocol.slis import SliStatus as SliStatus
from fairsched.protocol.slis import TokenRate as TokenRate
from fairsched.protocol.slis import rate_from_plain, slis_from_plain

SCHEMA_VERSION = 2


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
    AWAY = "away"
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
    is_up: bool | None = None
    """Whether the driver answers for it; False: it has been lost. None = NVML is not there to ask."""
    utilization_ratio: float | None = None
    """As NVML says: part of its last sampling period in which any kernel ran."""
    temperature_celsius: float | None = None
    jain_ratio: float | None = None
    """Jain's index of used by entitled of the tenants with demand, last window; 1 = fair."""
    contradictions_total: int | None = None
    """How often its load contradicted the account while somebody was held, so that all were let go."""
    parent_uuid: str | None = None
    """Of a MIG instance: the GPU that it is a part of; None = a whole GPU."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    mig_profile: str | None = None
    """As nvidia-smi names its size: 3g.20gb."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    pcie_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """By direction, to_gpu and from_gpu, in 20 ms of the last seconds; empty where NVML does not say."""
    is_traced: bool | None = None
    """Whether it tells itself whose turn it is; else turns are replayed. None = no calls are seen."""

    @property
    def index_text(self) -> str:
        """``0``; of a MIG instance ``0/1/0``: GPU, GPU instance, compute instance."""
        index = "-" if self.index is None else str(self.index)
        return index if self.parent_uuid is None else f"{index}/{self.gpu_instance}/{self.compute_instance}"


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
    drain_ms: float | None = None
    """GPU time it has queued: what would still run if it were frozen now."""
    error_ratio: float | None = None
    """How far `used_ratio` may be off, in parts of it, in 19 of 20 cases; None = nothing is known of it."""
    graphs: GraphWork | None = None
    """None = it launches none, or that is not seen."""


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
class DriverCallsStatus:
    """Calls of a tenant to NVIDIA's driver since the daemon began to see them."""

    ioctls: int
    failed: int
    time_s: float
    """Spent in them."""
    opens: int


@dataclass(frozen=True)
class VramStatus:
    """Memory of a tenant with a limit on one GPU, that of the tenants below it included."""

    gpu: str
    """UUID."""
    limit_bytes: int
    used_bytes: int | None = None
    source: str | None = None
    """Of `used_bytes`: ioctls (the driver's calls were seen) or nvml."""
    is_kept_by_kernel: bool = False
    """Allocations beyond it are refused."""
    refused: int = 0
    """Allocations refused since the daemon started."""
    over_since_s: float | None = None
    """Unix time since when it is beyond its limit; None = it is not."""
    action: str | None = None
    """Beyond it: warn, hold, terminate, would_hold or would_terminate (the mode is not enforce)."""
    pid: int | None = None
    """The process that is to end for it."""


@dataclass(frozen=True)
class CompanionStatus:
    """The process beside the daemon that exports, scrapes, keeps history and escalates."""

    pid: int | None = None
    """None = it does not run now."""
    starts: int = 0
    """More than one means that it died."""


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
    """Time its work waited while others ran: median of the last minute, or since somebody last asked before that."""
    queue_delay_p99_ms: float | None = None
    queue_delays: Mapping[str, Histogram] = field(default_factory=dict)
    """Every wait since the daemon started, by GPU UUID."""
    held_ms_per_s: float | None = None
    """Time held by us in each second, over the last ten seconds."""
    held_s: float | None = None
    """Time held by us since the daemon started."""
    held_by_reason_s: Mapping[str, float] = field(default_factory=dict)
    """The same, by why the hold began; empty while nobody may be held."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Holds begun since the daemon started, by why."""
    thaws: Mapping[str, int] = field(default_factory=dict)
    """Holds ended since the daemon started, by why."""
    dry_held_s: float | None = None
    """Time it would have been held, in dry runs since the daemon started, apart from all of the above; None = no dry
    run has begun a hold of it."""
    dry_holds: Mapping[str, int] = field(default_factory=dict)
    """Holds that dry runs have begun, by why."""
    hold_age_s: float | None = None
    """How long the present hold has lasted; 0 = it is not held; None = no tenant may be held."""
    hold_limit_s: float | None = None
    """Of the hold that lasts, which may be longer than its class promises (a deep queue); else what is promised."""
    gpu_time_s: float | None = None
    """GPU time since the daemon started, over all GPUs."""
    gpu_time_by_gpu_s: Mapping[str, float] = field(default_factory=dict)
    """The same, by GPU UUID."""
    confidence: Confidence = Confidence.NONE
    error_ratio: float | None = None
    """How far `used_ratio` may be off, in parts of it, in 19 of 20 cases; None = nothing is known of it."""
    quota_ratio: float | None = None
    min_ratio: float = 0.0
    is_overridden: bool = False
    """`fairsched tenant set` changed something of it."""
    processes: int | None = None
    cgroups: tuple[str, ...] = ()
    """As in /proc/PID/cgroup; empty while none matches."""
    known_as: tuple[str, ...] = ()
    """What people call some of them: docker chat, pod ml/llama-0, job 3385, lxc u1, unit chat.service, user alice."""
    gpus: tuple[TenantGpuStatus, ...] = ()
    last: DecisionRecord | None = None
    """The latest decision about it; None = it was never held or thawed."""
    note: str | None = None
    """Anything else a person must know."""
    misbehaviour: MisbehaviourStatus | None = None
    """What goes on now, for longest; None = nothing."""
    misbehaviours: tuple[MisbehaviourStatus, ...] = ()
    """All that goes on now, `misbehaviour` first."""
    contexts_by_gpu: Mapping[str, int] = field(default_factory=dict)
    """Open compute contexts by GPU UUID, from the driver's ioctls; empty where they are not seen."""
    vram_by_gpu_bytes: Mapping[str, int] = field(default_factory=dict)
    """GPU memory, the same way."""
    driver_calls: DriverCallsStatus | None = None
    terminations: Mapping[str, int] = field(default_factory=dict)
    """Processes told to end since the daemon started, by kind of misbehaviour, or over_vram."""
    vram_limit_bytes: int | None = None
    """Of memory on each GPU; None = no limit."""
    vram: tuple[VramStatus, ...] = ()
    """By GPU, where there is a limit."""
    tokens: TokenRate | None = None
    """None = nothing is known of its output."""
    policy: str | None = None
    """Where its weight and limits come from, where that is a policy of the cluster: ``policy research, pods[0]``."""


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
    source_error_points: Mapping[str, float] = field(default_factory=dict)
    """By seconds: how far a share may be off over such a window, in points of a GPU, in 19 of 20 windows."""
    config_path: str | None = None
    config_error: str | None = None
    """The last reload failed with this; the configuration before it is still in effect."""
    fairness_error_ratio: float | None = None
    """Largest |used - entitled| of a tenant with demand over the last window."""
    cpu_ratio: float | None = None
    """What fairsched itself costs: part of one CPU over the last ten seconds."""
    late_ticks_total: int | None = None
    driver_hook: str | None = None
    """How calls to NVIDIA's driver are seen: kprobe, lsm or tracepoint; None = they are not."""
    driver_reason: str | None = None
    """Why they are not seen; None when they are."""
    driver_refused: Mapping[str, str] = field(default_factory=dict)
    """Better hooks than that, and why they were not taken."""
    driver_counts: Mapping[str, int] = field(default_factory=dict)
    """What BPF could not follow of them, and how often."""
    bpf_counts: Mapping[str, int] = field(default_factory=dict)
    """What BPF could not follow of GPU work, and how often."""
    nvml_counts: Mapping[str, int] = field(default_factory=dict)
    trace_counts: Mapping[str, int] = field(default_factory=dict)
    """What was odd about the traces of context switches, while they are the account."""
    """What NVML's accounting mode said that cannot be, and how often; while samples are the account."""
    own: OwnStatus | None = None
    """What fairsched costs, in detail."""
    gate: GateStatus | None = None
    pid_view: Mapping[str, Any] | None = None
    """Whether containers see their own processes in nvidia-smi (``is_on``), why or why not (``reason``), and what was
    rewritten; None = mechanisms.pid_view is off."""
    slis: SliStatus | None = None
    """None = nobody measures them."""
    companion: CompanionStatus | None = None
    """None = the configuration asks for nothing that it does."""
    gpus: tuple[GpuStatus, ...] = ()
    tenants: tuple[TenantStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    """Things that need a person: lost events, failed thaws, overrides of unknown tenants."""
    schema_version: int = field(default=SCHEMA_VERSION)


_PLAIN = (int, str, float, type(None), bool)
"""As they are. The document is made of thousands of them, and the daemon's loop waits for it."""


_FIELD_NAMES: dict[type[Any], tuple[str, ...] | None] = {}


def _field_names(kind: type[Any]) -> tuple[str, ...] | None:
    """Of a dataclass; None = it is none."""
    if kind not in _FIELD_NAMES:
        is_one = dataclasses.is_dataclass(kind)
        _FIELD_NAMES[kind] = tuple(item.name for item in dataclasses.fields(kind)) if is_one else None
    return _FIELD_NAMES[kind]


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and mappings as data that ``json.dumps`` takes."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    names = _field_names(kind)
    if names is not None:
        fields = [(name, getattr(value, name)) for name in names]
        return {name: item if type(item) in _PLAIN else to_plain(item) for name, item in fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): item if type(item) in _PLAIN else to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [item if type(item) in _PLAIN else to_plain(item) for item in value]
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
    known["gate"] = None if known.get("gate") is None else gate_from_plain(known["gate"])
    known["slis"] = slis_from_plain(known.get("slis"))
    companion = known.get("companion")
    known["companion"] = None if companion is None else CompanionStatus(**_known(CompanionStatus, companion))
    known["own"] = own_from_plain(known.get("own"))
    return StatusReport(**known)


def _tenant_from_plain(data: Mapping[str, Any]) -> TenantStatus:
    known = _known(TenantStatus, data)
    known["state"] = TenantState(known["state"])
    known["tenant_class"] = TenantClass(known["tenant_class"])
    known["confidence"] = Confidence(known["confidence"])
    known["cgroups"] = tuple(known["cgroups"])
    known["known_as"] = tuple(known.get("known_as", ()))
    tokens, calls = known.get("tokens"), known.get("driver_calls")
    known["tokens"] = None if tokens is None else rate_from_plain(tokens)
    known["driver_calls"] = None if calls is None else DriverCallsStatus(**_known(DriverCallsStatus, calls))
    known["last"] = None if known.get("last") is None else decision_from_plain(known["last"])
    known["gpus"] = tuple(map(_tenant_gpu_from_plain, data["gpus"]))
    delays = known.get("queue_delays") or {}
    known["queue_delays"] = {gpu: histogram_from_plain(delay) for gpu, delay in delays.items()}
    known["vram"] = tuple(VramStatus(**_known(VramStatus, one)) for one in known.get("vram", ()))
    known["misbehaviours"] = tuple(map(_misbehaviour_from_plain, known.get("misbehaviours", ())))
    known["misbehaviour"] = next(iter(known["misbehaviours"]), None)
    return TenantStatus(**known)


def _tenant_gpu_from_plain(data: Mapping[str, Any]) -> TenantGpuStatus:
    known, graphs = _known(TenantGpuStatus, data), data.get("graphs")
    known["graphs"] = None if graphs is None else GraphWork(**_known(GraphWork, graphs))
    return TenantGpuStatus(**{**known, "confidence": Confidence(data["confidence"])})


def _misbehaviour_from_plain(data: Mapping[str, Any]) -> MisbehaviourStatus:
    known = _known(MisbehaviourStatus, data)
    return MisbehaviourStatus(**{**known, "kind": MisbehaviourKind(known["kind"])})


def _known(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = _field_names(cls) or ()
    return {name: data[name] for name in names if name in data}
