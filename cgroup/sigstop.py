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

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fairsched.base.process import ProcessId
from fairsched.cgroup.brake import result_of
from fairsched.cgroup.journal import BrakeName, Entry, Journal
from fairsched.cgroup.lookout import LOOK_NS, ROUNDS, Looked, Lookout
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import Mount
from fairsched.cgroup.stopping import is_at_rest, is_others, is_stopping, let_go, send
from fairsched.errors import CgroupGone


@dataclass
class _Held(Looked):
    """A hold of ours."""

    doubted: set[ProcessId] = field(default_factory=set)
    """Ran at the last look although we had stopped them: continued, or about to die."""

    def run_again(self) -> None:
        super().run_again()
        self.doubted = set()


class Sigstop(Lookout[_Held]):
    """A brake. A context manager: leaving it continues everything it holds."""

    NAME = BrakeName.SIGSTOP

    def __init__(
        self, journal: Journal, mount: Mount, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Raises HostUnsupported when no descriptor is left."""
        super().__init__(journal, mount, clock_ns)

    def _begin(self, entry: Entry) -> _Held:
        return _Held(entry)

    def _let_go(self, held: _Held) -> int:
        return let_go(held.entry.stopped)

    def _stop(self, held: _Held) -> HoldResult:
        held.asked_ns = self._clock_ns()
        try:
            again = [one for one in held.entry.stopped if one.is_alive() and not is_others(one)]
            if len(again) < len(held.entry.stopped):
                self._name(held, again)
            for process in again:
                send(process, signal.SIGSTOP)
            self._stop_new(held)
        except CgroupGone:
            self._let_go(held)
            return self._end(held, HoldKind.GONE)
        if held.has_others and not any(process.is_alive() for process in held.entry.stopped):
            return self._end(held, HoldKind.FOREIGN)
        self._set_timer()
        return result_of(HoldKind.HELD, held.entry, self._clock_ns() - held.asked_ns)

    def _name(self, held: _Held, stopped: Sequence[ProcessId]) -> None:
        self._record(held, replace(held.entry, stopped=tuple(stopped)))

    def _stop_new(self, held: _Held) -> bool:
        """Stop processes until none is new; whether there was any. Raises CgroupGone, KernelRefused."""
        begin_ns = self._clock_ns()
        for round_number in range(ROUNDS):
            new = self._find_new(held)
            if new is None:
                return round_number > 0
            if new:
                self._name(held, (*held.entry.stopped, *new))
            for process in new:
                send(process, signal.SIGSTOP)
            if self._clock_ns() - begin_ns > LOOK_NS:
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

    def _look_after(self, held: _Held) -> None:
        held.looks += 1
        stopped = held.entry.stopped
        running = {one for one in stopped if not is_stopping(one) and one.is_alive()}
        doubted, held.doubted = held.doubted, running
        held.is_doubted = bool(running)
        if running & doubted:
            self._lost(held, HoldKind.RELEASED)
            return
        are_at_rest = all(is_at_rest(process) for process in stopped)
        try:
            # a parent that is at rest has no child that we would not see now
            is_any_new = self._stop_new(held)
        except CgroupGone:
            self._lost(held, HoldKind.GONE)
            return
        if are_at_rest and not is_any_new and not running:
            self._rests(held)
