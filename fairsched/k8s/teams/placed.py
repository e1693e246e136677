# SPDX-License-Identifier: Apache-2.0
"""What teams weigh on one node (pure): pods and Namespaces as if somebody had annotated them so.

In: the pods of a node and the Namespaces, as the API server has them. Out: the same, with ``fairsched.io/weight``
on Namespaces that have pods of a team here and say no weight of their own; and, in a Namespace with queues of
several teams, with ``fairsched.io/tenant`` and ``fairsched.io/weight`` on the pods of each. What a person wrote on
the Namespace stays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairsched.k8s.teams.queues import KEY, LABELS, Queue, Queues, bounded, queues_of

WEIGHT, TENANT = "fairsched.io/weight", "fairsched.io/tenant"
GROUP = "queue."
"""Begins the name of a child that is a team's pods: ``ml/queue.research``."""
_MAX_CHARS = 64
"""Of a name in the configuration."""
_OVER = ("Succeeded", "Failed")

Object = Mapping[str, Any]


def with_teams(pods: Sequence[Object], namespaces: Sequence[Object]) -> tuple[list[Object], list[Object]]:
    """Pods and Namespaces with what their teams weigh here. What nobody can understand is left where it is."""
    known: dict[str, Queues] = {}
    for one in namespaces:
        text = _annotations(one).get(KEY)
        queues = None if text is None else queues_of(str(text))
        if queues is not None:
            known[_text(one, "name")] = queues
    here = _teams_here(pods, known)
    places = {
        team: sum(team in teams for teams in here.values()) for teams in here.values() for team in teams
    }
    weights = {
        space: {team: bounded(weight / places[team]) for team, weight in teams.items()}
        for space, teams in here.items()
    }
    return (
        [_pod(one, known.get(_text(one, "namespace"), {}), weights) for one in pods],
        [_namespace(one, known, weights) for one in namespaces],
    )


def group_of(team: str) -> str:
    """Name of the child that a team's pods are, where a Namespace has pods of several."""
    name = f"{GROUP}{re.sub('[^a-z0-9._-]', '-', team.lower())}"
    if name == f"{GROUP}{team}" and len(name) <= _MAX_CHARS:
        return name
    return f"{name[: _MAX_CHARS - 9]}-{hashlib.sha256(team.encode()).hexdigest()[:8]}"


def is_shared(queues: Queues) -> bool:
    """Whether a Namespace has queues of several teams."""
    return len({one.team for one in queues.values()}) > 1


def _teams_here(pods: Iterable[Object], known: Mapping[str, Queues]) -> dict[str, dict[str, float]]:
    """Namespace: the teams of its pods on this node, with their weights."""
    found: dict[str, dict[str, float]] = {}
    for pod in pods:
        space = _text(pod, "namespace")
        queue = _queue_of(pod, known.get(space, {}))
        if queue is not None and (pod.get("status") or {}).get("phase") not in _OVER:
            found.setdefault(space, {})[queue.team] = queue.weight
    return found


def _queue_of(pod: Object, queues: Queues) -> Queue | None:
    """The queue that it names, if its Namespace has that."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    for label in LABELS:
        if label in labels:
            return queues.get(str(labels[label]))
    return None


def _namespace(
    one: Object, known: Mapping[str, Queues], weights: Mapping[str, Mapping[str, float]]
) -> Object:
    name = _text(one, "name")
    if name not in known:
        return one
    metadata = dict(one.get("metadata") or {})
    annotations = {key: value for key, value in _annotations(one).items() if key != KEY}
    says = WEIGHT in annotations or WEIGHT in (metadata.get("labels") or {})
    if name in weights and not says:
        annotations[WEIGHT] = f"{bounded(sum(weights[name].values())):.6g}"
    return {**one, "metadata": {**metadata, "annotations": annotations}}


def _pod(one: Object, queues: Queues, weights: Mapping[str, Mapping[str, float]]) -> Object:
    queue = _queue_of(one, queues)
    if queue is None or not is_shared(queues):
        return one
    weight = weights.get(_text(one, "namespace"), {}).get(queue.team)
    if weight is None:  # it is over
        return one
    metadata = dict(one.get("metadata") or {})
    said = {TENANT: group_of(queue.team), WEIGHT: f"{weight:.6g}"}
    return {**one, "metadata": {**metadata, "annotations": {**_annotations(one), **said}}}


def _annotations(of: Object) -> Mapping[str, Any]:
    return (of.get("metadata") or {}).get("annotations") or {}


def _text(of: Object, key: str) -> str:
    return str((of.get("metadata") or {}).get(key) or "")
