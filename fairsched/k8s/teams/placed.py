# SPDX-License-Identifier: Apache-2.0
"""What teams weigh on one node (pure): weights of Namespaces, and the children that teams are within one.

In: the pods of a node and the Namespaces, as the API server has them. Out: for a Namespace that has pods of a team
here, the weight of its teams; for each pod in a Namespace with queues of several teams, the child that its team is.
What that is worth beside what others say is companion/pods/policy.py's to know.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.k8s.objects import Object, PodKey, annotations_of, is_over, labels_of, name_of, space_of
from fairsched.k8s.teams.queues import KEY, LABELS, Queue, Queues, bounded, queues_of

GROUP = "queue."
"""Begins the name of a child that is a team's pods: ``ml/queue.research``."""
_MAX_CHARS = 64
"""Of a name in the configuration."""


@dataclass(frozen=True)
class Group:
    """The pods of one team in a Namespace that has queues of several."""

    name: str
    """Of the child."""
    weight: float
    """Within the Namespace."""


@dataclass(frozen=True)
class Teams:
    """What teams come to on one node."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Of Namespaces that have pods of a team here."""
    groups: Mapping[PodKey, Group] = field(default_factory=dict)
    reserved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By Namespace with queues of several teams: names of children that are a team's, whether it is here or not."""
    unclear: frozenset[str] = frozenset()
    """Namespaces whose annotation is not what the controller writes."""


def teams_on(pods: Sequence[Object], namespaces: Sequence[Object]) -> Teams:
    """What teams weigh on the node of these pods."""
    known: dict[str, Queues] = {}
    unclear: set[str] = set()
    for one in namespaces:
        text, name = annotations_of(one).get(KEY), name_of(one)
        queues = None if text is None else queues_of(str(text))
        if queues is not None:
            known[name] = queues
        elif text is not None:
            unclear.add(name)
    living = {
        (space, name_of(pod)): queue
        for pod in pods
        if not is_over(pod) and (queue := _queue_of(pod, known.get(space := space_of(pod), {}))) is not None
    }
    here: dict[str, dict[str, float]] = {}
    for (space, _), queue in living.items():
        here.setdefault(space, {})[queue.team] = queue.weight
    places = {
        team: sum(team in teams for teams in here.values()) for teams in here.values() for team in teams
    }
    weights = {
        space: {team: bounded(weight / places[team]) for team, weight in teams.items()}
        for space, teams in here.items()
    }
    shared = {space: queues for space, queues in known.items() if is_shared(queues)}
    return Teams(
        {space: bounded(sum(teams.values())) for space, teams in weights.items()},
        {
            key: Group(group_of(queue.team), weights[key[0]][queue.team])
            for key, queue in living.items()
            if key[0] in shared
        },
        {space: frozenset(group_of(one.team) for one in queues.values()) for space, queues in shared.items()},
        frozenset(unclear),
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


def _queue_of(pod: Object, queues: Queues) -> Queue | None:
    """The queue that it names, if its Namespace has that."""
    labels = labels_of(pod)
    for label in LABELS:
        if label in labels:
            return queues.get(str(labels[label]))
    return None
