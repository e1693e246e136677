# SPDX-License-Identifier: Apache-2.0
"""Plans which ResourceSlices have to be made, changed and removed (pure).

One pool, that of the node. Its devices are in slices of at most 128. Any change of a device is a new generation of the
whole pool, since readers take the highest generation only, and only when all its slices are there; where nothing is
another, nothing is written. Slices have names that follow from node and driver, so that one made twice is seen to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairsched.k8s.quantity import parse

API = "resource.k8s.io/v1"
PATH = f"/apis/{API}/resourceslices"
MOST_DEVICES = 128
_MOST_NAME_CHARS = 253
_QUANTITIES = ("value", "default", "min", "max", "step")
_DEVICE_KEYS = ("name", "attributes", "capacity", "allowMultipleAllocations", "taints", "consumesCounters")


@dataclass(frozen=True)
class Pool:
    """Whose the slices are."""

    driver: str
    node: str
    node_uid: str
    """Owner of the slices: they go with the node."""

    def slice_name(self, number: int) -> str:
        tail = f"-{self.driver}-{number}"
        if len(self.node) + len(tail) <= _MOST_NAME_CHARS:
            return self.node + tail
        mark = hashlib.sha256(self.node.encode()).hexdigest()[:8]
        return f"{self.node[: _MOST_NAME_CHARS - len(tail) - 9].rstrip('.-')}-{mark}{tail}"


@dataclass
class Plan:
    """What has to be done, in this order."""

    made: list[Mapping[str, Any]] = field(default_factory=list)
    changed: list[Mapping[str, Any]] = field(default_factory=list)
    """With the version that they take the place of."""
    removed: list[tuple[str, str]] = field(default_factory=list)
    """(name, uid)"""
    generation: int = 1

    def __bool__(self) -> bool:
        return bool(self.made or self.changed or self.removed)


def make_plan(pool: Pool, devices: Iterable[Mapping[str, Any]], there: Iterable[Mapping[str, Any]]) -> Plan:
    """How `there`, the slices of this driver and node, come to hold `devices`."""
    listed = list(devices)
    parts = [listed[at : at + MOST_DEVICES] for at in range(0, len(listed), MOST_DEVICES)] or [[]]
    names = [pool.slice_name(number) for number in range(len(parts))]
    found = {str(one["metadata"]["name"]): one for one in there}
    newest = max((_generation(one) for one in found.values()), default=0)
    if set(found) == set(names) and all(
        _is_as_wanted(found[name], pool, part, len(parts), newest)
        for name, part in zip(names, parts, strict=True)
    ):
        return Plan(generation=newest)
    plan = Plan(generation=newest + 1)
    for name, part in zip(names, parts, strict=True):
        body = slice_of(pool, name, part, plan.generation, len(parts))
        if name not in found:
            plan.made.append(body)
        elif _is_another(found[name], pool):  # these fields cannot be changed
            plan.removed.append((name, str(found[name]["metadata"].get("uid"))))
            plan.made.append(body)
        else:
            version = found[name]["metadata"].get("resourceVersion")
            plan.changed.append({**body, "metadata": {**body["metadata"], "resourceVersion": version}})
    plan.removed += [
        (name, str(one["metadata"].get("uid"))) for name, one in found.items() if name not in names
    ]
    return plan


def slice_of(
    pool: Pool, name: str, devices: Sequence[Mapping[str, Any]], generation: int, count: int
) -> dict[str, Any]:
    """One ResourceSlice."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid, "controller": True}
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {
            "driver": pool.driver,
            "nodeName": pool.node,
            "pool": {"name": pool.node, "generation": generation, "resourceSliceCount": count},
            "devices": [dict(one) for one in devices],
        },
    }


def same_devices(one: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]]) -> bool:
    """Whether these say the same, however quantities are written."""
    return [_plain(device) for device in one] == [_plain(device) for device in other]


def _is_as_wanted(
    there: Mapping[str, Any], pool: Pool, devices: Sequence[Mapping[str, Any]], count: int, newest: int
) -> bool:
    spec = there.get("spec") or {}
    said = spec.get("pool") or {}
    return (
        not _is_another(there, pool)
        and _owners(there) == {pool.node_uid}
        and (said.get("generation"), said.get("resourceSliceCount")) == (newest, count)
        and same_devices(spec.get("devices") or (), devices)
    )


def _is_another(there: Mapping[str, Any], pool: Pool) -> bool:
    spec = there.get("spec") or {}
    said = (spec.get("driver"), spec.get("nodeName"), (spec.get("pool") or {}).get("name"))
    return said != (pool.driver, pool.node, pool.node)


def _owners(there: Mapping[str, Any]) -> set[str]:
    return {str(one.get("uid")) for one in there["metadata"].get("ownerReferences") or ()}


def _generation(there: Mapping[str, Any]) -> int:
    return int(((there.get("spec") or {}).get("pool") or {}).get("generation") or 0)


def _plain(device: Mapping[str, Any]) -> Any:
    return {key: _numbers(device[key]) for key in _DEVICE_KEYS if device.get(key)}


def _numbers(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers(inner, name) for name, inner in value.items()}
    if key in _QUANTITIES and isinstance(value, (str, int)):
        return parse(value)
    return value
