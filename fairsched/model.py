# SPDX-License-Identifier: Apache-2.0
"""The words the parts of the brain say to each other: plain, immutable data and nothing else.

observe builds a :class:`Snapshot`; ``policy.decide`` turns it, the :class:`TenantSpec` of each
tenant and its own :class:`PolicyState` into a :class:`Decision`; apply carries the plan out.
No I/O, no clock and no third-party import lives here, so ``policy`` may import it (law 1).

Units are in the names. All times are nanoseconds of CLOCK_MONOTONIC; all ``_ratio`` are 0..1 of
one GPU. A value that is not known is None, never 0 (law 7).

Tenant names are paths: ``team`` is a tenant, ``team/chat`` its child. Only leaves own processes
and are held; the weight of an inner node is shared by its children (weights nest).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

NEVER_NS = (1 << 63) - 1
"""A moment that does not come."""
QUEUE_LAUNCHES = 1024
"""With so many in flight a launch waits. On an H100 who launches without end keeps 1,041 to 1,295 in flight, asking for
259 at a time (tests/unit/accounting/h100); documented nowhere."""

ContextKey = tuple[int, int]
"""A CUDA context: (slot in the table of the probes, generation of that slot)."""
TenantGpu = tuple[str, str]
"""(tenant, GPU UUID); where something is limited, the tenant may be an inner node."""

ADJUSTABLE = (
    "weight",
    "class",
    "quota",
    "min",
    "max_freeze_ms",
    "exempt",
    "on_misbehaviour",
    "vram_limit",
    "on_vram_limit",
)
"""What of a tenant may be changed at run time, in the words of the configuration file."""


class TenantClass(str, enum.Enum):
    """Who is held first: batch before latency; latency is thawed first and held more briefly."""

    LATENCY = "latency"
    BATCH = "batch"


class Confidence(str, enum.Enum):
    """How far the account of a tenant can be believed; HIGH, SAMPLED and BOUND are enforced on."""

    HIGH = "high"
    SAMPLED = "sampled"
    """Right on average: over seconds, not in any one look. The law is slower on it (PolicyParams.sampled)."""
    BOUND = "bound"
    """Of a process: it had at most what it is charged. Its tenant is of low confidence, and charged that."""
    LOW = "low"
    NONE = "none"

    def and_of(self, other: Confidence) -> Confidence:
        """What can be said of two together: the less sure."""
        return max(self, other, key=_LESS_SURE.index)


_LESS_SURE = tuple(Confidence)
_ENFORCED = (Confidence.HIGH, Confidence.SAMPLED)


class Source(str, enum.Enum):
    """Where an account comes from."""

    EBPF = "ebpf"
    TRACE = "trace"
    """The GPU's own trace of context switches, and no calls."""
    DCGM = "dcgm"
    """NVML's samples, scaled to the time for which DCGM says a GPU was active."""
    NVML = "nvml"

    @property
    def is_sampled(self) -> bool:
        """Whether who was on a GPU is known from samples only."""
        return self in (Source.DCGM, Source.NVML)


class MisbehaviourKind(str, enum.Enum):
    """What a freezer cannot end or the account cannot see."""

    ENDLESS = "endless"
    """A context has work on the GPU that does not complete; it goes on while its owner is frozen."""
    UNSEEN = "unseen"
    """The GPU works for a process far longer than its calls account for."""
    MOVING = "moving"
    """Its processes leave its cgroups and come back, again and again, while they use the GPU."""


class MisbehaviourAction(str, enum.Enum):
    """What is done about a tenant that misbehaves. It is always logged and shown."""

    WARN = "warn"
    TERMINATE = "terminate"


class VramAction(str, enum.Enum):
    """What is done about memory beyond a tenant's limit where the kernel could not refuse it."""

    WARN = "warn"
    HOLD = "hold"
    TERMINATE = "terminate"


_SAMPLED_WINDOW_NS = 10_000_000_000
_FRAME_NS = 250_000_000
DEFAULT_MAX_FREEZE_MS = {TenantClass.LATENCY: 500, TenantClass.BATCH: 2000}


@dataclass(frozen=True)
class TenantSpec:
    """What a tenant was promised. Source: the configuration and ``fairsched tenant set``."""

    name: str
    weight: float = 1.0
    quota_ratio: float | None = None
    """Hard cap: at most this part of a GPU over the quota window, even if the GPU idles."""
    min_ratio: float = 0.0
    """Guaranteed part of a GPU under contention, whatever the weights say."""
    tenant_class: TenantClass = TenantClass.LATENCY
    max_freeze_ms: int | None = None
    """Longest contiguous hold; None means the default of the class, or more for a queue that outlasts that."""
    is_exempt: bool = False
    """Accounted and shown, never held."""
    on_misbehaviour: MisbehaviourAction = MisbehaviourAction.WARN
    vram_limit_bytes: int | None = None
    """Memory on each GPU, of it and all tenants below it; None = no limit."""
    on_vram_limit: VramAction = VramAction.WARN
    gpu_parts: tuple[tuple[str, float], ...] = ()
    """(UUID, part of its weight that counts on that GPU); on a GPU that is not named all of it counts."""

    def weight_on(self, gpu: str | None) -> float:
        """What it weighs on a GPU; None: on no GPU in particular."""
        for uuid, part in self.gpu_parts:
            if uuid == gpu:
                return self.weight * part
        return self.weight

    @property
    def max_freeze_ns(self) -> int:
        limit_ms = self.max_freeze_ms
        if limit_ms is None:
            limit_ms = DEFAULT_MAX_FREEZE_MS[self.tenant_class]
        return limit_ms * 1_000_000


class Use(NamedTuple):
    """One leaf tenant on one GPU since the previous snapshot. A tuple, because all are made anew at each snapshot."""

    tenant: str
    gpu: str
    """UUID."""
    used_ns: int
    """GPU time delivered to it in the interval, its drain included."""
    has_demand: bool
    """It has outstanding work, or it is held by us and had work when it was held."""
    outstanding_ns: int
    """Predicted GPU time already queued: what would still run if it were frozen now (its drain)."""
    confidence: Confidence
    wait_ns: int = 0
    """Time its work waited while others ran, in the interval."""
    launches: int = 0
    unmeasured_ns: int = 0
    """GPU time of a burst of each of its contexts of whose costs too little is known; 0: enough is, or nothing."""
    most_ns: int | None = None
    """The most GPU time it may have had, where ``used_ns`` is known not to be all, or to be a bound and no measure; or
    what it certainly had, where part of that is a guess. It is charged that, and held for it. None = it is charged
    ``used_ns``, if the confidence is high or sampled."""
    may_be_owed: bool = True
    """False: whether it wants the GPU at all is not known, so it earns no credit by being held."""
    paused_ns: int = 0
    """Of the interval, in which it had no work and was not held ..."""
    idle_ns: int = 0
    """... and of that, in which nobody had."""
    is_anew: bool = False
    """What it was charged so far was too much: whether it paused is not known, and what it is owed was never waited
    for."""
    simulated_ns: int | None = None
    """In a dry run with holds: the GPU time that it would have had if they were real. It is charged that."""

    @property
    def charged_ns(self) -> int:
        """What moves its lag."""
        if self.simulated_ns is not None:
            return self.simulated_ns
        return self.used_ns if self.most_ns is None else self.most_ns

    @property
    def is_enforced(self) -> bool:
        """Whether it may be held for what it is charged."""
        return self.confidence in _ENFORCED or self.most_ns is not None


class SampledLaunch(NamedTuple):
    """What the launches of a process take on a GPU, by NVML's samples."""

    ns: float
    """Of one, on the average of twenty seconds."""
    is_needed: bool
    """The samples contradict what the process, or its tenant, is charged."""
    is_less: bool
    """It had less."""


class Unseen(NamedTuple):
    """What tenants have of GPUs beyond what their calls account for."""

    rates: Mapping[TenantGpu, float] = MappingProxyType({})
    """Parts of a GPU, for the time in which the tenant is not held; beyond 1 where its work goes on for long after."""
    left: Mapping[str, float] = MappingProxyType({})
    """By UUID: part of what the account charges the others there that they can have had beside that."""


NOTHING_UNSEEN = Unseen()


@dataclass(frozen=True)
class Hold:
    """A leaf tenant that is frozen now."""

    tenant: str
    since_ns: int
    deadline_ns: int
    is_ours: bool
    """False: somebody else froze it (docker pause, systemd, an operator). Never thawed by us."""


@dataclass(frozen=True)
class Snapshot:
    """The world at one moment, as observe saw it."""

    now_ns: int
    interval_ns: int
    """Since the previous snapshot."""
    uses: tuple[Use, ...]
    holds: Mapping[str, Hold] = field(default_factory=dict)
    """By tenant name."""
    freeze_latency_ns: Mapping[str, int] = field(default_factory=dict)
    """Measured cost of holding each tenant, by name; absent = not measured yet."""
    idle_gpus: frozenset[str] = frozenset()
    """UUIDs of GPUs with no outstanding work at all at ``now_ns``."""
    idle_since_ns: Mapping[str, int] = field(default_factory=dict)
    """By UUID: when a GPU last fell idle in this interval; absent = not known, or before."""
    contradicted: frozenset[str] = frozenset()
    """UUIDs of GPUs whose account was found to be wrong (policy/watchdog.py): nobody is held there for others."""


class ContextWork(NamedTuple):
    """What one CUDA context has outstanding, as the account knows it: does it ever end? A tuple, for there are many."""

    key: ContextKey
    pid: int
    cgroup_id: int
    gpu: int
    """Slot number."""
    submitted: int
    completed: int
    """Highest sequence number proven complete."""
    is_outstanding: bool
    since_ns: int
    """When the burst began, or was last seen to go on."""
    charged_then_ns: int
    """Up to ``since_ns``, since the context exists."""
    charged_ns: int
    """Up to now."""
    expected_ns: int
    """What a burst like this takes at most; 0 where nothing was learnt yet."""
    is_charged: bool = False
    """It is taken to be working now."""
    last_call_ns: int = 0
    """Its last launch or completion, CLOCK_MONOTONIC; 0 = none was seen."""
    streams: int = 1
    """That have work; each is a queue."""
    is_late: bool = False
    """It asks for what was done before, so what it was charged meanwhile is no measure of what its launches take."""


class ActionKind(str, enum.Enum):
    HOLD = "hold"
    THAW = "thaw"


class ReasonCode(str, enum.Enum):
    """Why the plan contains an action; the word that appears in logs, ``explain`` and metrics."""

    OVER_ENTITLEMENT = "over_entitlement"
    OVER_QUOTA = "over_quota"
    DEEP_QUEUE = "deep_queue"
    MEASURING = "measuring"
    CAUGHT_UP = "caught_up"
    GPU_IDLE = "gpu_idle"
    LAST_WITH_DEMAND = "last_with_demand"
    DEADLINE = "deadline"
    LOW_CONFIDENCE = "low_confidence"
    EXEMPT = "exempt"
    NO_DEMAND = "no_demand"
    SHUTDOWN = "shutdown"
    FOREIGN = "foreign"
    OVER_VRAM = "over_vram"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True)
class Reason:
    """A code and the numbers behind it; ``gpu`` is the GPU that decided (the most overdrawn)."""

    code: ReasonCode
    gpu: str | None = None
    lag_ns: int | None = None
    entitlement_ratio: float | None = None
    used_ratio: float | None = None
    outstanding_ns: int | None = None
    threshold_ns: int | None = None
    vram_bytes: int | None = None
    vram_limit_bytes: int | None = None
    long_hold_ns: int | None = None
    """At most so long may the hold last, which is longer than its class allows: it owes more than those can repay."""


@dataclass(frozen=True)
class Action:
    """One line of the plan."""

    kind: ActionKind
    tenant: str
    reason: Reason
    deadline_ns: int = 0
    """HOLD, and THAW with a grant: the moment the (next) hold ends whatever happens."""
    grant_ns: int | None = None
    """THAW only: held again, until the deadline, as soon as it has queued so much GPU time anew."""


@dataclass(frozen=True)
class ShareView:
    """What the policy believes of one (tenant, GPU) after this decision; for status and metrics."""

    tenant: str
    gpu: str
    entitlement_ratio: float
    """Of what the GPU delivered, less what tenants took that are not enforced; 0 when it has no demand."""
    used_ratio: float
    """Of what the GPU delivered over the share window."""
    lag_ns: int
    has_demand: bool
    confidence: Confidence


@dataclass(frozen=True)
class PolicyParams:
    """The tunables of the control law (DESIGN section 4), in the units of the law."""

    window_ns: int = 1_000_000_000
    """Window of quotas, used_ratio and the persistence of debt (configurable to 10 s)."""
    lag_clamp_ns: int = 400_000_000
    threshold_floor_ns: int = 10_000_000
    """Floor of H = max(floor, 3 x freeze latency, drain / 2)."""
    threshold_latency_factor: int = 3
    thaw_ratio: float = 0.2
    """Thaw when lag >= -thaw_ratio x H."""
    dwell_latency_factor: int = 10
    """Minimum time between two changes of one tenant, in freeze latencies."""
    default_freeze_latency_ns: int = 1_000_000
    """Used until the cost of holding a tenant has been measured."""
    demand_grace_ns: int = 10_000_000
    """A pause in a tenant's work shorter than this is a CPU gap of a closed loop, not idleness."""
    idle_confirm_ns: int = 3_000_000
    """How long a GPU must stay idle, while a tenant is only in such a gap, before a hold is ended for it."""
    min_run_ns: int = 30_000_000
    """Shortest run between a hold that ended at its deadline and the next one."""
    away_ns: int = 100_000_000
    """A latency tenant that wanted nothing for so long comes back to a GPU that others have filled."""
    give_way_ns: int = 150_000_000
    """For so long batch work gives way to a latency tenant that has come back (``away_ns``)."""
    deep_queue_ratio: float = 1.0
    """A queue is deep when it is worth more than so many times what the longest hold can repay."""
    queue_memory_ns: int = 60_000_000_000
    """For so long a queue is remembered to have been deep."""
    deep_debt_ratio: float = 2.0
    """The debt, in times of what the longest hold can repay, beyond which a tenant of deep queues is held longer."""
    long_hold_ns: int = DEFAULT_MAX_FREEZE_MS[TenantClass.BATCH] * 1_000_000
    """The longest such hold: until all is repaid. Not for a tenant with a max_freeze_ms of its own."""
    longest_hold_ns: int = 10_000_000_000
    """The longest hold of a tenant whose queue is worth more than a long hold can repay; nobody owes, or is owed, more
    than the deepest queue on the GPU, and no more than this."""
    grant_ratio: float = 0.4
    """Of what the longest hold can repay: what a tenant of deep queues is let go to queue."""
    sees_queues: bool = True
    """Whether it is seen how queues fill, so that so much of one may be granted."""
    quota_burst_ratio: float = 0.1
    """How far ahead of its quota a tenant may run, in parts of quota x window."""
    frame_ns: int = 0
    """0: a hold lasts until it is repaid. Else it is a pulse: who owes ``frame_lag_ns`` more than chance makes is held
    for a whole frame, who owes less for that part of one, and runs for the rest of it."""
    frame_lag_ns: int = 0
    chance_ns: int = 0
    """The lag that chance alone makes where the account is a sample, of a share of one half: nobody is held for it."""

    def sampled(self, period_ns: int) -> PolicyParams:
        """For an account that names one process at a time, every ``period_ns``.

        A sample moves a lag by a period, whoever it names. So what anybody used is looked at over ten seconds, nobody
        is held for what chance makes of a lag in that time (two sigmas), and what is owed beyond is repaid in pulses:
        samples that come the other way can still mend it.
        """
        window_ns = max(self.window_ns, _SAMPLED_WINDOW_NS)
        return replace(
            self,
            window_ns=window_ns,
            lag_clamp_ns=window_ns,
            frame_ns=_FRAME_NS,
            frame_lag_ns=3 * period_ns,
            chance_ns=round(math.sqrt(period_ns * window_ns)),
        )


@dataclass(frozen=True)
class GraphWork:
    """CUDA graphs that a tenant launched of late on one GPU. A launch of one is one piece of work."""

    count: int
    """Graphs told apart; the latest ones, of more than are kept."""
    shortest_ms: float
    """GPU time of a launch, what comes with it included."""
    longest_ms: float
    error_ratio: float
    """How far the longest may be off, in parts of it, in 19 of 20 cases."""
    is_measured: bool
    """The longest had the GPU to itself; otherwise it is what the replay charged it in company."""
