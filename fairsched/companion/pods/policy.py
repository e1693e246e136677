# SPDX-License-Identifier: Apache-2.0
"""Makes tenants of pods and namespaces (pure): a layer of the configuration, and complaints.

What comes from the API server is written by who may make pods: any text may stand in it. A value counts once the
configuration's own schema takes it; names are cut to what the configuration takes as a name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fairsched.base.printable import printable
from fairsched.config.models import MAX_NAME_CHARS, NAME, Child

PREFIX = "fairsched.io/"
KEYS = {"weight": "weight", "class": "class", "quota": "quota", "min": "min", "vram-limit": "vram_limit"}
"""Key of an annotation: key of the configuration."""
GROUP = "tenant"
GPU_RESOURCES = ("nvidia.com/", "fairsched.io/")
MOST_CHILDREN = 512
"""Of one namespace on one node; further pods have the default."""
MOST_BYTES = 48 << 10
"""Of a layer as JSON: a request of the control socket takes 64 KiB."""
_OVER = ("Succeeded", "Failed")
_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Complaint:
    """What a pod or a namespace says and nobody can understand."""

    namespace: str
    name: str
    """Of the pod; empty: it is the namespace itself."""
    uid: str
    text: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}: {self.text}" if self.name else f"{self.namespace}: {self.text}"


@dataclass
class Made:
    """What pods and namespaces come to."""

    layer: dict[str, Any] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)


def make_layer(pods: Iterable[Mapping[str, Any]], namespaces: Iterable[Mapping[str, Any]]) -> Made:
    """Tenants of the pods of a node and of all namespaces, as the API server has them."""
    made = Made()
    spaces = {_text(one, "name"): one for one in namespaces}
    by_space: dict[str, list[Mapping[str, Any]]] = {}
    for pod in sorted(pods, key=lambda one: _text(one, "name")):
        if (pod.get("status") or {}).get("phase") not in _OVER:
            by_space.setdefault(_text(pod, "namespace"), []).append(pod)
    for name in sorted({*spaces, *by_space}):
        space, here = spaces.get(name, {"metadata": {"name": name}}), by_space.get(name, [])
        said = {key for one in (space, *here) for key in _said(one)}
        if NAME.fullmatch(name) and here and (said or any(map(_wants_gpu, here))):
            made.layer[name] = _tenant(name, space, here, made.complaints)
    _trim(made)
    return made


def _trim(made: Made) -> None:
    """Keep the layer small: who says more than its part of the room loses of its own, and of nobody else's."""
    left = MOST_BYTES
    by_size = sorted((len(json.dumps({name: node})), name) for name, node in made.layer.items())
    for index, (size, name) in enumerate(by_size):
        part = left // (len(by_size) - index)
        children, dropped = made.layer[name]["children"], 0
        while size > part and children:
            key = next(reversed(children))
            size -= len(json.dumps({key: children[key]}))
            dropped += len(children.pop(key).get("pods", ()))
        if dropped:
            text = f"{dropped} of its pods have the default: they say more than there is room for on one node"
            made.complaints.append(Complaint(name, "", "", text))
        left -= min(size, part)


def _tenant(
    name: str, space: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], complaints: list[Complaint]
) -> dict[str, Any]:
    values = _values(space, complaints)
    default_class = values.pop("class", None)
    children: dict[str, dict[str, Any]] = {} if default_class is None else {"*": {"class": default_class}}
    left = _ratio(values.get("min"))
    for pod in pods:
        said = _values(pod, complaints)
        needed = _ratio(said.get("min"))
        if needed > left + 1e-9:
            complaints.append(
                _complaint(pod, f"min: {needed:g} is more than the {left:g} left of its namespace's")
            )
            del said["min"]
            needed = 0.0
        group = _group(pod, complaints)
        if not said and group is None:
            continue
        if default_class is not None:
            said.setdefault("class", default_class)
        key = _key(group or _text(pod, "name"))
        if key not in children and len(children) >= MOST_CHILDREN:
            complaints.append(
                _complaint(pod, f"its namespace has {MOST_CHILDREN} tenants here: it has the default")
            )
            continue
        left -= needed
        child = children.setdefault(key, {"pods": []})
        child["pods"].append(_text(pod, "name"))
        for one, value in said.items():
            if child.setdefault(one, value) != value:
                complaints.append(_complaint(pod, f"{one}: others of its tenant '{key}' say {child[one]}"))
    return {**values, "match": {"pod": f"{name}/*"}, "children_are": "pods", "children": children}


def _values(of: Mapping[str, Any], complaints: list[Complaint]) -> dict[str, Any]:
    """What the configuration takes of what is said, as plain data."""
    found: dict[str, Any] = {}
    for key, text in _said(of).items():
        if key == GROUP:
            continue
        if key not in KEYS:
            complaints.append(
                _complaint(of, f"{PREFIX}{key}: there is no such key; known: {', '.join([*KEYS, GROUP])}")
            )
            continue
        try:
            value: Any = float(text) if key == "weight" else text
            taken = Child.model_validate({KEYS[key]: value})
        except (ValueError, ValidationError) as error:
            shown = printable(text)[:_SHOWN_CHARS]
            complaints.append(_complaint(of, f"{PREFIX}{key}: {shown!r}: {_why(error)}"))
            continue
        found[KEYS[key]] = taken.model_dump(mode="json", by_alias=True, exclude_unset=True)[KEYS[key]]
    return found


def _why(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]["msg"]
        return first.removeprefix("Value error, ")
    return "it is not a number"


def _said(of: Mapping[str, Any]) -> dict[str, str]:
    """Our keys, without the prefix. Some are no wish: what escalation reads and writes."""
    metadata = of.get("metadata") or {}
    found: dict[str, str] = {}
    for place in ("labels", "annotations"):
        for key, value in (metadata.get(place) or {}).items():
            bare = str(key).removeprefix(PREFIX)
            if bare != key and bare not in ("never-evict", "escalation", "config"):
                found[bare] = str(value)
    return found


def _group(pod: Mapping[str, Any], complaints: list[Complaint]) -> str | None:
    text = _said(pod).get(GROUP)
    if text is None or NAME.fullmatch(text):
        return text
    shown = printable(text)[:_SHOWN_CHARS]
    complaints.append(_complaint(pod, f"{PREFIX}{GROUP}: {shown!r}: write 1 to 64 of a-z 0-9 . _ -"))
    return None


def _key(name: str) -> str:
    """A name of the configuration; names of pods may be longer."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[: MAX_NAME_CHARS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _wants_gpu(pod: Mapping[str, Any]) -> bool:
    for container in (pod.get("spec") or {}).get("containers") or ():
        asked = container.get("resources") or {}
        if any(str(name).startswith(GPU_RESOURCES) for name in {**(asked.get("limits") or {})}):
            return True
    return False


def _ratio(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _text(of: Mapping[str, Any], key: str) -> str:
    return str((of.get("metadata") or {}).get(key) or "")


def _complaint(of: Mapping[str, Any], text: str) -> Complaint:
    namespace, name = _text(of, "namespace"), _text(of, "name")
    if not namespace:  # it is one
        namespace, name = name, ""
    return Complaint(namespace, name, _text(of, "uid"), text)
