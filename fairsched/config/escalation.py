# SPDX-License-Identifier: Apache-2.0
"""The section ``escalation``: what is done when fairness stays bad; docs/escalation.md explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from fairsched.config.section import AbsolutePath, Section
from fairsched.config.values import Ratio, listed
from fairsched.config.yamlfile import KeyPath

StepName = Literal["quota", "command", "mig", "evict"]
Problem = tuple[KeyPath, str, str]

_MAX_GPUS = 64
_PROFILE = re.compile(r"[1-8]g\.[1-9][0-9]*gb(?:\+[a-z.]+)*|[1-8]g\.[1-9][0-9]*gb-[a-z]+")
_LABEL = re.compile(r"(?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def _profiles(value: Any) -> Any:
    value = listed(value)
    for name in value if isinstance(value, tuple) else ():
        if not isinstance(name, str) or not _PROFILE.fullmatch(name):
            raise ValueError(f"{str(name)[:40]!r} is not a MIG profile: write it as nvidia-smi does, 3g.20gb")
    return value


def _gpus(value: Any) -> Any:
    value = listed(value)
    for gpu in value if isinstance(value, tuple) else ():
        is_index = isinstance(gpu, int) and not isinstance(gpu, bool) and gpu >= 0
        if not is_index and not (isinstance(gpu, str) and gpu.startswith("GPU-")):
            raise ValueError(f"{str(gpu)[:60]!r} is not a GPU: its index or its UUID, see nvidia-smi -L")
    return value


def _run(value: Any) -> Any:
    value = listed(value)
    if isinstance(value, str):
        raise ValueError("a list is needed, program and arguments: no shell takes it apart")
    if isinstance(value, tuple) and value:
        if not all(isinstance(word, str) and "\0" not in word for word in value):
            raise ValueError("every argument is a text: put it in quotes")
        if not value[0].startswith("/"):
            raise ValueError(f"{value[0][:60]!r} is not an absolute path")
    return value


def _labels(value: Any) -> Any:
    for name, text in value.items() if isinstance(value, dict) else ():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise ValueError(f"{str(name)[:60]!r} is not the name of a label")
        if not isinstance(text, str) or not _LABEL_VALUE.fullmatch(text):
            raise ValueError(f"{str(text)[:60]!r} is not the value of a label: put it in quotes")
    return value


_TEXTS = {"type": "array", "items": {"type": "string"}}
Words = Annotated[tuple[str, ...], BeforeValidator(listed), Field(max_length=64), WithJsonSchema(_TEXTS)]
Ladder = Annotated[tuple[StepName, ...], BeforeValidator(listed), Field(max_length=4)]
Profiles = Annotated[tuple[str, ...], BeforeValidator(_profiles), Field(max_length=7), WithJsonSchema(_TEXTS)]
Run = Annotated[tuple[str, ...], BeforeValidator(_run), Field(max_length=64), WithJsonSchema(_TEXTS)]
Gpus = Annotated[
    Literal["all"] | tuple[int | str, ...],
    BeforeValidator(_gpus),
    WithJsonSchema({"anyOf": [{"enum": ["all"]}, {"type": "array", "maxItems": _MAX_GPUS}]}),
]
Labels = Annotated[dict[str, str], BeforeValidator(_labels), Field(max_length=16)]


class EscalationQuota(Section):
    """More of a GPU for the tenant that suffers, for a while."""

    step: Ratio = Field(default=0.02, description="So much more each time, of one GPU.")
    max_raise: Ratio = Field(
        default=0.10,
        description="Never more than this in all, above what the tenant is owed when all tenants want the GPU; of a "
        "quota: above the quota.",
    )
    lapse_s: int = Field(
        default=3600, ge=60, le=604_800, description="A raise is taken back after so long in any case."
    )
    cool_down_s: int = Field(default=300, ge=1, le=604_800, description="Between two actions of this step.")


class EscalationMig(Section):
    """Another split of a GPU that nobody uses."""

    profiles: Profiles = Field(
        default=(), description="Wanted layout of a GPU, as [3g.20gb, 3g.20gb]; MIG mode must be on."
    )
    gpus: Gpus = Field(default="all", description="Indexes and UUIDs of those that may be split.")
    label: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        description="Where NVIDIA's MIG manager runs: the nvidia.com/mig.config to ask it for, instead of profiles.",
    )
    wait_s: int = Field(default=300, ge=1, le=3600, description="How long the MIG manager may take.")
    cool_down_s: int = Field(default=3600, ge=1, le=604_800, description="Between two actions of this step.")


class EscalationEvict(Section):
    """One pod is moved away through the Eviction API."""

    namespaces: Words = Field(default=(), description="Only pods in these; [] = in all but the protected.")
    protected_namespaces: Words = Field(default=("kube-system",), description="Never pods in these.")
    max_priority: int = Field(
        default=0, ge=-2_147_483_648, le=1_000_000_000, description="Never a pod of a higher priority."
    )
    gpu_resources: Words = Field(
        default=("nvidia.com/*",),
        description="A pod that asks for one of these is counted in the reasons when nobody may go; * matches.",
    )
    cordon: bool = Field(default=True, description="Keep new pods off the node until it is taken back.")
    labels: Labels = Field(default_factory=dict, description="Put on the node until it is taken back.")
    grace_s: int | None = Field(
        default=None, ge=1, le=3600, description="From SIGTERM to SIGKILL of the pod; null = as the pod says."
    )
    wait_s: int = Field(default=60, ge=0, le=600, description="How long to look whether the pod has gone.")
    cool_down_s: int = Field(default=1800, ge=1, le=604_800, description="Between two actions of this step.")


class EscalationCommand(Section):
    """A program of your own, told what is wrong by JSON on standard input."""

    run: Run = Field(default=(), description="Program (absolute path) and arguments; no shell.")
    timeout_s: int = Field(default=30, ge=1, le=600, description="It is ended after so long.")
    undo: bool = Field(default=False, description="Call it again when the step is taken back.")
    cool_down_s: int = Field(default=600, ge=1, le=604_800, description="Between two actions of this step.")


class EscalationKubernetes(Section):
    """How the steps evict and mig (by label) reach the API server."""

    kubeconfig: AbsolutePath | None = Field(
        default=None, description="Credentials; null = the service account of the pod."
    )
    node: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of this node; null = $NODE_NAME, else the host's name.",
    )


class Escalation(Section):
    """What is done when fairness stays bad; see docs/escalation.md."""

    enabled: bool = Field(default=False, description="Watch, decide and act.")
    dry_run: bool = Field(
        default=True,
        description="Only check and write down what would be done; so it is in any case while the daemon does not "
        "enforce.",
    )
    ladder: Ladder = Field(
        default=("mig", "evict", "quota"),
        description="Steps in the order in which they are tried. One that is not possible here is passed over, and the "
        "history says why.",
    )
    queue_delay_p99_ms: float | None = Field(
        default=20.0,
        gt=0,
        le=60_000,
        description="Bad above it, and above what fair turns take, of the worst latency tenant; null = does not "
        "matter.",
    )
    token_rate_cv: Ratio | None = Field(
        default=0.05, description="Bad above it, of token/s across tenants; null = does not matter."
    )
    for_s: int = Field(default=180, ge=1, le=86_400, description="How long it must be bad before a step.")
    clear_ratio: Ratio = Field(default=0.8, description="Clear at or below this part of a threshold.")
    clear_for_s: int = Field(
        default=300, ge=1, le=86_400, description="How long all must be clear before one step is taken back."
    )
    cool_down_s: int = Field(default=300, ge=1, le=86_400, description="Between two actions of any kind.")
    max_actions_per_hour: int = Field(
        default=4, ge=1, le=60, description="Failed ones and rollbacks included."
    )
    again_s: int = Field(
        default=3600, ge=60, le=604_800, description="From the end of the ladder to climbing it anew."
    )
    quota: EscalationQuota = Field(default_factory=EscalationQuota, description="The step quota.")
    mig: EscalationMig = Field(default_factory=EscalationMig, description="The step mig.")
    evict: EscalationEvict = Field(default_factory=EscalationEvict, description="The step evict.")
    command: EscalationCommand = Field(default_factory=EscalationCommand, description="The step command.")
    kubernetes: EscalationKubernetes = Field(default_factory=EscalationKubernetes, description="Kubernetes.")


def problems(section: Escalation) -> Iterator[Problem]:
    """What no single field can know. Nothing is demanded of a step that is not on the ladder, nor of mig, whose
    layout nobody but the operator knows: without one the step is passed over."""
    at = "escalation"
    for name in sorted({step for step in section.ladder if section.ladder.count(step) > 1}):
        yield (at, "ladder"), f"{name} is on it twice", "name each step once"
    if section.enabled and not section.ladder:
        yield (at, "ladder"), "it is empty, so nothing would ever be done", "name a step, such as [quota]"
    if section.enabled and section.queue_delay_p99_ms is None and section.token_rate_cv is None:
        yield (
            (at, "enabled"),
            "both thresholds are null, so nothing would ever be done",
            "set escalation.queue_delay_p99_ms or escalation.token_rate_cv",
        )
    if not 0 < section.clear_ratio < 1:
        yield (
            (at, "clear_ratio"),
            f"{section.clear_ratio:g} leaves nothing between bad and clear, or nothing clear",
            "use a part between 0 and 1, such as 0.8",
        )
    if section.token_rate_cv == 0:
        yield (at, "token_rate_cv"), "0 is always exceeded", "use a ratio such as 5%, or null"
    yield from _step_problems(section)


def _step_problems(section: Escalation) -> Iterator[Problem]:
    at, quota, mig = "escalation", section.quota, section.mig
    if not 0.005 <= quota.step <= quota.max_raise:
        yield (
            (at, "quota", "step"),
            f"{quota.step:g} is not between 0.5 % and max_raise {quota.max_raise:g}",
            "make it smaller than escalation.quota.max_raise",
        )
    if mig.profiles and mig.label is not None:
        yield (at, "mig", "label"), "profiles are given too", "keep one: label where a MIG manager runs"
    if "command" in section.ladder and not section.command.run:
        yield (
            (at, "command", "run"),
            "command is on the ladder and there is none",
            "name a program by its absolute path, as [/usr/local/bin/page-me]",
        )
