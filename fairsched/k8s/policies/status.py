# SPDX-License-Identifier: Apache-2.0
"""What the ``status`` of each policy should say (pure): whom it reaches, and which policies it meets.

It depends on what is there alone, so that whoever is elected next writes the same. Times of a condition are those of
the status that there is, as long as the condition is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.k8s.objects import labels_of, name_of, space_of
from fairsched.k8s.policies.crd import MOST_TOLD
from fairsched.k8s.policies.model import Policy, policy_of
from fairsched.k8s.policies.precedence import Choice, choose
from fairsched.k8s.policies.selector import Malformed

Status = dict[str, Any]


@dataclass
class _Reach:
    """Of one policy."""

    matched: int = 0
    names: list[str] = field(default_factory=list)
    """Namespaces where it is in effect, in order."""
    pods: int = 0
    by_rule: Counter[int] = field(default_factory=Counter)
    """By number of the rule; 0: none."""
    overruled: Counter[str] = field(default_factory=Counter)
    won: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Namespaces by the other policy: that of higher standing; those of the same, which came off worse, or better."""

    def take(self, policy: Policy, namespace: str, choice: Choice, pods: Iterable[Mapping[str, Any]]) -> None:
        """One namespace that the policy matches."""
        self.matched += 1
        winner = choice.policy
        assert winner is not None
        if winner is policy:
            self.names.append(namespace)
            self.won.update(one.name for one in choice.tied)
            for pod in pods:
                self.pods += 1
                rule = None if policy.rules is None else policy.rule_of(labels_of(pod))
                self.by_rule[0 if rule is None else rule.number] += 1
        elif policy in choice.tied:
            self.lost[winner.name] += 1
        else:
            self.overruled[winner.name] += 1


def statuses(
    policies: Iterable[Mapping[str, Any]],
    namespaces: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    now: str,
) -> dict[str, Status]:
    """The status of each policy, by name. `pods`: those that have not ended. ``now``: as the API server writes it."""
    documents = {name_of(one): one for one in policies}
    known: dict[str, Policy] = {}
    refused: dict[str, str] = {}
    for name, document in documents.items():
        try:
            known[name] = policy_of(document)
        except Malformed as error:
            refused[name] = str(error)
    reaches = _reaches(list(known.values()), namespaces, pods)
    found = {name: _status(documents[name], known[name], reach, now) for name, reach in reaches.items()}
    for name, why in refused.items():
        found[name] = _refused(documents[name], why, now)
    return found


def differs(status: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Whether that of the object says something else."""
    return bool(dict(status) != document.get("status"))


def _reaches(
    policies: list[Policy], namespaces: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> dict[str, _Reach]:
    found = {one.name: _Reach() for one in policies}
    by_space: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        by_space.setdefault(space_of(pod), []).append(pod)
    for space in sorted(namespaces, key=name_of):
        name, labels = name_of(space), labels_of(space)
        choice = choose(policies, name, labels)
        if choice.policy is not None:
            for policy in (choice.policy, *choice.tied, *choice.lower):
                found[policy.name].take(policy, name, choice, by_space.get(name, ()))
    return found


def _status(document: Mapping[str, Any], policy: Policy, reach: _Reach, now: str) -> Status:
    rules = len(policy.rules or ())
    return {
        "observedGeneration": _generation(document),
        "matched": reach.matched,
        "namespaces": len(reach.names),
        "names": reach.names[:MOST_TOLD],
        "pods": reach.pods,
        "podsByRule": [reach.by_rule[number + 1] for number in range(rules)],
        "podsWithoutRule": 0 if policy.rules is None else reach.by_rule[0],
        "overruledBy": _met(reach.overruled, wins=True),
        "conflicts": (_met(reach.lost, wins=True) + _met(reach.won, wins=False))[:MOST_TOLD],
        "conditions": _conditions(document, [_effective(reach), _conflicting(reach)], now),
    }


def _refused(document: Mapping[str, Any], why: str, now: str) -> Status:
    conditions = [("Effective", False, "NotUnderstood", why), ("Conflicting", False, "NoConflict", "")]
    return {
        "observedGeneration": _generation(document),
        "matched": 0,
        "namespaces": 0,
        "names": [],
        "pods": 0,
        "podsByRule": [],
        "podsWithoutRule": 0,
        "overruledBy": [],
        "conflicts": [],
        "conditions": _conditions(document, conditions, now),
    }


def _effective(reach: _Reach) -> tuple[str, bool, str, str]:
    if not reach.matched:
        return "Effective", False, "NoNamespace", "no namespace matches: look at spec.namespaces"
    if not reach.names:
        text = f"{_namespaces(reach.matched)} of other policies, see overruledBy and conflicts: raise spec.priority"
        return "Effective", False, "Overruled", text
    others = f" of {reach.matched} that match" if len(reach.names) < reach.matched else ""
    return "Effective", True, "InEffect", f"in effect in {_namespaces(len(reach.names))}{others}"


def _conflicting(reach: _Reach) -> tuple[str, bool, str, str]:
    others = sorted({*reach.won, *reach.lost})
    if not others:
        return "Conflicting", False, "NoConflict", ""
    shown = ", ".join(others[:MOST_TOLD]) + (" and more" if len(others) > MOST_TOLD else "")
    text = f"stands as high as {shown}, where both match: give one of them another priority"
    return "Conflicting", True, "SameStanding", text


def _met(others: Counter[str], *, wins: bool) -> list[dict[str, Any]]:
    """``wins``: the other."""
    return [{"policy": name, "namespaces": count, "wins": wins} for name, count in sorted(others.items())][
        :MOST_TOLD
    ]


def _namespaces(count: int) -> str:
    return "1 namespace" if count == 1 else f"{count} namespaces"


def _conditions(
    document: Mapping[str, Any], wanted: Iterable[tuple[str, bool, str, str]], now: str
) -> list[dict[str, Any]]:
    status = document.get("status")
    before = status.get("conditions") if isinstance(status, dict) else None
    known = {one.get("type"): one for one in before or () if isinstance(one, dict)}
    found = []
    for kind, is_so, reason, message in wanted:
        value = "True" if is_so else "False"
        old = known.get(kind) or {}
        since = old.get("lastTransitionTime") if old.get("status") == value else None
        found.append(
            {
                "type": kind,
                "status": value,
                "observedGeneration": _generation(document),
                "lastTransitionTime": since or now,
                "reason": reason,
                "message": message,
            }
        )
    return found


def _generation(document: Mapping[str, Any]) -> int:
    found = (document.get("metadata") or {}).get("generation")
    return found if isinstance(found, int) else 0
