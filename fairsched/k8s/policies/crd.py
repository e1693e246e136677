# SPDX-License-Identifier: Apache-2.0
"""The definition of GpuSharePolicy: what the API server takes, and why it refuses the rest.

Approach. Of types, sizes of lists and choices OpenAPI tells well enough what is wrong. All else is CEL, whose messages
say what to write; each rule names the field that has to change. Numbers of the configuration that stand here are
compared with it by a test. Lists and texts have a greatest length, without which the API server takes a rule to cost
too much and refuses the definition.

``scripts/k8s/render.py`` writes it for the chart.
"""

from __future__ import annotations

from typing import Any

from fairsched.k8s.policies.model import GROUP, KIND, PLURAL, VERSION
from fairsched.k8s.policies.selector import OPERATORS

MOST_WEIGHT = 1_000_000
"""As in the configuration."""
MOST_NAMES = 256
MOST_RULES = 32
"""More are no policy that a person can read."""
MOST_LINES = 16
"""Of a selector."""
MOST_TOLD = 16
"""Namespaces and policies that the status names; it counts all of them."""

_PERCENT = "^([0-9]{1,2}([.][0-9]{1,3})?|100)%$"
_SIZE = "^[1-9][0-9]{0,5}([.][0-9]{1,3})?(MiB|GiB|TiB|MB|GB|TB)$"
_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_LABEL = 317
"""A prefix of 253, a slash, a name of 63."""


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    columns = [
        _column("Priority", ".spec.priority", "integer"),
        _column("Namespaces", ".status.namespaces", "integer"),
        _column("Pods", ".status.pods", "integer"),
        _column("Effective", '.status.conditions[?(@.type=="Effective")].status', "string"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _top()},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["gsp"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def _top() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "What namespaces, and pods in them, get of shared GPUs. Of several that match a namespace one "
        "is in effect there: of the highest priority; then one that names it, before one that selects it by labels, "
        "before one that selects all; then the first by name.",
        "required": ["spec"],
        "properties": {"spec": _spec(), "status": _status()},
    }


def _spec() -> dict[str, Any]:
    share_min = _percent_of("self.share.min", "has(self.share) && has(self.share.min)")
    too_much = " || ".join(
        [
            f"{_percent_of('p.min', 'has(p.min)')} > {share_min}",
            f"{_percent_of('p.max.min', 'has(p.max) && has(p.max.min)')} > {share_min}",
        ]
    )
    return {
        "type": "object",
        "required": ["namespaces"],
        "x-kubernetes-validations": [
            _rule(
                "has(self.share) || has(self.pods)",
                "it says nothing: give share (what each namespace gets) or pods (what pods in them get)",
                ".share",
            ),
            _rule(
                f"!has(self.pods) || !self.pods.exists(p, {too_much})",
                "min of pods comes out of that of their namespace: raise spec.share.min, or lower min in pods",
                ".pods",
            ),
        ],
        "properties": {
            "priority": {
                "type": "integer",
                "format": "int32",
                "default": 0,
                "description": "Of several policies that match a namespace the highest is in effect.",
            },
            "namespaces": _namespaces(),
            "share": _share(),
            "pods": _pods(),
        },
    }


def _namespaces() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Whom it is for. An empty selector selects all.",
        "x-kubernetes-validations": [
            _rule(
                "has(self.names) != has(self.selector)",
                "give either names, or selector ({} selects all namespaces)",
            )
        ],
        "properties": {
            "names": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_NAMES,
                "x-kubernetes-list-type": "set",
                "items": {
                    "type": "string",
                    "maxLength": 63,
                    "x-kubernetes-validations": [
                        _rule(
                            f"self.matches('{_NAME}')",
                            "this is no name of a namespace (a-z 0-9 -), and patterns are not known here: use selector",
                        )
                    ],
                },
            },
            "selector": _selector(),
        },
    }


def _share() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "What each of these namespaces gets on a GPU beside other namespaces; class is the default of "
        "its pods.",
        "properties": _values(),
        "x-kubernetes-validations": [
            _rule(_says_something("self"), "give at least one of its keys"),
            _min_below_quota("self", ""),
        ],
    }


def _pods() -> dict[str, Any]:
    most = {
        "type": "object",
        "description": "What an annotation of the pod may come to; without it, what the rule says, or the default.",
        "properties": _values(),
    }
    weight = "(has(self.weight) ? self.weight : 1.0)"
    quota_most, quota = (_percent_of(f"self{m}.quota", "true") for m in (".max", ""))
    size_most, size = (_size_of(f"self{m}.vramLimit") for m in (".max", ""))
    rules = [
        _rule(
            f"!has(self.max) || !has(self.max.weight) || self.max.weight >= {weight}",
            "it is less than weight (1 where that is not given): raise max.weight, or lower weight",
            ".max.weight",
        ),
        _rule(
            "!has(self.max) || !has(self.max.min) || "
            f"{_percent_of('self.max.min', 'true')} >= {_percent_of('self.min', 'has(self.min)')}",
            "it is less than min: raise max.min, or lower min",
            ".max.min",
        ),
        _rule(
            f"!has(self.max) || !has(self.max.quota) || (has(self.quota) && {quota_most} >= {quota})",
            "give quota as well, and not more than this: without quota a pod has no cap that it could raise",
            ".max.quota",
        ),
        _rule(
            "!has(self.max) || !has(self.max.vramLimit) || "
            f"(has(self.vramLimit) && {size_most}.compareTo({size}) >= 0)",
            "give vramLimit as well, and not more than this: without vramLimit a pod has no limit that it could raise",
            ".max.vramLimit",
        ),
        _rule(
            "!has(self.max) || !has(self.max.class) || !has(self.class) || "
            "self.class == 'batch' || self.max.class == 'latency'",
            "latency is more than batch: write max.class: latency, or class: batch",
            ".max.class",
        ),
        _min_below_quota("self", ".min"),
        _rule(
            "!has(self.selector) || has(self.selector.matchLabels) || has(self.selector.matchExpressions)",
            "leave selector away to mean all pods",
            ".selector",
        ),
    ]
    return {
        "type": "array",
        "maxItems": MOST_RULES,
        "x-kubernetes-list-type": "atomic",
        "description": "What pods get of their namespace's part: the first whose selector matches. Without this key "
        "pods divide it by their annotations; a pod that no rule matches has the defaults.",
        "x-kubernetes-validations": [
            _rule(
                "self.map(p, has(p.selector)).indexOf(false) in [-1, self.size() - 1]",
                "only the last may be without selector: those behind it would never be reached",
            )
        ],
        "items": {
            "type": "object",
            "properties": {"selector": _selector(), **_values(), "max": most},
            "x-kubernetes-validations": rules,
        },
    }


def _values() -> dict[str, Any]:
    percent = f"self.matches('{_PERCENT}')"
    return {
        "weight": {
            "type": "number",
            "description": "Relative to the others; 1 where nobody says.",
            "x-kubernetes-validations": [
                _rule(
                    f"self > 0.0 && self <= {MOST_WEIGHT}.0",
                    f"write a number above 0 and not above {MOST_WEIGHT}, such as 3 or 0.5",
                )
            ],
        },
        "class": {
            "type": "string",
            "enum": ["latency", "batch"],
            "description": "latency is held last and thawed first; batch the reverse.",
        },
        "quota": {
            "type": "string",
            "maxLength": 8,
            "description": "Hard cap, of one GPU, even if it idles, such as 50%.",
            "x-kubernetes-validations": [
                _rule(percent, "write a part of one GPU from 0% to 100%, such as 50% or 12.5%")
            ],
        },
        "min": {
            "type": "string",
            "maxLength": 8,
            "description": "Guaranteed part of one GPU under contention, such as 20%.",
            "x-kubernetes-validations": [
                _rule(percent, "write a part of one GPU from 0% to 100%, such as 20% or 12.5%")
            ],
        },
        "vramLimit": {
            "type": "string",
            "maxLength": 16,
            "description": "Memory on each GPU, of all processes together, such as 8GiB.",
            "x-kubernetes-validations": [
                _rule(
                    f"self.matches('{_SIZE}')", "write a size with MiB, GiB, TiB, MB, GB or TB, such as 8GiB"
                )
            ],
        },
    }


def _selector() -> dict[str, Any]:
    key = {"type": "string", "minLength": 1, "maxLength": _LABEL}
    value = {"type": "string", "maxLength": 63}
    expression = {
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": key,
            "operator": {"type": "string", "enum": list(OPERATORS)},
            "values": {
                "type": "array",
                "maxItems": MOST_LINES,
                "x-kubernetes-list-type": "set",
                "items": value,
            },
        },
        "x-kubernetes-validations": [
            _rule(
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                "In and NotIn need values, Exists and DoesNotExist have none",
            )
        ],
    }
    return {
        "type": "object",
        "description": "As in other objects of Kubernetes; all of it must hold.",
        "properties": {
            "matchLabels": {
                "type": "object",
                "minProperties": 1,
                "maxProperties": MOST_LINES,
                "additionalProperties": value,
            },
            "matchExpressions": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_LINES,
                "x-kubernetes-list-type": "atomic",
                "items": expression,
            },
        },
    }


def _status() -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    text = {"type": "string"}
    met = {
        "type": "array",
        "maxItems": MOST_TOLD,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "properties": {"policy": text, "namespaces": count, "wins": {"type": "boolean"}},
        },
    }
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": text,
            "message": text,
        },
    }
    return {
        "type": "object",
        "description": "Whom it reaches; written by `fairsched k8s controller`.",
        "properties": {
            "observedGeneration": {"type": "integer"},
            "matched": {**count, "description": "Namespaces that it names or selects."},
            "namespaces": {**count, "description": "Of those, the ones where it is in effect."},
            "names": {
                "type": "array",
                "maxItems": MOST_TOLD,
                "x-kubernetes-list-type": "atomic",
                "items": text,
                "description": "The first of these.",
            },
            "pods": {**count, "description": "Pods in these that have not ended."},
            "podsByRule": {
                "type": "array",
                "maxItems": MOST_RULES,
                "x-kubernetes-list-type": "atomic",
                "items": count,
                "description": "Of those, by entry of spec.pods.",
            },
            "podsWithoutRule": {**count, "description": "Of those, the ones that no entry matches."},
            "overruledBy": {**met, "description": "Policies that stand higher, where both match."},
            "conflicts": {
                **met,
                "description": "Policies that stand as high where both match: only names decide.",
            },
            "conditions": {
                "type": "array",
                "maxItems": 8,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": condition,
            },
        },
    }


def _says_something(of: str) -> str:
    return " || ".join(f"has({of}.{key})" for key in ("weight", "class", "quota", "min", "vramLimit"))


def _min_below_quota(of: str, field: str) -> dict[str, Any]:
    least, quota = _percent_of(f"{of}.min", "true"), _percent_of(f"{of}.quota", "true")
    return _rule(
        f"!has({of}.min) || !has({of}.quota) || {least} <= {quota}",
        "min is more than quota: lower min, or raise quota",
        field or ".min",
    )


def _percent_of(field: str, is_there: str) -> str:
    """A number in CEL, 0 where there is none; what is no percentage is told of by the field's own rule."""
    return f"(({is_there}) && {field}.matches('{_PERCENT}') ? double({field}.replace('%', '')) : 0.0)"


def _size_of(field: str) -> str:
    """A quantity in CEL, which writes 8Gi for 8GiB."""
    text = f"{field}.replace('iB', 'i').replace('B', '')"
    return f"({field}.matches('{_SIZE}') ? quantity({text}) : quantity('0'))"


def _rule(rule: str, message: str, field: str = "") -> dict[str, Any]:
    return {"rule": rule, "message": message, **({"fieldPath": field} if field else {})}


def _column(name: str, path: str, kind: str) -> dict[str, str]:
    return {"name": name, "jsonPath": path, "type": kind}
