# SPDX-License-Identifier: Apache-2.0
"""What is played: GPUs, tenants and their loads, read from a YAML file.

Problem. Other people bring their own mixes; a typing error in one must not quietly measure something else.

Approach. One pydantic schema, unknown keys are errors that name the file and the key; docs/scenarios.md is
generated from it. A scenario says nothing about who schedules: the same file and seed is played under every
policy. Times are of the scenario's own clock, which starts when everybody who is there from the start works.

Terms. step: a token, a batch, an iteration: ``kernels`` launches (or one graph) and the wait for them.
leaf: a tenant without children; it has loads and a cgroup. stranger: a process that belongs to no tenant.
nature: how the simulated GPU serves its contexts (slices, preemption, overlap).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks.fair import rungs
from benchmarks.tricks import TRICKS
from fairsched.errors import ConfigError
from fairsched.model import MisbehaviourKind, TenantClass, TenantSpec
from fairsched.simgpu import GpuSpec, Workload

DIRECTORY = Path(__file__).resolve().parent.parent / "scenarios"
_NAME = r"^[a-z0-9][a-z0-9._-]{0,47}$"
MAX_FILE_BYTES = 256 * 1024
_SETTLE_UNSCHEDULED_S = 1.5


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=_NAME)]


class Gpu(_Section):
    """One simulated GPU and its nature."""

    slice_us: Positive = Field(default=2097.0, description="Time slice of one context.")
    switch_us: NotNegative = Field(default=180.0, description="Cost of a switch between two contexts.")
    slice_spread_ratio: Ratio = Field(
        default=0.0,
        description="Unequal slices: contexts alternate between slice x (1 + this) and x (1 - this).",
    )
    slice_jitter_ratio: Ratio = Field(
        default=0.0, description="Clock jitter: each slice is longer or shorter by up to this, at random."
    )
    is_runlist_ordered: bool = Field(
        default=True,
        description="Contexts take turns in the order of their creation; else in any, as places become free.",
    )
    run_to_completion: bool = Field(
        default=False, description="No preemption: a kernel that runs is not interrupted at the slice's end."
    )
    overlap: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Contexts that run at once, MPS-like, each with its part of the GPU.",
    )
    vram_bytes: int = Field(default=16 << 30, ge=1, description="Memory.")
    told_slice_us: int | None = Field(
        default=None,
        ge=100,
        le=1_000_000,
        description="What the daemon's configuration says the slice is; null = its default, right or wrong.",
    )

    def spec(self) -> GpuSpec:
        """For the simulated host."""
        given = self.model_dump(exclude={"told_slice_us"})
        return GpuSpec(**given)


class Arrival(_Section):
    """When steps arrive."""

    pattern: Literal["closed", "poisson", "onoff"] = Field(
        default="closed",
        description="closed: the next step follows the last. poisson: steps arrive at random moments and "
        "queue. onoff: closed for on_ms, then nothing for off_ms.",
    )
    rate_per_s: NotNegative = Field(default=0.0, description="poisson: mean arrivals per second and process.")
    on_ms: NotNegative = Field(default=0.0, description="onoff: length of the busy part.")
    off_ms: NotNegative = Field(default=0.0, description="onoff: length of the pause.")

    @model_validator(mode="after")
    def _complete(self) -> Arrival:
        if self.pattern == "poisson" and not self.rate_per_s:
            raise ValueError("poisson arrivals need rate_per_s")
        if self.pattern == "onoff" and not (self.on_ms and self.off_ms):
            raise ValueError("onoff arrivals need on_ms and off_ms")
        if self.pattern != "poisson" and self.rate_per_s:
            raise ValueError("rate_per_s is of poisson arrivals: give the pattern, too")
        if self.pattern != "onoff" and (self.on_ms or self.off_ms):
            raise ValueError("on_ms and off_ms are of onoff arrivals: give the pattern, too")
        return self


class Load(_Section):
    """Processes that all do the same."""

    processes: int = Field(default=1, ge=1, le=64, description="Each with a seed of its own.")
    contexts: int = Field(default=1, ge=1, le=32, description="Per process, each driven by a thread.")
    streams: int = Field(default=1, ge=1, le=64, description="Per context; kernels go to them in turn.")
    kernels: int = Field(default=20, ge=1, le=20_000, description="Launches per step.")
    kernel_us: Positive = Field(default=250.0, description="Mean GPU time of one kernel.")
    distribution: Literal["lognormal", "uniform"] = Field(default="lognormal", description="Of kernel times.")
    spread_ratio: Ratio = Field(
        default=0.0, description="Relative spread of kernel times; the mean stays. 0: all take kernel_us."
    )
    cpu_us: NotNegative = Field(
        default=0.0, description="Between two steps, when nothing is submitted (slept)."
    )
    launch_gap_us: NotNegative = Field(
        default=0.0,
        description="Between two launches of a step (slept): above kernel_us the program is launch-bound, as eager "
        "PyTorch is. A graph has none.",
    )
    queue_depth: int = Field(default=1, ge=1, le=256, description="Steps in flight; 1 = wait for each.")
    submit: Literal["launch", "graph"] = Field(
        default="launch", description="A step is n launches or one graph."
    )
    wait: Literal["sync", "query", "pinned", "none"] = Field(
        default="sync",
        description="How the end of a step is noticed: sync = blocking call, query = cuEventQuery in a loop, "
        "pinned = polling pinned memory (no API call), none = never, until the queue is full.",
    )
    arrival: Arrival = Field(default_factory=Arrival, description="When steps arrive.")
    copy_bytes: int = Field(default=0, ge=0, description="Copied to the device at the end of each step.")
    threads: int = Field(default=0, ge=0, le=2000, description="Idle threads: they make freezing slower.")
    gpu: int = Field(default=0, ge=0, le=15, description="Index of the GPU.")
    libcuda: Literal["shared", "private", "static"] = Field(
        default="shared",
        description="shared: the host's file. private: a copy in another inode, opened with dlopen. static: "
        "work is submitted without the exports (no probe can see it).",
    )
    trick: str | None = Field(
        default=None, pattern=r"^[a-z_]+$", description="A hostile program instead; see benchmarks/tricks.py."
    )

    @model_validator(mode="after")
    def _sane(self) -> Load:
        if self.trick is not None and self.trick not in TRICKS:
            raise ValueError(f"no trick {self.trick!r}; there are {', '.join(TRICKS)}")
        if self.submit == "graph" and self.streams > 1:
            raise ValueError("a graph is launched into one stream: streams must be 1")
        if self.submit == "graph" and self.launch_gap_us:
            raise ValueError("a graph is one launch: launch_gap_us must be 0")
        return self

    @property
    def think_ns(self) -> int | None:
        """Between two steps of a closed loop; None where steps come by a clock, or nobody waits for one."""
        if self.arrival.pattern != "closed" or self.wait == "none" or self.trick is not None:
            return None
        return int(self.cpu_us * 1000)

    @property
    def comes(self) -> tuple[float, float] | None:
        """(steps per second, GPU time of each in ns) of a process whose steps come whether the last is done or not; of
        several contexts None, too."""
        if self.arrival.pattern != "poisson" or self.contexts > 1 or self.trick is not None:
            return None
        return self.arrival.rate_per_s, self.kernels * self.kernel_us * 1000

    @property
    def misbehaves_as(self) -> MisbehaviourKind | None:
        """What it is to be called by who finds it out."""
        if self.trick == "endless":
            return MisbehaviourKind.ENDLESS
        if self.trick == "move":
            return MisbehaviourKind.MOVING
        is_past_probes = self.libcuda == "static" or self.trick == "dlopen_copy"
        return MisbehaviourKind.UNSEEN if is_past_probes else None

    def workload(self, libcuda: str, seed: int) -> Workload:
        """One process of it."""
        return Workload(
            kind="static" if self.libcuda == "static" else "step",
            kernels=self.kernels,
            kernel_us=self.kernel_us,
            jitter_ratio=self.spread_ratio,
            jitter_kind=self.distribution,
            gap_us=self.cpu_us,
            launch_gap_us=self.launch_gap_us,
            depth=self.queue_depth,
            contexts=self.contexts,
            streams=self.streams,
            device=self.gpu,
            seed=seed,
            threads=self.threads,
            copy_bytes=self.copy_bytes,
            alloc_bytes=self.copy_bytes,
            libcuda=libcuda,
            submit=self.submit,
            wait=self.wait,
            arrival=self.arrival.pattern,
            rate_per_s=self.arrival.rate_per_s,
            on_us=self.arrival.on_ms * 1000,
            off_us=self.arrival.off_ms * 1000,
        )


class Tenant(_Section):
    """A tenant with loads, or one with children that have them."""

    weight: Positive = Field(default=1.0, description="Among its siblings.")
    quota: Ratio | None = Field(default=None, description="Hard cap, of one GPU; null = none.")
    min: Ratio = Field(default=0.0, description="Guaranteed part of one GPU under contention.")
    tenant_class: Literal["latency", "batch"] = Field(
        default="latency", alias="class", description="Held last or first."
    )
    on_misbehaviour: Literal["warn", "terminate"] | None = Field(
        default=None, description="What the daemon does about it when its work cannot be held or seen."
    )
    loads: tuple[Load, ...] = Field(default=(), description="What it runs; empty for one with children.")
    children: dict[Name, Tenant] = Field(default_factory=dict, description="Nested tenants.")
    start_s: NotNegative = Field(default=0.0, description="When its processes start.")
    stop_s: Positive | None = Field(
        default=None, description="When they are killed; null = with the scenario."
    )
    is_hostile: bool = Field(default=False, description="Its gain over its fair share is reported.")

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("loads"), list):
            return {**data, "loads": tuple(data["loads"])}
        return data

    @model_validator(mode="after")
    def _loads_or_children(self) -> Tenant:
        if bool(self.loads) == bool(self.children):
            raise ValueError("a tenant has either loads or children")
        if self.stop_s is not None and self.stop_s <= self.start_s:
            raise ValueError("stop_s must lie after start_s")
        return self


class Scenario(_Section):
    """One file."""

    description: str = Field(default="", description="One line: what it shows.")
    seconds: Positive = Field(
        default=20.0, le=3600, description="Measured, after settling; --seconds overrides it."
    )
    settle_s: NotNegative = Field(
        default=3.0,
        le=60,
        description="Played before measuring starts; under `none` 1.5 s at most where nobody comes or goes.",
    )
    gpus: tuple[Gpu, ...] = Field(default=(Gpu(),), min_length=1, max_length=16, description="The GPUs.")
    tenants: dict[Name, Tenant] = Field(min_length=1, max_length=1024, description="By name.")
    strangers: tuple[Load, ...] = Field(default=(), description="Processes that belong to no tenant.")
    beside_others: bool = Field(
        default=False,
        description="Two seeds of it may be played at a time (never another scenario): nothing is timed finely in it.",
    )
    headline: bool = Field(default=False, description="Played under every policy by `make bench`.")

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return data

    @model_validator(mode="after")
    def _gpus_exist(self) -> Scenario:
        loads = [load for _, leaf in leaves(self.tenants) for load in leaf.loads] + list(self.strangers)
        most = max((load.gpu for load in loads), default=0)
        if most >= len(self.gpus):
            raise ValueError(f"a load is on GPU {most}, but there are only {len(self.gpus)} (gpus)")
        return self


def leaves(tenants: Mapping[str, Tenant], prefix: str = "") -> Iterator[tuple[str, Tenant]]:
    """The tenants that have loads, by path: ``team/chat``."""
    for name, tenant in tenants.items():
        if tenant.children:
            yield from leaves(tenant.children, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", tenant


def nodes(tenants: Mapping[str, Tenant], prefix: str = "") -> Iterator[tuple[str, Tenant]]:
    """Every tenant by path, parents before children."""
    for name, tenant in tenants.items():
        yield f"{prefix}{name}", tenant
        yield from nodes(tenant.children, f"{prefix}{name}/")


@dataclass(frozen=True)
class Play:
    """A scenario and the name it goes by."""

    name: str
    scenario: Scenario

    def leaves(self) -> dict[str, Tenant]:
        """In the file's order; the position + 1 is the owner tag of its processes."""
        return dict(leaves(self.scenario.tenants))

    def equal_groups(self) -> list[list[str]]:
        """Leaves that were promised the same and make tokens of the same cost: their token/s may be compared."""
        groups: dict[Any, list[str]] = {}
        for leaf, tenant in self.leaves().items():
            costs = {(load.kernels * load.kernel_us, load.gpu) for load in tenant.loads}
            parent = leaf.rpartition("/")[0]
            promised = (parent, tenant.weight, tenant.quota, tenant.min)
            groups.setdefault((promised, tuple(sorted(costs))), []).append(leaf)
        return [group for group in groups.values() if len(group) > 1]

    def settle_s(self, policy: str) -> float:
        """Played before measuring starts. Long ones are for a policy that learns how the GPU takes turns: without one
        there is nothing to wait for, unless somebody comes or goes by the clock."""
        is_still = all(leaf.start_s == 0 and leaf.stop_s is None for leaf in self.leaves().values())
        if policy == "none" and is_still:
            return min(self.scenario.settle_s, _SETTLE_UNSCHEDULED_S)
        rung = rungs.ALL.get(policy, rungs.Rung())
        return max(self.scenario.settle_s, rung.settle_s)

    def specs(self) -> dict[str, TenantSpec]:
        """What was promised, inner nodes too."""
        return {
            path: TenantSpec(
                name=path,
                weight=node.weight,
                quota_ratio=node.quota,
                min_ratio=node.min,
                tenant_class=TenantClass(node.tenant_class),
            )
            for path, node in nodes(self.scenario.tenants)
        }


def _doubled(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Keys that a mapping has twice: the loader keeps the last in silence, and a tenant written twice is half a
    scenario."""
    stack, met = [node], set[int]()
    while stack:
        one = stack.pop()
        if one is None or id(one) in met:  # an alias
            continue
        met.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            stack += one.value
        elif isinstance(one, yaml.MappingNode):
            words = set()
            for key, value in one.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in words:
                        yield key
                    words.add(key.value)
                stack.append(value)


def _parsed(text: str) -> Any:
    for key in _doubled(yaml.compose(text, Loader=yaml.SafeLoader)):
        raise yaml.MarkedYAMLError(problem=f"the key {key.value} is there twice", problem_mark=key.start_mark)
    return yaml.safe_load(text)


def find(path: Path) -> Path:
    """A file, or the name of a shipped one without its ending."""
    named = DIRECTORY / f"{path}.yaml"
    return named if not path.exists() and named.exists() else path


def load(path: Path) -> Play:
    """Read and check one file. Raises ConfigError that names the file, the key and a remedy."""
    path = find(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES // 1024} KiB", remedy="is it a scenario?")
        data = _parsed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(p.stem for p in DIRECTORY.glob("*.yaml")))
        raise ConfigError(f"{path}: cannot be read: {error}", remedy=f"a file, or one of: {known}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}", remedy="see docs/scenarios.md") from error
    if not re.fullmatch(_NAME, path.stem):
        raise ConfigError(f"{path}: the file's name names the results", remedy="use a-z 0-9 . _ - only")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a mapping with the key tenants is needed", remedy="see docs/scenarios.md")
    try:
        return Play(path.stem, Scenario.model_validate(data))
    except ValidationError as error:
        lines = "; ".join(
            f"{'.'.join(str(part) for part in e['loc']) or 'the file'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()[:5]
        )
        raise ConfigError(f"{path}: {lines}", remedy="the keys are in docs/scenarios.md") from error


def shipped() -> list[Path]:
    """The scenario files of this directory, by name."""
    return sorted(DIRECTORY.glob("*.yaml"))
