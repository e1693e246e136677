# SPDX-License-Identifier: Apache-2.0
"""Chooses which pods may be moved away for a tenant that suffers, in which order (pure).

A candidate belongs to a tenant that has demand or contexts on the GPU on which the sufferer suffers: whoever is on
another GPU would move for nothing. It is not the sufferer's own, has a controller that will make it anew elsewhere, and
is none of those that must stay: static and mirror pods, pods of a DaemonSet (they would come back here), pods in
protected namespaces, pods that end already, pods of a higher priority than allowed, or not of a lower one than the
sufferer's pod. So without knowing the sufferer, its pod and its GPU there are no candidates: the one to be helped
could be the one that is moved.

Order: lowest priority first (what Kubernetes itself would preempt first); then who is furthest ahead of its
entitlement; then the youngest, which has least to lose.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fairsched.cgroup.containers import container_of
from fairsched.k8s.objects import is_over
from fairsched.protocol.status import StatusReport, TenantStatus

PROTECT_ANNOTATION = "fairsched.io/never-evict"
GPU_RESOURCES = ("nvidia.com/*",)
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True)
class EvictionRules:
    """What the configuration says about candidates."""

    protected_namespaces: tuple[str, ...] = ("kube-system",)
    namespaces: tuple[str, ...] = ()
    """Only in these; empty = in all that are not protected."""
    max_priority: int = 0
    """Never a pod of a higher priority."""
    gpu_resources: tuple[str, ...] = GPU_RESOURCES


@dataclass(frozen=True)
class Candidate:
    """A pod that may be evicted."""

    namespace: str
    name: str
    uid: str
    priority: int
    ahead_ratio: float
    """Used minus entitled, of a GPU; 0 when not known."""
    created: str
    """As Kubernetes writes it; sorts as text."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (priority {self.priority})"


@dataclass(frozen=True)
class Choice:
    """Candidates in the order in which they are to be tried, and why others are none."""

    candidates: tuple[Candidate, ...]
    passed: Mapping[str, int] = field(default_factory=dict)
    """Reason -> how many GPU pods."""


class SuffererUnknown(Exception):
    """Nobody may be chosen; the text says what is not known."""


@dataclass(frozen=True)
class _Neighbours:
    """The pods around the sufferer, by their uids."""

    own: Set[str]
    """The sufferer's."""
    ceiling: int
    """Its priority: who has as much stays."""
    beside: Set[str]
    """Of tenants on the sufferer's GPU."""


def choose(
    pods: Iterable[Mapping[str, Any]],
    report: StatusReport | None,
    tenant: str | None,
    gpu: str | None,
    rules: EvictionRules,
) -> Choice:
    """Candidates among `pods` of a node, to help `tenant` on `gpu`; None = wherever it has demand or contexts.

    Raises SuffererUnknown.
    """
    if report is None:
        raise SuffererUnknown("the daemon has not told its status: it is not known who is on which GPU")
    pods = list(pods)
    neighbours = _neighbours(pods, report, tenant, gpu)
    ahead = _ahead_by_uid(report)
    found: list[Candidate] = []
    passed: dict[str, int] = {}
    for pod in pods:
        if _uid(pod) not in ahead and not _wants_gpu(pod, rules.gpu_resources):
            continue
        why = _why_not(pod, neighbours, rules)
        if why is not None:
            passed[why] = passed.get(why, 0) + 1
            continue
        metadata = pod["metadata"]
        found.append(
            Candidate(
                metadata["namespace"],
                metadata["name"],
                _uid(pod),
                _priority(pod),
                ahead.get(_uid(pod), 0.0),
                str(metadata.get("creationTimestamp") or ""),
            )
        )
    youngest_first = sorted(found, key=lambda one: one.created, reverse=True)
    return Choice(tuple(sorted(youngest_first, key=lambda one: (one.priority, -one.ahead_ratio))), passed)


def _neighbours(
    pods: Sequence[Mapping[str, Any]], report: StatusReport, tenant: str | None, gpu: str | None
) -> _Neighbours:
    if tenant is None:
        raise SuffererUnknown("it is not known which tenant suffers")
    sufferer = next((one for one in report.tenants if one.name == tenant), None)
    if sufferer is None:
        raise SuffererUnknown(f"tenant {tenant} is gone")
    own = _uids(sufferer.cgroups)
    priorities = [_priority(pod) for pod in pods if _uid(pod) in own]
    if not priorities:
        raise SuffererUnknown(f"it is not known which pod of this node is that of {tenant}")
    gpus = _gpus_of(sufferer) if gpu is None else {gpu}
    if not gpus:
        raise SuffererUnknown(f"it is not known on which GPU {tenant} suffers")
    beside = {uid for one in report.tenants if gpus & _gpus_of(one) for uid in _uids(one.cgroups)}
    return _Neighbours(own, min(priorities), beside)


def _gpus_of(tenant: TenantStatus) -> set[str]:
    """UUIDs of the GPUs on which it has demand or contexts."""
    with_contexts = {uuid for uuid, count in tenant.contexts_by_gpu.items() if count}
    return with_contexts | {gpu.uuid for gpu in tenant.gpus if gpu.has_demand}


def _why_not(pod: Mapping[str, Any], neighbours: _Neighbours, rules: EvictionRules) -> str | None:
    """Why this pod must stay; None when it may go."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or () if owner.get("controller")}
    namespace, priority = metadata["namespace"], _priority(pod)
    verdicts = (
        (_uid(pod) in neighbours.own, "the sufferer's own"),
        (_uid(pod) not in neighbours.beside, "not on the sufferer's GPU"),
        (bool(metadata.get("deletionTimestamp")), "ends already"),
        (is_over(pod), "is over"),
        (_MIRROR in annotations or "Node" in owners, "static"),
        ("DaemonSet" in owners, "of a DaemonSet"),
        (not owners, "without a controller"),
        (annotations.get(PROTECT_ANNOTATION) == "true", f"annotated {PROTECT_ANNOTATION}"),
        (namespace in rules.protected_namespaces, "in a protected namespace"),
        (bool(rules.namespaces) and namespace not in rules.namespaces, "in another namespace"),
        (priority > rules.max_priority, "of a priority above max_priority"),
        (priority >= neighbours.ceiling, "of no lower priority than the sufferer"),
    )
    return next((why for is_so, why in verdicts if is_so), None)


def _uid(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("uid") or "")


def _priority(pod: Mapping[str, Any]) -> int:
    value = (pod.get("spec") or {}).get("priority")
    return value if isinstance(value, int) else 0


def _wants_gpu(pod: Mapping[str, Any], resources: Sequence[str]) -> bool:
    for container in (pod.get("spec") or {}).get("containers") or ():
        asked = container.get("resources") or {}
        names = {*(asked.get("requests") or {}), *(asked.get("limits") or {})}
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in resources):
            return True
    return False


def _ahead_by_uid(report: StatusReport) -> dict[str, float]:
    """Pods the daemon sees at GPUs, and how far their tenant is ahead of its entitlement."""
    found: dict[str, float] = {}
    for tenant in report.tenants:
        used, entitled = tenant.used_ratio or 0.0, tenant.entitled_ratio or 0.0
        for uid in _uids(tenant.cgroups):
            found[uid] = max(found.get(uid, -1.0), used - entitled)
    return found


def _uids(cgroups: Iterable[str]) -> set[str]:
    containers = (container_of(cgroup) for cgroup in cgroups)
    return {one.pod_uid for one in containers if one is not None and one.pod_uid is not None}
