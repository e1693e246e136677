# SPDX-License-Identifier: Apache-2.0
"""Looks at the cluster, and takes the steps of a plan there.

Fields go by server-side apply: the server refuses what another manager owns, whatever the plan believed. The object is
named by its uid, so that one that was made anew meanwhile is not taken for it. Taints and the note of which are ours
are written together, on condition that the node has not changed; if it has, they are planned anew. What is put back
past server-side apply, or deleted, is so on condition that what the plan went by has not changed.

Errors: one step's refusal ends no other; it is in the outcome. client.Unreachable ends the round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fairsched.k8s.client import KubeClient, Refused
from fairsched.k8s.objects import name_of
from fairsched.k8s.pools.backup import RESTORER
from fairsched.k8s.pools.desired import Found, found_of
from fairsched.k8s.pools.detect import Detected
from fairsched.k8s.pools.fields import (
    KINDS,
    MANAGER,
    MARK,
    TAINTS_NOTE,
    Live,
    Path,
    Ref,
    document_of,
    live_of,
    merge_into,
    note_of,
)
from fairsched.k8s.pools.plan import MARK_AT, SHARED, Act, Step

TRIES = 5
"""To write an object that others write, too: a node's kubelet and the controllers do, some seconds apart."""
_CONFLICT = 409


@dataclass(frozen=True)
class Outcome:
    """What became of one step; ``error`` None: it was taken."""

    step: Step
    error: str | None = None
    remedy: str = ""


# ---- to look ----


def nodes(
    client: KubeClient, names: Sequence[str] = (), detected: Mapping[str, Detected] | None = None
) -> list[Found]:
    """All nodes, or those of these names. Raises Refused: 404 when one is not there."""
    told = detected or {}
    if names:
        documents = [client.node(name) for name in names]
    else:
        documents, _ = client.listed("/api/v1/nodes", {})
    return [found_of(one, told.get(name_of(one))) for one in documents]


def marked(client: KubeClient) -> list[Live]:
    """All objects but nodes that have our mark."""
    return [
        live for kind in KINDS if kind != "Node" for live in _listed(client, kind, {"labelSelector": MARK})
    ]


def everything(client: KubeClient) -> list[Live]:
    """For a backup: nodes, quotas, limits and priorities, and ConfigMaps with our mark."""
    found = [one.live for one in nodes(client)]
    for kind in ("ResourceQuota", "LimitRange", "PriorityClass"):
        found += _listed(client, kind, {})
    found += _listed(client, "ConfigMap", {"labelSelector": MARK})
    return [
        one for one in found if not (one.ref.kind == "PriorityClass" and one.ref.name.startswith("system-"))
    ]


def _listed(client: KubeClient, kind: str, query: Mapping[str, str]) -> list[Live]:
    items, _ = client.listed(Ref(kind, "", "").collection, query)
    return [live_of(kind, one) for one in items]


def with_named(client: KubeClient, lives: Iterable[Live], refs: Iterable[Ref]) -> list[Live]:
    """``lives``, and those of ``refs`` that are not among them but there."""
    found = {one.ref: one for one in lives}
    for ref in refs:
        if ref not in found and (live := _get(client, ref)) is not None:
            found[ref] = live
    return list(found.values())


def _get(client: KubeClient, ref: Ref) -> Live | None:
    try:
        return live_of(ref.kind, client.get(ref.path))
    except Refused as error:
        if error.is_absent:
            return None
        raise


# ---- to do ----


def carry_out(client: KubeClient, steps: Iterable[Step], *, force: bool) -> Iterator[Outcome]:
    """Takes the steps, one after the other. A conflict is taken only with ``force``."""
    for step in steps:
        if step.conflicts and not force:
            names = sorted({name for one in step.conflicts for name in one.owners})
            what = ", ".join(one.what for one in step.conflicts)
            yield Outcome(
                step, f"{what}: set by {', '.join(names)}", "give it up there, or use --force-conflicts"
            )
            continue
        if step.act is Act.LEAVE:
            yield Outcome(step)
            continue
        try:
            _take(client, step, force)
            yield Outcome(replace(step, changes=(*step.changes, *step.conflicts), conflicts=()))
        except Refused as error:
            yield Outcome(step, "; ".join(error.conflicts) or str(error), _remedy(step, error))


def _remedy(step: Step, error: Refused) -> str:
    if error.conflicts:
        return "give it up there, or use --force-conflicts"
    if error.is_absent and step.ref.namespace:
        return f"make the namespace: kubectl create namespace {step.ref.namespace}"
    if error.is_conflict:
        return "it has changed meanwhile: try again"
    return error.remedy


def _take(client: KubeClient, step: Step, force: bool) -> None:
    if step.act is Act.DELETE:
        _delete(client, step)
    elif step.act is Act.REPLACE:
        _delete(client, step)
        client.apply(step.ref.path, document_of(step.ref, step.fields), MANAGER)
    elif step.act is Act.CREATE:
        _create(client, step, force)
    else:
        _change(client, step, force)


def _delete(client: KubeClient, step: Step) -> None:
    def delete(live: Live) -> None:
        try:
            client.delete(step.ref.path, live.uid, live.version)
        except Refused as error:
            if not error.is_absent:  # else it is gone already
                raise

    assert step.live is not None
    _as_planned(client, step.live, step.live.fields, delete)


T = TypeVar("T")


def _as_planned(client: KubeClient, live: Live, paths: Iterable[Path], write: Callable[[Live], T]) -> T:
    """Write to an object, on condition that it is of the version it is said to be. If it is not, again, where of the
    fields at ``paths`` none is another or somebody else's. Raises Refused."""
    for _ in range(TRIES):
        try:
            return write(live)
        except Refused as error:
            found = _get(client, live.ref) if error.is_conflict else None
            if found is None or found.uid != live.uid or not _is_same(found, live, paths):
                raise
            live = found
    return write(live)


def _is_same(one: Live, other: Live, paths: Iterable[Path]) -> bool:
    return all(
        (one.fields.get(path), one.others(path)) == (other.fields.get(path), other.others(path))
        for path in paths
    )


def _create(client: KubeClient, step: Step, force: bool) -> None:
    """Who makes one of the same name in the same moment keeps it: what is not ours alone is not marked as created."""
    made = live_of(
        step.ref.kind, client.apply(step.ref.path, document_of(step.ref, step.fields), MANAGER, force=force)
    )
    if any(made.others(path) for path in made.fields):
        shared = document_of(step.ref, {**step.fields, MARK_AT: SHARED})
        client.apply(step.ref.path, shared, MANAGER, force=force)


def _change(client: KubeClient, step: Step, force: bool) -> None:
    assert step.live is not None
    live = step.live
    if step.patch:
        live = _as_planned(client, live, step.patch, functools.partial(_put_back, client, step))
    fields = {} if step.act is Act.RELEASE else step.fields
    has_fields = any(not one.what.startswith("taint ") for one in (*step.changes, *step.conflicts))
    if has_fields or step.patch or set(fields) != set(live.applied):
        document = document_of(step.ref, fields)
        document["metadata"]["uid"] = step.live.uid
        live = live_of(step.ref.kind, client.apply(step.ref.path, document, MANAGER, force=force))
    if step.taints is not None and step.again is not None:
        _write_taints(client, step, live, force)


def _put_back(client: KubeClient, step: Step, live: Live) -> Live:
    body: dict[str, Any] = {}
    merge_into(body, step.patch)
    body.setdefault("metadata", {}).update(uid=live.uid, resourceVersion=live.version)
    return live_of(step.ref.kind, client.patch(step.ref.path, body, RESTORER))


def _write_taints(client: KubeClient, step: Step, live: Live, force: bool) -> None:
    assert step.again is not None and step.live is not None
    for left in reversed(range(TRIES)):
        found = step.again(live)
        if found.documents is None:
            return
        if found.conflicts and not force:
            names = sorted({name for one in found.conflicts for name in one.owners})
            message = f"{found.conflicts[0].what} was set meanwhile by {', '.join(names)}"
            raise Refused(f"PATCH {step.ref.path}", _CONFLICT, {"message": message}, None)
        body = {
            "metadata": {
                "resourceVersion": live.version,
                "uid": step.live.uid,
                "annotations": {TAINTS_NOTE: note_of(found.noted)},
            },
            "spec": {"taints": [dict(one) for one in found.documents]},
        }
        try:
            client.patch(step.ref.path, body, MANAGER)
            return
        except Refused as error:
            if not error.is_conflict or not left:
                raise
        live = live_of("Node", client.get(step.ref.path))
