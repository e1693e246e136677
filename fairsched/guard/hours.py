# SPDX-License-Identifier: Apache-2.0
"""Tells whether a moment is inside hours of the week, or a window of maintenance (pure).

Problem: `fri 22:00-06:00` ends on Saturday, `sun-tue` goes around the end of the week, and twice a year a day of a time
zone has 23 or 25 hours.

Approach: hours are what a clock on the wall of that zone shows. A window is a set of minutes of the week, counted from
Monday 00:00; one that ends before it begins goes on into the next day. Whether it is open is asked of the wall clock
alone: an hour that comes twice is open twice, an hour that is skipped opens nothing. When it changes next is found on
the wall clock as well, and beyond a jump of the clock it is looked up anew from the jump on.

A window of maintenance has dates. A wall time that comes twice is the first of the two where the window begins and the
second where it ends; one that is skipped is the moment of the jump, as Python has it (PEP 495).

Units: Unix seconds; minutes of the week. Errors: GuardError, a sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fairsched.errors import FairschedError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY = 24 * 60
WEEK = 7 * DAY
_CLOCK = r"(\d{1,2}):(\d{2})"
_WINDOW = re.compile(
    rf"(?:(?P<days>[a-z]{{3}}(?:[-,][a-z]{{3}})*|daily)\s*)?(?:{_CLOCK}\s*-\s*{_CLOCK})?", re.IGNORECASE
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}")
_LONGEST_S = 400 * 86_400
"""The next change is looked for as far ahead."""
_HINT = "write 'mon-fri 08:00-18:00', 'sat,sun' or '22:00-06:00'"


class GuardError(FairschedError):
    """A limit, a window or a zone that makes no sense."""


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its name in the tz database. Raises GuardError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise GuardError(
            f"{name[:60]!r} is not a time zone of this host",
            remedy="name one as `timedatectl list-timezones` has it, such as Europe/Berlin or UTC",
        ) from None


@dataclass(frozen=True)
class Hours:
    """Hours of the week in which something is allowed."""

    windows: tuple[tuple[int, int], ...]
    """Minutes of the week, from and to (exclusive); sorted, merged, not around the end of the week."""
    zone: tzinfo

    def is_open(self, t_s: float) -> bool:
        """Whether the wall clock shows a time inside a window."""
        return _is_in(self.windows, _minute(self._wall(t_s)))

    def next_change_s(self, t_s: float) -> float | None:
        """The first moment after `t_s` at which :meth:`is_open` tells otherwise; None = never (or in a year)."""
        if len(self.windows) == 1 and self.windows[0] == (0, WEEK):
            return None
        is_open, end_s, at_s = self.is_open(t_s), t_s + _LONGEST_S, math.floor(t_s)
        while at_s < end_s:
            wall = self._wall(at_s)
            step_s = self._to_edge_s(wall)
            if self._offset(at_s + step_s) == wall.utcoffset():
                at_s += step_s
            else:
                at_s = self._jump_s(at_s, at_s + step_s)
            if self.is_open(at_s) != is_open:
                return float(at_s)
        return None

    def _to_edge_s(self, wall: datetime) -> int:
        """Seconds of the wall clock to the next edge of a window. Whole ones: a fraction would miss the edge."""
        now = _minute(wall) * 60 + wall.second
        return min((edge * 60 - now) % (WEEK * 60) or WEEK * 60 for window in self.windows for edge in window)

    def _jump_s(self, first_s: int, last_s: int) -> int:
        """When the clock is next set forward or back, between the two."""
        before, low, high = self._offset(first_s), first_s, last_s
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == before else (low, middle)
        return high

    def _wall(self, t_s: float) -> datetime:
        return datetime.fromtimestamp(t_s, self.zone)

    def _offset(self, t_s: float) -> timedelta | None:
        return self._wall(t_s).utcoffset()

    @cached_property
    def text(self) -> str:
        """As windows, for people: ``mon 08:00-18:00``."""
        return ", ".join(f"{_clock(begin)}-{_clock(end, is_end=True)}" for begin, end in self.windows)


def parse_hours(texts: Iterable[str], zone: str) -> Hours:
    """Windows as a person writes them. Raises GuardError."""
    found = [window for text in texts for window in _windows(text)]
    if not found:
        raise GuardError("no hours are given, so it would never be open", remedy=_HINT)
    return Hours(_merged(found), zone_of(zone))


@dataclass(frozen=True)
class Maintenance:
    """A time in which nobody may be on these GPUs."""

    name: str
    begin_s: float
    end_s: float
    gpus: frozenset[str] | None = None
    """Indexes, or how UUIDs begin; None = all."""

    def is_on(self, t_s: float) -> bool:
        return self.begin_s <= t_s < self.end_s


def parse_maintenance(name: str, begin: str, end: str, zone: str, gpus: Iterable[str] | None) -> Maintenance:
    """Raises GuardError."""
    where = zone_of(zone)
    begin_s, end_s = _moment(begin, where, fold=0), _moment(end, where, fold=1)
    if end_s <= begin_s:
        raise GuardError(f"it ends at {end} and begins at {begin}", remedy="make `until` later than `from`")
    return Maintenance(name, begin_s, end_s, None if gpus is None else frozenset(gpus))


def _moment(text: str, zone: tzinfo, fold: int) -> float:
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()
    except (ValueError, OverflowError):
        raise GuardError(
            f"{text[:40]!r} is not a date with a time", remedy='write "2026-12-24 18:00", in quotes'
        ) from None


def _windows(text: str) -> list[tuple[int, int]]:
    """Of one text; one around the end of the week comes as two."""
    match = _WINDOW.fullmatch(text.strip())
    if match is None or not text.strip():
        raise GuardError(f"{text[:60]!r} are no hours of the week", remedy=_HINT)
    days = _days(match["days"] or "daily")
    begin, end = (
        (0, DAY) if match[2] is None else (_minutes(*match.group(2, 3)), _minutes(*match.group(4, 5)))
    )
    if begin in (DAY, end):
        raise GuardError(f"{text[:60]!r} never opens", remedy="for the whole day leave the times out")
    length = end - begin if end > begin else end + DAY - begin
    found = []
    for day in days:
        first = day * DAY + begin
        found.append((first, min(first + length, WEEK)))
        if first + length > WEEK:
            found.append((0, first + length - WEEK))
    return found


def _days(text: str) -> set[int]:
    if text.lower() == "daily":
        return set(range(7))
    found: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        for name in (first, last or first):
            if name not in DAYS:
                raise GuardError(f"{name[:20]!r} is not a day", remedy=f"days are {', '.join(DAYS)}, daily")
        begin = DAYS.index(first)
        found |= {(begin + step) % 7 for step in range((DAYS.index(last or first) - begin) % 7 + 1)}
    return found


def _minutes(hours: str, minutes: str) -> int:
    found = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or found > DAY:
        raise GuardError(f"'{hours}:{minutes}' is not a time of day", remedy="write 00:00 to 24:00")
    return found


def _merged(windows: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for begin, end in sorted(windows):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def _minute(wall: datetime) -> int:
    return wall.weekday() * DAY + wall.hour * 60 + wall.minute


def _is_in(windows: tuple[tuple[int, int], ...], minute: int) -> bool:
    return any(begin <= minute < end for begin, end in windows)


def _clock(minute: int, *, is_end: bool = False) -> str:
    day, rest = divmod(minute, DAY)
    if is_end and not rest:
        day, rest = day - 1, DAY
    return f"{DAYS[day % 7]} {rest // 60:02d}:{rest % 60:02d}"
