# SPDX-License-Identifier: Apache-2.0
"""The one schema of the configuration: validation, defaults, documentation and JSON schema.

Everything a person may write in the file is declared here and nowhere else; docs/configuration.md
and ``fairsched config schema`` are generated from it. Units are in the names. The models are
frozen: a running daemon swaps a whole :class:`Config` for another, it never edits one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from fairsched.config import patterns
from fairsched.config.cgpu import CgpuKeys
from fairsched.config.dcgm import DcgmKeys
from fairsched.config.escalation import Escalation
from fairsched.config.gpus import GpuWish, Under
from fairsched.config.guard import Guard
from fairsched.config.kubernetes import Kubernetes
from fairsched.config.match import Match, NameGlobs
from fairsched.config.outward import Control, History, Metrics, Slis
from fairsched.config.reclaim import Reclaim
from fairsched.config.section import AbsolutePath, Section
from fairsched.config.tokens import AUTO, TokenMetric, TokenUrls
from fairsched.config.values import GpuParts, Ratio, Size, listed
from fairsched.model import MisbehaviourAction, PolicyParams, TenantClass, TenantSpec, VramAction

MAX_TENANTS = 1024
MAX_PATTERNS = 64
MAX_LEVELS = 3
"""Depth of tenant > child > grandchild."""

MAX_NAME_CHARS = 64

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def _patterns(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    if not value:
        raise ValueError("at least one pattern is needed")
    return tuple(patterns.normalise(item) if isinstance(item, str) else item for item in value)


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"{value[:80]!r} is not a tenant name: 1 to 64 of a-z 0-9 . _ -, a letter or digit first"
        )
    return value


def _child_name(value: str) -> str:
    if NAME.fullmatch(value):
        return value
    if "/" in value or value == "**":
        raise ValueError(f"{value[:80]!r}: a child is matched by the name of one cgroup, without '/'")
    if len(value) > MAX_NAME_CHARS and patterns.is_literal(value):
        raise ValueError(f"{value[:80]!r} is too long a name: shorten it with a *")
    return patterns.normalise(value)


Weight = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Patterns = Annotated[
    tuple[str, ...],
    BeforeValidator(_patterns),
    Field(max_length=MAX_PATTERNS),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
TenantName = Annotated[str, BeforeValidator(_name)]
ChildName = Annotated[str, BeforeValidator(_child_name)]
ClassName = Literal["latency", "batch"]
OnMisbehaviour = Literal["warn", "terminate"]
OnVramLimit = Literal["warn", "hold", "terminate"]
SourceName = Literal["ebpf", "trace", "dcgm", "nvml"]
Mechanism = Literal["off", "auto", "required"]


class Gpu(DcgmKeys):
    """Where GPU time is read from, and what is known of the hardware's own scheduler."""

    source: Literal["auto", "ebpf", "trace", "dcgm", "nvml"] = Field(
        default="auto",
        description="Account to use; auto takes ebpf, else trace if required, else dcgm (nvml, scaled), else nvml.",
    )
    enforce_on: Annotated[tuple[SourceName, ...], BeforeValidator(listed)] = Field(
        default=("ebpf", "trace", "dcgm", "nvml"),
        description="Accounts that tenants are held on; on another one they are only observed. `[ebpf]` for the "
        "careful: NVML's samples are some 5 points of a GPU off over a minute, and the law takes ten seconds on them.",
    )
    nvml_accounting: Literal["off", "auto", "on"] = Field(
        default="auto",
        description="NVML's accounting mode, for GPU time that samples missed: auto uses it where it is on, on "
        "switches it on (and leaves it on), off does not ask. Nothing is asked while eBPF accounts.",
    )
    libcuda: Annotated[tuple[AbsolutePath, ...], BeforeValidator(listed)] = Field(
        default=(), max_length=64, description="More libcuda.so.1 files to watch than those found by itself."
    )
    device_dir: AbsolutePath = Field(
        default=Path("/dev"),
        description="Where the driver's device nodes are; plain files there stand for those of a simulated GPU.",
    )
    timeslice_us: int = Field(
        default=2097, ge=100, le=1_000_000, description="Time slice of one context on the hardware."
    )
    switch_us: int = Field(
        default=180, ge=0, le=100_000, description="Cost of switching between two contexts."
    )


class Mechanisms(Section):
    """Each is off (never used), auto (used where it works) or required (no start without it)."""

    ebpf: Mechanism = Field(default="auto", description="Account of GPU time from uprobes on libcuda.")
    trace: Mechanism = Field(
        default="auto",
        description="The GPU's own of context switches. auto takes it beside eBPF, with driver branches that were "
        "tried; required also without eBPF, with all that are known. See docs/accounting.md.",
    )
    freezer: Mechanism = Field(
        default="auto",
        description="Holding back with cgroup.freeze; off holds nobody, unless brake names another one.",
    )
    brake: Literal["auto", "freezer", "freezer_v1", "sigstop", "cgpu", "none"] = Field(
        default="auto",
        description="What holds tenants back: auto takes the freezer, else freezer_v1 (that of cgroup v1), else "
        "sigstop (SIGSTOP to each process), else none; a brake that is named is required. cgpu holds nobody and "
        "writes shares to the files of `cgpu`. See docs/operating.md.",
    )
    nvml: Mechanism = Field(default="auto", description="GPU names and memory; fallback account.")
    driver: Mechanism = Field(
        default="auto", description="Contexts and memory per tenant, seen from calls to NVIDIA's driver."
    )
    guardian: Mechanism = Field(
        default="auto",
        description="Second process that thaws when the daemon dies; required: nobody is held while there is none.",
    )
    pid_view: Mechanism = Field(
        default="off",
        description="The driver's process lists in the pids of the container that asks: docs/pid-view.md. Off by "
        "default, as it writes to the memory of tenants.",
    )
    device_gate: Mechanism = Field(
        default="auto", description="Refuses opens of GPUs that `gpus` and `devices` do not allow."
    )

    @property
    def can_hold(self) -> bool:
        """Whether a brake may be used at all."""
        return self.brake in ("freezer_v1", "sigstop", "cgpu") or (
            self.brake != "none" and self.freezer != "off"
        )


class Devices(Section):
    """Who may open a GPU without being told so by `gpus`; see docs/device-gate.md."""

    default: Literal["allow", "deny"] = Field(
        default="allow", description="For cgroups below `under` that no tenant with `gpus` owns."
    )
    under: Under = Field(
        default=("gpu.slice",),
        description="Where default holds: a cgroup or a list of them, relative to the cgroup2 mount.",
    )


class TenantDefaults(Section):
    """What a tenant gets that does not say otherwise."""

    weight: Weight = Field(default=1.0, description="Share relative to the other tenants with demand.")
    tenant_class: ClassName = Field(
        default="latency",
        alias="class",
        description="latency is held last and thawed first; batch the reverse.",
    )
    quota: Ratio | None = Field(
        default=None, description="Hard cap, of one GPU over window_s, even if the GPU idles; null = no cap."
    )
    min: Ratio = Field(default=0.0, description="Guaranteed part of one GPU under contention.")
    max_freeze_ms: int | None = Field(
        default=None,
        ge=10,
        le=60_000,
        description="Longest hold; null = 500 for latency, 2000 for batch, "
        "and for a queue that outlasts what 500 can repay; up to 10000 where 2000 cannot.",
    )
    exempt: bool = Field(
        default=False, description="Accounted and shown, never held; the others share what it leaves."
    )
    on_misbehaviour: OnMisbehaviour = Field(
        default="warn",
        description="GPU work that never ends, cannot be seen, or leaves its cgroups: warn says so; terminate also "
        "ends the processes it comes from (SIGTERM, then SIGKILL), in mode enforce only.",
    )
    vram_limit: Size | None = Field(
        default=None,
        description="Memory on each GPU, of all its processes together, such as 8GiB; null = no limit.",
    )
    on_vram_limit: OnVramLimit = Field(
        default="warn",
        description="What is done about memory beyond vram_limit where the kernel cannot refuse it: warn says "
        "so; hold also holds it as long as its class allows, again and again; terminate ends the process that "
        "has most, until it fits. In mode enforce only.",
    )


class _Entitled(Section):
    """The values of TenantDefaults, each null (= inherit) until it is given."""

    weight: Weight | None = Field(
        default=None, description="As in tenant_defaults; of a child: its share of the parent, 1 if null."
    )
    gpu_parts: GpuParts | None = Field(default=None, description="By UUID: part of the weight on that GPU.")
    tenant_class: ClassName | None = Field(default=None, alias="class", description="As in tenant_defaults.")
    quota: Ratio | None = Field(default=None, description="As in tenant_defaults.")
    min: Ratio | None = Field(default=None, description="As in tenant_defaults; not for pattern children.")
    max_freeze_ms: int | None = Field(default=None, ge=10, le=60_000, description="As in tenant_defaults.")
    exempt: bool | None = Field(default=None, description="As in tenant_defaults.")
    on_misbehaviour: OnMisbehaviour | None = Field(default=None, description="As in tenant_defaults.")
    vram_limit: Size | None = Field(
        default=None, description="As in tenant_defaults; children's included, and not inherited by them."
    )
    on_vram_limit: OnVramLimit | None = Field(default=None, description="As in tenant_defaults.")
    policy: str | None = Field(
        default=None, max_length=300, description="What it has these of, for `status`."
    )
    gpus: GpuWish | None = Field(
        default=None,
        description="GPUs it may open: a list of N of /dev/nvidiaN and UUIDs, all, or none; null = as its parent, "
        "of a tenant: as `devices` says. Enforced in mode enforce.",
    )
    tokens_url: TokenUrls = Field(
        default=(),
        description="Metrics page of its server, such as http://127.0.0.1:8000/metrics, or a list: their token "
        "counters are added up, see docs/slis.md.",
    )
    tokens_metric: TokenMetric = Field(
        default=AUTO,
        description='The counter of generated tokens there, name or name{label="value"}; auto knows those of vLLM, '
        "SGLang, TGI, TensorRT-LLM and Triton.",
    )
    token_cost_ms: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="GPU milliseconds of one of its tokens, to compare it with tenants of other models; null = it is "
        "compared with tenants of the same model only.",
    )


class Child(_Entitled):
    """A cgroup directly below its parent's; quota and min are not inherited from tenant_defaults."""

    children: dict[ChildName, Child] = Field(
        default_factory=dict, description="Cgroups one level further down, in the same way."
    )
    pods: NameGlobs | None = Field(
        default=None,
        description="Where `children_are` is pods: the pods that are this child; null = of its name.",
    )


class Tenant(_Entitled):
    """A customer of the GPU: one or more cgroups with everything below them."""

    cgroup: Patterns | None = Field(
        default=None,
        description="Pattern or list of patterns (* ? **), relative to the cgroup2 mount; null means "
        "gpu.slice/NAME, or with `match` none. Two tenants may never match the same cgroup.",
    )
    match: Match | None = Field(
        default=None, description="Its cgroups by the names of containers, pods, jobs, units or users."
    )
    children: dict[ChildName, Child] = Field(
        default_factory=dict,
        description="Nested weights by the name (or a * ? pattern) of the cgroups directly below; a "
        "plain name wins over a pattern. Child cgroups that match none get the defaults.",
    )
    children_are: Literal["cgroups", "pods"] = Field(
        default="cgroups",
        description="pods: each pod of the one namespace that `match.pod` names is a child.",
    )


class Misbehaviour(Section):
    """Tenants whose GPU work a freezer cannot stop or the account cannot see; needs eBPF and NVML."""

    endless_s: int = Field(
        default=3,
        ge=1,
        le=600,
        description="Work that runs and completes nothing for so long is endless. More than the longest "
        "kernel or graph a tenant may submit.",
    )
    grace_s: int = Field(
        default=5, ge=0, le=600, description="From SIGTERM to SIGKILL of a process that goes on misbehaving."
    )


class Log(Section):
    """The daemon's log, on stderr."""

    format: Literal["logfmt", "json"] = Field(
        default="logfmt", description="One line per decision either way."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level shown."
    )


class Config(Section):
    """The configuration of one node."""

    mode: Literal["enforce", "observe", "dry_run"] = Field(
        default="observe",
        description="observe accounts and publishes fairness; dry_run also simulates holds, and tells what it would "
        "hold, why and for how long; enforce holds. The default pauses nobody until a person asks for it.",
    )
    tick_ms: int = Field(default=100, ge=10, le=10_000, description="Period of observe, decide, apply.")
    inner_tick_ms: int = Field(default=20, ge=1, le=10_000, description="Period while somebody is held.")
    window_s: int = Field(default=1, ge=1, le=10, description="Window of quotas, used shares and debt.")
    state_dir: AbsolutePath = Field(
        default=Path("/var/lib/fairsched"), description="Overrides; survives a reboot."
    )
    run_dir: AbsolutePath = Field(
        default=Path("/run/fairsched"), description="Socket and journal of holds; gone after a reboot."
    )
    control: Control = Field(default_factory=Control, description="The control socket.")
    gpu: Gpu = Field(default_factory=Gpu, description="Accounting of GPU time.")
    mechanisms: Mechanisms = Field(default_factory=Mechanisms, description="off, auto or required.")
    cgpu: CgpuKeys = Field(
        default_factory=CgpuKeys, description="Files that `mechanisms.brake: cgpu` writes."
    )
    tenant_defaults: TenantDefaults = Field(
        default_factory=TenantDefaults, description="Values of tenants that do not give their own."
    )
    tenants: dict[TenantName, Tenant] = Field(
        default_factory=dict, max_length=MAX_TENANTS, description="Tenants by name."
    )
    devices: Devices = Field(default_factory=Devices, description="Who may open a GPU.")
    misbehaviour: Misbehaviour = Field(
        default_factory=Misbehaviour, description="Endless and unseen GPU work."
    )
    metrics: Metrics = Field(default_factory=Metrics, description="Prometheus export.")
    history: History = Field(default_factory=History, description="The past, for `fairsched report`.")
    escalation: Escalation = Field(
        default_factory=Escalation, description="What is done when fairness stays bad."
    )
    reclaim: Reclaim = Field(default_factory=Reclaim, description="Rogue rules, and whom none may accuse.")
    guard: Guard = Field(default_factory=Guard, description="Limits on who may have how much, and when.")
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="Pods as tenants.")
    slis: Slis = Field(default_factory=Slis, description="Service levels and token counters.")
    log: Log = Field(default_factory=Log, description="The daemon's log.")

    @model_validator(mode="before")
    @classmethod
    def _empty_maps(cls, data: Any) -> Any:
        if isinstance(data, dict) and "tenants" in data and data["tenants"] is None:
            return {**data, "tenants": {}}
        return data

    @property
    def socket_path(self) -> Path:
        """Where the daemon listens."""
        return self.control.socket or self.run_dir / "fairsched.sock"

    @property
    def overrides_path(self) -> Path:
        """Where the daemon keeps what `fairsched tenant set` changed."""
        return self.state_dir / "overrides.yaml"

    @property
    def history_path(self) -> Path:
        """Where the companion keeps what `fairsched report` draws from."""
        return self.state_dir / "history.sqlite"

    def cgroup_patterns(self, tenant: str) -> tuple[str, ...]:
        """Patterns of a top-level tenant, relative to the cgroup2 mount; () = it is found by `match` alone."""
        node = self.tenants[tenant]
        return node.cgroup or (() if node.match is not None else (f"gpu.slice/{tenant}",))

    def cgroup_places(self, tenant: str) -> tuple[str, ...]:
        """Patterns of where its cgroups may be: those of the file, and the usual places of what it matches by name."""
        match = self.tenants[tenant].match
        return self.cgroup_patterns(tenant) + (() if match is None else match.places())

    def policy_params(self) -> PolicyParams:
        """The part of the file that the control law reads."""
        return PolicyParams(window_ns=self.window_s * 1_000_000_000)

    def tenant_specs(self) -> Mapping[str, TenantSpec]:
        """What was promised to every tenant the file names, inner nodes and literal children too.

        Children given by pattern exist only once a cgroup matches: see ``CgroupOwners``.
        """
        return {path: self.spec(path, node) for path, node in walk(self.tenants) if patterns.is_literal(path)}

    def spec(self, path: str, node: Tenant | Child | None) -> TenantSpec:
        """The spec of `node` under the name `path`; None stands for an unmatched child: all defaults.

        Children inherit class, max_freeze_ms, exempt, on_misbehaviour and on_vram_limit from tenant_defaults as
        tenants do, but not weight, quota, min and vram_limit: those speak of parts of the node, not of a tenant's.
        """
        base = self.tenant_defaults
        is_child = "/" in path
        node = node if node is not None else Child()
        weight = 1.0 if is_child else base.weight
        return TenantSpec(
            name=path,
            weight=weight if node.weight is None else node.weight,
            quota_ratio=node.quota if node.quota is not None or is_child else base.quota,
            min_ratio=(0.0 if is_child else base.min) if node.min is None else node.min,
            tenant_class=TenantClass(node.tenant_class or base.tenant_class),
            max_freeze_ms=base.max_freeze_ms if node.max_freeze_ms is None else node.max_freeze_ms,
            is_exempt=base.exempt if node.exempt is None else node.exempt,
            on_misbehaviour=MisbehaviourAction(node.on_misbehaviour or base.on_misbehaviour),
            vram_limit_bytes=node.vram_limit if node.vram_limit is not None or is_child else base.vram_limit,
            on_vram_limit=VramAction(node.on_vram_limit or base.on_vram_limit),
            gpu_parts=tuple(sorted((node.gpu_parts or {}).items())),
        )


def walk(
    nodes: Mapping[str, Tenant] | Mapping[str, Child], prefix: str = ""
) -> Iterator[tuple[str, Tenant | Child]]:
    """Every tenant and child with its path (``team``, ``team/chat``), parents before children."""
    for name, node in nodes.items():
        path = f"{prefix}{name}"
        yield path, node
        yield from walk(node.children, f"{path}/")
