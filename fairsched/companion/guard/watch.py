# SPDX-License-Identifier: Apache-2.0
"""Looks at everybody on every GPU, again and again: a round is recorded, judged, acted on, and what follows is kept.

Problem: a look waits for a driver and for /proc, so it has no place in the turns of the companion. And nobody may stay
slowed down because a look hangs.

Approach: a thread of its own. What must outlive it is in two files, replaced whole: the judge's state in
``judge.json`` and, for who asks (``fairsched guard show``), a status. One that is broken is said, and begun anew: then
everybody has all warnings before them. So it is where the last one was a dry run and this one acts: whoever was told
what would happen is not ended without being told what will. When no round was made for a while, what is lowered is
given back by whoever notices, under the same lock as the round.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairsched.base.files import replace_file
from fairsched.base.printable import printable
from fairsched.base.text import counted
from fairsched.companion.guard import STATE_FILE, state_for
from fairsched.companion.guard.hands import Hands
from fairsched.companion.guard.lowered import Lowered
from fairsched.companion.guard.records import Records, text_of
from fairsched.companion.guard.slowing import Slowing
from fairsched.companion.guard.tapes import Tapes
from fairsched.companion.locked import LockedFile
from fairsched.errors import ControlError, FairschedError
from fairsched.guard.breach import Act, Breach
from fairsched.guard.judge import Judge
from fairsched.guard.report import GuardStatus, LimitText, by_nearness, to_plain
from fairsched.guard.rules import GuardRules
from fairsched.guard.sample import Round

ACT = "act"
_LOST_ROUNDS = 4
_LOST_S = 30.0
"""After so many intervals, and so long, without a round what is lowered is given back."""
_FAULTS = 8
"""Breaches that the status of the daemon names; the others are counted."""

logger = logging.getLogger(__name__)


@dataclass
class Tools:
    """What a watch works with."""

    look: Callable[[], Round]
    """Raises FairschedError."""
    mode: Callable[[], str]
    """The daemon's mode in effect. Raises ControlError."""
    tapes: Tapes
    records: Records
    lowered: Lowered
    slowing: Slowing
    hands: Hands
    file: LockedFile
    """Whoever has its lock may act."""


@dataclass(frozen=True)
class WatchRules:
    """What it goes by."""

    rules: GuardRules
    mode: str
    """dry_run or act."""
    interval_s: float
    status_path: Path
    limits: tuple[LimitText, ...] = ()
    notes: tuple[str, ...] = ()


class Watch:
    """Call :meth:`step` once an interval, from one thread; the rest may be called from any."""

    def __init__(
        self,
        rules: WatchRules,
        tools: Tools,
        judge: Callable[[GuardRules, Mapping[str, Any] | None], Judge] = Judge,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._tools, self._clock_s = rules, tools, clock_s
        self._lock = threading.Lock()
        """Of the hands: a round, or who gives back."""
        self._is_ours = False
        self._is_closed = False
        self._path = tools.file.directory / STATE_FILE
        self._judge = self._judge_of(judge)
        self._breaches: tuple[Breach, ...] = ()
        self._rounds = 0
        self._broken: str | None = None
        self._acted_as = ""
        self._round_s = clock_s()
        self._t_s: float | None = None

    # ---- a round ----

    def turn(self) -> None:
        """As :meth:`step`; a bug is said once, and no reason to look no more."""
        try:
            self.step()
        except Exception as error:
            if str(error) != self._broken:
                logger.exception("guard round failed")
            self._broken = str(error)
            self._tools.records.trouble("round", f"a round failed: {type(error).__name__}: {error}")
        else:
            self._broken = None
            self._tools.records.trouble("round", None)

    def step(self) -> None:
        """Look, record, judge, act. Raises nothing that is to be expected."""
        records = self._tools.records
        if not self._has_lock():
            records.trouble("lock", "another guard acts here: it is waited for")
            return
        records.trouble("lock", None)
        try:
            mode = self._tools.mode()
            moment = self._tools.look()
        except ControlError as error:  # the daemon is busy or leaving
            logger.debug("guard error=%r", str(error))
            return
        except FairschedError as error:
            records.trouble("look", f"nobody can be looked at: {text_of(error)}")
            return
        records.trouble("look", None)
        self._record(moment)
        with self._lock:
            if self._is_closed:
                return
            acts_as = ACT if self._rules.mode == ACT and mode != "dry_run" else "dry_run"
            if acts_as == ACT and self._acted_as == "dry_run":  # the daemon's mode has changed
                self._judge.forget_warnings()
            breaches = tuple(self._judge.feed(moment))
            self._tools.hands.carry_out(breaches, moment, mode)
            self._breaches, self._t_s = breaches, moment.t_s
            self._acted_as = acts_as
            self._rounds += 1
            self._round_s = self._clock_s()
        self._keep(moment.t_s)

    def _has_lock(self) -> bool:
        """Take the lock; at first what another has left lowered is given back."""
        if self._is_ours:
            return True
        try:
            self._is_ours = self._tools.file.lock()
        except OSError as error:
            self._tools.records.trouble("state", f"{self._tools.file.directory}: {error.strerror or error}")
            return False
        if self._is_ours:
            with self._lock:
                self._tools.lowered.load()
                self._tools.lowered.let_go("its companion has ended")
        return self._is_ours

    def _record(self, moment: Round) -> None:
        try:
            self._tools.tapes.write(moment)
        except OSError as error:
            self._tools.records.trouble("tape", f"rounds are not recorded: {error.strerror or error}")
        else:
            self._tools.records.trouble("tape", None)

    # ---- state ----

    def _judge_of(self, judge: Callable[[GuardRules, Mapping[str, Any] | None], Judge]) -> Judge:
        try:
            state = state_for(json.loads(self._path.read_bytes()), self._rules.mode)
            return judge(self._rules.rules, state)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            text = f"{self._path} cannot be read ({error}): warnings are counted anew"
            logger.warning("guard=state_lost file=%s error=%r", self._path, str(error))
            self._tools.records.trouble("state", printable(text)[:240])
        return judge(self._rules.rules, None)

    def _keep(self, now_s: float) -> None:
        """The judge's state, and a status for who asks."""
        try:
            state = {**self._judge.state(), "mode": self._acted_as}
            replace_file(self._path, json.dumps(state).encode(), is_durable=False)
        except OSError as error:
            self._tools.records.trouble("state", f"{self._path} is not written: {error.strerror or error}")
        else:
            self._tools.records.trouble("state", None)
        try:
            raw = json.dumps(to_plain(self.status(now_s))).encode()
            replace_file(self._rules.status_path, raw, is_durable=False)
        except OSError as error:
            logger.debug("guard status=%s error=%r", self._rules.status_path, str(error))

    def status(self, now_s: float) -> GuardStatus:
        """For ``fairsched guard show``."""
        tools = self._tools
        tape = tools.tapes.path
        return GuardStatus(
            mode=self._rules.mode,
            acts_as=self._acted_as or None,
            t_s=self._t_s,
            rounds=self._rounds,
            interval_s=self._rules.interval_s,
            is_running=True,
            limits=self._rules.limits,
            uses=by_nearness(self._judge.subjects(now_s)),
            held=tools.slowing.held,
            deeds=tuple(tools.records.deeds),
            tape=None if tape is None else str(tape),
            notes=(*self._rules.notes, *self._judge.notes(), *tools.records.troubles),
        )

    # ---- for the companion ----

    @property
    def age_s(self) -> float:
        """Since the last round, or the start."""
        return self._clock_s() - self._round_s

    @property
    def is_lost(self) -> bool:
        """No round was made for so long that nothing may be kept for its sake."""
        return self.age_s > max(_LOST_S, _LOST_ROUNDS * self._rules.interval_s)

    @property
    def has_lowered(self) -> bool:
        return bool(self._tools.lowered.changes)

    def give_back(self, why: str, *, is_end: bool = False) -> None:
        """Give back what is lowered, from whichever thread. ``is_end``: and act no more."""
        with self._lock:
            self._is_closed = self._is_closed or is_end
            if self._is_ours:
                self._tools.lowered.let_go(why)

    def faults(self) -> list[str]:
        """What a person must know, for the warnings of ``fairsched status``."""
        found = [f"guard: {text}" for text in self._tools.records.troubles]
        if self.is_lost:
            found.append(f"guard: no look for {self.age_s:.0f} s, so nothing is kept")
        for breach in self._breaches[:_FAULTS]:
            found.append(f"guard: {printable(breach.text)}; {self._what_now(breach)}")
        more = len(self._breaches) - _FAULTS
        if more > 0:
            found.append(f"guard: {more} more are over a limit: fairsched guard show")
        return found

    def _what_now(self, breach: Breach) -> str:
        """What is done, and what comes if it goes on."""
        is_dry, held = self._acted_as != ACT, self._tools.slowing.held
        if breach.act is Act.END:
            return f"{'would end' if is_dry else 'ends'} {counted(len(breach.processes), 'process', 'processes')}"
        said = f"warned {'once' if breach.warnings == 1 else f'{breach.warnings} times'}"
        if breach.act is Act.HOLD and is_dry and breach.tenants:
            said += f", would slow down {', '.join(breach.tenants)}"
        slow = [tenant for tenant in breach.tenants if tenant in held]
        if breach.act is Act.HOLD and slow:
            said += f", {printable(', '.join(slow))} slowed down"
        if breach.next_act is Act.END and breach.next_s is not None:
            at = time.strftime("%H:%M:%SZ", time.gmtime(breach.next_s))
            said += f", {'would end' if is_dry else 'ends'} from {at} on"
        return said

    def rows(self) -> list[tuple[str, tuple[str, ...], float]]:
        """For the exporter: family, labels, value. Called from its thread."""
        over: dict[tuple[str, str], int] = {}
        for breach in self._breaches:
            place = (breach.limit, breach.what.value)
            over[place] = over.get(place, 0) + 1
        found: list[tuple[str, tuple[str, ...], float]] = [
            ("fairsched_guard_rounds", (), float(self._rounds)),
            ("fairsched_guard_round_age_seconds", (), self.age_s),
            ("fairsched_guard_held_tenants", (), float(len(self._tools.slowing.held))),
            ("fairsched_guard_tape_bytes", (), float(self._tools.tapes.kept_bytes)),
            ("fairsched_guard_troubles", (), float(len(self._tools.records.troubles))),
        ]
        found += [("fairsched_guard_over", place, float(count)) for place, count in over.items()]
        counts = dict(self._tools.records.counts)
        found += [("fairsched_guard_deeds", labels, float(count)) for labels, count in counts.items()]
        return found

    def close(self) -> None:
        """The tape ends, the lock is given back."""
        self._tools.tapes.close()
        self._tools.file.unlock()
