# SPDX-License-Identifier: Apache-2.0
"""Label selectors, as the API server has them (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class Malformed(Exception):
    """What the API server should not have let in; the text names the field and the remedy."""


@dataclass(frozen=True)
class Requirement:
    """One line of a selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        is_in = labels.get(self.key) in self.values
        # As everywhere in Kubernetes: what has no such label is not in any set.
        return is_in if self.operator == "In" else not is_in


@dataclass(frozen=True)
class Selector:
    """All of them must hold; none: everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(one.holds(labels) for one in self.requirements)


def selector_of(document: Any, where: str) -> Selector:
    """Of a ``LabelSelector``. Raises Malformed."""
    if not isinstance(document, dict):
        raise Malformed(f"{where} is no selector: write matchLabels or matchExpressions")
    found: list[Requirement] = []
    for key, value in sorted(_mapping(document.get("matchLabels"), f"{where}.matchLabels").items()):
        found.append(Requirement(str(key), "In", frozenset({str(value)})))
    expressions = document.get("matchExpressions") or []
    if not isinstance(expressions, list):
        raise Malformed(f"{where}.matchExpressions is no list")
    for number, one in enumerate(expressions):
        inner = f"{where}.matchExpressions[{number}]"
        entry = _mapping(one, inner)
        operator, values = entry.get("operator"), entry.get("values") or []
        if operator not in OPERATORS or not isinstance(values, list) or not entry.get("key"):
            raise Malformed(f"{inner}: write key, operator ({', '.join(OPERATORS)}) and values")
        if bool(values) is not (operator in ("In", "NotIn")):
            raise Malformed(f"{inner}.values: In and NotIn need some, Exists and DoesNotExist have none")
        found.append(Requirement(str(entry["key"]), operator, frozenset(map(str, values))))
    return Selector(tuple(found))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{where} is no mapping")
    return value
