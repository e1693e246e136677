# SPDX-License-Identifier: Apache-2.0
"""A GpuSharePolicy as data (pure). Its numbers stay as they are written: the configuration's own schema reads them.

The API server has checked it by its definition, which may be that of another version of fairsched: what cannot be read
here is :class:`selector.Malformed`, and such a policy is not in effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.k8s.objects import name_of
from fairsched.k8s.policies.selector import Malformed, Selector, selector_of

GROUP = "fairsched.io"
VERSION = "v1alpha1"
PLURAL = "gpusharepolicies"
KIND = "GpuSharePolicy"
PATH = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
KEYS = {"weight": "weight", "class": "class", "quota": "quota", "min": "min", "vramLimit": "vram_limit"}
"""Key of a policy: key of the configuration."""


@dataclass(frozen=True)
class Rule:
    """An entry of ``pods``."""

    number: int
    """From 1, in the policy's order."""
    selector: Selector
    values: Mapping[str, Any] = field(default_factory=dict)
    """By the configuration's keys, as they are written."""
    most: Mapping[str, Any] = field(default_factory=dict)
    """What annotations may come to; the same."""


@dataclass(frozen=True)
class Policy:
    """One policy."""

    name: str
    priority: int = 0
    names: frozenset[str] | None = None
    """Of namespaces; None: they are selected by labels."""
    selector: Selector = field(default_factory=Selector)
    share: Mapping[str, Any] = field(default_factory=dict)
    """Of each of its namespaces, by the configuration's keys."""
    rules: tuple[Rule, ...] | None = None
    """None: it says nothing of pods."""
    unknown: tuple[str, ...] = ()
    """Keys that another version of fairsched may know. All else of the policy holds: it bounds somebody."""

    def standing(self, namespace: str, labels: Mapping[str, str]) -> tuple[int, int] | None:
        """The greater one is in effect; None: it does not match this namespace."""
        if self.names is not None:
            return (self.priority, 2) if namespace in self.names else None
        if not self.selector.matches(labels):
            return None
        return (self.priority, 1 if self.selector.requirements else 0)

    @property
    def is_for_all(self) -> bool:
        """It selects every namespace, and so says of none that it matters."""
        return self.names is None and not self.selector.requirements

    def rule_of(self, labels: Mapping[str, str]) -> Rule | None:
        """That of a pod with these labels."""
        return next((one for one in self.rules or () if one.selector.matches(labels)), None)


def policy_of(document: Mapping[str, Any]) -> Policy:
    """Of an object of the API server. Raises Malformed."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        raise Malformed("spec is missing")
    spaces, priority = spec.get("namespaces"), spec.get("priority", 0)
    if not isinstance(spaces, dict) or ("names" in spaces) is ("selector" in spaces):
        raise Malformed("spec.namespaces: give either names or selector")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise Malformed("spec.priority is no whole number")
    names = spaces.get("names")
    if "names" in spaces and not (isinstance(names, list) and all(isinstance(one, str) for one in names)):
        raise Malformed("spec.namespaces.names is no list of names")
    rules = spec.get("pods")
    if rules is not None and not isinstance(rules, list):
        raise Malformed("spec.pods is no list")
    unknown: list[str] = []
    selector = (
        Selector() if names is not None else selector_of(spaces["selector"], "spec.namespaces.selector")
    )
    return Policy(
        name=name_of(document),
        priority=priority,
        names=None if names is None else frozenset(names),
        selector=selector,
        share=_values(spec.get("share"), "spec.share", unknown),
        rules=None if rules is None else tuple(_rule(one, index, unknown) for index, one in enumerate(rules)),
        unknown=tuple(unknown),
    )


def _rule(document: Any, index: int, unknown: list[str]) -> Rule:
    where = f"spec.pods[{index}]"
    if not isinstance(document, dict):
        raise Malformed(f"{where} is no mapping")
    selector = document.get("selector")
    said = {key: value for key, value in document.items() if key not in ("selector", "max")}
    return Rule(
        index + 1,
        Selector() if selector is None else selector_of(selector, f"{where}.selector"),
        _values(said, where, unknown),
        _values(document.get("max"), f"{where}.max", unknown),
    )


def _values(document: Any, where: str, unknown: list[str]) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise Malformed(f"{where} is no mapping")
    unknown += [f"{where}.{key}" for key in sorted(set(document) - set(KEYS))]
    return {KEYS[key]: value for key, value in document.items() if key in KEYS}
