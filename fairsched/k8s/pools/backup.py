# SPDX-License-Identifier: Apache-2.0
"""What was there before, and the way back (pure).

A backup has, of each object, its fields, its taints and what of both was ours. It has no times, uids or versions: the
same state gives the same bytes. Kubernetes' own taints (node.kubernetes.io/...) come and go by themselves, and are in
none.

The way back touches what is ours, and nothing else: a value that somebody else has set since, an object that somebody
else has deleted or changed, stays as it is, and is said (Act.LEAVE). A value that was not ours before is put back by a
manager of its own (RESTORER), so that it is not ours afterwards either.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairsched.errors import ConfigError
from fairsched.k8s.pools.fields import (
    KINDS,
    Fields,
    Live,
    Path,
    Ref,
    Taint,
    is_same,
    taint_of,
)
from fairsched.k8s.pools.plan import (
    CREATED,
    MARK_AT,
    Act,
    Change,
    Step,
    TaintPlan,
    document_of_taint,
    name_of,
    strangers,
    taint_change,
)
from fairsched.k8s.pools.schema import NAME

RESTORER = "fairsched-pools-restore"
VERSION = 1
MAX_BYTES = 64 << 20
SYSTEM_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


@dataclass(frozen=True)
class Saved:
    """One object of a backup."""

    ref: Ref
    fields: Fields
    ours: frozenset[Path]
    taints: frozenset[Taint] = frozenset()
    noted: frozenset[Taint] = frozenset()


def saved_of(live: Live) -> Saved:
    """An object for a backup."""
    taints = frozenset(one for one in map(taint_of, live.taints) if not is_system(one))
    return Saved(live.ref, live.fields, frozenset(live.ours), taints, live.noted & taints)


def is_system(taint: Taint) -> bool:
    return taint.key.startswith(SYSTEM_TAINTS)


def write(lives: Iterable[Live]) -> str:
    """The text of a backup: JSON with one field a line, in order."""
    saved = sorted(map(saved_of, lives), key=lambda one: one.ref)
    document = {"fairsched_backup": VERSION, "objects": [_plain(one) for one in saved]}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _plain(one: Saved) -> dict[str, Any]:
    return {
        "kind": one.ref.kind,
        "namespace": one.ref.namespace,
        "name": one.ref.name,
        "fields": [[list(path), one.fields[path], path in one.ours] for path in sorted(one.fields)],
        "taints": [[list(_words(taint)), taint in one.noted] for taint in sorted(one.taints)],
    }


def _words(taint: Taint) -> tuple[str, str, str]:
    return taint.key, taint.effect, taint.value


def read(raw: bytes, file: str) -> list[Saved]:
    """A backup. Raises ConfigError for what is none."""
    try:
        document = json.loads(raw)
        if document["fairsched_backup"] != VERSION:
            raise ConfigError(
                f"it is of version {document['fairsched_backup']!r}, not {VERSION}",
                file=file,
                remedy="restore it with the fairsched that has written it",
            )
        found = [_saved(one) for one in document["objects"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"it is no backup: {type(error).__name__}: {error}"[:200],
            file=file,
            remedy="name a file that 'fairsched k8s backup' has written",
        ) from None
    refs = [one.ref for one in found]
    if len(set(refs)) != len(refs):
        raise ConfigError(
            "an object is there twice", file=file, remedy="take a backup that nobody has edited"
        )
    return found


def _saved(one: Mapping[str, Any]) -> Saved:
    kind, namespace, name = str(one["kind"]), str(one["namespace"]), str(one["name"])
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}")
    if (
        not NAME.fullmatch(name)
        or bool(namespace) != KINDS[kind].is_namespaced
        or (namespace and not NAME.fullmatch(namespace))
    ):
        raise ValueError(f"{kind} {namespace!r} {name!r} is no name")
    fields: dict[Path, Any] = {}
    ours: set[Path] = set()
    for path, value, is_ours in one["fields"]:
        at = tuple(str(part) for part in path)
        if at[:2] != ("metadata", "labels") and at[:1] not in [(key,) for key in KINDS[kind].content]:
            raise ValueError(f"field {'.'.join(at)!r} of a {kind}")
        fields[at] = value
        if is_ours:
            ours.add(at)
    taints = {Taint(*map(str, words)): bool(noted) for words, noted in one["taints"]}
    return Saved(
        Ref(kind, namespace, name),
        fields,
        frozenset(ours),
        frozenset(taints),
        frozenset(taint for taint, noted in taints.items() if noted),
    )


# ---- the way back ----


def plan_back(saved: Iterable[Saved], lives: Iterable[Live]) -> list[Step]:
    """The steps to what a backup has. ``lives``: its objects, where they are there, and all that have our mark."""
    before = {one.ref: one for one in saved}
    there = {one.ref: one for one in lives}
    steps: list[Step] = []
    for ref in sorted({*before, *there}, key=lambda one: (list(KINDS).index(one.kind), one)):
        old, live = before.get(ref), there.get(ref)
        if live is None:
            assert old is not None
            steps += _gone(old)
        elif old is None:
            steps += _added(live)
        else:
            steps += _both(old, live)
    return steps


def _gone(old: Saved) -> list[Step]:
    if old.ref.kind == "Node":
        return [Step(Act.LEAVE, old.ref, why="the node has gone since")]
    if old.fields.get(MARK_AT) != CREATED or MARK_AT not in old.ours:
        return [Step(Act.LEAVE, old.ref, why="it was deleted since, and is not ours to make")]
    ours = {path: value for path, value in old.fields.items() if path in old.ours}
    changes = tuple(
        Change(name_of(path), None, value) for path, value in sorted(ours.items()) if path != MARK_AT
    )
    return [Step(Act.CREATE, old.ref, changes, fields=ours)]


def _added(live: Live) -> list[Step]:
    """What is there now and was not then."""
    if live.mark == CREATED:
        others = sorted(strangers(live))
        if not others:
            gone = tuple(Change(name_of(path), value, None) for path, value in sorted(live.fields.items()))
            return [Step(Act.DELETE, live.ref, gone, live=live, why="it was not there then")]
        return [
            Step(
                Act.LEAVE,
                live.ref,
                live=live,
                why=f"it was not there then, but {' and '.join(others)} changed it",
            )
        ]
    if not live.applied and not live.noted:
        return []
    kept = {
        path: value for path, value in live.fields.items() if path not in live.applied or live.others(path)
    }
    taints = frozenset(one for one in map(taint_of, live.taints) if one not in live.noted)
    return _both(Saved(live.ref, kept, frozenset(), taints), live)


def _both(old: Saved, live: Live) -> list[Step]:
    ours: dict[Path, Any] = {}
    patch: dict[Path, Any] = {}
    changes: list[Change] = []
    left: list[Change] = []
    for path in sorted({*old.fields, *live.fields}):
        before, now = old.fields.get(path), live.fields.get(path)
        is_there, was_there = path in live.fields, path in old.fields
        if is_there and was_there and is_same(live.ref.kind, before, now):
            if path in old.ours:
                ours[path] = before
            continue
        change = Change(name_of(path), now, before, tuple(sorted(live.others(path))) if is_there else ())
        is_mine = path in live.applied and not change.owners if is_there else path in old.ours
        if not is_mine:
            left.append(change)
            continue
        changes.append(change)
        if path in old.ours:
            ours[path] = before
        elif was_there:
            patch[path] = before
    taints = _taints_back(old, live)
    changes, left = [*changes, *taints.changes], [*left, *taints.conflicts]
    steps = []
    if changes or taints.documents is not None or set(ours) != set(live.applied):
        steps.append(
            Step(
                Act.APPLY,
                live.ref,
                tuple(changes),
                (),
                ours,
                taints.documents,
                taints.noted,
                live,
                patch=patch,
                again=functools.partial(_taints_again, old),
            )
        )
    if left:
        why = "it was changed since by somebody else: " + "; ".join(_told(one) for one in left[:8])
        steps.append(Step(Act.LEAVE, live.ref, live=live, why=why + ("; ..." if len(left) > 8 else "")))
    return steps


def _told(one: Change) -> str:
    by = f" ({', '.join(one.owners)})" if one.owners else ""
    was = "absent" if one.after is None else repr(one.after)
    now = "absent" if one.before is None else repr(one.before)
    return f"{one.what} was {was}, is {now}{by}"[:200]


def _taints_again(old: Saved, live: Live) -> TaintPlan:
    """What is left was said already, and hinders nobody."""
    return replace(_taints_back(old, live), conflicts=())


def _taints_back(old: Saved, live: Live) -> TaintPlan:
    """Its conflicts are what is left as it is."""
    then = {one.identity: one for one in old.taints}
    changes: list[Change] = []
    left: list[Change] = []
    documents: list[Mapping[str, Any]] = []
    for document in live.taints:
        taint = taint_of(document)
        was = then.get(taint.identity)
        if is_system(taint) or was == taint:
            documents.append(document)
        elif taint in live.noted:
            changes.append(taint_change(taint, was))
            documents += [document_of_taint(was)] if was is not None else []
        else:
            left.append(taint_change(taint, was))
            documents.append(document)
    present = {taint_of(one).identity for one in live.taints}
    for was in sorted(old.taints):
        if was.identity not in present:
            if was in old.noted:
                changes.append(taint_change(None, was))
                documents.append(document_of_taint(was))
            else:
                left.append(taint_change(None, was))
    noted = old.noted & frozenset(map(taint_of, documents))
    is_same_list = tuple(documents) == tuple(live.taints) and noted == live.noted
    return TaintPlan(tuple(changes), tuple(left), None if is_same_list else tuple(documents), noted)
