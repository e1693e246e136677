# SPDX-License-Identifier: Apache-2.0
"""The API server's part in memory: objects, who owns which field, server-side apply, merge patches.

Written from the documentation of server-side apply, and apart from what it tests. tests/k8s/test_pools.py plays the
same against the real one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from fairsched.k8s.client import Refused

Field = tuple[str, ...]
_ATOMIC = {("spec", "taints"), ("spec", "limits")}
_UNTRACKED = {"apiVersion", "kind"}
_IMMUTABLE = {"priorityclasses": ("value", "preemptionPolicy")}


class Model:
    """Has the calls of KubeClient that pools use. ``owned``: fields by path and (manager, operation)."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.owned: dict[str, dict[tuple[str, str], set[Field]]] = {}
        self.writes = 0
        self._numbers = itertools.count(1)

    # ---- what a person or a controller does ----

    def put(self, path: str, document: Mapping[str, Any], manager: str = "kubectl") -> None:
        """Make an object, with an owner for all of it."""
        made = copy.deepcopy(dict(document))
        made.setdefault("metadata", {}).update(uid=f"uid-{next(self._numbers)}")
        self.objects[path] = made
        self.owned[path] = {(manager, "Update"): set(_fields(made))}
        self._touch(path)

    def _touch(self, path: str) -> None:
        self.objects[path]["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.writes += 1

    # ---- KubeClient ----

    def node(self, name: str) -> Mapping[str, Any]:
        return self.get(f"/api/v1/nodes/{name}")

    def get(self, path: str) -> Mapping[str, Any]:
        if path not in self.objects:
            raise Refused(f"GET {path}", 404, {"reason": "NotFound", "message": "not found"}, None)
        return self._shown(path)

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        top, _, plural = path.rpartition("/")
        key = query.get("labelSelector")
        found = []
        for at, one in sorted(self.objects.items()):
            is_there = at.startswith(top) and at.split("/")[-2] == plural
            if is_there and (key is None or key in one["metadata"].get("labels", {})):
                found.append(self._shown(at))
        return found, "1"

    def apply(
        self,
        path: str,
        body: Mapping[str, Any],
        manager: str,
        *,
        force: bool = False,
        is_dry_run: bool = False,
    ) -> Mapping[str, Any]:
        body = copy.deepcopy(dict(body))
        uid = body["metadata"].pop("uid", None)
        if path not in self.objects:
            if uid is not None:
                raise Refused(
                    f"PATCH {path}", 409, {"reason": "Conflict", "message": "no existing object"}, None
                )
            self.objects[path] = {
                **body,
                "metadata": {**body["metadata"], "uid": f"uid-{next(self._numbers)}"},
            }
            self.owned[path] = {(manager, "Apply"): set(_fields(body))}
            self._touch(path)
            return self._shown(path)
        if uid is not None and uid != self.objects[path]["metadata"]["uid"]:
            raise Refused(f"PATCH {path}", 409, {"reason": "Conflict", "message": "uid mismatch"}, None)
        self._apply_to(path, body, (manager, "Apply"), force)
        return self._shown(path)

    def _apply_to(self, path: str, body: dict[str, Any], me: tuple[str, str], force: bool) -> None:
        live, owned = self.objects[path], self.owned[path]
        new = dict(_values(body))
        old = dict(_values(live))
        taken = {
            (at, who)
            for at, value in new.items()
            if at in old and old[at] != value
            for who, fields in owned.items()
            if who != me and at in fields
        }
        if taken and not force:
            causes = [
                {
                    "reason": "FieldManagerConflict",
                    "field": "." + ".".join(at),
                    "message": f'conflict with "{who[0]}"',
                }
                for at, who in sorted(taken)
            ]
            raise Refused(f"PATCH {path}", 409, {"reason": "Conflict", "details": {"causes": causes}}, None)
        self._check_immutable(path, old, new)
        for at, who in taken:
            owned[who].discard(at)
        mine = owned.get(me, set())
        others = set().union(*(fields for who, fields in owned.items() if who != me), set())
        changed = False
        for at in mine - set(new):
            if at not in others and at in old:
                _remove(live, at)
                changed = True
        for at, value in new.items():
            changed |= old.get(at) != value
            _set(live, at, value)
        if new:
            owned[me] = set(new)
        else:
            owned.pop(me, None)
        self._forget_empty(path)
        if changed or mine != set(new):
            self._touch(path)

    def _check_immutable(self, path: str, old: Mapping[Field, Any], new: Mapping[Field, Any]) -> None:
        for key in _IMMUTABLE.get(path.split("/")[-2], ()):
            if (key,) in new and (key,) in old and old[key,] != new[key,]:
                raise Refused(
                    f"PATCH {path}", 422, {"reason": "Invalid", "message": f"{key}: immutable"}, None
                )

    def patch(self, path: str, patch: Mapping[str, Any], manager: str | None = None) -> Mapping[str, Any]:
        if path not in self.objects:
            raise Refused(f"PATCH {path}", 404, {"reason": "NotFound"}, None)
        live, me = self.objects[path], (manager or "fairsched", "Update")
        body = copy.deepcopy(dict(patch))
        metadata = body.get("metadata", {})
        for key, word in (("resourceVersion", "modified"), ("uid", "another uid")):
            wanted = metadata.pop(key, None)
            if wanted is not None and wanted != live["metadata"][key]:
                raise Refused(f"PATCH {path}", 409, {"reason": "Conflict", "message": word}, None)
        before = dict(_values(live))
        _merge(live, body)
        after = dict(_values(live))
        for at in set(before) | set(after):
            if before.get(at) != after.get(at):
                for fields in self.owned[path].values():
                    fields.discard(at)
                if at in after:
                    self.owned[path].setdefault(me, set()).add(at)
        self._forget_empty(path)
        self._touch(path)
        return self._shown(path)

    def delete(self, path: str, uid: str | None = None, version: str | None = None) -> None:
        if path not in self.objects:
            raise Refused(f"DELETE {path}", 404, {"reason": "NotFound"}, None)
        metadata = self.objects[path]["metadata"]
        if uid not in (None, metadata["uid"]) or version not in (None, metadata["resourceVersion"]):
            raise Refused(f"DELETE {path}", 409, {"reason": "Conflict"}, None)
        del self.objects[path], self.owned[path]
        self.writes += 1

    def _forget_empty(self, path: str) -> None:
        self.owned[path] = {who: fields for who, fields in self.owned[path].items() if fields}

    def _shown(self, path: str) -> dict[str, Any]:
        shown = copy.deepcopy(self.objects[path])
        shown["metadata"]["managedFields"] = [
            {"manager": name, "operation": operation, "fieldsV1": _tree(fields)}
            for (name, operation), fields in self.owned[path].items()
        ]
        return shown


def _values(document: Mapping[str, Any], at: Field = ()) -> Iterator[tuple[Field, Any]]:
    for key, value in document.items():
        here = (*at, key)
        if (not at and key in _UNTRACKED) or (at == ("metadata",) and key not in ("labels", "annotations")):
            continue
        if isinstance(value, Mapping) and here not in _ATOMIC:
            yield from _values(value, here)
        else:
            yield here, value


def _fields(document: Mapping[str, Any]) -> Iterator[Field]:
    return (at for at, _ in _values(document))


def _tree(fields: set[Field]) -> dict[str, Any]:
    top: dict[str, Any] = {}
    for at in fields:
        place = top
        for key in at:
            place = place.setdefault(f"f:{key}", {})
    return top


def _set(document: dict[str, Any], at: Field, value: Any) -> None:
    for key in at[:-1]:
        document = document.setdefault(key, {})
    document[at[-1]] = value


def _remove(document: dict[str, Any], at: Field) -> None:
    for key in at[:-1]:
        document = document.get(key, {})
    document.pop(at[-1], None)


def _merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
