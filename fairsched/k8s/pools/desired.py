# SPDX-License-Identifier: Apache-2.0
"""What the file wants of each object (pure): pools and nodes in, fields and taints out."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from fairsched.k8s.objects import labels_of
from fairsched.k8s.pools.detect import Detected, detect
from fairsched.k8s.pools.fields import Fields, Live, Path, Ref, Taint, live_of
from fairsched.k8s.pools.schema import (
    MIG_LABEL,
    PLUGIN_LABEL,
    LimitItem,
    Pool,
    Pools,
    PoolSharing,
    own_labels,
)

OBJECT = "fairsched-pools"
"""Name of the quota and of the LimitRange of a namespace."""


@dataclass(frozen=True)
class Wanted:
    """One object as it should be. ``taints`` None: they are not looked at."""

    ref: Ref
    fields: Fields
    taints: frozenset[Taint] | None = None
    pool: str | None = None
    """Of a node."""
    why: str = ""
    """What is to be said beside it."""


@dataclass(frozen=True)
class Found:
    """A node as it is, and its GPUs; None: they are not known."""

    live: Live
    detected: Detected | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def found_of(document: Mapping[str, Any], detected: Detected | None = None) -> Found:
    """A Node of the API server; ``detected`` goes before what its labels say."""
    labels = {str(key): str(value) for key, value in labels_of(document).items()}
    return Found(live_of("Node", document), detected or detect(document), labels)


def wanted_objects(pools: Pools) -> Iterator[Wanted]:
    """Everything but nodes."""
    for name, space in pools.namespaces.items():
        if space.quota:
            ref = Ref("ResourceQuota", name, OBJECT)
            yield Wanted(ref, {("spec", "hard", key): value for key, value in space.quota.items()})
        if space.limits:
            ref = Ref("LimitRange", name, OBJECT)
            yield Wanted(ref, {("spec", "limits"): [_limit(item) for item in space.limits]})
    for name, one in pools.priority_classes.items():
        content: dict[Path, Any] = {("value",): one.value, ("preemptionPolicy",): one.preemption}
        if one.description:
            content["description",] = one.description
        if one.is_default:
            content["globalDefault",] = True
        yield Wanted(Ref("PriorityClass", "", name), content)
    sharing = pools.sharing
    if sharing.configs:
        ref = Ref("ConfigMap", sharing.namespace, sharing.name)
        yield Wanted(ref, {("data", name): plugin_config(one) for name, one in sharing.configs.items()})


def _limit(item: LimitItem) -> dict[str, Any]:
    """One item as the API server keeps it: it fills in what a container's defaults leave out."""
    default, request = dict(item.default), dict(item.default_request)
    if item.type == "Container":
        default = {**item.max, **default}
        request = {**item.min, **default, **request}
    keys = {
        "default": default,
        "defaultRequest": request,
        "max": item.max,
        "maxLimitRequestRatio": item.max_limit_request_ratio,
        "min": item.min,
    }
    return {"type": item.type, **{key: dict(value) for key, value in keys.items() if value}}


def plugin_config(one: PoolSharing) -> str:
    """As NVIDIA's device plugin reads it (its api/config/v1)."""
    document: dict[str, Any] = {"version": "v1"}
    if one.mig_strategy is not None:
        document["flags"] = {"migStrategy": one.mig_strategy}
    document["sharing"] = {
        "timeSlicing": {
            "renameByDefault": one.rename,
            "failRequestsGreaterThanOne": one.refuse_many,
            "resources": [{"name": one.resource, "replicas": one.replicas}],
        }
    }
    return str(yaml.safe_dump(document, sort_keys=False))


def wanted_nodes(pools: Pools | None, nodes: Iterable[Found], *, with_taints: bool) -> Iterator[Wanted]:
    """Each node. Without a file only what was detected is wanted, and all else stays as it is."""
    for node in nodes:
        yield _wanted_node(pools, node, with_taints)


def _wanted_node(pools: Pools | None, node: Found, with_taints: bool) -> Wanted:
    prefix = pools.label_prefix if pools is not None else ""
    names = {word: key for key, word in own_labels(prefix).items()}
    labels: dict[str, str] = {}
    if pools is None:
        labels.update({path[2]: str(value) for path, value in node.live.ours.items()})
    known = _known(node, names)
    labels.update({names[word]: value for word, value in known.items()})
    name = pool_of(pools, node, known) if pools is not None else None
    taints: frozenset[Taint] = frozenset()
    if pools is not None and name is not None:
        pool = pools.pools[name]
        labels.update(_pool_labels(pool, names["workload"]))
        taints = frozenset(Taint(one.key, one.effect, one.value) for one in pool.taints)
    fields: dict[Path, Any] = {("metadata", "labels", key): value for key, value in labels.items()}
    why = "" if node.detected is not None or not known else "its GPUs are not known now: what was known stays"
    is_with = with_taints and pools is not None
    return Wanted(node.live.ref, fields, taints if is_with else None, name, why)


def _known(node: Found, names: Mapping[str, str]) -> dict[str, str]:
    """By word. Of a node that nothing is known of now, what we said last: absent is not none."""
    found = node.detected
    if found is not None:
        words = {"accelerator": found.accelerator, "gpu-count": found.count, "mig": found.mig}
        return {word: str(value) for word, value in words.items() if value is not None}
    ours = node.live.ours
    kept: dict[str, Any] = {
        word: ours.get(("metadata", "labels", names[word])) for word in ("accelerator", "gpu-count", "mig")
    }
    return {word: str(value) for word, value in kept.items() if value is not None}


def pool_of(pools: Pools, node: Found, known: Mapping[str, str]) -> str | None:
    """The first pool that a node fits."""
    return next((name for name, pool in pools.pools.items() if _fits(pool, node, known)), None)


def _fits(pool: Pool, node: Found, known: Mapping[str, str]) -> bool:
    wants, count = pool.nodes, known.get("gpu-count")
    name, accelerator = node.live.ref.name, known.get("accelerator")
    if wants.names and not any(fnmatch.fnmatchcase(name, one) for one in wants.names):
        return False
    if wants.accelerator and (
        accelerator is None or not any(fnmatch.fnmatchcase(accelerator, one) for one in wants.accelerator)
    ):
        return False
    if any(node.labels.get(key) != value for key, value in wants.labels.items()):
        return False
    number = int(count) if count is not None and count.isdigit() else None
    if wants.min_gpus is not None and (number is None or number < wants.min_gpus):
        return False
    return wants.max_gpus is None or (number is not None and number <= wants.max_gpus)


def _pool_labels(pool: Pool, workload: str) -> dict[str, str]:
    labels = dict(pool.labels)
    if pool.workload is not None:
        labels[workload] = pool.workload
    if pool.mig_config is not None:
        labels[MIG_LABEL] = pool.mig_config
    if pool.sharing is not None:
        labels[PLUGIN_LABEL] = pool.sharing
    return labels
