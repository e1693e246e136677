# SPDX-License-Identifier: Apache-2.0
"""What Kueue's objects say of teams, and the annotation that tells the nodes (pure).

The annotation, on a Namespace: ``fairsched.io/queues: QUEUE=TEAM:WEIGHT,...``, in the order of the queues' names.
Names of queues are names of Kubernetes' objects, which have none of ``= : ,``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.k8s.objects import name_of, space_of
from fairsched.k8s.quantity import quantity

KEY = "fairsched.io/queues"
LABELS = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/local-queue-name")
"""Of a pod: its own word, and what Kueue writes on the pods of a Job."""
GPU_RESOURCES = ("nvidia.com/", "fairsched.io/", "amd.com/")
LEAST, MOST = 0.001, 1_000_000.0
"""Weights: below the first a share is nothing that a node can hold; the second is the configuration's own limit."""


@dataclass(frozen=True)
class Queue:
    """A LocalQueue, as far as weights go."""

    team: str
    """Name of its ClusterQueue."""
    weight: float


Queues = Mapping[str, Queue]
"""Of one Namespace, by the names of its LocalQueues."""


def amount(value: Any) -> float | None:
    """A quantity of Kubernetes, such as ``3``, ``500m``, ``1.5k``, ``2Gi``; None: it is none, or negative."""
    found = quantity(value)
    return None if found is None or found < 0 else float(found)


def nominal_weight(cluster_queue: Mapping[str, Any]) -> float:
    """What a team weighs: ``fairSharing.weight``, else the GPUs of its own quota, else 1.

    Kueue takes a weight of 0 for "always last", which no share can be: it is the least weight here.
    """
    spec = _mapping(cluster_queue.get("spec"))
    said = amount(_mapping(spec.get("fairSharing")).get("weight"))
    if said is None:
        said = _quota(spec) or 1.0
    return bounded(said)


def bounded(weight: float) -> float:
    """A weight that nodes take."""
    return min(max(weight, LEAST), MOST)


def _quota(spec: Mapping[str, Any]) -> float:
    """GPUs that are the team's own, over all flavors."""
    total = 0.0
    for group in _listed(spec.get("resourceGroups")):
        for flavor in _listed(group.get("flavors")):
            for resource in _listed(flavor.get("resources")):
                if str(resource.get("name")).startswith(GPU_RESOURCES):
                    total += amount(resource.get("nominalQuota")) or 0.0
    return total


def nominal_weights(cluster_queues: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """By team."""
    return {name: nominal_weight(one) for one in cluster_queues if (name := name_of(one))}


def teams_of(
    local_queues: Iterable[Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, dict[str, Queue]]:
    """Queues by Namespace; those of a ClusterQueue that is not there are nobody's."""
    found: dict[str, dict[str, Queue]] = {}
    for one in local_queues:
        team = str(_mapping(one.get("spec")).get("clusterQueue") or "")
        namespace, name = space_of(one), name_of(one)
        if namespace and name and team in weights:
            found.setdefault(namespace, {})[name] = Queue(team, weights[team])
    return found


def text_of_queues(queues: Queues) -> str:
    """The annotation's value."""
    return ",".join(f"{name}={one.team}:{one.weight:.4g}" for name, one in sorted(queues.items()))


def queues_of(text: str) -> dict[str, Queue] | None:
    """The other way round; None: it is not what this program writes."""
    found: dict[str, Queue] = {}
    for entry in text.split(",") if text else ():
        name, is_one, rest = entry.partition("=")
        team, has_weight, number = rest.rpartition(":")
        weight = amount(number)
        if not (name and is_one and team and has_weight and weight and LEAST <= weight <= MOST):
            return None
        found[name] = Queue(team, weight)
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
