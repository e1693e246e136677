# SPDX-License-Identifier: Apache-2.0
"""What a pod gets where a policy speaks of pods (pure): its annotations count as far as its rule lets them.

A value without a bound is the bound; one that neither is said is the default: weight 1, the class of the namespace, no
quota, no guarantee, no limit of memory. So nothing that who makes a pod may write gets it more than the policy says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.companion.pods.said import (
    OUT_OF_BOUNDS,
    PREFIX,
    WRITTEN,
    Complaint,
    Values,
    complaint,
    values_of_policy,
)
from fairsched.k8s.policies.model import Policy, Rule

_CLASSES = {"batch": 0.0, "latency": 1.0}
_NO_RULE = 0
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Bounds:
    """Of the pods that one rule is for."""

    rule: int
    """Its number in the policy; 0: no rule matches them."""
    values: Mapping[str, Any]
    """Of a pod that says nothing; all keys, None: no quota, no limit."""
    most: Mapping[str, Any]
    """Of any pod."""

    def take(self, pod: Mapping[str, Any], said: Values, origin: str, complaints: list[Complaint]) -> Values:
        """All values of a pod that says this."""
        found: Values = {}
        for key, default in self.values.items():
            wanted, most = said.get(key, default), self.most[key]
            found[key] = wanted
            if _rank(key, wanted) > _rank(key, most):
                found[key] = most
                text = f"{PREFIX}{WRITTEN[key]}: {_shown(wanted)} is beyond {origin}: it gets {_shown(most)}"
                complaints.append(complaint(pod, text, OUT_OF_BOUNDS))
        return found


@dataclass(frozen=True)
class PodPolicy:
    """What a policy says of the pods of one namespace."""

    policy: Policy
    rules: tuple[Bounds, ...]
    """By number; first that of pods that no rule matches."""

    def bounds_of(self, labels: Labels) -> Bounds:
        rule = self.policy.rule_of(labels)
        return self.rules[_NO_RULE if rule is None else rule.number]

    def origin(self, number: int) -> str:
        """In words, as status has it."""
        return f"policy {self.policy.name}, " + (f"pods[{number - 1}]" if number else "no rule matches")

    def modest(self) -> Values:
        """Of a pod that we were not told of, or have no room for: of each value the least that any pod could have."""
        return {
            key: min((one.values[key] for one in self.rules), key=_by(key)) for key in self.rules[0].values
        }


def pod_policy(policy: Policy, default_class: str, complaints: list[Complaint]) -> PodPolicy | None:
    """None: the policy says nothing of pods. ``default_class``: of the namespace's pods."""
    if policy.rules is None:
        return None
    nothing: Values = {"weight": 1.0, "class": default_class, "quota": None, "min": 0.0, "vram_limit": None}
    rules = (Rule(_NO_RULE, policy.selector), *policy.rules)
    return PodPolicy(policy, tuple(_bounds(policy, rule, nothing, complaints) for rule in rules))


def _bounds(policy: Policy, rule: Rule, nothing: Values, complaints: list[Complaint]) -> Bounds:
    where = f"GpuSharePolicy {policy.name}: spec.pods[{rule.number - 1}]"
    values = {**nothing, **values_of_policy(rule.values, where, complaints)}
    said_most = values_of_policy(rule.most, f"{where}.max", complaints)
    most = {key: max(value, said_most.get(key, value), key=_by(key)) for key, value in values.items()}
    return Bounds(rule.number, values, most)


def _rank(key: str, value: Any) -> float:
    """What is more for its pod ranks higher."""
    if key == "class":
        return _CLASSES[value]
    return math.inf if value is None else float(value)


def _by(key: str) -> Callable[[Any], float]:
    return functools.partial(_rank, key)


def _shown(value: Any) -> str:
    return "no limit" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def settled(
    of: Mapping[str, Any],
    values: Values,
    complaints: list[Complaint],
    default_min: float = 0.0,
    default_quota: float | None = None,
) -> None:
    """A guarantee beyond the own quota would have the configuration refuse all of the namespace: it is lowered."""
    least, quota = values.get("min", default_min), values.get("quota", default_quota)
    if quota is not None and least > quota:
        values["min"] = quota
        complaints.append(complaint(of, f"{PREFIX}min: {least:g} is more than its quota: it gets {quota:g}"))
