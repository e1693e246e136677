# SPDX-License-Identifier: Apache-2.0
"""Judges who is over a limit: rounds in, breaches out (pure).

Problem: a limit that acts must never act on a doubt, on somebody else, or sooner than it said; and it must come to the
same verdict on a tape as it did live.

Approach: a round is added up (tally.py), GPU time is booked to days (ledger.py), each bound of each subject that is
there is compared (here), and whoever is over climbs a ladder of warnings, grace and end (ladder.py). Time comes with
the round; all state is in here and can be kept over a restart. What is not known is never over: a sum of which a part
is not known is judged by the part that is.

Units: bytes, counts, seconds, Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairsched.guard.booking import Booking
from fairsched.guard.breach import Act, Breach, Per, Subject, What
from fairsched.guard.choice import youngest_first
from fairsched.guard.ladder import GAP_S, LAPSE_S, Ladders, RungKey, Step, upcoming
from fairsched.guard.ledger import Ledger
from fairsched.guard.meant import blamed, ended, holdable
from fairsched.guard.measure import Measure
from fairsched.guard.report import SubjectUse, by_nearness
from fairsched.guard.rules import Bound, GuardRules
from fairsched.guard.sample import Process, Round
from fairsched.guard.subjects import Gpus, SubjectKey, Subjects, key_of
from fairsched.guard.tally import PROCESSES, Sum, Tally
from fairsched.guard.words import excess_text, presence_text

VERSION = 1
_PRUNE_S = 600.0


class Judge:
    """Fed with rounds in order. ``state``: what :meth:`state` of an earlier one gave; raises ValueError for another."""

    def __init__(self, rules: GuardRules, state: Mapping[str, Any] | None = None) -> None:
        self.rules = rules
        self._subjects, self._gpus = Subjects(rules), Gpus()
        self._sums: dict[SubjectKey, Sum] = {}
        self._gpu_sums: dict[str, Sum] = {}
        self._has_gpus = any(bound.per is Per.GPU for bound in rules.bounds)
        self._ladders = Ladders()
        self._ledger = Ledger({one.zone for one in rules.bounds if one.what is What.GPU_SECONDS})
        self._booking = Booking(self._ledger, self._subjects, self._sum, self._has_gpus)
        self._tally = Tally(rules.allow, self._sums_of, self._booking.late)
        self._measure = Measure(self._gpus, self._ledger)
        self._marks = {id(bound): _mark(bound) for bound in rules.bounds}
        self._last_s: float | None = None
        self._pruned_s = 0.0
        self._is_renamed = False
        """A user has another name than before: subjects are worked out anew."""
        self._there: list[Sum] = []
        if state is not None:
            self._restore(state)

    def feed(self, moment: Round) -> list[Breach]:
        """Everybody who is over a limit in this round; one that is of the same moment as the last is left out. One
        that is earlier means that the clock was set back."""
        t_s, last_s = round(moment.t_s, 3), self._last_s  # as on a tape
        if t_s == last_s:
            return []
        if last_s is not None and t_s < last_s:
            self._tally.set_back(t_s, last_s)
            self._ladders.set_back(t_s)
            self._booking.set_back(t_s)
            self._measure.set_back()
            self._pruned_s = last_s = t_s
        if self._gpus.learn({uuid: load.index for uuid, load in moment.gpus.items()}) or self._is_renamed:
            self._forget_subjects()
        self._tally.feed(moment, t_s, last_s)
        self._there = self._tally.present + (self._present_gpus() if self._has_gpus else [])
        self._booking.book(self._tally.active, moment.tenants, t_s, last_s)
        self._last_s = t_s
        if t_s - self._pruned_s >= _PRUNE_S:
            self._pruned_s = t_s
            self._ladders.lapse(t_s)
            self._tally.prune_counters(t_s)
            self._booking.prune(t_s)
            kept = (
                self._tally.kept()
            )  # tenants of a job each come and go: what nobody is added up to is made anew
            self._sums = {key: one for key, one in self._sums.items() if one.gpu or id(one) in kept}
        dt_s = 0.0 if last_s is None else t_s - last_s
        found = self._breaches(t_s, dt_s if 0 < dt_s <= GAP_S else 0.0)
        # one that has samples and no load, as old tapes have it, is known from the next round on
        unknown = {gpu for bucket in self._tally.active for gpu in bucket.cells if gpu not in self._gpus.seen}
        if self._gpus.learn(dict.fromkeys(unknown)):
            self._forget_subjects()
        return found

    def forget_warnings(self) -> None:
        """Everybody has all warnings before them."""
        self._ladders.rungs.clear()

    def state(self) -> dict[str, Any]:
        """All that must outlive a restart, as JSON has it."""
        counters = [
            [*key, gpu, *known]
            for key, by_gpu in self._tally.counters.items()
            for gpu, known in by_gpu.items()
        ]
        return {
            "version": VERSION,
            "t_s": self._last_s,
            "begun_s": self._tally.begun_s,
            "ladders": self._ladders.state(),
            "ledger": self._ledger.state(),
            "counters": counters if self._ledger.is_needed else [],
            "tenants": self._booking.state(),
            "gpus": [[uuid, index] for uuid, index in self._gpus.seen.items()],
            "users": [[uid, name] for uid, name in self._subjects.names.items()],
        }

    def subjects(self, now_s: float) -> list[SubjectUse]:
        """How much everybody uses of each limit, as of the last round; the nearest to a limit first. Those that are
        not there are told of if they have had GPU time today."""
        now_s = round(now_s, 3)
        found = [use for one in self._there for bound in one.bounds for use in self._uses(one, bound, now_s)]
        there = {one.key for one in self._there}
        for key in sorted(self._ledger.keys(now_s) - there):
            subject = self._subjects.named(key)
            bounds = self._subjects.bounds(subject, self._gpus.index(subject.name))
            gone = Sum(subject, tuple(one for one in bounds if one.what is What.GPU_SECONDS))
            found += [use for bound in gone.bounds for use in self._uses(gone, bound, now_s)]
        return list(by_nearness(found))

    def notes(self) -> list[str]:
        """Selectors that mean no GPU that was seen; none before a round."""
        found = []
        for bound in self.rules.bounds:
            of = tuple(sorted(bound.of or ())) if bound.per is Per.GPU else ()
            for selector in dict.fromkeys((*(bound.gpus or ()), *bound.allowed_gpus, *of)):
                if self._gpus.seen and not self._gpus.meant((selector,)):
                    found.append(f"{bound.limit}: there is no GPU {selector}")
        return list(dict.fromkeys(found))

    def _sums_of(self, process: Process) -> tuple[Sum, ...]:
        sums = (self._sum(subject) for subject in self._subjects.of(process))
        return tuple(one for one in sums if one.bounds)

    def _sum(self, subject: Subject) -> Sum:
        key = key_of(subject)
        found = self._sums.get(key)
        if found is None:
            is_gpu = subject.per is Per.GPU
            bounds = self._subjects.bounds(subject, self._gpus.index(subject.name) if is_gpu else None)
            found = self._sums[key] = Sum(subject, bounds, subject.name if is_gpu else None)
        elif found.subject != subject:
            self._is_renamed = True
        return found

    def _forget_subjects(self) -> None:
        """Bounds may be others now."""
        self._is_renamed = False
        self._tally.forget_subjects()
        self._booking.forget_subjects()
        self._sums.clear()
        self._gpu_sums.clear()

    def _present_gpus(self) -> list[Sum]:
        """GPUs of this round that have bounds."""
        found, number, known = [], self._tally.number, self._gpu_sums
        for bucket in self._tally.active:
            for gpu, cell in bucket.cells.items():
                one = known.get(gpu)
                if one is None:
                    one = known[gpu] = self._sum(Subject(Per.GPU, gpu))
                if not one.bounds:
                    continue
                if one.seen != number:
                    one.seen = number
                    one.buckets, one.total = [bucket], list(cell)
                    found.append(one)
                    continue
                one.buckets.append(bucket)
                for column, value in enumerate(cell):
                    one.total[column] += value
        return found

    def _breaches(self, t_s: float, dt_s: float) -> list[Breach]:
        found = []
        for one in self._there:
            for column, bound in one.plain:
                used = one.total[column]
                if bound.amount is not None and used > bound.amount:
                    is_least = column != PROCESSES and one.total[column + 1] > 0
                    found.append(self._breach(one, bound, None, used, is_least, t_s, dt_s))
            bounds = one.others
            for zone, bound in one.day_plain:
                used = self._ledger.used(one.key, zone, t_s).get("", 0.0)
                if bound.amount is not None and used > bound.amount:
                    bounds = [*bounds, bound]
            for bound in bounds:
                for gpu, used, is_least in self._measure.excesses(one, bound, t_s):
                    found.append(self._breach(one, bound, gpu, used, is_least, t_s, dt_s))
        return found

    def _breach(
        self, one: Sum, bound: Bound, gpu: str | None, used: float, is_least: bool, t_s: float, dt_s: float
    ) -> Breach:
        rung, step = self._ladders.climb(_rung_key(one, bound, gpu), bound, self._marks[id(bound)], t_s, dt_s)
        rows = (
            self._measure.offending(one, bound, t_s)
            if bound.amount is None
            else list(one.rows(self._measure.counted(bound, gpu)))
        )
        chosen: tuple[Process, ...] = ()
        if step.is_end_due:
            chosen = ended(bound, rows, used)
            if chosen:
                rung.stepped_s, rung.ends = rung.spent_s, rung.ends + 1
                step = Step(False, True, *upcoming(bound, rung, t_s))
        named, most = rows, None
        if one.subject.per is not Per.USER and bound.amount is not None:
            named, most = blamed(bound, rows, is_gpu=one.subject.per is Per.GPU)
        act = Act.END if chosen else bound.soft
        where = tuple({row[1].gpu for row in rows}) if bound.amount is None else ()
        return Breach(
            limit=bound.limit,
            subject=one.subject,
            what=bound.what,
            used=None if bound.amount is None else used,
            allowed=bound.amount,
            gpu=gpu,
            since_s=rung.since_s,
            warnings=rung.warnings,
            is_news=step.is_warning or bool(chosen),
            act=act,
            next_act=step.next_act,
            next_s=step.next_s,
            processes=chosen or youngest_first(row[0].process for row in named),
            tenants=holdable(one, named, self._tally.active) if act is Act.HOLD else (),
            text=presence_text(bound, one.subject, where, t_s)
            if bound.amount is None
            else excess_text(bound, one.subject, used, gpu, is_least=is_least, most=most),
        )

    def _uses(self, one: Sum, bound: Bound, now_s: float) -> Iterator[SubjectUse]:
        if bound.amount is None:
            rows = self._measure.offending(one, bound, now_s)
            amounts: list[tuple[str | None, float | None, bool]] = [(None, None, False)]
            is_over = bool(rows)
        else:
            amounts, is_over = list(self._measure.amounts(one, bound, now_s)), False
        for gpu, used, is_least in amounts:
            rung = self._ladders.rungs.get(_rung_key(one, bound, gpu))
            if rung is not None and (rung.mark != self._marks[id(bound)] or now_s - rung.last_s >= LAPSE_S):
                rung = None
            over = is_over if used is None or bound.amount is None else used > bound.amount
            next_act, next_s = (None, None) if rung is None or not over else upcoming(bound, rung, now_s)
            yield SubjectUse(
                limit=bound.limit,
                subject=one.subject,
                what=bound.what,
                gpu=gpu,
                used=used,
                allowed=bound.amount,
                is_least=is_least,
                is_over=over,
                since_s=None if rung is None else rung.since_s,
                warnings=0 if rung is None else rung.warnings,
                next_act=next_act,
                next_s=next_s,
                processes=len({row[0].process.key for row in one.rows(self._measure.counted(bound, gpu))}),
            )

    def _restore(self, state: Mapping[str, Any]) -> None:
        try:
            if state["version"] != VERSION:
                raise ValueError(f"version {state['version']!r}")
            self._last_s, self._tally.begun_s = _moment(state["t_s"]), _moment(state["begun_s"])
            self._ladders.restore(state["ladders"])
            self._ledger.restore(state["ledger"])
            for boot_id, pid, ticks, gpu, counter, read_s in state["counters"]:
                by_gpu = self._tally.counters.setdefault((str(boot_id), int(pid), int(ticks)), {})
                by_gpu[str(gpu)] = [float(counter), float(read_s)]
            self._booking.restore(state["tenants"])
            self._gpus.learn(
                {str(uuid): None if index is None else int(index) for uuid, index in state["gpus"]}
            )
            self._subjects.names.update((int(uid), str(name)) for uid, name in state["users"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not the state of a judge: {error!r}") from None


def _moment(value: Any) -> float | None:
    return None if value is None else float(value)


def _rung_key(one: Sum, bound: Bound, gpu: str | None) -> RungKey:
    return (bound.limit, bound.what.value, *one.key, gpu or "")


def _mark(bound: Bound) -> str:
    """What a bound says; one that says something else begins with its warnings."""
    hours = None if bound.hours is None else (bound.hours.windows, str(bound.hours.zone))
    dates = None if bound.maintenance is None else (bound.maintenance.begin_s, bound.maintenance.end_s)
    steps = (bound.warnings, bound.every_s, bound.grace_s, bound.is_hard)
    said = (bound.amount, bound.each_gpu, bound.gpus, bound.allowed_gpus, hours, dates, steps)
    return repr(said)
