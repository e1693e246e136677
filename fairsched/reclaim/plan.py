# SPDX-License-Identifier: Apache-2.0
"""Makes the plan: who is ended, who is not, and why (pure).

A process that was chosen is ended with its descendants, because a child that stays may keep the GPU. A descendant in
another cgroup than its tree's root is left and named: it may be somebody else's work. ``keep_parent`` keeps the root of
each tree and ends what is below it: a notebook server, and not its kernels.

An MPS server runs the kernels of its clients in its own context. Without all of its clients it is left: they would end
with it. With them it is ended after them.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairsched.base.text import counted
from fairsched.cgroup.identity import Kind, layers_of
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import Holder, Listing
from fairsched.reclaim.marks import marks_of
from fairsched.reclaim.pauses import Pause

CLIENTS, SERVERS = 0, 1
"""Phases: an MPS server is ended after its clients."""
_NAMED = 6
"""Pids that a sentence names."""


@dataclass(frozen=True)
class Target:
    """A process that is to end."""

    facts: Facts
    why: str
    holds: tuple[Holder, ...] = ()
    """What it has of which GPU; nothing: it is a descendant of one that has."""
    notes: tuple[str, ...] = ()
    """What to know of it: what keeps a signal from it, what starts it again."""
    phase: int = CLIENTS

    @property
    def pid(self) -> int:
        return self.facts.pid

    @property
    def vram_bytes(self) -> int:
        return sum(one.vram_bytes or 0 for one in self.holds)

    def plain(self) -> dict[str, Any]:
        """For JSON and the audit log."""
        first = self.holds[0].status if self.holds else None
        return {
            "pid": self.pid,
            "start_ticks": self.facts.start_ticks,
            "uid": self.facts.uid,
            "user": next((one.user for one in self.holds), None),
            "command": self.facts.command[:400],
            "cgroup": self.facts.cgroup,
            "tenant": None if first is None else first.tenant,
            "known_as": None if first is None else first.known_as,
            "why": self.why,
            "evidence": [
                {
                    "gpu": one.status.gpu,
                    "vram_bytes": one.vram_bytes,
                    "contexts": one.status.contexts,
                    "idle_s": one.idle_s,
                    "age_s": one.age_s,
                    "marks": marks_of(one),
                    "source": one.source,
                    "is_confirmed": one.is_listed,
                }
                for one in self.holds
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Left:
    """A process that was chosen, or belongs to one, and is not ended."""

    pid: int
    name: str
    why: str
    is_refused: bool = True
    """False: it was asked to be kept, or has ended already."""


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    targets: tuple[Target, ...] = ()
    left: tuple[Left, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Everything that was chosen is to end."""
        return not any(one.is_refused for one in self.left)


@dataclass
class _Draft:
    targets: dict[int, Target] = field(default_factory=dict)
    left: dict[int, Left] = field(default_factory=dict)


def make_plan(
    chosen: Sequence[Holder],
    listing: Listing,
    protected: Mapping[int, str],
    *,
    named: Collection[int] = (),
    keep_parent: bool = False,
    pauses: Mapping[int, Pause] | None = None,
) -> Plan:
    """The plan for these holders. ``named``: pids that were asked for, which may be parents of holders."""
    table, draft = listing.table, _Draft()
    holds: dict[int, list[Holder]] = {}
    sure = {one.pid for one in chosen if one.doubt is None}
    for one in chosen:
        if one.doubt is not None and sure & set(ancestors(one.pid, table)):
            continue  # it inherited what its ancestor has, and ends with it
        holds.setdefault(one.pid, []).append(one)
    on_gpu = {one.pid for one in listing.holders if one.is_listed}
    for pid in sorted({*holds, *named}):
        why = _hurdle(pid, holds.get(pid, []), table, protected, on_gpu)
        if why is not None:
            draft.left[pid] = Left(pid, _name(pid, table), why)
    roots = {pid for pid in (*holds, *named) if pid not in draft.left}
    tops = {pid for pid in roots if not roots & set(ancestors(pid, table))}
    every = {one.pid: one for one in listing.holders}
    for pid in roots:
        if keep_parent and pid in tops:
            draft.left[pid] = Left(pid, _name(pid, table), "kept: --keep-parent", False)
        else:
            draft.targets[pid] = Target(table[pid], _why(holds.get(pid, [])), tuple(holds.get(pid, ())))
    for top in sorted(tops):
        _add_descendants(top, every, table, protected, draft)
    _judge_servers(listing, draft)
    noted = [_noted(target, pauses or {}, listing) for target in draft.targets.values()]
    order = sorted(noted, key=lambda one: (one.phase, -one.vram_bytes, one.pid))
    return Plan(tuple(order), tuple(draft.left[pid] for pid in sorted(draft.left)))


def descendants(pid: int, table: Mapping[int, Facts]) -> list[int]:
    """Children, their children and so on, parents first."""
    children: dict[int, list[int]] = {}
    for facts in table.values():
        children.setdefault(facts.parent, []).append(facts.pid)
    found, pending = list[int](), [pid]
    while pending:
        below = [one for one in children.get(pending.pop(0), ()) if one != pid and one not in found]
        found += below
        pending += below
    return found


def ancestors(pid: int, table: Mapping[int, Facts]) -> Iterable[int]:
    """Its parent, the parent's parent and so on."""
    seen = {pid}
    facts = table.get(pid)
    while facts is not None and facts.parent not in seen:
        seen.add(facts.parent)
        yield facts.parent
        facts = table.get(facts.parent)


def is_inside(cgroup: str | None, of: str | None) -> bool:
    """The same cgroup, or one below; False where either is not known."""
    if cgroup is None or of is None:
        return False
    return of == "/" or cgroup == of or cgroup.startswith(f"{of}/")


Group = tuple[int, "str | None", int]
"""Group of processes, cgroup, user."""


def own_groups(targets: Collection[Facts], table: Mapping[int, Facts]) -> frozenset[Group]:
    """Groups of processes in which there is nobody but targets and their descendants."""
    found = {(facts.group, facts.cgroup, facts.uid) for facts in targets if facts.cgroup is not None}
    ending = {facts.pid for facts in targets}
    ending |= {child for pid in tuple(ending) for child in descendants(pid, table)}
    shared = {facts.group for pid, facts in table.items() if pid not in ending and not facts.is_zombie}
    return frozenset(one for one in found if one[0] not in shared)


def newcomers(
    known: Mapping[int, Facts], table: Mapping[int, Facts], groups: Collection[Group], since_ticks: int
) -> list[Facts]:
    """Who was forked by targets while they were being ended: to end, too.

    ``known``: targets; ``groups``: of :func:`own_groups`, before the first signal, at ``since_ticks``. It descends
    from one that lives, in its cgroup; or it was started since in such a group, whoever its parent is by now.
    """
    found: dict[int, Facts] = {}
    for pid, facts in known.items():
        now = table.get(pid)
        if now is None or now.start_ticks != facts.start_ticks:
            continue
        for child in descendants(pid, table):
            if child not in known and is_inside(table[child].cgroup, facts.cgroup):
                found[child] = table[child]
    for pid, facts in table.items():
        is_of_group = (facts.group, facts.cgroup, facts.uid) in groups
        if pid not in known and is_of_group and facts.start_ticks >= since_ticks:
            found[pid] = facts
    return [facts for facts in found.values() if not facts.is_zombie]


def _hurdle(
    pid: int,
    holds: Sequence[Holder],
    table: Mapping[int, Facts],
    protected: Mapping[int, str],
    on_gpu: Collection[int],
) -> str | None:
    """Why a chosen process is not ended; None: it is."""
    facts = table.get(pid)
    if pid in protected:
        return f"never ended: {protected[pid]}"
    if facts is None:
        return "it has ended, or is in no pid namespace below ours" if holds else "there is no such process"
    if facts.is_zombie:
        parent = table.get(facts.parent)
        name = "" if parent is None else f" ({parent.name})"
        return f"defunct already: it goes when its parent {facts.parent}{name} reaps it, or ends: --pid {facts.parent}"
    doubts = [one.doubt for one in holds if one.doubt is not None]
    if doubts:
        return f"{doubts[0]}; to end it all the same: kill(1)"
    if holds and not any(one.is_listed for one in holds):
        return "only the daemon lists it: NVML does not, nor has it the device file open; look again"
    if not holds and pid not in on_gpu and not set(descendants(pid, table)) & set(on_gpu):
        return "neither it nor a descendant holds a GPU: kill(1) ends other processes"
    return None


def _add_descendants(
    top: int,
    holders: Mapping[int, Holder],
    table: Mapping[int, Facts],
    protected: Mapping[int, str],
    draft: _Draft,
) -> None:
    for pid in descendants(top, table):
        facts = table[pid]
        if pid in draft.targets or pid in draft.left or facts.is_zombie:
            continue
        if pid in protected:
            draft.left[pid] = Left(pid, facts.name, f"never ended: {protected[pid]}")
        elif not is_inside(facts.cgroup, table[top].cgroup):
            why = (
                f"a descendant of {top} in another cgroup ({facts.cgroup}): name it with --pid if it is meant"
            )
            draft.left[pid] = Left(pid, facts.name, why)
        else:
            has = (holders[pid],) if pid in holders else ()
            draft.targets[pid] = Target(facts, f"a descendant of {top}", has)


def _judge_servers(listing: Listing, draft: _Draft) -> None:
    """Leave MPS servers whose clients stay; put the others behind their clients."""
    for pid, target in list(draft.targets.items()):
        if not any(one.mps == "server" for one in target.holds):
            continue
        # a server serves its own user, and one of root everybody; else anybody could hide behind the clients of others
        served = None if target.facts.uid == 0 else target.facts.uid
        gpus = {one.status.gpu for one in target.holds}
        stay = [
            one.pid
            for one in listing.holders
            if one.mps == "client"
            and one.status.gpu in gpus
            and one.pid not in draft.targets
            and (served is None or one.facts is None or one.facts.uid == served)
        ]
        if stay:
            del draft.targets[pid]
            why = (
                f"an MPS server: {counted(len(stay), 'client')} that would end with it stay ({_pids(stay)}); "
                "choose them, too, or let it go empty: echo quit | nvidia-cuda-mps-control"
            )
            draft.left[pid] = Left(pid, target.facts.name, why)
        else:
            draft.targets[pid] = Target(target.facts, target.why, target.holds, target.notes, SERVERS)


def _noted(target: Target, pauses: Mapping[int, Pause], listing: Listing) -> Target:
    facts, notes = target.facts, list[str]()
    if facts.pid in pauses:
        notes.append(pauses[facts.pid].text)
    if facts.tracer:
        tracer = listing.table.get(facts.tracer)
        name = "" if tracer is None else f" ({tracer.name})"
        notes.append(f"traced by {facts.tracer}{name}, which gets a SIGTERM first")
    if facts.is_deaf:
        is_first = "the first process of its container, without a handler"
        notes.append(
            f"SIGTERM does nothing to it ({is_first if facts.is_namespace_init else 'ignored'}): --force"
        )
    if facts.state == "D":
        notes.append("in a call of the kernel that no signal interrupts (D): it ends when that returns")
    gpus = {one.status.gpu for one in target.holds if one.mps == "client"}
    others = [
        one.pid
        for one in listing.holders
        if one.mps == "client" and one.status.gpu in gpus and one.pid != facts.pid
    ]
    if gpus and others:
        notes.append(
            f"a client of MPS: a kernel that it leaves running may fail the others ({_pids(others)})"
        )
    starter = starter_of(facts.cgroup)
    if starter is not None and target.holds:
        notes.append(f"{starter} may start it again")
    return Target(facts, target.why, target.holds, (*target.notes, *notes), target.phase)


def starter_of(cgroup: str | None) -> str | None:
    """What starts it again when it ends, as its cgroup says: ``unit chat.service (systemctl stop chat.service)``."""
    layers = [layer for layer in layers_of(cgroup or "/") if layer.is_outer and not layer.is_helper]
    if any(layer.pod_uid is not None for layer in layers):
        return "its pod's controller (kubectl delete pod)"
    for layer in layers:
        if layer.kind is Kind.UNIT and layer.unit is not None and layer.unit.endswith(".service"):
            return f"unit {layer.unit} (systemctl stop {shlex.quote(layer.unit)})"
        if layer.container_id is not None:
            return f"its container's restart policy ({layer.container_id[:12]})"
    return None


def _why(holds: Sequence[Holder]) -> str:
    if not holds:
        return "named; its descendants hold a GPU"
    gpus = ", ".join(dict.fromkeys(one.gpu_index for one in holds))
    return f"holds GPU {gpus}"


def _name(pid: int, table: Mapping[int, Facts]) -> str:
    facts = table.get(pid)
    return "?" if facts is None else facts.name


def _pids(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:_NAMED]))
    return shown if len(pids) <= _NAMED else f"{shown} and {len(pids) - _NAMED} more"
