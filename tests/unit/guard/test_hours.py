# SPDX-License-Identifier: Apache-2.0
"""Hours of the week and windows of maintenance, against a clock that is asked minute by minute."""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairsched.guard.hours import DAYS, GuardError, parse_hours, parse_maintenance

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
)
TIMES = st.integers(0, 24 * 60 - 1)
WINDOWS = st.tuples(st.sampled_from(DAYS), st.sampled_from(DAYS), TIMES, TIMES).filter(
    lambda one: one[2] != one[3]
)
BERLIN_FORWARD, BERLIN_BACK = 1774746000, 1792890000
"""2026-03-29 01:00 UTC and 2026-10-25 01:00 UTC."""


def text_of(window: tuple[str, str, int, int]) -> str:
    first, last, begin, end = window
    return f"{first}-{last} {begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d}"


def brute(windows: list[tuple[str, str, int, int]], wall: datetime) -> bool:
    """By what the wall clock shows: today after the beginning, or yesterday's window before its end."""
    now, today = wall.hour * 60 + wall.minute, wall.weekday()
    for first, last, begin, end in windows:
        days = [DAYS.index(first)]
        while days[-1] != DAYS.index(last):
            days.append((days[-1] + 1) % 7)
        if begin < end:
            if today in days and begin <= now < end:
                return True
        elif (today in days and now >= begin) or ((today - 1) % 7 in days and now < end):
            return True
    return False


@settings(deadline=None, max_examples=300)
@given(st.lists(WINDOWS, min_size=1, max_size=3), st.sampled_from(ZONES), st.integers(0, 4_000_000_000))
@example([("sun", "sun", 135, 165)], "Europe/Berlin", BERLIN_FORWARD - 1800)
@example([("sun", "sun", 135, 165)], "Europe/Berlin", BERLIN_BACK + 900)
@example([("sun", "mon", 1320, 360)], "America/New_York", 0)
def test_open_is_what_the_wall_clock_says(
    windows: list[tuple[str, str, int, int]], zone: str, t_s: int
) -> None:
    hours = parse_hours(map(text_of, windows), zone)
    assert hours.is_open(t_s) == brute(windows, datetime.fromtimestamp(t_s, ZoneInfo(zone)))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(WINDOWS, min_size=1, max_size=3),
    st.sampled_from(ZONES),
    st.one_of(
        st.integers(0, 2_500_000_000),
        *(st.integers(t - 90_000, t + 90_000) for t in (BERLIN_FORWARD, BERLIN_BACK)),
    ),
)
def test_the_next_change_is_the_first_one(
    windows: list[tuple[str, str, int, int]], zone: str, t_s: int
) -> None:
    hours = parse_hours(map(text_of, windows), zone)
    change_s = hours.next_change_s(t_s)
    is_open, last_s = hours.is_open(t_s), t_s + 8 * 86400 if change_s is None else change_s
    at_s = float(t_s // 60 * 60 + 60)
    while at_s < last_s:
        assert hours.is_open(at_s) == is_open, datetime.fromtimestamp(at_s, timezone.utc)
        at_s += 60
    assert change_s is None or (change_s > t_s and hours.is_open(change_s) != is_open)


def test_an_hour_that_comes_twice_is_open_twice_and_one_that_is_skipped_never() -> None:
    hours = parse_hours(["sun 02:00-03:00"], "Europe/Berlin")
    assert not any(hours.is_open(BERLIN_FORWARD + minute * 60) for minute in range(-60, 60))
    assert sum(hours.is_open(BERLIN_BACK + minute * 60) for minute in range(-180, 180)) == 120


def test_an_edge_inside_the_skipped_hour_counts_from_the_jump() -> None:
    hours = parse_hours(["sun 02:30-05:00"], "Europe/Berlin")
    assert hours.next_change_s(BERLIN_FORWARD - 600) == BERLIN_FORWARD


def test_all_of_the_week_never_changes() -> None:
    assert parse_hours(["daily"], "UTC").next_change_s(0) is None
    assert parse_hours(["mon-fri", "sat,sun"], "UTC").text == "mon 00:00-sun 24:00"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mon 08:00-08:00", "never opens"),
        ("mon 24:00-08:00", "never opens"),
        ("mo 08:00-09:00", "no hours"),
        ("xyz 08:00-09:00", "not a day"),
        ("mon 08:61-09:00", "not a time"),
        ("mon 08:00-25:00", "not a time"),
        ("", "no hours"),
    ],
)
def test_hours_that_make_no_sense_are_refused(text: str, what: str) -> None:
    with pytest.raises(GuardError, match=what) as caught:
        parse_hours([text], "UTC")
    assert caught.value.remedy


def test_a_zone_that_is_not_there_is_named() -> None:
    for name in ("Europe/Berlinn", "../etc/passwd", "", "\0"):
        with pytest.raises(GuardError, match="not a time zone"):
            parse_hours(["mon"], name)


def test_maintenance_covers_an_hour_that_comes_twice_whole() -> None:
    window = parse_maintenance("cooling", "2026-10-25 02:30", "2026-10-25 02:30", "Europe/Berlin", None)
    assert (window.begin_s, window.end_s) == (BERLIN_BACK - 1800, BERLIN_BACK + 1800)
    assert window.is_on(BERLIN_BACK) and not window.is_on(window.end_s)
    with pytest.raises(GuardError, match="ends at"):
        parse_maintenance("cooling", "2026-10-24 02:30", "2026-10-24 02:30", "UTC", None)
    with pytest.raises(GuardError, match="not a date"):
        parse_maintenance("cooling", "tomorrow", "2026-10-24 02:30", "UTC", None)
