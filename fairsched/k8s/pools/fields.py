# SPDX-License-Identifier: Apache-2.0
"""Objects of Kubernetes as fields, and who owns each (pure).

A field is a path into an object whose value is no mapping; lists are values. Only what pools are about is a field:
labels, and the content of each kind. Owners are the managers that ``metadata.managedFields`` names, without those of
sub-resources (a quota's status has its own).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fairsched.k8s.quantity import comparable

MANAGER = "fairsched-pools"
MARK = "fairsched.io/pools"
"""Label of objects that we apply: ``created``, or ``shared`` when they were there before."""
TAINTS_NOTE = "fairsched.io/pools-taints"
"""Annotation of nodes: the taints that are ours. The list of taints has one owner for all of it, so they are noted."""
Path = tuple[str, ...]
Fields = Mapping[Path, Any]


@dataclass(frozen=True)
class Kind:
    """One kind that pools are about."""

    name: str
    version: str
    plural: str
    content: tuple[str, ...]
    """Keys of the object beside metadata that are fields."""
    is_namespaced: bool = True
    is_quantities: bool = False


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("Node", "v1", "nodes", (), is_namespaced=False),
        Kind("ConfigMap", "v1", "configmaps", ("data",)),
        Kind(
            "PriorityClass",
            "scheduling.k8s.io/v1",
            "priorityclasses",
            ("value", "globalDefault", "description", "preemptionPolicy"),
            is_namespaced=False,
        ),
        Kind("ResourceQuota", "v1", "resourcequotas", ("spec",), is_quantities=True),
        Kind("LimitRange", "v1", "limitranges", ("spec",), is_quantities=True),
    )
}


@dataclass(frozen=True, order=True)
class Ref:
    """One object by its names."""

    kind: str
    namespace: str
    """'' for what has none."""
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where}"

    @property
    def collection(self) -> str:
        kind = KINDS[self.kind]
        top = f"/api/{kind.version}" if "/" not in kind.version else f"/apis/{kind.version}"
        return (
            f"{top}/namespaces/{quote(self.namespace, safe='')}/{kind.plural}"
            if self.namespace
            else f"{top}/{kind.plural}"
        )

    @property
    def path(self) -> str:
        return f"{self.collection}/{quote(self.name, safe='')}"


@dataclass(frozen=True, order=True)
class Taint:
    """A taint of a node; key and effect are its identity."""

    key: str
    effect: str
    value: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        return self.key, self.effect

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True)
class Live:
    """One object as it is there."""

    ref: Ref
    uid: str
    version: str
    fields: Fields
    owners: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    """As they are, with timeAdded."""
    taints_owners: frozenset[str] = frozenset()
    applied: frozenset[Path] = frozenset()
    """Fields that are ours by server-side apply."""
    noted: frozenset[Taint] = frozenset()
    """Taints that are ours."""

    @property
    def mark(self) -> str | None:
        """``created`` or ``shared``; None: it is not ours."""
        at = ("metadata", "labels", MARK)
        return str(self.fields[at]) if at in self.applied and at in self.fields else None

    @property
    def ours(self) -> Fields:
        """Fields that are ours, with their values."""
        return {path: self.fields[path] for path in self.applied if path in self.fields}

    def others(self, path: Path) -> frozenset[str]:
        """Managers beside us that own a field, or something in it or around it."""
        return frozenset(
            name
            for at, names in self.owners.items()
            if at[: len(path)] == path or path[: len(at)] == at
            for name in names
            if name != MANAGER
        )


def live_of(kind: str, document: Mapping[str, Any]) -> Live:
    """An object of the API server; a list's items have no kind of their own."""
    metadata = document.get("metadata") or {}
    ref = Ref(kind, str(metadata.get("namespace") or ""), str(metadata.get("name")))
    owners, applied, taints_owners = _owners(metadata.get("managedFields"))
    spec = document.get("spec") or {}
    taints = tuple(one for one in spec.get("taints") or () if isinstance(one, dict)) if kind == "Node" else ()
    return Live(
        ref,
        str(metadata.get("uid") or ""),
        str(metadata.get("resourceVersion") or ""),
        fields_of(kind, document),
        owners,
        taints,
        taints_owners,
        applied,
        taints_of_note((metadata.get("annotations") or {}).get(TAINTS_NOTE)),
    )


def fields_of(kind: str, document: Mapping[str, Any]) -> dict[Path, Any]:
    """The fields of an object."""
    metadata = document.get("metadata") or {}
    found: dict[Path, Any] = {
        ("metadata", "labels", key): value for key, value in (metadata.get("labels") or {}).items()
    }
    for key in KINDS[kind].content:
        if key in document:
            found.update(_leaves((key,), document[key]))
    return found


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves((*path, str(key)), one)
    else:
        yield path, value


def document_of(ref: Ref, fields: Fields) -> dict[str, Any]:
    """An object with these fields and no others."""
    document: dict[str, Any] = {
        "apiVersion": KINDS[ref.kind].version,
        "kind": ref.kind,
        "metadata": {"name": ref.name, **({"namespace": ref.namespace} if ref.namespace else {})},
    }
    merge_into(document, fields)
    return document


def merge_into(document: dict[str, Any], fields: Fields) -> None:
    """Put fields into an object."""
    for path in sorted(fields):
        place = document
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = fields[path]


def is_same(kind: str, one: Any, other: Any) -> bool:
    """Whether two values are the same for the API server."""
    if one == other:
        return True
    return KINDS[kind].is_quantities and comparable(one) == comparable(other)


def _owners(managed: Any) -> tuple[dict[Path, frozenset[str]], frozenset[Path], frozenset[str]]:
    """(managers by field, what is ours by apply, managers of a node's taints)"""
    owners: dict[Path, set[str]] = {}
    applied: set[Path] = set()
    taints: set[str] = set()
    for entry in managed if isinstance(managed, list) else ():
        if not isinstance(entry, dict) or entry.get("subresource"):
            continue
        name, is_apply = str(entry.get("manager") or ""), entry.get("operation") == "Apply"
        for path in _owned((), entry.get("fieldsV1") or {}):
            if path[:2] == ("spec", "taints"):
                taints.add(name)
                continue
            owners.setdefault(path, set()).add(name)
            if name == MANAGER and is_apply:
                applied.add(path)
    return {path: frozenset(names) for path, names in owners.items()}, frozenset(applied), frozenset(taints)


def _owned(path: Path, fields: Mapping[str, Any]) -> Iterator[Path]:
    """Leaves of fieldsV1: ``f:KEY`` goes on, items of lists (``k:``, ``v:``) are the list's."""
    inner = {key[2:]: value for key, value in fields.items() if key.startswith("f:")}
    if not inner:
        if path:
            yield path
        return
    for key, value in inner.items():
        yield from _owned((*path, key), value if isinstance(value, dict) else {})


# ---- taints ----


def taint_of(document: Mapping[str, Any]) -> Taint:
    return Taint(str(document.get("key")), str(document.get("effect")), str(document.get("value") or ""))


def note_of(taints: frozenset[Taint]) -> str | None:
    """The annotation that says which taints are ours; None: there are none."""
    if not taints:
        return None
    return json.dumps([[one.key, one.value, one.effect] for one in sorted(taints)], separators=(",", ":"))


def taints_of_note(note: Any) -> frozenset[Taint]:
    """What an annotation says; one that cannot be read says nothing: then no taint is ours."""
    try:
        rows = json.loads(note) if isinstance(note, str) else []
        return frozenset(Taint(str(key), str(effect), str(value)) for key, value, effect in rows)
    except (ValueError, TypeError):
        return frozenset()
