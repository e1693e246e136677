# SPDX-License-Identifier: Apache-2.0
"""Reckons why a pod that has no node has none (pure): per node, what keeps it from there; then what most of them share.

As the scheduler does it for nodes that are cordoned, taints, node selector and required affinity, and resources; it is
said beside the scheduler's own words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fairsched.base.text import counted
from fairsched.k8s.doctor.cluster import (
    Cluster,
    Row,
    amount,
    condition,
    is_gpu_resource,
    requests_of,
)
from fairsched.k8s.objects import Object, is_over, labels_of, name_of, space_of

_HARD = ("NoSchedule", "NoExecute")
_MOST_REASONS = 6
"""Of one pod; the rarest are left out."""


@dataclass(frozen=True)
class Reason:
    """What keeps a pod from one node."""

    code: str
    text: str
    remedy: str


def waiting(cluster: Cluster) -> Iterator[Object]:
    """Pods without a node that are to be judged."""
    for pod in chosen(cluster):
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        if not spec.get("nodeName") and status.get("phase") in (None, "Pending"):
            yield pod


def chosen(cluster: Cluster) -> Iterator[Object]:
    """Pods that were asked for."""
    for pod in cluster.pods:
        if cluster.namespace is not None and space_of(pod) != cluster.namespace:
            continue
        if cluster.pod is None or name_of(pod) == cluster.pod:
            yield pod


def rows(cluster: Cluster) -> Iterator[Row]:
    """Of every pod that waits for a node."""
    used = used_by_node(cluster.pods)
    for pod in waiting(cluster):
        yield from _pod(cluster, pod, used)


def _pod(cluster: Cluster, pod: Object, used: Mapping[str, Mapping[str, Fraction]]) -> Iterator[Row]:
    where = f"pod {space_of(pod)}/{name_of(pod)}"
    gates = [str(one.get("name")) for one in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if gates:
        yield Row("pod-gated", "warn", where, f"it waits for its scheduling gates: {', '.join(gates)}",
                  "who has set them takes them away, such as a queue that admits it")  # fmt: skip
        return
    said = condition(pod, "PodScheduled")
    if not said:
        scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
        yield Row("pod-unseen", "bad", where, f"no scheduler has looked at it; it wants {scheduler}",
                  "does that scheduler run? look at spec.schedulerName")  # fmt: skip
    found = [(name_of(node), keeps_from(pod, node, used.get(name_of(node), {}))) for node in cluster.nodes]
    free = [name for name, reasons in found if not reasons]
    counts = Counter(reason for _, reasons in found for reason in reasons)
    for reason, count in counts.most_common(_MOST_REASONS):
        yield Row(reason.code, "bad", where, f"{count} of {len(found)} nodes: {reason.text}", reason.remedy)
    message = str(said.get("message") or "")
    if message:
        yield Row("pod-scheduler", "warn", where, f"the scheduler says: {message}")
    if free and said:
        yield Row("pod-other", "warn", where, f"by GPUs, taints and labels it could go to {', '.join(free[:4])}",
                  "the scheduler's words say what else it wants: volumes, topology, ports, other pods")  # fmt: skip
    if not found:
        yield Row("no-node", "bad", where, "the cluster has no node", "")


def used_by_node(pods: Sequence[Object]) -> dict[str, dict[str, Fraction]]:
    """What pods on each node ask for together, and ``pods`` how many they are."""
    used: dict[str, dict[str, Fraction]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or is_over(pod):
            continue
        mine = used.setdefault(str(node), {})
        for name, value in {**requests_of(pod), "pods": Fraction(1)}.items():
            mine[name] = mine.get(name, Fraction(0)) + value
    return used


def keeps_from(pod: Object, node: Object, used: Mapping[str, Fraction]) -> list[Reason]:
    """All that keeps a pod from a node; empty: nothing that is known here."""
    return [*_taints(pod, node), *_selectors(pod, node), *_resources(pod, node, used)]


# ---- taints ----


def _taints(pod: Object, node: Object) -> Iterator[Reason]:
    spec = node.get("spec") or {}
    tolerations = [one for one in (pod.get("spec") or {}).get("tolerations") or () if isinstance(one, dict)]
    taints = [one for one in spec.get("taints") or () if one.get("effect") in _HARD]
    if spec.get("unschedulable") and not any(
        one.get("key") == "node.kubernetes.io/unschedulable" for one in taints
    ):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    for taint in taints:
        if any(tolerates(one, taint) for one in tolerations):
            continue
        key, value, effect = taint.get("key"), taint.get("value") or "", taint.get("effect")
        text = f"{key}={value}:{effect}" if value else f"{key}:{effect}"
        if str(key).startswith("node.kubernetes.io/"):
            remedy = (
                "kubectl uncordon it"
                if str(key).endswith("unschedulable")
                else "the node is unwell: kubectl describe it"
            )
        else:
            equal = f"operator: Equal, value: {value}" if value else "operator: Exists"
            remedy = f"tolerations: [{{key: {key}, {equal}, effect: {effect}}}] in the pod"
        yield Reason("pod-taint", f"taint {text} is not tolerated", remedy)


def tolerates(toleration: Object, taint: Object) -> bool:
    """As the scheduler has it: no effect is every effect, no key with Exists is every key."""
    effect, key = toleration.get("effect"), toleration.get("key") or ""
    if effect and effect != taint.get("effect"):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return not key or key == taint.get("key")
    return key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


# ---- labels ----


def _selectors(pod: Object, node: Object) -> Iterator[Reason]:
    spec, labels = pod.get("spec") or {}, labels_of(node)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            has = f"it is {labels[key]}" if key in labels else "the node has no such label"
            yield Reason("pod-label", f"nodeSelector {key}={value}: {has}", _label_remedy(key, value))
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if isinstance(required, dict):
        terms = [one for one in required.get("nodeSelectorTerms") or () if isinstance(one, dict)]
        if not any(_fits(term, node) for term in terms):
            wants = "; or ".join(_term(term) for term in terms) or "nothing"
            yield Reason("pod-label", f"required affinity: {wants}"[:200], "label a node so, or ask for less")


def _label_remedy(key: str, value: str) -> str:
    if key in ("accelerator", "gpu-count", "mig", "workload"):
        return "fairsched k8s label, or: kubectl label node NODE " + f"{key}={value}"
    return f"kubectl label node NODE {key}={value}, or take it out of the pod"


def _fits(term: Object, node: Object) -> bool:
    expressions = [one for one in term.get("matchExpressions") or () if isinstance(one, dict)]
    fields = [one for one in term.get("matchFields") or () if isinstance(one, dict)]
    if not expressions and not fields:
        return False
    return all(_holds(one, labels_of(node)) for one in expressions) and all(
        _holds(one, {"metadata.name": name_of(node)}) for one in fields
    )


def _holds(one: Object, labels: Mapping[str, Any]) -> bool:
    key, operator, values = (
        str(one.get("key")),
        one.get("operator"),
        [str(v) for v in one.get("values") or ()],
    )
    has = labels.get(key)
    if operator == "In":
        return has in values
    if operator == "NotIn":
        return has not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    try:
        number, bound = int(str(has)), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound if operator == "Lt" else False


def _term(term: Object) -> str:
    listed = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return " and ".join(
        f"{one.get('key')} {one.get('operator')} {','.join(map(str, one.get('values') or ()))}".strip()
        for one in listed
    )


# ---- resources ----


def _resources(pod: Object, node: Object, used: Mapping[str, Fraction]) -> Iterator[Reason]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    for name, wanted in sorted({**requests_of(pod), "pods": Fraction(1)}.items()):
        if not wanted:
            continue
        has = amount(allocatable.get(name, 0))
        free = has - used.get(name, Fraction(0))
        if wanted <= free:
            continue
        is_gpu = is_gpu_resource(name)
        if is_gpu and name not in allocatable:
            yield Reason(
                "pod-plugin",
                f"{name} is not offered there",
                "is it a GPU node? then its device plugin is missing",
            )
        elif is_gpu and not has:
            text = f"{name}: none of those there is usable"
            yield Reason("pod-gpu", text, "look at its device plugin, and what is said of that node")
        elif is_gpu and wanted > has:
            text = f"{name}: it asks for {_n(wanted)}, the node has {_n(has)} in all"
            yield Reason("pod-gpu", text, "ask for no more than one node has")
        elif is_gpu:
            text = f"{name}: it asks for {_n(wanted)}, of {_n(has)} are {_n(max(free, Fraction(0)))} free"
            yield Reason("pod-gpu", text, "wait, end others, or share GPUs: docs/kubernetes-pools.md")
        elif name == "pods":
            text = f"there is room for {counted(int(has), 'pod')}, and no more"
            yield Reason("pod-resource", text, "end others there, or add a node")
        else:
            text = f"{name}: it asks for {_n(wanted)}, {_n(max(free, Fraction(0)))} are free"
            yield Reason("pod-resource", text, "ask for less, wait, or add a node")


def _n(value: Fraction) -> str:
    if value >= 1 << 30:
        return f"{float(value / (1 << 30)):.1f}Gi"
    return str(int(value)) if value.denominator == 1 else f"{float(value):.3g}"
