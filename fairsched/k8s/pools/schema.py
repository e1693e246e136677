# SPDX-License-Identifier: Apache-2.0
"""The file of node pools: one strict schema. Unknown keys, bad quantities and names are errors with key and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from fairsched.config.section import Section
from fairsched.config.yamlfile import KeyPath
from fairsched.k8s.quantity import quantity

Problem = tuple[KeyPath, str, str]
MANUAL = "docs/kubernetes-pools.md"
MAX_PRIORITY = 1_000_000_000
"""What is above is Kubernetes' own."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")


def _name(value: str) -> str:
    if not NAME.fullmatch(value) or len(value) > 253:
        raise ValueError(f"{value[:60]!r} is no name in Kubernetes: lower-case letters, digits, '-' and '.'")
    return value


def _label_key(value: str) -> str:
    prefix, slash, name = value.rpartition("/")
    if not _PART.fullmatch(name) or len(name) > 63 or (slash and not NAME.fullmatch(prefix)):
        raise ValueError(f"{value[:60]!r} is no key of a label, such as team or example.com/team")
    return value


def _label_value(value: str) -> str:
    if value and (not _PART.fullmatch(value) or len(value) > 63):
        raise ValueError(
            f"{value[:60]!r} is no value of a label: at most 63 letters, digits, '-', '_' and '.'"
        )
    return value


def _text_of_number(value: Any) -> Any:
    """``gpu-count: 8`` plainly means "8": values of labels are texts."""
    value = whole(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else value


def whole(value: Any) -> Any:
    """1e+06 is what helm makes of 1000000."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _amount(value: Any) -> Any:
    value = whole(value)
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if not isinstance(text, str) or quantity(text) is None:
        raise ValueError(f"{str(value)[:60]!r} is no quantity, such as 8, 500m or 64Gi")
    return text


def _resource(value: str) -> str:
    name = value.rpartition(".")[2] if "/" not in value else value
    if not name or not re.fullmatch(r"[-A-Za-z0-9_./]{1,317}", value):
        raise ValueError(f"{value[:60]!r} is no resource")
    return value


def _quota_resource(value: str) -> str:
    _resource(value)
    head, dot, rest = value.partition(".")
    if "/" not in value or value.startswith("count/") or ".storageclass.storage.k8s.io/" in value:
        return value
    if dot and head == "limits" and "/" in rest:
        raise ValueError(f"extended resources have no limits in a quota: write requests.{rest}")
    if not (dot and head == "requests" and "/" in rest):
        raise ValueError(f"a quota counts what is requested of an extended resource: write requests.{value}")
    return value


_TEXT_OR_NUMBER = WithJsonSchema({"type": ["string", "integer"]})
_AMOUNT_JSON = WithJsonSchema({"type": ["string", "number"]})
Name = Annotated[str, AfterValidator(_name)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_label_value), _TEXT_OR_NUMBER]
Amount = Annotated[str, BeforeValidator(_amount), _AMOUNT_JSON]
Resources = dict[Annotated[str, AfterValidator(_resource)], Amount]
_Labels = dict[LabelKey, LabelValue]


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _listed(value)


_Words = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
    BeforeValidator(_words),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}}),
]


class PoolNodes(Section):
    """Which nodes a pool has: all of what is given must hold. At least one key."""

    names: _Words = Field(default=(), description="Names of nodes; patterns (* ?) are allowed.")
    accelerator: _Words = Field(
        default=(), description="As detected: h100, a100, l4, t4, v100 ...; patterns are allowed."
    )
    labels: _Labels = Field(default_factory=dict, description="Labels that the nodes have.")
    min_gpus: int | None = Field(default=None, ge=1, le=1024, description="So many GPUs at least.")
    max_gpus: int | None = Field(default=None, ge=1, le=1024, description="So many at most.")


class PoolTaint(Section):
    """What keeps pods away that do not tolerate it."""

    key: LabelKey = Field(description="Such as nvidia.com/gpu.")
    value: LabelValue = Field(default="", description="Such as present.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        description="NoExecute also evicts those that are there."
    )


class Pool(Section):
    """One pool of nodes."""

    nodes: PoolNodes = Field(description="Which nodes.")
    workload: LabelValue | None = Field(default=None, description="Label `workload`: inference, training ...")
    labels: _Labels = Field(default_factory=dict, description="More labels.")
    taints: Annotated[
        tuple[PoolTaint, ...],
        BeforeValidator(_listed),
    ] = Field(default=(), max_length=32, description="Taints.")
    mig_config: LabelValue | None = Field(
        default=None, description="Label `nvidia.com/mig.config`: a layout that NVIDIA's MIG manager knows."
    )
    sharing: str | None = Field(
        default=None,
        description="Label `nvidia.com/device-plugin.config`: one of `sharing.configs`.",
    )


class LimitItem(Section):
    """One item of a LimitRange."""

    type: Literal["Container", "Pod", "PersistentVolumeClaim"] = Field(
        default="Container", description="Of what."
    )
    default: Resources = Field(default_factory=dict, description="Limits of those that say none.")
    default_request: Resources = Field(default_factory=dict, description="Requests of those that say none.")
    min: Resources = Field(default_factory=dict, description="No less.")
    max: Resources = Field(default_factory=dict, description="No more.")
    max_limit_request_ratio: Resources = Field(
        default_factory=dict, description="A limit may be so many times its request."
    )


class PoolNamespace(Section):
    """What the pods of one namespace may have together, and each of them."""

    quota: dict[Annotated[str, AfterValidator(_quota_resource)], Amount] = Field(
        default_factory=dict, description="ResourceQuota: such as requests.nvidia.com/gpu: 8."
    )
    limits: Annotated[
        tuple[LimitItem, ...],
        BeforeValidator(_listed),
    ] = Field(default=(), max_length=16, description="LimitRange.")


class PoolPriority(Section):
    """A PriorityClass."""

    value: Annotated[int, BeforeValidator(whole)] = Field(
        ge=-2_147_483_648, le=MAX_PRIORITY, description="Higher goes first."
    )
    description: str = Field(default="", max_length=1024, description="For whom.")
    preemption: Literal["PreemptLowerPriority", "Never"] = Field(
        default="PreemptLowerPriority", description="Whether pods of it end others."
    )
    is_default: bool = Field(default=False, alias="default", description="Of pods that name none.")


class PoolSharing(Section):
    """One configuration of NVIDIA's device plugin: each GPU is offered several times."""

    replicas: int = Field(ge=2, le=1024, description="How often each GPU is offered.")
    resource: Annotated[str, AfterValidator(_resource)] = Field(
        default="nvidia.com/gpu", description="Also nvidia.com/mig-1g.10gb and the like."
    )
    rename: bool = Field(default=False, description="Offer it as RESOURCE.shared.")
    refuse_many: bool = Field(
        default=True,
        description="Refuse pods that ask for more than one: two replicas are no more GPU time than one.",
    )
    mig_strategy: Literal["none", "single", "mixed"] | None = Field(
        default=None, description="How MIG instances are offered; null = as the plugin is told otherwise."
    )


class PoolSharings(Section):
    """The ConfigMap that NVIDIA's device plugin reads."""

    namespace: Name = Field(default="nvidia-device-plugin", description="Where the plugin is.")
    name: Name = Field(default="fairsched-sharing", description="Of the ConfigMap.")
    configs: dict[str, PoolSharing] = Field(
        default_factory=dict, max_length=64, description="Configurations by name."
    )


class Pools(Section):
    """The file of node pools."""

    label_prefix: str = Field(
        default="", description="Before accelerator, gpu-count, workload and mig: '' or such as example.com."
    )
    pools: dict[Name, Pool] = Field(
        default_factory=dict, max_length=256, description="Pools by name; the first that a node fits has it."
    )
    namespaces: dict[Name, PoolNamespace] = Field(
        default_factory=dict, max_length=4096, description="Quotas and limits by namespace."
    )
    priority_classes: dict[Name, PoolPriority] = Field(
        default_factory=dict, max_length=256, description="PriorityClasses by name."
    )
    sharing: PoolSharings = Field(
        default_factory=PoolSharings, description="How NVIDIA's device plugin shares GPUs."
    )


MODELS: Mapping[tuple[str, ...], type[Section]] = {
    (): Pools,
    ("pools", "*"): Pool,
    ("pools", "*", "nodes"): PoolNodes,
    ("pools", "*", "taints", "*"): PoolTaint,
    ("namespaces", "*"): PoolNamespace,
    ("namespaces", "*", "limits", "*"): LimitItem,
    ("priority_classes", "*"): PoolPriority,
    ("sharing",): PoolSharings,
    ("sharing", "configs", "*"): PoolSharing,
}
"""Sections by where they are; ``*`` is a name that a person gave, or an index."""


def known_keys(section: KeyPath) -> list[str]:
    """Keys the schema allows in a section."""
    for place, model in MODELS.items():
        if len(place) == len(section) and all(
            want in ("*", have) for want, have in zip(place, section, strict=True)
        ):
            return [field.alias or name for name, field in model.model_fields.items()]
    return []


def problems(pools: Pools) -> Iterator[Problem]:
    """What no single key is to blame for: (key, what is wrong, remedy)."""
    if pools.label_prefix and not NAME.fullmatch(pools.label_prefix):
        yield ("label_prefix",), f"{pools.label_prefix[:60]!r} is no domain", "write one such as example.com"
    for name, pool in pools.pools.items():
        at: KeyPath = ("pools", name)
        nodes = pool.nodes
        if not (nodes.names or nodes.accelerator or nodes.labels or nodes.min_gpus or nodes.max_gpus):
            yield (*at, "nodes"), "it names no node", f"give one of {', '.join(known_keys((*at, 'nodes')))}"
        if nodes.min_gpus and nodes.max_gpus and nodes.min_gpus > nodes.max_gpus:
            yield (*at, "nodes", "max_gpus"), "it is below min_gpus", "raise it"
        seen: set[tuple[str, str]] = set()
        for index, taint in enumerate(pool.taints):
            if (taint.key, taint.effect) in seen:
                yield (*at, "taints", index), "key and effect are there twice", "a node has each once"
            seen.add((taint.key, taint.effect))
            if taint.key.startswith("node.kubernetes.io/"):
                yield (*at, "taints", index, "key"), "these taints are Kubernetes' own", "take another key"
        if pool.sharing is not None and pool.sharing not in pools.sharing.configs:
            known = ", ".join(pools.sharing.configs) or "none"
            yield (*at, "sharing"), f"no configuration {pool.sharing!r} in sharing.configs", f"known: {known}"
        for key in pool.labels:
            if key in own_labels(pools.label_prefix) or key in (MIG_LABEL, PLUGIN_LABEL):
                yield (
                    (*at, "labels", key),
                    "fairsched sets this label itself",
                    "use the key of the pool for it",
                )
    for name, space in pools.namespaces.items():
        kinds = [item.type for item in space.limits]
        for index, kind in enumerate(kinds):
            if kind in kinds[:index]:
                yield ("namespaces", name, "limits", index), f"{kind} is there twice", "put both into one"
    for name in pools.priority_classes:
        if name.startswith("system-"):
            yield ("priority_classes", name), "system- is Kubernetes' own", "take another name"
    defaults = [name for name, one in pools.priority_classes.items() if one.is_default]
    if len(defaults) > 1:
        yield (
            ("priority_classes", defaults[1], "default"),
            f"{defaults[0]} is the default already",
            "keep one",
        )
    for name in pools.sharing.configs:
        if not _CONFIG_KEY.fullmatch(name) or not _PART.fullmatch(name) or len(name) > 63:
            yield (
                ("sharing", "configs", name),
                f"{name[:60]!r} can be no label",
                "letters, digits, '-', '_', '.'",
            )


MIG_LABEL = "nvidia.com/mig.config"
PLUGIN_LABEL = "nvidia.com/device-plugin.config"


def own_labels(prefix: str) -> dict[str, str]:
    """What the four words are called as labels."""
    before = f"{prefix}/" if prefix else ""
    return {f"{before}{word}": word for word in ("accelerator", "gpu-count", "workload", "mig")}
