# SPDX-License-Identifier: Apache-2.0
"""What a look at the cluster found, and small questions to objects of it (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fairsched.k8s.objects import Object, added_up, labels_of
from fairsched.k8s.quantity import quantity

SHARE = "fairsched.io/gpu-share"
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Row:
    """One finding. ``state``: ok, warn, bad, unknown."""

    code: str
    """``pod-taint``, ``node-plugin``, ...: it does not change."""
    state: str
    subject: str
    """``pod ml/llama-0``, ``node gpu-1``, ``cluster``."""
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Cluster:
    """One look. None: it could not be asked for; why is in ``unasked``."""

    nodes: Sequence[Object]
    pods: Sequence[Object]
    events: Sequence[Object] | None = None
    quotas: Sequence[Object] | None = None
    runtimes: Sequence[Object] | None = None
    unasked: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    """Only pods of this one are judged; None: all."""
    pod: str | None = None
    """Only this one."""


def is_gpu_resource(name: str) -> bool:
    """Whole GPUs, MIG instances, what is shared, and shares of ours."""
    return name == SHARE or name.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))


def amount(value: Any) -> Fraction:
    """0 for what is no quantity."""
    return quantity(str(value)) or Fraction(0)


def containers_of(pod: Object) -> Iterator[Object]:
    spec = pod.get("spec") or {}
    for key in ("containers", "initContainers"):
        yield from (one for one in spec.get(key) or () if isinstance(one, dict))


def requests_of(pod: Object) -> dict[str, Fraction]:
    """As the scheduler adds them up, and the pod's overhead."""

    def of(name: str) -> Fraction:
        return added_up(pod, lambda one: _asked(one).get(name, Fraction(0)))

    total = {name: of(name) for one in containers_of(pod) for name in _asked(one)}
    for name, text in ((pod.get("spec") or {}).get("overhead") or {}).items():
        total[name] = total.get(name, Fraction(0)) + amount(text)
    return total


def _asked(container: Object) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    said = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {str(name): amount(value) for name, value in said.items()}


def gpus_of(pod: Object) -> dict[str, Fraction]:
    """The GPU resources that it asks for."""
    return {name: value for name, value in requests_of(pod).items() if is_gpu_resource(name) and value}


def is_ready(one: Object) -> bool:
    """A pod or a node."""
    return condition(one, "Ready").get("status") == "True"


def condition(one: Object, kind: str) -> Object:
    for found in (one.get("status") or {}).get("conditions") or ():
        if isinstance(found, dict) and found.get("type") == kind:
            return found
    return {}


def is_gpu_node(node: Object) -> bool:
    """By what it offers, or by what its labels say that it has."""
    status = node.get("status") or {}
    if any(is_gpu_resource(str(name)) for name in status.get("capacity") or {}):
        return True
    labels = labels_of(node)
    words = (
        "nvidia.com/gpu.present",
        "accelerator",
        "nvidia.com/gpu.product",
        "feature.node.kubernetes.io/pci-10de.present",
    )
    return any(labels.get(key) not in (None, "", "false", "none") for key in words)
