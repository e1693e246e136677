# SPDX-License-Identifier: Apache-2.0
"""Holds cgroups with the freezer of cgroup v1, where cgroup v2 has none or does not list the tenants' processes.

Problem. The freezer of v1 is a hierarchy of its own. A tenant's processes may be in its root, which cannot be frozen,
in a group together with other tenants, or spread over many; and whoever owns those groups freezes them, too.

Approach. A tenant's processes are moved, once, to a *home*: a group of ours below the one they are in (:mod:`.v1`). A
hold freezes the homes, and nothing else. So nobody else's process is frozen, and whoever pauses the group above, before
us or meanwhile, keeps it paused whatever we write.

* Who is a tenant's: the processes in and below its cgroup, each looked up in /proc. Whoever has left it and is still in
  its home, say a child that moved to another cgroup, is brought back to the group above before anything is frozen.
* Newcomers. Children are born frozen. Who enters from outside, or was moved out of the home with all or some of its
  threads, is found by the next look.
* Record. The journal names each home before it is frozen.
* A home of ours that is not FROZEN any more was thawed by somebody else: the hold is over (RELEASED). We do not fight.
* FREEZING may last for as long as a process waits in the kernel. Nobody waits for that: it is told once, as LATE.

What it cannot do, and the freezer of v2 can: SIGKILL acts only after the thaw; a newcomer runs until the next look; the
first hold of a process costs a move, which waits for a grace period of the kernel (11 and 57 ms in two tries), once for
all of them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from fairsched.base.process import has_ended
from fairsched.cgroup.brake import result_of
from fairsched.cgroup.journal import BrakeName, Entry, Group, Journal
from fairsched.cgroup.lookout import LOOK_NS, ROUNDS, Looked, Lookout
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.v1 import V1Freezer
from fairsched.errors import CgroupGone, KernelRefused

LATE_NS = 1_000_000_000


@dataclass
class _Held(Looked):
    """A hold of ours."""

    homes: list[CgroupRef] = field(default_factory=list)
    """On record; those in use of the cgroup's."""
    is_told: bool = False
    """That it is late."""


class FreezerV1(Lookout[_Held]):
    """A brake. A context manager: leaving it thaws everything it holds, and leaves no group of ours behind."""

    NAME = BrakeName.FREEZER_V1

    def __init__(
        self,
        journal: Journal,
        mount: Mount,
        v1: V1Freezer,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``mount``: of the tenants' cgroups. Removes what a dead daemon has left. Raises HostUnsupported."""
        super().__init__(journal, mount, clock_ns)
        self._v1 = v1
        self._homes: dict[int, set[str]] = {}
        """Their paths by cgroup id; processes are in them also when nothing is held."""
        v1.tidy()

    def forget_others(self, cgroup_ids: Collection[int]) -> None:
        super().forget_others(cgroup_ids)
        for cgroup_id in self._homes.keys() - set(cgroup_ids) - self._held.keys():
            self._leave(cgroup_id)

    def close(self) -> list[HoldResult]:
        """Thaw everything we hold, and bring the processes back. Called twice it does nothing.

        What the kernel refuses stays in the journal for the guardian and ``fairsched release``.
        """
        results = super().close()
        for cgroup_id in list(self._homes):
            self._leave(cgroup_id)
        return results

    def _leave(self, cgroup_id: int) -> None:
        for path in self._homes.pop(cgroup_id):
            with contextlib.suppress(CgroupGone, KernelRefused), CgroupRef.open(self._v1.mount, path) as home:
                self._v1.bring_back(home)

    def _begin(self, entry: Entry) -> _Held:
        return _Held(replace(entry, v1_mount=self._v1.mount.path))

    def _let_go(self, held: _Held) -> int:
        stood, refusal = 0, None
        for home in held.homes:
            try:
                stood += self._v1.thaw(home)
            except CgroupGone:
                continue
            except KernelRefused as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return stood

    def _end(self, held: _Held, kind: HoldKind, latency_ns: int | None = None) -> HoldResult:
        for home in held.homes:
            home.close()
        return super()._end(held, kind, latency_ns)

    def _stop(self, held: _Held) -> HoldResult:
        held.asked_ns = self._clock_ns()
        try:
            for home in held.homes:  # let go by a pulse
                self._freeze(home)
            homes = self._homes.get(held.entry.cgroup_id, set())
            for path in list(homes):
                try:
                    self._take(held, path)
                except CgroupGone:  # with the group above it, as a rule: containers come and go
                    homes.discard(path)
            self._gather(held)
        except CgroupGone:
            self._let_go(held)
            return self._end(held, HoldKind.GONE)
        if held.has_others and not any(map(self._has_any, held.homes)):
            self._let_go(held)
            return self._end(held, HoldKind.FOREIGN)
        self._set_timer()
        return result_of(HoldKind.HELD, held.entry, self._clock_ns() - held.asked_ns)

    def _freeze(self, home: CgroupRef) -> None:
        with contextlib.suppress(CgroupGone):  # with its processes; the cgroup itself may be there
            self._v1.write(home, True)

    def _has_any(self, home: CgroupRef) -> bool:
        try:
            return bool(self._v1.tasks(home))
        except CgroupGone:
            return False

    def _gather(self, held: _Held) -> bool:
        """Bring home and freeze until nobody is new; whether anybody was. Raises CgroupGone, KernelRefused."""
        begin_ns, is_any = self._clock_ns(), False
        for _ in range(ROUNDS):
            outside = self._find_outside(held)
            moved = [self._bring(held, group, pids) for group, pids in outside.items()]
            for home in held.homes:
                self._send_away(held, home)
            if not any(moved):
                return is_any
            is_any = True
            if self._clock_ns() - begin_ns > LOOK_NS:
                break
        return is_any

    def _find_outside(self, held: _Held) -> dict[str, list[int]]:
        """Processes of the cgroup with a thread that is in none of its homes on record, by the group they are in."""
        pids, inside = self._pids(held), set[int]()
        for home in held.homes:
            with contextlib.suppress(CgroupGone):
                inside |= self._v1.tasks(home)
        held.has_others = False
        outside: dict[str, list[int]] = {}
        for pid in pids:
            if not _has_thread_outside(pid, inside) or (group := self._v1.group_of(pid)) is None:
                continue
            try:
                is_paused = self._v1.is_paused(group)
            except CgroupGone:  # it has moved, or ended
                continue
            if is_paused:
                held.has_others = True
            else:
                outside.setdefault(group, []).append(pid)
        return outside

    def _bring(self, held: _Held, group: str, pids: list[int]) -> bool:
        """Move processes to the home in their group, which is frozen; whether any moved."""
        try:
            home = self._take(held, self._v1.make_home(group, held.entry.cgroup_id))
            return home is not None and any([self._v1.place(home, pid) for pid in pids])
        except CgroupGone:
            return False

    def _take(self, held: _Held, path: str) -> CgroupRef | None:
        """A home, on record and frozen; None where somebody else pauses it, or the group above. Raises CgroupGone."""
        home = CgroupRef.open(self._v1.mount, path)
        known = next((one for one in held.homes if one.id == home.id), None)
        if known is not None:
            home.close()
            return known
        self._homes.setdefault(held.entry.cgroup_id, set()).add(path)
        if self._v1.is_paused(path):
            home.close()
            held.has_others = True
            return None
        self._record(held, replace(held.entry, groups=(*held.entry.groups, Group(home.id, path))))
        held.homes.append(home)
        self._send_away(held, home)  # whoever is there from before and does not belong there
        self._freeze(home)
        return home

    def _send_away(self, held: _Held, home: CgroupRef) -> None:
        """Bring those in a home who are not, or no longer, in the cgroup back to the group above."""
        try:
            there = self._v1.procs(home)
            # in this order: a child that is born meanwhile is in neither list, or in the second
            strangers = there - self._pids(held) if there else there
            if strangers:
                with self._v1.open_above(home) as above:
                    for pid in strangers:
                        self._v1.place(above, pid)
        except CgroupGone:
            return

    def _look_after(self, held: _Held) -> None:
        held.looks += 1
        try:
            alive = [home for home in held.homes if home.is_alive()]
            if not all(map(self._v1.is_asked, alive)):
                self._lost(held, HoldKind.RELEASED)
                return
            is_any_new = self._gather(held)
            is_at_rest = all(map(self._v1.is_at_rest, (home for home in held.homes if home.is_alive())))
        except CgroupGone:
            self._lost(held, HoldKind.GONE)
            return
        held.is_doubted = is_any_new
        if is_any_new:  # who moves out again and again is looked for as often as that may cost
            held.looks = 0
        if is_at_rest and not is_any_new:
            self._rests(held)
        elif not held.is_settled and not held.is_told and self._clock_ns() - held.asked_ns > LATE_NS:
            held.is_told = True
            self._changes.append(result_of(HoldKind.LATE, held.entry, self._clock_ns() - held.asked_ns))


def _has_thread_outside(pid: int, inside: Collection[int]) -> bool:
    """One that runs: who has ended while others go on is listed as their process, but is in no group any more."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(int(tid) not in inside and not has_ended(f"/proc/{pid}/task/{tid}") for tid in threads)
