# SPDX-License-Identifier: Apache-2.0
"""Makes tenants of pods, namespaces and policies (pure): a layer of the configuration, and complaints.

A name that the configuration does not take as one is cut. Whatever a pod says, the layer is one that the configuration
takes: what it refused, it would refuse with all of the namespace, and who says too much would be bound by nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairsched.companion.pods.asked import Asked
from fairsched.companion.pods.bounds import pod_policy, settled
from fairsched.companion.pods.said import (
    PREFIX,
    WRITTEN,
    Complaint,
    Values,
    complaint,
    group_said,
    keys_said,
    values_of_policy,
    values_said,
)
from fairsched.companion.pods.shares import Placed, Shares
from fairsched.config.match import MAX_GLOBS
from fairsched.config.models import MAX_NAME_CHARS, NAME, Config
from fairsched.k8s.objects import PodKey, is_over, labels_of, name_of, space_of
from fairsched.k8s.policies.model import Policy, policy_of
from fairsched.k8s.policies.precedence import choose
from fairsched.k8s.policies.selector import Malformed
from fairsched.k8s.teams.placed import Teams
from fairsched.k8s.teams.queues import KEY as QUEUES

GPU_RESOURCES = ("nvidia.com/", "fairsched.io/")
MOST_CHILDREN = 512
"""Of one namespace on one node; further pods have the default."""
MOST_BYTES = 48 << 10
"""Of a layer as JSON: a request of the control socket takes 64 KiB."""
_SLACK = 5e-10
"""Of a sum of guarantees; the configuration, which adds up in another order, allows twice as much."""
_REST = "*"
"""The child that all pods are which have none of their own."""


@dataclass(frozen=True)
class Base:
    """What the configuration of the node says already."""

    tenant_class: str = "latency"
    """Of tenants that say none."""
    min_ratio: float = 0.0
    quota_ratio: float | None = None
    guaranteed_ratio: float = 0.0
    """Of a GPU, to the tenants of the file together."""

    @classmethod
    def of(cls, config: Config) -> Base:
        defaults = config.tenant_defaults
        top = [spec.min_ratio for name, spec in config.tenant_specs().items() if "/" not in name]
        return cls(defaults.tenant_class, defaults.min, defaults.quota, sum(top))


@dataclass(frozen=True)
class Given:
    """What counts of pods and namespaces besides what they say themselves."""

    placed: Placed = field(default_factory=dict)
    """Which GPUs the shares of pods are of, where that is known."""
    claimed: Mapping[PodKey, Asked] = field(default_factory=dict)
    """What pods have by claims."""
    teams: Teams = field(default_factory=Teams)


@dataclass
class Made:
    """What pods, namespaces and policies come to."""

    layer: dict[str, Any] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)


def make_layer(
    pods: Iterable[Mapping[str, Any]],
    namespaces: Iterable[Mapping[str, Any]],
    policies: Iterable[Mapping[str, Any]] = (),
    base: Base | None = None,
    given: Given | None = None,
) -> Made:
    """Tenants of the pods of a node and of all namespaces and policies, as the API server has them."""
    made, base, given = Made(), base or Base(), given or Given()
    known = _read(policies, made.complaints)
    spaces = {name_of(one): one for one in namespaces}
    promised: set[str] = set()
    """Namespaces that a policy guarantees something."""
    by_space: dict[str, list[Mapping[str, Any]]] = {}
    for pod in sorted(pods, key=name_of):
        if not is_over(pod):
            by_space.setdefault(space_of(pod), []).append(pod)
    for name, here in sorted(by_space.items()):
        space = spaces.get(name, {"metadata": {"name": name}})
        policy = choose(known, name, labels_of(space)).policy
        is_said = any(map(keys_said, (space, *here))) or name in given.teams.weights
        is_said = is_said or (policy is not None and not policy.is_for_all)
        shares = Shares(given.placed, given.claimed)
        if NAME.fullmatch(name) and (is_said or any(_wants_gpu(pod) or shares.has(pod) for pod in here)):
            tenant = _Tenant(space, policy, base, shares, given.teams, made.complaints)
            for pod in here:
                tenant.add(pod)
            made.layer[name] = tenant.node()
            if policy is not None and "min" in policy.share:
                promised.add(name)
    _guarantee(made, base, promised)
    _trim(made)
    return made


def _read(policies: Iterable[Mapping[str, Any]], complaints: list[Complaint]) -> list[Policy]:
    found = []
    for document in policies:
        name = name_of(document)
        try:
            policy = policy_of(document)
        except Malformed as error:
            complaints.append(Complaint("", "", "", f"GpuSharePolicy {name}: it is not in effect: {error}"))
            continue
        found.append(policy)
        if policy.unknown:
            text = (
                f"GpuSharePolicy {name}: {', '.join(policy.unknown)}: not known to this version of fairsched"
            )
            complaints.append(Complaint("", "", "", text))
    return found


class _Tenant:
    """A namespace that is one. Add its pods in the order of their names."""

    def __init__(
        self,
        space: Mapping[str, Any],
        policy: Policy | None,
        base: Base,
        shares: Shares,
        teams: Teams,
        complaints: list[Complaint],
    ) -> None:
        self._name, self._complaints = name_of(space), complaints
        self._origin = None if policy is None else f"policy {policy.name}"
        self._values = _of_namespace(space, policy, base, complaints)
        self._class = self._values.pop("class", None)
        self._guaranteed, self._taken = _ratio(self._values.get("min")), list[float]()
        """What it is guaranteed, and what of that its children were given."""
        self._pods = (
            None if policy is None else pod_policy(policy, self._class or base.tenant_class, complaints)
        )
        self._children: dict[str, Values] = {}
        self._whose: dict[str, tuple[str, bool, int, bool]] = {}
        """Keys of children: the group or pod that each is of, the rule, and whether it is a team's."""
        self._shares, self._teams = shares, teams
        self._reserved = teams.reserved.get(self._name, ())
        """Names of children that are a team's."""
        if self._name in teams.unclear:
            text = f"{QUEUES}: it is not what 'fairsched k8s teams' writes: no team is known here"
            complaints.append(complaint(space, text))
        self._groups: dict[str, float] = {}
        """Children that are a team's pods, and what the team weighs."""
        rest: Values = {}
        if self._pods is not None:
            rest = {**_plain(self._pods.modest()), "policy": f"{self._origin}, of its rules the most modest"}
        elif self._class is not None:
            rest = {"class": self._class}
        if rest:
            self._children[_REST] = rest

    def add(self, pod: Mapping[str, Any]) -> None:
        said, group = values_said(pod, self._complaints), group_said(pod, self._complaints)
        has_asked = self._shares.add(pod)
        team = self._teams.groups.get((self._name, name_of(pod)))
        if team is not None:
            group = team.name
            said.pop("weight", None)
        is_silent = self._pods is None and not said and group is None and not has_asked
        if is_silent and _cut(name_of(pod)) not in self._reserved:
            return
        rule, values = self._bounded(pod, said)
        settled(pod, values, self._complaints)
        key = self._key(group or name_of(pod), group is not None, rule, is_team=team is not None)
        full = self._why_full(key)
        if full is not None:
            self._complaints.append(complaint(pod, f"{full}: it has the default"))
            return
        child = self._children.setdefault(key, {"pods": []})
        is_first = not child["pods"]
        if is_first:
            self._guarantee(pod, values)
        child["pods"].append(name_of(pod))
        if team is not None:
            self._groups[key] = team.weight
        for one in dict.fromkeys((*values, *(said if not is_first else ()))):
            value = values.get(one)
            if is_first:
                child[one] = value
            elif child.get(one) != value:
                text = f"{one}: others of its tenant '{key}' say {child.get(one)}"
                self._complaints.append(complaint(pod, text))

    def _guarantee(self, pod: Mapping[str, Any], values: Values) -> None:
        """What the first pod of a child says that is guaranteed to it, if that is left of its namespace's."""
        needed = _ratio(values.get("min"))
        if not needed:
            return
        if _is_within((*self._taken, needed), self._guaranteed):
            self._taken.append(needed)
            return
        left = max(0.0, self._guaranteed - math.fsum(self._taken))
        text = f"min: {needed:g} is more than the {left:g} left of its namespace's"
        self._complaints.append(complaint(pod, text))
        del values["min"]

    def _why_full(self, key: str) -> str | None:
        """Why the child cannot take one more pod."""
        if key not in self._children:
            return (
                None
                if len(self._children) < MOST_CHILDREN
                else f"its namespace has {MOST_CHILDREN} tenants here"
            )
        pods = self._children[key].get("pods", ())
        return None if len(pods) < MAX_GLOBS else f"its tenant '{key}' has {MAX_GLOBS} pods here"

    def _bounded(self, pod: Mapping[str, Any], said: Values) -> tuple[int, Values]:
        """Its rule, and what it gets by that."""
        if self._pods is None:
            return 0, dict(said)
        bounds = self._pods.bounds_of(labels_of(pod))
        origin = self._pods.origin(bounds.rule)
        return bounds.rule, {**_plain(bounds.take(pod, said, origin, self._complaints)), "policy": origin}

    def _key(self, name: str, is_group: bool, rule: int, *, is_team: bool) -> str:
        """Of the child: pods of one group share it if they are of one rule. No other has it, whatever it is called.

        A pod that calls its group as another pod is called must not get what that pod's rule gives; one that calls
        it, or itself, as a team's pods are called must not get what the team does.
        """
        whose = (name, is_group, rule, is_team) if self._pods is not None else (name, False, 0, is_team)
        reserved = () if is_team else self._reserved
        for number in itertools.count():
            key = _cut(name if number == 0 else f"{name}_{number}")
            if key not in reserved and self._whose.setdefault(key, whose) == whose:
                return key
        raise AssertionError

    def node(self) -> dict[str, Any]:
        is_left_to_pods = self._pods is None
        if is_left_to_pods:
            self._shares.fill(self._children, self._groups)
            for child in self._children.values() if self._class is not None else ():
                child.setdefault("class", self._class)
        self._shares.weigh(self._values, self._children)
        for key, weight in self._groups.items() if is_left_to_pods else ():
            self._children[key].setdefault("weight", weight)
        if self._name in self._teams.weights:
            self._values.setdefault("weight", self._teams.weights[self._name])
        found = {"match": {"pod": f"{self._name}/*"}, "children_are": "pods", "children": self._children}
        origin = {} if self._origin is None else {"policy": self._origin}
        return {**self._values, **origin, **found}


def _of_namespace(
    space: Mapping[str, Any], policy: Policy | None, base: Base, complaints: list[Complaint]
) -> Values:
    """What the policy says of it; for what that does not say, its own annotations."""
    said = values_said(space, complaints)
    if policy is not None:
        where = f"GpuSharePolicy {policy.name}: spec.share"
        of_policy = values_of_policy(policy.share, where, complaints)
        for key in sorted(said.keys() & of_policy.keys()):
            if said[key] != of_policy[key]:
                text = f"{PREFIX}{WRITTEN[key]} does not count: policy {policy.name} says {of_policy[key]}"
                complaints.append(complaint(space, text))
        said = {**said, **of_policy}
    settled(space, said, complaints, base.min_ratio, base.quota_ratio)
    return said


def _plain(values: Mapping[str, Any]) -> Values:
    """Without what goes without saying."""
    return {key: value for key, value in values.items() if value is not None and (key, value) != ("min", 0.0)}


def _guarantee(made: Made, base: Base, promised: set[str]) -> None:
    """Together they are guaranteed one GPU at most: policies go first, then names decide.

    Who comes too late has no guarantee and all else that it is due: the configuration would refuse it whole.
    """
    taken = [base.guaranteed_ratio]
    for name in sorted(made.layer, key=lambda one: (one not in promised, one)):
        node = made.layer[name]
        least = node.get("min", base.min_ratio)
        if _is_within((*taken, least), 1.0):
            taken.append(least)
            continue
        node["min"], left = 0.0, max(0.0, 1.0 - math.fsum(taken))
        for child in node["children"].values():
            child.pop("min", None)
        text = f"min: {least:g} is more than the {left:g} of a GPU that is left on this node: it has no guarantee"
        made.complaints.append(Complaint(name, "", "", text))


def _trim(made: Made) -> None:
    """Keep the layer small: who says more than its part of the room loses of its own, and of nobody else's."""
    left = MOST_BYTES
    by_size = sorted((len(json.dumps({name: node})), name) for name, node in made.layer.items())
    for index, (size, name) in enumerate(by_size):
        part = left // (len(by_size) - index)
        children, dropped = made.layer[name]["children"], 0
        while size > part and children.keys() - {_REST}:
            key = next(reversed(children))
            size -= len(json.dumps({key: children[key]}))
            dropped += len(children.pop(key).get("pods", ()))
        if dropped:
            text = f"{dropped} of its pods have the default: they say more than there is room for on one node"
            made.complaints.append(Complaint(name, "", "", text))
        left -= min(size, part)


def _is_within(parts: Iterable[float], whole: float) -> bool:
    """Whether they are no more together. Many that are too small to change a sum one by one do count."""
    return math.fsum(parts) <= whole + _SLACK


def _cut(name: str) -> str:
    """A name of the configuration; names of pods may be longer."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[: MAX_NAME_CHARS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _wants_gpu(pod: Mapping[str, Any]) -> bool:
    spec = pod.get("spec") or {}
    containers: Sequence[Any] = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for container in containers:
        asked = container.get("resources") or {}
        if any(str(name).startswith(GPU_RESOURCES) for name in {**(asked.get("limits") or {})}):
            return True
    return False


def _ratio(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
