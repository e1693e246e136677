# SPDX-License-Identifier: Apache-2.0
"""Holds cgroups by SIGSTOP to each of their processes, where there is no freezer.

Problem. Signals go to processes, not to cgroups: a process may fork while its neighbours are stopped, a pid may be
somebody else's by then, and a stopped process does not say who stopped it.

Approach.
* Fork races. Look for processes, stop them, and look again until nothing new is there. A child appears in the cgroup
  before its parent has come to rest, so a cgroup is at rest only when a look after that finds nothing new. From then
  on looks are repeated while it is held, as a process may enter from outside. One that forks and ends faster than we
  look is never caught; nor can it use a GPU, as no CUDA context survives a fork.
* Identity. A process is its pid and start time, and was in the cgroup after these were read. Signals go by pidfd.
* Record. The journal names each process before SIGSTOP is sent to it. Whoever ends the hold sends SIGCONT to those,
  and to no others.
* Others. A process that is stopped already, or that a debugger holds, is left alone and stays as it is. Where there
  are only such ones the cgroup is FOREIGN.
* A process of ours that runs again was continued by somebody else: the hold is over (RELEASED). We do not fight.

What it cannot do, and a freezer can: a tenant may continue its own processes from outside its cgroup, or run them
under a debugger; a process sees SIGCONT, and its parent that it was stopped; a newcomer runs until the next look.

Accepted race: SIGSTOP by somebody else between our look at a process and our own signal, or to a process that we hold,
changes nothing that could be read. It ends with our hold.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fairsched.base.process import ProcessId
from fairsched.cgroup import tree
from fairsched.cgroup.brake import BrakeBook, Held, result_of
from fairsched.cgroup.journal import BrakeName, Entry, Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.patience import await_used
from fairsched.cgroup.state import read_state
from fairsched.cgroup.stopping import is_at_rest, is_others, is_stopping, let_go, send
from fairsched.cgroup.timer import Timer
from fairsched.errors import CgroupGone, KernelRefused

_SOON_NS = 1_000_000
"""To the next look at a cgroup that is not at rest. Doubled each time, up to ..."""
_SWEEP_NS = 50_000_000
"""... this, which is how long a process that enters a held cgroup may run."""
_ROUNDS = 8
"""Of looking and stopping at once; who forks faster is stopped by the looks that follow."""
_LOOK_NS = 5_000_000
"""No further round begins after this: whoever waits for the caller must not wait for one who forks all the time."""
_REST = 20
"""The next look at a cgroup comes this many times later than the last one took: 5 % of the caller's time at most."""


@dataclass
class _Held(Held):
    """A hold of ours."""

    asked_ns: int = 0
    """When the first SIGSTOP was sent; 0 before that."""
    is_settled: bool = False
    looks: int = 0
    """Since it was asked for."""
    look_ns: int = 0
    """How long the last one took."""
    has_others: bool = False
    """There are processes that stood still before us, or belong to a debugger."""
    doubted: set[ProcessId] = field(default_factory=set)
    """Ran at the last look although we had stopped them: continued, or about to die."""


class Sigstop(BrakeBook[_Held]):
    """A brake. A context manager: leaving it continues everything it holds."""

    def __init__(
        self, journal: Journal, mount: Mount, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Raises HostUnsupported when no descriptor is left."""
        super().__init__(journal, clock_ns)
        self._mount = mount
        self._spared = frozenset((0, 1, os.getpid(), os.getppid()))
        self._timer = Timer()

    def fileno(self) -> int:
        """Readable when ``settle`` has something to look at. Wait on it; never read from it."""
        return self._timer.fileno()

    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        """Stop all processes in and below a cgroup until ``thaw`` or ``deadline_ns`` (CLOCK_MONOTONIC).

        HELD, ALREADY_HELD (nothing changes, also not the deadline), FOREIGN, GONE or EXPIRED. Raises
        KernelRefused when the journal cannot be written or a signal is refused; then nothing is stopped by us.
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
            brake=BrakeName.SIGSTOP,
        )
        if deadline_ns <= since_ns:
            return result_of(HoldKind.EXPIRED, entry)
        if not ref.is_alive():
            return result_of(HoldKind.GONE, entry)
        if _is_frozen(ref):
            return result_of(HoldKind.FOREIGN, entry)
        # known from here on, so that whatever interrupts us, close() finds it
        held = self._held[ref.id] = _Held(entry)
        try:
            self._journal.write(entry)
            return self._stop(held)
        except BaseException:
            self._abandon(held)
            raise

    def thaw(self, cgroup_id: int) -> HoldResult:
        """End a hold: THAWED (verified), NOT_HELD, RELEASED or GONE.

        Raises KernelRefused when a process stays stopped; the hold and its journal entry then stay, and the
        guardian tries again at the deadline.
        """
        held = self._held.get(cgroup_id)
        if held is None:
            return HoldResult(HoldKind.NOT_HELD, cgroup_id, "")
        begin_ns = self._clock_ns()
        stood = let_go(held.entry.stopped)
        if held.asked_ns and not held.is_settled:  # it took at least this long, which is worth knowing
            self._latencies.learn(cgroup_id, begin_ns - held.asked_ns, is_lower_bound=True)
        if not tree.is_at(self._mount, held.entry.path, cgroup_id):
            return self._end(held, HoldKind.GONE)
        is_released = held.entry.stopped and not stood
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
        """Let cgroups we hold run until ``used()`` says 1 or more, and stop them again.

        ``used``: the part of what they may do that they have done, 0 while they have not begun. They are given
        ``limit_ns`` to begin, and as long from then on. HELD (all of them, until the new deadline), or THAWED: they
        did less in that time, or one of them is stopped by somebody else or gone by now. Raises as ``thaw`` and
        ``hold`` do; then none is held by us.
        """
        members = [self._held[cgroup_id] for cgroup_id in cgroup_ids]
        is_held = False
        try:
            for held in members:
                self._record_next(held, deadline_ns, reason)  # it still names whom this one has stopped
            if all([_resume(held) for held in members]) and await_used(used, self._clock_ns, limit_ns):
                is_held = all([self._stop(held).kind is HoldKind.HELD for held in members])
        finally:
            if not is_held:
                for held in members:
                    self._abandon(held)
        return HoldKind.HELD if is_held else HoldKind.THAWED

    def settle(self) -> list[HoldResult]:
        """What happened since the last call: SETTLED, RELEASED, GONE. Never blocks.

        Raises KernelRefused once it has looked at all; what happened is told by the next call.
        """
        now_ns, refusals = self._clock_ns(), list[KernelRefused]()
        # past the deadline nobody is stopped any more: thaw_expired is due
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
        """Continue everything we hold and give the descriptor back. Called twice it does nothing.

        What the kernel refuses stays in the journal for the guardian and ``fairsched release``.
        """
        results = self._thaw_all(list(self._held))
        self._held.clear()
        self._timer.close()
        return results

    def _stop(self, held: _Held) -> HoldResult:
        """Stop those on record, whom a pulse let go, and whoever else is there now."""
        held.asked_ns = self._clock_ns()
        try:
            again = [one for one in held.entry.stopped if one.is_alive() and not is_others(one)]
            if len(again) < len(held.entry.stopped):
                self._record(held, again)
            for process in again:
                send(process, signal.SIGSTOP)
            self._stop_new(held)
        except CgroupGone:
            let_go(held.entry.stopped)
            return self._end(held, HoldKind.GONE)
        if held.has_others and not any(process.is_alive() for process in held.entry.stopped):
            return self._end(held, HoldKind.FOREIGN)
        self._set_timer()
        return result_of(HoldKind.HELD, held.entry, self._clock_ns() - held.asked_ns)

    def _record(self, held: _Held, stopped: Sequence[ProcessId]) -> None:
        entry = replace(held.entry, stopped=tuple(stopped))
        self._journal.write(entry)
        held.entry = entry

    def _stop_new(self, held: _Held) -> bool:
        """Stop processes until none is new; whether there was any. Raises CgroupGone, KernelRefused."""
        begin_ns = self._clock_ns()
        for round_number in range(_ROUNDS):
            new = self._find_new(held)
            if new is None:
                return round_number > 0
            if new:
                self._record(held, (*held.entry.stopped, *new))
            for process in new:
                send(process, signal.SIGSTOP)
            if self._clock_ns() - begin_ns > _LOOK_NS:
                break
        return True

    def _find_new(self, held: _Held) -> list[ProcessId] | None:
        """Processes of the cgroup that run and are not on record. None where there are none.

        [] where there were some and they have ended since, for they may have children that run.
        """
        pids = self._pids(held)
        seen = {process for pid in pids if (process := ProcessId.of(pid)) is not None}
        unknown = seen.difference(held.entry.stopped)
        new = [process for process in unknown if not is_others(process)]
        held.has_others = len(new) < len(unknown)
        if not new and len(seen) == len(pids):
            return None
        # the pid may have been somebody else's when it was listed: it is not if it is listed now
        again = self._pids(held)
        return [process for process in new if process.pid in again]

    def _pids(self, held: _Held) -> set[int]:
        """The processes in and below the very cgroup. Raises CgroupGone."""
        entry = held.entry
        pids = tree.read_pids_recursive(self._mount, entry.path)
        if not tree.is_at(self._mount, entry.path, entry.cgroup_id):
            raise CgroupGone(entry.path)
        return set(pids) - self._spared

    def _look_after(self, held: _Held) -> None:
        held.looks += 1
        stopped = held.entry.stopped
        running = {one for one in stopped if not is_stopping(one) and one.is_alive()}
        doubted, held.doubted = held.doubted, running
        if running & doubted:
            let_go(stopped)
            self._changes.append(self._end(held, HoldKind.RELEASED))
            return
        are_at_rest = all(is_at_rest(process) for process in stopped)
        try:
            is_any_new = self._stop_new(
                held
            )  # a parent that is at rest has no child that we would not see now
        except CgroupGone:
            let_go(held.entry.stopped)
            self._changes.append(self._end(held, HoldKind.GONE))
            return
        if are_at_rest and not is_any_new and not running and not held.is_settled:
            held.is_settled = True
            latency_ns = self._clock_ns() - held.asked_ns
            self._latencies.learn(held.entry.cgroup_id, latency_ns)
            self._changes.append(result_of(HoldKind.SETTLED, held.entry, latency_ns))

    def _set_timer(self) -> None:
        """For the next look."""
        waits = []
        for held in self._held.values():
            is_soon = held.doubted or not held.is_settled
            wait_ns = min(_SOON_NS << min(held.looks, 6), _SWEEP_NS) if is_soon else _SWEEP_NS
            waits.append(max(wait_ns, _REST * held.look_ns))
        self._timer.set(min(waits) if waits else None)

    def _abandon(self, held: _Held) -> None:
        """Undo a hold that was interrupted half way. What cannot be continued stays ours until its deadline."""
        if held.entry.cgroup_id in self._held:
            with contextlib.suppress(KernelRefused):
                self.thaw(held.entry.cgroup_id)

    def _end(self, held: _Held, kind: HoldKind, latency_ns: int | None = None) -> HoldResult:
        """Nothing is stopped by us any more: off the record and forgotten."""
        self._held.pop(held.entry.cgroup_id, None)
        if kind is HoldKind.GONE:
            self._latencies.forget(held.entry.cgroup_id)
        self._set_timer()
        self._journal.remove(held.entry.name)
        return result_of(kind, held.entry, latency_ns)


def _resume(held: _Held) -> bool:
    """Continue all of it for a while. False when somebody else had done so."""
    stood = let_go(held.entry.stopped)
    held.asked_ns, held.is_settled, held.looks, held.doubted = 0, False, 0, set()
    return bool(stood) or not held.entry.stopped


def _is_frozen(ref: CgroupRef) -> bool:
    """Somebody else has frozen it; False where this kernel has no freezer."""
    try:
        return read_state(ref).is_paused
    except (CgroupGone, KernelRefused):
        return False
