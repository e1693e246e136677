# SPDX-License-Identifier: Apache-2.0
"""Adds up a round: what the processes of each subject have of each GPU (pure).

Problem: a thousand processes on eight GPUs every ten seconds, for weeks, must be added up for users, groups, tenants
and projects in seconds when they are played back.

Approach: a process has a *seat*, found by the identity of the object, which the seat keeps alive; processes of the same
user, groups and tenant share a *bucket*, which adds up *cells*, one for each GPU. A subject adds up its buckets, not
its processes. Rows (who has what) are kept as they came and only read for a subject that is over.

Units: bytes, counts, seconds. What is not known is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fairsched.guard.allow import Allow
from fairsched.guard.breach import Subject, What
from fairsched.guard.ledger import KEEP_S, grown
from fairsched.guard.rules import Bound
from fairsched.guard.sample import Process, Round, Sample
from fairsched.guard.subjects import key_of

ProcessKey = tuple[str, int, int]
Cell = list[float]
"""Sums on one GPU."""
VRAM, VRAM_UNKNOWN, CONTEXTS, CONTEXTS_UNKNOWN, PROCESSES, TIME = range(6)
_PLAIN = {What.VRAM: VRAM, What.CONTEXTS: CONTEXTS, What.PROCESSES: PROCESSES}
_NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_COLUMNS = range(6)
_SPARE = 64
SETTLE_S = 120.0
"""A digest is worked out in the background. As long as it may come, whoever may be allowed by it is taken to be."""
Late = Callable[["Bucket", str, float, float, float], None]
"""Told of a difference that began before the last round: bucket, GPU, seconds, since when, until when."""


Row = tuple["Seat", Sample, float]
"""One sample of the round, and the GPU seconds since the last one. A plain tuple: there are millions."""


class Seat:
    """One process, as it was told last."""

    __slots__ = ("bucket", "counters", "first_s", "is_allowed", "process", "seen")

    def __init__(
        self, process: Process, bucket: Bucket, counters: dict[str, list[float]], is_allowed: bool
    ) -> None:
        self.process, self.bucket, self.counters, self.is_allowed = process, bucket, counters, is_allowed
        self.first_s = 0.0
        """When it was seen first."""
        self.seen = 0
        """Number of the round."""


class Bucket:
    """Processes of the same user, groups and tenant."""

    __slots__ = ("cells", "day_keys", "rows", "seats", "seen", "subjects", "tenant", "total")

    def __init__(self, tenant: str | None, subjects: tuple[Sum, ...]) -> None:
        self.tenant, self.subjects = tenant, subjects
        self.day_keys = [one.key for one in subjects if one.days]
        self.cells: dict[str, Cell] = {}
        self.total: Cell = list(_NOTHING)
        self.rows: list[Row] = []
        self.seats = 0
        self.seen = 0


class Sum:
    """One subject: its buckets in this round."""

    __slots__ = (
        "bounds",
        "buckets",
        "day_plain",
        "days",
        "gpu",
        "key",
        "others",
        "plain",
        "seen",
        "subject",
        "total",
    )

    def __init__(self, subject: Subject, bounds: tuple[Bound, ...], gpu: str | None = None) -> None:
        self.subject, self.bounds, self.key = subject, bounds, key_of(subject)
        self.gpu = gpu
        """UUID, of a subject that is a GPU."""
        simple = [one for one in bounds if one.amount is not None and one.gpus is None and not one.each_gpu]
        self.plain = [(_PLAIN[one.what], one) for one in simple if one.what in _PLAIN]
        """Columns of the total, and the bounds that they are compared with."""
        self.day_plain = [(str(one.zone), one) for one in simple if one.what is What.GPU_SECONDS]
        """Of GPU time of all GPUs together: zones, and the bounds."""
        self.others = [one for one in bounds if one not in simple]
        self.days = any(one.what is What.GPU_SECONDS for one in bounds)
        """GPU seconds a day are counted."""
        self.buckets: list[Bucket] = []
        self.total: Cell = list(_NOTHING)
        self.seen = 0

    def rows(self, gpus: Collection[str] | None = None) -> Iterator[Row]:
        """On these GPUs; None = on all."""
        for bucket in self.buckets:
            for row in bucket.rows:
                gpu = row[1].gpu
                if (self.gpu is None or gpu == self.gpu) and (gpus is None or gpu in gpus):
                    yield row

    def sums(self, gpus: Collection[str]) -> Cell:
        """On these GPUs together; a process on several counts once."""
        found = list(_NOTHING)
        for bucket in self.buckets:
            for gpu, cell in bucket.cells.items():
                if gpu in gpus:
                    for number, value in enumerate(cell):
                        found[number] += value
        if len(gpus) > 1:
            found[PROCESSES] = len({seat.process.key for seat, _, _ in self.rows(gpus)})
        return found

    def gpus(self) -> list[str]:
        """Where it is."""
        if self.gpu is not None:
            return [self.gpu]
        return list(dict.fromkeys(gpu for bucket in self.buckets for gpu in bucket.cells))


class Tally:
    """Fed with rounds; what it has added up is there until the next one."""

    def __init__(self, allow: Allow, subjects_of: Callable[[Process], tuple[Sum, ...]], late: Late) -> None:
        self._allow, self._subjects_of, self._late = allow, subjects_of, late
        self._by_id: dict[int, Seat] = {}
        self._by_key: dict[ProcessKey, Seat] = {}
        self._unsettled: list[Seat] = []
        self._buckets: dict[tuple[object, ...], Bucket] = {}
        self.counters: dict[ProcessKey, dict[str, list[float]]] = {}
        """By process and GPU: the counter of GPU time, and when it was read."""
        self.begun_s: float | None = None
        """When the first round was, or the last one before the clock was set back."""
        self.number = 0
        self.active: list[Bucket] = []
        self.present: list[Sum] = []
        """Subjects of the round, without GPUs."""

    def forget_subjects(self) -> None:
        """Bounds may be others now, as a GPU was seen: who belongs to whom is worked out anew."""
        self._buckets.clear()
        self._by_id.clear()
        self._by_key.clear()
        self._unsettled.clear()

    def feed(self, moment: Round, t_s: float, last_s: float | None) -> None:
        """``t_s``: when it was, ``last_s``: when the round before was."""
        self.number += 1
        number = self.number
        before_s = -1.0 if last_s is None else last_s
        elapsed_s = max(0.0, t_s - before_s)
        if self.begun_s is None:
            self.begun_s = t_s
        self._settle(t_s)
        by_id = self._by_id
        active = self.active = []
        for sample in moment.samples:
            process, gpu, vram, contexts, counter = sample[:5]
            seat = by_id.get(id(process))
            if seat is None or seat.process is not process:
                seat = self._seat(process, t_s)
            bucket = seat.bucket
            if bucket.seen != number:
                bucket.seen = number
                bucket.cells, bucket.rows, bucket.seats = {}, [], 0
                active.append(bucket)
            if seat.seen != number:
                seat.seen = number
                bucket.seats += 1
            cell = bucket.cells.get(gpu)
            if cell is None:
                cell = bucket.cells[gpu] = list(_NOTHING)
            if vram is None:
                cell[1] += 1
            else:
                cell[0] += vram
            if contexts is None:
                cell[3] += 1
            else:
                cell[2] += contexts
            cell[4] += 1
            worked_s = 0.0
            if counter is not None:
                known = seat.counters.get(gpu)
                if known is not None and known[1] == before_s and elapsed_s > 0:
                    worked_s = counter - known[0]
                    if not 0 <= worked_s <= elapsed_s:
                        worked_s = grown(known[0], counter, elapsed_s)
                    known[0], known[1] = counter, t_s
                    cell[5] += worked_s
                else:
                    worked_s = self._first(seat, gpu, counter, t_s, last_s)
            bucket.rows.append((seat, sample, worked_s))
        self._add_up(number)
        if len(by_id) > 2 * len(moment.samples) + _SPARE:
            self._prune(number)

    def prune_counters(self, t_s: float) -> None:
        """Those that were not seen for long."""
        gone = [
            key
            for key, counters in self.counters.items()
            if all(t_s - read_s > KEEP_S for _, read_s in counters.values()) and not self._is_there(key)
        ]
        for key in gone:
            del self.counters[key]
            self._by_key.pop(key, None)
        if gone:
            self._by_id = {
                number: seat for number, seat in self._by_id.items() if seat.process.key in self.counters
            }
            self._drop_buckets()

    def kept(self) -> set[int]:
        """Identities of the sums that processes are still added up to."""
        return {id(one) for bucket in (*self._buckets.values(), *self.active) for one in bucket.subjects}

    def _is_there(self, key: ProcessKey) -> bool:
        seat = self._by_key.get(key)
        return seat is not None and seat.seen == self.number

    def set_back(self, t_s: float, last_s: float) -> None:
        """The clock shows less than before. Who began until then is older than the ledger, whenever it comes."""
        self.begun_s = last_s if self.begun_s is None else max(self.begun_s, last_s)
        for counters in self.counters.values():
            for known in counters.values():
                known[1] = min(known[1], t_s)

    def _first(self, seat: Seat, gpu: str, counter: float, t_s: float, last_s: float | None) -> float:
        """A counter that the round before did not have, or not at that time. What it counted is booked late."""
        known, started_s = seat.counters.get(gpu), seat.process.started_s
        seat.counters[gpu] = [counter, t_s]
        if known is not None and last_s is not None and last_s - known[1] > KEEP_S:
            known = None  # as if it had been forgotten, whenever that is done
        if known is not None:
            begin_s, worked_s = known[1], grown(known[0], counter, t_s - known[1])
        else:
            is_younger = (
                started_s is not None
                and last_s is not None
                and self.begun_s is not None
                and self.begun_s <= started_s <= t_s
                and started_s > last_s - KEEP_S  # an older one may have been here, and forgotten
            )
            if not is_younger or started_s is None:
                return 0.0
            begin_s, worked_s = started_s, grown(0.0, counter, t_s - started_s)
        if worked_s > 0:
            self._late(seat.bucket, gpu, worked_s, min(begin_s, t_s), t_s)
        return worked_s

    def _settle(self, t_s: float) -> None:
        """Whoever has had the time to become known is on no list."""
        waiting = []
        for seat in self._unsettled:
            if 0 <= t_s - seat.first_s < SETTLE_S:
                waiting.append(seat)
            else:
                seat.is_allowed = False
        self._unsettled = waiting

    def _may_be_allowed(self, process: Process) -> bool:
        """Once its digest is known."""
        allow = self._allow
        return bool(allow.programs and process.program_digest is None) or bool(
            allow.images and process.container_id is not None and process.image_digest is None
        )

    def _seat(self, process: Process, t_s: float) -> Seat:
        key = process.key
        seat = self._by_key.get(key)
        if seat is None or seat.process != process:
            bucket = self._bucket(process)
            counters = self.counters.setdefault(key, {})
            is_allowed = self._allow.why(process) is not None
            old = seat
            seat = self._by_key[key] = Seat(process, bucket, counters, is_allowed)
            seat.first_s = t_s if old is None else old.first_s
            if old is not None:
                self._by_id.pop(id(old.process), None)
            if not is_allowed and t_s - seat.first_s < SETTLE_S and self._may_be_allowed(process):
                seat.is_allowed = True
                self._unsettled.append(seat)
        else:  # the same, in another object
            self._by_id.pop(id(seat.process), None)
            seat.process = process
        self._by_id[id(process)] = seat
        return seat

    def _bucket(self, process: Process) -> Bucket:
        key = (process.uid, process.user, process.groups, process.tenant)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(process.tenant, self._subjects_of(process))
        return bucket

    def _add_up(self, number: int) -> None:
        present = self.present = []
        for bucket in self.active:
            cells = list(bucket.cells.values())
            if len(cells) == 1:
                total = bucket.total = list(cells[0])
            else:
                total = bucket.total = [sum(column) for column in zip(*cells, strict=True)]
            total[PROCESSES] = bucket.seats
            for subject in bucket.subjects:
                if subject.seen != number:
                    subject.seen = number
                    subject.buckets, subject.total = [bucket], list(total)
                    present.append(subject)
                    continue
                subject.buckets.append(bucket)
                sums = subject.total
                for column in _COLUMNS:
                    sums[column] += total[column]

    def _prune(self, number: int) -> None:
        """Seats of processes that are not there; their counters stay for a while."""
        self._by_id = {key: seat for key, seat in self._by_id.items() if seat.seen == number}
        self._by_key = {key: seat for key, seat in self._by_key.items() if seat.seen == number}
        self._drop_buckets()

    def _drop_buckets(self) -> None:
        """Those that nobody has a seat in."""
        seats = (*self._by_id.values(), *self._by_key.values())
        there = {id(seat.bucket) for seat in seats}
        self._buckets = {key: one for key, one in self._buckets.items() if id(one) in there}
