# SPDX-License-Identifier: Apache-2.0
"""Does what brakes have in common that must look again: those that hold a cgroup by something that is not the cgroup.

Problem. Where the kernel does not hold a cgroup whole, a process may enter while its neighbours are held, and no file
becomes readable when somebody else interferes.

Approach. Look for processes, hold them, and look again until nothing new is there; then again and again while the hold
lasts. A brake says how to stop, let go and look; the rest stands here. Each goes on record before it is held.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from fairsched.cgroup import tree
from fairsched.cgroup.brake import BrakeBook, Held, result_of
from fairsched.cgroup.journal import BrakeName, Entry, Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.patience import await_used
from fairsched.cgroup.state import read_state
from fairsched.cgroup.timer import Timer
from fairsched.errors import CgroupGone, KernelRefused

ROUNDS = 8
"""Of looking and stopping at once; who forks faster is stopped by the looks that follow."""
LOOK_NS = 5_000_000
"""No further round begins after this: whoever waits for the caller must not wait for one who forks all the time."""
_SOON_NS = 1_000_000
"""To the next look at a cgroup that is not at rest. Doubled each time, up to ..."""
_SWEEP_NS = 50_000_000
"""... this, which is how long a process that enters a held cgroup may run."""
_REST = 20
"""The next look at a cgroup comes this many times later than the last one took: 5 % of the caller's time at most."""


@dataclass
class Looked(Held):
    """A hold of ours."""

    asked_ns: int = 0
    """When the first of it was stopped; 0 before that."""
    is_settled: bool = False
    is_doubted: bool = False
    """Something was odd at the last look: look again soon."""
    looks: int = 0
    """Since it was asked for."""
    look_ns: int = 0
    """How long the last one took."""
    has_others: bool = False
    """There are processes that stood still before us, or belong to a debugger."""

    def run_again(self) -> None:
        """It was let go for a while."""
        self.asked_ns, self.looks, self.is_settled, self.is_doubted = 0, 0, False, False


LookedT = TypeVar("LookedT", bound=Looked)


class Lookout(BrakeBook[LookedT]):
    """A brake. A context manager: leaving it lets go of everything it holds."""

    NAME: ClassVar[BrakeName]

    def __init__(self, journal: Journal, mount: Mount, clock_ns: Callable[[], int]) -> None:
        """Raises HostUnsupported when no descriptor is left."""
        super().__init__(journal, clock_ns)
        self._mount = mount
        self._spared = frozenset((0, 1, os.getpid(), os.getppid()))
        self._timer = Timer()

    @abstractmethod
    def _begin(self, entry: Entry) -> LookedT:
        """The hold that is about to be made."""

    @abstractmethod
    def _stop(self, held: LookedT) -> HoldResult:
        """Hold those on record, whom a pulse let go, and whoever else is there now."""

    @abstractmethod
    def _let_go(self, held: LookedT) -> int:
        """Undo it, verified; how much of it stood still. Raises KernelRefused after all was tried."""

    @abstractmethod
    def _look_after(self, held: LookedT) -> None:
        """See what others did meanwhile, and hold whoever is new. Raises KernelRefused."""

    def fileno(self) -> int:
        """Readable when ``settle`` has something to look at. Wait on it; never read from it."""
        return self._timer.fileno()

    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        """Hold all processes in and below a cgroup until ``thaw`` or ``deadline_ns`` (CLOCK_MONOTONIC).

        HELD, ALREADY_HELD (nothing changes, also not the deadline), FOREIGN, GONE or EXPIRED. Raises
        KernelRefused when the journal cannot be written or the kernel refuses; then nothing is held by us.
        """
        if ref.id in self._held:
            return result_of(HoldKind.ALREADY_HELD, self._held[ref.id].entry)
        since_ns = self._clock_ns()
        entry = Entry(
            ref.id,
            ref.path,
            tenant,
            reason,
            since_ns,
            deadline_ns,
            self._me,
            self._boot_id,
            brake=self.NAME,
        )
        if deadline_ns <= since_ns:
            return result_of(HoldKind.EXPIRED, entry)
        if not ref.is_alive():
            return result_of(HoldKind.GONE, entry)
        if _is_frozen(ref):
            return result_of(HoldKind.FOREIGN, entry)
        # known from here on, so that whatever interrupts us, close() finds it
        held = self._held[ref.id] = self._begin(entry)
        try:
            self._journal.write(entry)
            return self._stop(held)
        except BaseException:
            self._abandon(held)
            raise

    def thaw(self, cgroup_id: int) -> HoldResult:
        """End a hold: THAWED (verified), NOT_HELD, RELEASED or GONE.

        Raises KernelRefused when something stays held; the hold and its journal entry then stay, and the
        guardian tries again at the deadline.
        """
        held = self._held.get(cgroup_id)
        if held is None:
            return HoldResult(HoldKind.NOT_HELD, cgroup_id, "")
        begin_ns = self._clock_ns()
        stood = self._let_go(held)
        if held.asked_ns and not held.is_settled:  # it took at least this long, which is worth knowing
            self._latencies.learn(cgroup_id, begin_ns - held.asked_ns, is_lower_bound=True)
        if not tree.is_at(self._mount, held.entry.path, cgroup_id):
            return self._end(held, HoldKind.GONE)
        is_released = (held.entry.stopped or held.entry.groups) and not stood
        return self._end(
            held, HoldKind.RELEASED if is_released else HoldKind.THAWED, self._clock_ns() - begin_ns
        )

    def pulse(
        self,
        cgroup_ids: Sequence[int],
        deadline_ns: int,
        reason: str,
        used: Callable[[], float],
        limit_ns: int,
    ) -> HoldKind:
        """Let cgroups we hold run until ``used()`` says 1 or more, and hold them again.

        ``used``: the part of what they may do that they have done, 0 while they have not begun. They are given
        ``limit_ns`` to begin, and as long from then on. HELD (all of them, until the new deadline), or THAWED: they
        did less in that time, or one of them is held by somebody else or gone by now. Raises as ``thaw`` and
        ``hold`` do; then none is held by us.
        """
        members = [self._held[cgroup_id] for cgroup_id in cgroup_ids]
        is_held = False
        try:
            for held in members:
                self._record_next(held, deadline_ns, reason)  # it still names whom this one has stopped
            if all([self._resume(held) for held in members]) and await_used(used, self._clock_ns, limit_ns):
                is_held = all([self._stop(held).kind is HoldKind.HELD for held in members])
        finally:
            if not is_held:
                for held in members:
                    self._abandon(held)
        return HoldKind.HELD if is_held else HoldKind.THAWED

    def settle(self) -> list[HoldResult]:
        """What happened since the last call: SETTLED, LATE, RELEASED, GONE. Never blocks.

        Raises KernelRefused once it has looked at all; what happened is told by the next call.
        """
        now_ns, refusals = self._clock_ns(), list[KernelRefused]()
        # past the deadline nobody is held any more: thaw_expired is due
        for held in [held for held in self._held.values() if held.entry.deadline_ns > now_ns]:
            begin_ns = self._clock_ns()
            try:
                self._look_after(held)
            except KernelRefused as refusal:  # it stays ours until its deadline
                refusals.append(refusal)
            held.look_ns = self._clock_ns() - begin_ns
        self._set_timer()
        if refusals:
            raise refusals[0]
        changes, self._changes = self._changes, []
        return changes

    def close(self) -> list[HoldResult]:
        """Let go of everything we hold and give the descriptor back. Called twice it does nothing.

        What the kernel refuses stays in the journal for the guardian and ``fairsched release``.
        """
        results = self._thaw_all(list(self._held))
        self._held.clear()
        self._timer.close()
        return results

    def _record(self, held: LookedT, entry: Entry) -> None:
        self._journal.write(entry)
        held.entry = entry

    def _rests(self, held: LookedT) -> None:
        """Nothing of it runs any more; told once."""
        if not held.is_settled:
            held.is_settled = True
            latency_ns = self._clock_ns() - held.asked_ns
            self._latencies.learn(held.entry.cgroup_id, latency_ns)
            self._changes.append(result_of(HoldKind.SETTLED, held.entry, latency_ns))

    def _lost(self, held: LookedT, kind: HoldKind) -> None:
        """The cgroup is gone, or somebody else has let it go: so do we with what is left."""
        self._let_go(held)
        self._changes.append(self._end(held, kind))

    def _resume(self, held: LookedT) -> bool:
        """Let all of it go for a while. False when somebody else had done so."""
        stood = self._let_go(held)
        held.run_again()
        return bool(stood) or not (held.entry.stopped or held.entry.groups)

    def _pids(self, held: LookedT) -> set[int]:
        """The processes in and below the very cgroup. Raises CgroupGone."""
        entry = held.entry
        pids = tree.read_pids_recursive(self._mount, entry.path)
        if not tree.is_at(self._mount, entry.path, entry.cgroup_id):
            raise CgroupGone(entry.path)
        return set(pids) - self._spared

    def _set_timer(self) -> None:
        """For the next look."""
        waits = []
        for held in self._held.values():
            is_soon = held.is_doubted or not held.is_settled
            wait_ns = min(_SOON_NS << min(held.looks, 6), _SWEEP_NS) if is_soon else _SWEEP_NS
            waits.append(max(wait_ns, _REST * held.look_ns))
        self._timer.set(min(waits) if waits else None)

    def _abandon(self, held: LookedT) -> None:
        """Undo a hold that was interrupted half way. What cannot be undone stays ours until its deadline."""
        if held.entry.cgroup_id in self._held:
            with contextlib.suppress(KernelRefused):
                self.thaw(held.entry.cgroup_id)

    def _end(self, held: LookedT, kind: HoldKind, latency_ns: int | None = None) -> HoldResult:
        """Nothing is held by us any more: off the record and forgotten."""
        self._held.pop(held.entry.cgroup_id, None)
        if kind is HoldKind.GONE:
            self._latencies.forget(held.entry.cgroup_id)
        self._set_timer()
        self._journal.remove(held.entry.name)
        return result_of(kind, held.entry, latency_ns)


def _is_frozen(ref: CgroupRef) -> bool:
    """Somebody else has frozen it; False where this kernel has no freezer."""
    try:
        return read_state(ref).is_paused
    except (CgroupGone, KernelRefused):
        return False
