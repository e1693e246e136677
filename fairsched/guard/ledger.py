# SPDX-License-Identifier: Apache-2.0
"""Books GPU seconds to days: by subject, GPU and date, from differences of counters (pure).

Problem: counters begin anew with the daemon and with each process; a process may end between two looks; a day of a
time zone may have 23 or 25 hours; the clock may be set.

Approach: only differences are booked, so nothing is booked twice. One that spans a midnight is split by time. A counter
that is smaller than before has begun anew. No process can have had more of a GPU than time has passed, which bounds
what a counter that jumps can do. A process that is seen for the first time counts whole if it is younger than the
ledger, and not at all otherwise. What a tenant's own counter shows beyond those of its processes is what short ones
had: it is booked to the tenant.

Units: seconds, Unix seconds; dates as ``2026-11-27``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import Any

from fairsched.guard.subjects import SubjectKey

KEEP_S = 3600.0
"""How long a counter of a process is kept that is not on its GPU."""
_DATES = 4
"""Days that are kept."""
Use = dict[str, float]
"""Seconds by GPU, and of all together."""
_ALL = ""
Book = dict[SubjectKey, Use]
"""One day."""
Span = list[tuple[Book, float]]
"""Days in all zones, each with its part of a time."""


def grown(before: float, now: float, elapsed_s: float) -> float:
    """What a counter has counted meanwhile; ``elapsed_s``: 0 = not known, for the clock was set."""
    difference = now - before
    if elapsed_s <= 0:
        return max(0.0, difference)
    return min(difference if difference >= 0 else max(0.0, now), elapsed_s)


class Calendar:
    """Dates of one time zone."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._begin_s, self._end_s, self._shown = 0.0, 0.0, ""
        """Of the day that was asked for last."""

    def day(self, t_s: float) -> str:
        """What a calendar on the wall shows."""
        if not self._begin_s <= t_s < self._end_s:
            today = self._date_of(t_s)
            self._shown = today.isoformat()
            self._begin_s, self._end_s = self._midnight(today), self._midnight(today + timedelta(1))
            if not self._begin_s <= t_s < self._end_s:  # a day that the zone has twice, or in part
                self._begin_s = self._end_s = 0.0
        return self._shown

    def split(self, begin_s: float, end_s: float) -> list[tuple[str, float]]:
        """Dates of a time, each with its part of it; the parts add up to 1."""
        last = self.day(end_s)
        if self._begin_s <= begin_s < self._end_s or begin_s >= end_s:
            return [(last, 1.0)]
        first, final = self._date_of(begin_s), self._date_of(end_s)
        found, at_s, day = [], begin_s, first
        while day < final:
            next_s = min(max(self._midnight(day + timedelta(1)), at_s), end_s)
            found.append((day.isoformat(), (next_s - at_s) / (end_s - begin_s)))
            at_s, day = next_s, day + timedelta(1)
        return [*found, (last, (end_s - at_s) / (end_s - begin_s))]

    def _date_of(self, t_s: float) -> date:
        return datetime.fromtimestamp(t_s, self._zone).date()

    def _midnight(self, day: date) -> float:
        return datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp()


class Ledger:
    """Of all zones whose days are counted."""

    def __init__(self, zones: Iterable[tzinfo]) -> None:
        self._calendars = {str(zone): Calendar(zone) for zone in zones}
        self._days: dict[str, dict[str, Book]] = {zone: {} for zone in self._calendars}

    @property
    def is_needed(self) -> bool:
        return bool(self._calendars)

    def span(self, begin_s: float, end_s: float) -> Span:
        """The days between two moments."""
        return [
            (self._book_of(zone, day, end_s), part)
            for zone, calendar in self._calendars.items()
            for day, part in calendar.split(begin_s, end_s)
        ]

    @staticmethod
    def book(span: Span, keys: Sequence[SubjectKey], gpu: str, seconds: float) -> None:
        """`seconds` that each of `keys` has had of a GPU, evenly over the span."""
        for book, part in span:
            some = seconds * part
            for key in keys:
                use = book.get(key)
                if use is None:
                    use = book[key] = {_ALL: 0.0}
                use[_ALL] += some
                use[gpu] = use.get(gpu, 0.0) + some

    def _book_of(self, zone: str, day: str, t_s: float) -> Book:
        days = self._days[zone]
        book = days.get(day)
        if book is None:
            book = days[day] = {}
            self._prune(days, self._calendars[zone].day(t_s))
        return book

    def used(self, key: SubjectKey, zone: str, t_s: float) -> Mapping[str, float]:
        """Seconds by GPU, on the day that the zone has at `t_s`; those of all together are under ``""``."""
        return self._days[zone].get(self._calendars[zone].day(t_s), {}).get(key, {})

    def keys(self, t_s: float) -> set[SubjectKey]:
        """Who has had something today, in any zone."""
        return {
            key
            for zone, calendar in self._calendars.items()
            for key in self._days[zone].get(calendar.day(t_s), ())
        }

    def state(self) -> dict[str, Any]:
        return {
            zone: {
                day: [[*key, gpu, seconds] for key, use in book.items() for gpu, seconds in use.items()]
                for day, book in days.items()
            }
            for zone, days in self._days.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError, AttributeError for what is none; zones that are not counted any more are
        left out."""
        for zone, days in state.items():
            if zone not in self._days:
                continue
            for day, rows in days.items():
                date.fromisoformat(day)
                book = self._days[zone].setdefault(day, {})
                for per, ident, gpu, seconds in rows:
                    if not seconds >= 0:
                        raise ValueError(f"{seconds!r} seconds")
                    book.setdefault((str(per), str(ident)), {})[str(gpu)] = float(seconds)

    @staticmethod
    def _prune(days: dict[str, Book], today: str) -> None:
        """Those furthest from today go: after a clock was set, also days to come are kept."""
        now = date.fromisoformat(today)
        for day in sorted(days, key=lambda one: abs(date.fromisoformat(one) - now))[_DATES:]:
            del days[day]
