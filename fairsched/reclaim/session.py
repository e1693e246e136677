# SPDX-License-Identifier: Apache-2.0
"""Runs one reclaim from beginning to end: look, pin, look again, plan; write it down; end; check; write that down.

What is chosen is pinned and then looked at again: only what is seen while the pin holds goes into the plan, so each
line of it is about the process that the pin is of. The intent is in the audit log before the first signal; where it
cannot be written nothing is done.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairsched.cgroup import names as known_names
from fairsched.errors import FairschedError
from fairsched.reclaim.audit import Audit
from fairsched.reclaim.check import GpuCheck, check
from fairsched.reclaim.end import GRACE_S, KILL_S, Ended, Ending
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import Holder, Listing
from fairsched.reclaim.listing import Lister
from fairsched.reclaim.pauses import Pause, pauses_of, release_dead
from fairsched.reclaim.pin import Pin
from fairsched.reclaim.plan import Left, Plan, make_plan
from fairsched.reclaim.protect import protected
from fairsched.reclaim.reset import ResetResult, outlook, reset
from fairsched.reclaim.who import who

_LOOKS = 4
"""Until a look finds no process that was not pinned before it."""


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    choose: Callable[[Listing], list[Holder]]
    """The holders that are meant."""
    text: str
    """For the audit log: the options as they were given."""
    named: Mapping[int, int | None] = field(default_factory=dict)
    """Pids that were named, with the start time in ticks where that was given."""
    keep_parent: bool = False
    gpu: str | None = None
    """The UUID of the one GPU that was named."""


@dataclass(frozen=True)
class Own:
    """What is known of fairsched's daemon here."""

    pids: tuple[int, ...] = ()
    has_answer: bool = False
    run_dir: Path = Path("/run/fairsched")


@dataclass
class Prepared:
    """A plan, and the pins of its targets. Call :meth:`close`."""

    plan: Plan
    listing: Listing
    protected: Mapping[int, str]
    pins: dict[int, Pin]

    def close(self) -> None:
        for pin in self.pins.values():
            pin.close()


@dataclass(frozen=True)
class Outcome:
    """What came of a plan."""

    ended: tuple[Ended, ...]
    gpus: tuple[GpuCheck, ...]
    reset: ResetResult | None = None
    warnings: tuple[str, ...] = ()
    is_written: bool = True
    """It is in the audit log."""

    @property
    def is_whole(self) -> bool:
        """All has ended, nothing of it holds a GPU, and that is written down."""
        return (
            self.is_written
            and all(one.fate.is_over for one in self.ended)
            and all(one.is_free for one in self.gpus)
            and (self.reset is None or self.reset.is_done)
        )

    def plain(self) -> dict[str, Any]:
        """For JSON and the audit log."""
        return {
            "is_whole": self.is_whole,
            "processes": [
                {
                    "pid": one.target.pid,
                    "start_ticks": one.target.facts.start_ticks,
                    "command": one.target.facts.command[:400],
                    "fate": one.fate.value,
                    "why": one.why,
                    "after_s": None if one.after_s is None else round(one.after_s, 3),
                }
                for one in self.ended
            ],
            "gpus": [one.plain() for one in self.gpus],
            "reset": None if self.reset is None else vars(self.reset),
            "warnings": list(self.warnings),
        }


class Session:
    """One call of ``fairsched reclaim``."""

    def __init__(self, lister: Lister, own: Own, tell: Callable[[str], None] = lambda _text: None) -> None:
        self._lister, self._own, self._tell = lister, own, tell

    def prepare(self, wish: Wish) -> Prepared:
        """The plan, with pins: a descriptor for each target. Raises HostUnsupported, FairschedError."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        pins: dict[int, Pin] = {}
        try:
            for _ in range(_LOOKS):
                listing = self._lister.look()
                never = protected(listing.table, self._own.pids, has_answer=self._own.has_answer)
                plan = self._plan(wish, listing, never)
                fresh = [one.facts for one in plan.targets if not _is_pinned(one.facts, pins)]
                for facts in fresh:
                    old = pins.pop(facts.pid, None)
                    if old is not None:
                        old.close()
                    pin = Pin.open(facts.pid, facts.start_ticks)
                    if pin is not None:
                        pins[facts.pid] = pin
                if not fresh:
                    break
            targets = tuple(one for one in plan.targets if _is_pinned(one.facts, pins))
            gone = [one for one in plan.targets if not _is_pinned(one.facts, pins)]
            left = [Left(one.pid, one.facts.name, "it ended while it was looked at", False) for one in gone]
            return Prepared(Plan(targets, (*plan.left, *left)), listing, never, pins)
        except BaseException:
            for pin in pins.values():
                pin.close()
            raise

    def _plan(self, wish: Wish, listing: Listing, never: Mapping[int, str]) -> Plan:
        others = {
            pid for pid, ticks in wish.named.items() if ticks is not None and _is_other(pid, ticks, listing)
        }
        named = [pid for pid in wish.named if pid not in others]
        chosen = [one for one in wish.choose(listing) if one.pid not in others]
        plan = make_plan(
            chosen, listing, never, named=named, keep_parent=wish.keep_parent, pauses=self._pauses_in(listing)
        )
        why = "it is another process now than the one that was named: its pid was given to another"
        return Plan(plan.targets, (*(Left(pid, "?", why) for pid in sorted(others)), *plan.left))

    def _pauses_in(self, listing: Listing) -> Mapping[int, Pause]:
        pids = {one.pid for one in listing.holders}
        pids |= {facts.pid for facts in listing.table.values() if facts.state == "T" or facts.parent in pids}
        return self._pauses([listing.table[pid] for pid in pids if pid in listing.table])

    def _pauses(self, processes: Sequence[Facts]) -> Mapping[int, Pause]:
        return pauses_of(processes, self._lister.mount, self._own.run_dir, known_names.shared())

    def act(
        self,
        prepared: Prepared,
        wish: Wish,
        audit: Audit,
        *,
        reason: str | None,
        is_forced: bool,
        grace_s: float = GRACE_S,
        kill_s: float = KILL_S,
        has_reset: bool = False,
    ) -> Outcome:
        """Carries the plan out. Raises AuditRefused, and then nothing was done."""
        plan = prepared.plan
        by, ids = who(), ", ".join(f"{one.pid} ({one.facts.name})" for one in plan.targets[:20])
        intent = {
            "who": by,
            "asked": wish.text,
            "why": reason,
            "is_forced": is_forced,
            "grace_s": grace_s,
            "reset_gpu": wish.gpu if has_reset else None,
            "targets": [one.plain() for one in plan.targets],
            "left": [vars(one) for one in plan.left],
        }
        caller = f"uid {by['uid']} login {by['login'] or '-'}"
        head = audit.write(
            "reclaim", intent, f"reclaim by={caller} asked={wish.text!r} ends: {ids or 'nobody'}"
        )
        outcome = self._end(prepared, wish, is_forced=is_forced, grace_s=grace_s, kill_s=kill_s)
        if has_reset and wish.gpu is not None:
            outcome = Outcome(outcome.ended, outcome.gpus, self._reset(outcome, wish.gpu), outcome.warnings)
        word = "whole" if outcome.is_whole else "partly"
        try:
            audit.write("outcome", {"of": head.seq, **outcome.plain()}, f"outcome of={head.seq} done={word}")
        except FairschedError as error:
            # it is done: who asked must not be told that it is not
            why = getattr(error.__cause__, "strerror", None) or error
            warning = (
                f"this outcome could not be written into the audit log ({why}): its entry {head.seq} has none"
            )
            return replace(outcome, warnings=(*outcome.warnings, warning), is_written=False)
        return outcome

    def outlook(self, prepared: Prepared, gpu: str) -> str:
        """Whether a GPU can be reset once the plan is carried out."""
        return outlook(self._lister, prepared.listing, {one.pid for one in prepared.plan.targets}, gpu)

    def _end(
        self, prepared: Prepared, wish: Wish, *, is_forced: bool, grace_s: float, kill_s: float
    ) -> Outcome:
        targets = prepared.plan.targets
        cgroups = {one.facts.cgroup for one in targets if one.facts.cgroup is not None}
        ending = Ending(
            targets,
            prepared.pins,
            is_forced=is_forced,
            mount=self._lister.mount,
            pauses=self._pauses,
            protected=prepared.protected,
            tell=self._tell,
        )
        try:
            released = release_dead(self._own.run_dir, self._lister.mount, cgroups)
            warnings = []
        except FairschedError as error:  # whoever stands still is explained; the others are ended
            released, warnings = [], [f"what a dead daemon holds is not thawed: {error}"]
        warnings += [
            f"left by a daemon that has died: {one.path} {one.kind.value} {one.detail}".rstrip()
            for one in released
            if one.kind.value != "kept"
        ]
        ended = ending.run(grace_s, kill_s)
        gpus = {one.status.gpu for target in targets for one in target.holds}
        gpus |= set() if wish.gpu is None else {wish.gpu}
        self._tell("looking whether the GPU memory is back")
        was = {one.target.pid: one.target.facts.start_ticks for one in ended}
        return Outcome(
            tuple(ended), tuple(check(self._lister, prepared.listing, gpus, was)), None, tuple(warnings)
        )

    def _reset(self, outcome: Outcome, gpu: str) -> ResetResult:
        if not all(one.fate.is_over for one in outcome.ended):
            return ResetResult(False, "not everything on it has ended")
        self._tell("resetting the GPU")
        return reset(self._lister, self._lister.look(), gpu)


def _is_pinned(facts: Facts, pins: Mapping[int, Pin]) -> bool:
    """By a pin that still holds, and was there before these facts were read."""
    pin = pins.get(facts.pid)
    return pin is not None and pin.start_ticks == facts.start_ticks and not pin.is_over


def _is_other(pid: int, ticks: int, listing: Listing) -> bool:
    facts = listing.table.get(pid)
    return facts is not None and facts.start_ticks != ticks
