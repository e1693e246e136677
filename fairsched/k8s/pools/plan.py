# SPDX-License-Identifier: Apache-2.0
"""What has to be done (pure): wanted objects and live ones in, steps out. No step: all is as it should be.

As server-side apply has it: a field that somebody else owns and that has another value is a conflict; one that we own
and that is not wanted any more is removed, unless somebody else owns it, too, who then keeps it. An object that we have
created goes when it is not wanted any more, one that was there before loses what is ours.

Taints are one list with one owner for all of it. Which of them are ours is noted at the node; all others stay.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairsched.k8s.pools.desired import Wanted
from fairsched.k8s.pools.fields import KINDS, MANAGER, MARK, Fields, Live, Path, Ref, Taint, is_same, taint_of

MARK_AT: Path = ("metadata", "labels", MARK)
CREATED, SHARED = "created", "shared"
_IMMUTABLE: Mapping[str, frozenset[Path]] = {"PriorityClass": frozenset({("value",), ("preemptionPolicy",)})}
"""Fields that the API server does not let be changed: the object has to be made anew."""


class Act(str, enum.Enum):
    """What is done with an object."""

    CREATE = "create"
    APPLY = "apply"
    REPLACE = "replace"
    """Delete, and create anew."""
    DELETE = "delete"
    RELEASE = "release"
    """Give up what is ours of it."""
    LEAVE = "leave"
    """Nothing, and say why."""


@dataclass(frozen=True)
class Change:
    """One field or taint. ``before`` or ``after`` None: it is not there."""

    what: str
    """``label accelerator``, ``taint nvidia.com/gpu:NoSchedule``, ``spec.hard.pods``."""
    before: Any
    after: Any
    owners: tuple[str, ...] = ()
    """Of a conflict: who owns it."""


@dataclass(frozen=True)
class TaintPlan:
    """``documents`` None: neither the taints nor the note change."""

    changes: tuple[Change, ...] = ()
    conflicts: tuple[Change, ...] = ()
    documents: tuple[Mapping[str, Any], ...] | None = None
    noted: frozenset[Taint] = frozenset()


@dataclass(frozen=True)
class Step:
    """One object, what changes of it and what is in the way."""

    act: Act
    ref: Ref
    changes: tuple[Change, ...] = ()
    conflicts: tuple[Change, ...] = ()
    fields: Fields = field(default_factory=dict)
    """All that is ours of it afterwards."""
    taints: tuple[Mapping[str, Any], ...] | None = None
    """All taints of the node afterwards; None: they stay."""
    noted: frozenset[Taint] = frozenset()
    live: Live | None = None
    patch: Fields = field(default_factory=dict)
    """Fields that get back a value that was not ours."""
    again: Callable[[Live], TaintPlan] | None = None
    """Plans the taints anew, for a node that has changed meanwhile."""
    why: str = ""

    @property
    def is_difference(self) -> bool:
        """Whether anything of the object would be another afterwards."""
        return bool(self.changes or self.conflicts)


def plan(wanted: Iterable[Wanted], lives: Iterable[Live], *, prunes: bool = True) -> list[Step]:
    """The steps, in an order that may be taken: by kind and name.

    ``lives``: the objects that are wanted, where they are there, and all that have our mark.
    """
    wishes = {one.ref: one for one in wanted}
    there = {one.ref: one for one in lives}
    found = [step_for(wish, there.get(ref)) for ref, wish in wishes.items()]
    if prunes:
        found += [_unwanted(live) for ref, live in there.items() if ref not in wishes]
    order = list(KINDS)
    steps = [step for step in found if step is not None]
    return sorted(steps, key=lambda step: (order.index(step.ref.kind), step.ref))


def step_for(wanted: Wanted, live: Live | None) -> Step | None:
    """For one object; None: nothing is to be done."""
    if live is None:
        if wanted.ref.kind == "Node":
            return None
        fields = {**wanted.fields, MARK_AT: CREATED}
        changes = tuple(Change(name_of(path), None, value) for path, value in sorted(wanted.fields.items()))
        return Step(Act.CREATE, wanted.ref, changes, fields=fields, why=wanted.why)
    fields = dict(wanted.fields)
    if wanted.ref.kind != "Node":
        fields[MARK_AT] = live.mark or SHARED
    found, taken = _compare(live, fields)
    taints = _taints(wanted, live)
    changes, conflicts = (*found, *taints.changes), (*taken, *taints.conflicts)
    is_ours = set(fields) == set(live.applied) and not changes and not conflicts
    is_noted = taints.documents is None
    if is_ours and is_noted:
        return None
    step = Step(
        Act.APPLY,
        wanted.ref,
        changes,
        conflicts,
        fields,
        taints.documents,
        taints.noted,
        live,
        why=wanted.why,
        again=functools.partial(_taints, wanted),
    )
    return _renewed(step)


def _renewed(step: Step) -> Step:
    """The same; where a field may not be changed, as a replacement, if the object is ours alone."""
    fixed = {name_of(path) for path in _IMMUTABLE.get(step.ref.kind, ())}
    blocked = [one for one in (*step.changes, *step.conflicts) if one.what in fixed]
    if not blocked or step.live is None:
        return step
    if step.live.mark == CREATED and not step.conflicts and not strangers(step.live):
        return replace(step, act=Act.REPLACE, why="it cannot be changed: it is deleted and made anew")
    owners = tuple(sorted(strangers(step.live))) or ("somebody else",)
    conflicts = tuple(replace(one, owners=one.owners or owners) for one in blocked)
    return replace(
        step,
        act=Act.LEAVE,
        changes=(),
        conflicts=conflicts,
        why="it cannot be changed, and is not ours to make anew",
    )


def _compare(live: Live, fields: Fields) -> tuple[list[Change], list[Change]]:
    """(changes, conflicts)"""
    changes: list[Change] = []
    conflicts: list[Change] = []
    for path in sorted(fields):
        before, after = live.fields.get(path), fields[path]
        if path in live.fields and is_same(live.ref.kind, before, after):
            continue
        owners = tuple(sorted(live.others(path))) if path in live.fields else ()
        (conflicts if owners else changes).append(Change(name_of(path), before, after, owners))
    for path in sorted(live.applied - set(fields)):
        if path in live.fields and not live.others(path):
            changes.append(Change(name_of(path), live.fields[path], None))
    return changes, conflicts


def _unwanted(live: Live) -> Step | None:
    """What becomes of an object that the file does not name."""
    mark = live.mark
    if live.ref.kind == "Node" or mark is None:
        return None
    others = tuple(sorted(strangers(live)))
    content = {path: value for path, value in live.fields.items() if path[0] != "metadata"}
    if mark == CREATED and not others:
        gone = tuple(Change(name_of(path), value, None) for path, value in sorted(content.items()))
        return Step(Act.DELETE, live.ref, gone, live=live, why="it is not wanted any more")
    if live.ref.kind in _IMMUTABLE:
        return Step(
            Act.LEAVE, live.ref, live=live, why=f"it is not wanted any more, but {_and(others)} changed it"
        )
    kept = f"{_and(others)} changed it" if mark == CREATED else "it was there before"
    changes, _ = _compare(live, {})
    return Step(
        Act.RELEASE, live.ref, tuple(changes), live=live, why=f"it is not wanted any more; {kept}: it stays"
    )


def strangers(live: Live) -> set[str]:
    """Managers beside us that own some of the content."""
    return {
        name
        for path, names in live.owners.items()
        if path[0] in KINDS[live.ref.kind].content
        for name in names
        if name != MANAGER
    }


def _and(names: Iterable[str]) -> str:
    return " and ".join(names) or "somebody"


# ---- taints ----


def _taints(wanted: Wanted, live: Live) -> TaintPlan:
    if wanted.taints is None:
        return TaintPlan(noted=live.noted)
    return plan_taints(wanted.taints, live)


def plan_taints(wishes: frozenset[Taint], live: Live) -> TaintPlan:
    """What becomes of a node's taints. A conflict is planned as if it were forced; it is the caller's to stop there."""
    wanted = {one.identity: one for one in wishes}
    present = {taint_of(one).identity: taint_of(one) for one in live.taints}
    ours = {one for one in live.noted if present.get(one.identity) == one}
    changes: list[Change] = []
    conflicts: list[Change] = []
    documents: list[Mapping[str, Any]] = []
    noted: set[Taint] = set()
    for document in live.taints:
        taint = taint_of(document)
        wish = wanted.get(taint.identity)
        if wish is None and taint in ours:
            changes.append(taint_change(taint, None))
            continue
        if wish is None or wish == taint:
            documents.append(document)
            noted |= {taint} & ours
            continue
        owners = () if taint in ours else tuple(sorted(live.taints_owners - {MANAGER})) or ("somebody else",)
        (conflicts if owners else changes).append(taint_change(taint, wish, owners))
        documents.append(document_of_taint(wish))
        noted.add(wish)
    for wish in sorted(wishes):
        if wish.identity not in present:
            changes.append(taint_change(None, wish))
            documents.append(document_of_taint(wish))
            noted.add(wish)
    is_same_list = tuple(documents) == tuple(live.taints) and frozenset(noted) == live.noted
    return TaintPlan(
        tuple(changes), tuple(conflicts), None if is_same_list else tuple(documents), frozenset(noted)
    )


def document_of_taint(taint: Taint) -> dict[str, str]:
    """As a node has it."""
    value = {"value": taint.value} if taint.value else {}
    return {"key": taint.key, **value, "effect": taint.effect}


def taint_change(before: Taint | None, after: Taint | None, owners: tuple[str, ...] = ()) -> Change:
    one = before or after
    assert one is not None
    return Change(
        f"taint {one.key}:{one.effect}",
        None if before is None else before.value,
        None if after is None else after.value,
        owners,
    )


def name_of(path: Path) -> str:
    """A field for people."""
    if path[:2] == ("metadata", "labels"):
        return f"label {path[2]}"
    return ".".join(path)
