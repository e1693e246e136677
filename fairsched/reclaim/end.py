# SPDX-License-Identifier: Apache-2.0
"""Ends the targets of a plan: SIGTERM, a grace, and SIGKILL if that was asked for. Says of each what became of it.

Approach: every signal goes through a pin that was open before the plan was made. Who is forked meanwhile by a target
is looked for four times a second. After SIGTERM it is left to its parent, which may need it to save what it has, and
is told to end when that has gone; SIGKILL it gets with the others. Clients of MPS are ended before their server. What
does not end is explained by what it is doing then, not left as a number.

Accepted race: a child that is forked, leaves its group of processes and loses its parent within a quarter of a second
is not found here. If it holds the GPU, the check afterwards names it (check.py).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fairsched.base.text import counted
from fairsched.base.wait import wait_readable
from fairsched.cgroup.path import Mount
from fairsched.errors import FairschedError
from fairsched.reclaim.facts import Facts, read_facts, read_table, waits_in
from fairsched.reclaim.pauses import Pause
from fairsched.reclaim.pin import Pin
from fairsched.reclaim.plan import CLIENTS, Group, Target, newcomers, own_groups

GRACE_S = 30.0
KILL_S = 10.0
"""For what SIGKILL does at once, unless the kernel is in the way."""
_LOOK_S = 0.25
_TELL_S = 5.0


class Fate(str, Enum):
    """What became of a target."""

    ENDED = "ended"
    """After SIGTERM."""
    KILLED = "killed"
    """After SIGKILL."""
    GONE = "gone"
    """It had ended before it was signalled."""
    ALIVE = "alive"
    REFUSED = "refused"
    """The signal could not be sent."""

    @property
    def is_over(self) -> bool:
        return self in (Fate.ENDED, Fate.KILLED, Fate.GONE)


@dataclass
class Ended:
    """One target, and what became of it."""

    target: Target
    fate: Fate = Fate.ALIVE
    why: str = ""
    """Of one that is alive: what keeps it."""
    after_s: float | None = None
    """From the first signal on."""


class Ending:
    """Ends targets. ``pins`` by pid: of each; more are opened for who is forked. Call :meth:`close`."""

    def __init__(
        self,
        targets: Sequence[Target],
        pins: dict[int, Pin],
        *,
        is_forced: bool,
        mount: Mount | None,
        pauses: Callable[[Sequence[Facts]], Mapping[int, Pause]],
        protected: Mapping[int, str],
        tell: Callable[[str], None] = lambda _text: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tell``: progress, a sentence; ``pauses``: who stands still; ``protected``: never signalled."""
        self._pins, self._is_forced, self._mount = pins, is_forced, mount
        self._pauses, self._protected, self._tell, self._clock_s = pauses, protected, tell, clock_s
        self.results = {target.pid: Ended(target) for target in targets}
        self._groups: frozenset[Group] = frozenset()
        self._since_ticks = 0
        self._began_s = clock_s()
        self._sent: dict[int, signal.Signals] = {}
        self._looked_s = self._began_s

    def run(self, grace_s: float = GRACE_S, kill_s: float = KILL_S) -> list[Ended]:
        """Ends them, phase by phase."""
        self._began_s = self._clock_s()
        self._since_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        table = read_table(self._mount)
        self._groups = own_groups([one.target.facts for one in self.results.values()], table)
        self._track(CLIENTS, table)
        for phase in sorted({one.target.phase for one in self.results.values()}):
            self._signal(phase, signal.SIGTERM)
            self._wait(phase, grace_s, signal.SIGTERM)
            if self._is_forced and self._waiting(phase):
                self._signal(phase, signal.SIGKILL)
                self._wait(phase, kill_s, signal.SIGKILL)
        self._explain()
        return list(self.results.values())

    def close(self) -> None:
        """Give the descriptors back."""
        for pin in self._pins.values():
            pin.close()

    def _waiting(self, phase: int) -> list[int]:
        """Pids of those that have not ended."""
        return [
            pid
            for pid, one in self.results.items()
            if one.target.phase == phase and one.fate is Fate.ALIVE and not self._settle(pid)
        ]

    def _settle(self, pid: int) -> bool:
        """Whether it is over; then its fate is set."""
        one, pin = self.results[pid], self._pins.get(pid)
        if pin is not None and not pin.is_over:
            return False
        sent = self._sent.get(pid)
        one.fate = Fate.GONE if sent is None else Fate.KILLED if sent is signal.SIGKILL else Fate.ENDED
        one.after_s = self._clock_s() - self._began_s
        return True

    def _signal(self, phase: int, number: signal.Signals) -> None:
        for pid in self._waiting(phase):
            error = self._pins[pid].send(number)
            if error is None:
                self._sent[pid] = number
            elif error != "gone":
                self.results[pid].fate, self.results[pid].why = Fate.REFUSED, error

    def _wait(self, phase: int, patience_s: float, number: signal.Signals) -> None:
        until_s = self._clock_s() + patience_s
        told_s = self._clock_s()
        while True:
            waiting = self._waiting(phase)
            if not waiting:
                if not self._find_newcomers(phase, number):
                    return
                continue
            now_s = self._clock_s()
            if now_s >= until_s:
                break
            if now_s - told_s >= _TELL_S:
                told_s = now_s
                left = f"{until_s - now_s:.0f} s of {patience_s:.0f} s left"
                names = ", ".join(f"{pid} ({self.results[pid].target.facts.name})" for pid in waiting[:4])
                self._tell(f"{counted(len(waiting), 'process', 'processes')} not ended yet, {left}: {names}")
            wait_readable([self._pins[pid] for pid in waiting], min(_LOOK_S, until_s - now_s))
            if self._clock_s() - self._looked_s >= _LOOK_S:
                self._find_newcomers(phase, number)
        self._find_newcomers(phase, number)

    def _find_newcomers(self, phase: int, number: signal.Signals) -> bool:
        """Look for who was forked meanwhile, and signal it; whether there was anybody."""
        self._looked_s = self._clock_s()
        table = read_table(self._mount)
        is_any = self._track(phase, table)
        known = {pid for pid, one in self.results.items() if not one.fate.is_over and pid in table}
        for pid in self._waiting(phase):
            facts = table.get(pid)
            is_late = pid not in self._sent or (number is signal.SIGKILL and self._sent[pid] is not number)
            has_parent = facts is not None and facts.parent in known
            if (
                is_late
                and (number is signal.SIGKILL or not has_parent)
                and self._pins[pid].send(number) is None
            ):
                self._sent[pid] = number
        return is_any

    def _track(self, phase: int, table: Mapping[int, Facts]) -> bool:
        """Pin who was forked meanwhile, and make sure of it; whether there was anybody."""
        is_any = False
        known = {pid: one.target.facts for pid, one in self.results.items()}
        for found in newcomers(known, table, self._groups, self._since_ticks):
            pin = None if found.pid in self._protected else self._pin(found)
            if pin is None:
                continue
            # only what is read while the pin holds is about this process
            now = read_facts(found.pid, self._mount)
            is_same = now is not None and (now.group, now.cgroup, now.uid) == (
                found.group,
                found.cgroup,
                found.uid,
            )
            if now is None or not is_same or pin.is_over:
                pin.close()
                continue
            old = self._pins.pop(found.pid, None)
            if old is not None:
                old.close()
            self._pins[found.pid] = pin
            self.results[found.pid] = Ended(
                Target(now, "forked while its parent was being ended", phase=phase)
            )
            is_any = True
        return is_any

    def _pin(self, facts: Facts) -> Pin | None:
        try:
            return Pin.open(facts.pid, facts.start_ticks)
        except FairschedError as error:
            self._tell(f"{error}; it is left")  # the others are ended all the same
            return None

    def _explain(self) -> None:
        alive = [one for pid, one in self.results.items() if one.fate is Fate.ALIVE and not self._settle(pid)]
        now = {one.target.pid: read_facts(one.target.pid, self._mount) for one in alive}
        pauses = self._pauses([facts for facts in now.values() if facts is not None])
        for one in alive:
            facts = now[one.target.pid]
            if facts is not None:
                one.why = why_alive(facts, pauses.get(facts.pid), is_forced=self._is_forced)


def why_alive(facts: Facts, pause: Pause | None, *, is_forced: bool) -> str:
    """What keeps a process that was signalled, and what would end it."""
    if pause is not None and (not is_forced or pause.keeps_kill):
        force = "" if is_forced or pause.keeps_kill else "; or --force"
        return f"{pause.text}{force}"
    if facts.tracer and (not is_forced or facts.state == "t"):
        return f"its tracer {facts.tracer} keeps it: end that first" + ("" if is_forced else ", or --force")
    if facts.state == "D":
        at = waits_in(facts.pid)
        where = "" if at is None else f", in {at}"
        return f"in a call of the kernel that no signal interrupts (D{where}): it ends when that returns"
    if facts.is_headless:
        return f"its first thread has ended, {counted(facts.threads - 1, 'thread')} of it wait in the kernel"
    if is_forced:
        return "SIGKILL is on its way and the kernel has not ended it: look at dmesg"
    if facts.is_deaf:
        return "SIGTERM does nothing to it: --force"
    return "it does not end on SIGTERM, or takes longer: --force, or a longer --grace"
