# SPDX-License-Identifier: Apache-2.0
"""GPU seconds are booked once, to the day that the clock shows, and to whom they belong."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.guard.breach import Per, What
from fairsched.guard.judge import Judge
from fairsched.guard.ledger import Calendar, Ledger, grown
from fairsched.guard.rules import Bound, Project
from fairsched.guard.sample import Round, Sample
from tests.unit.guard.made import GPUS, POOL, T0, at, judge_of, process, rounds

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Beirut",
    "America/Havana",
    "Atlantic/Azores",
    "Asia/Tehran",
)
MIDNIGHT = datetime(2026, 11, 28, tzinfo=BERLIN).timestamp()


def day(amount: float = 1e9, **other: Any) -> Bound:
    return Bound("day", other.pop("per", Per.USER), What.GPU_SECONDS, amount, **other)


def used(judge: Judge, t_s: float = T0, what: str = "alice") -> float:
    (found,) = [one.used for one in judge.subjects(t_s) if one.subject.name == what] or [0.0]
    assert found is not None
    return round(found, 6)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(ZONES), st.floats(1.0e9, 2.0e9), st.floats(0.001, 3e5))
def test_a_time_is_split_at_the_midnights_of_its_zone(zone: str, begin_s: float, length_s: float) -> None:
    calendar, end_s = Calendar(ZoneInfo(zone)), begin_s + length_s
    parts = calendar.split(begin_s, end_s)
    assert sum(part for _, part in parts) == pytest.approx(1.0)
    assert all(part >= 0 for _, part in parts)
    assert len({name for name, _ in parts}) == len(parts)
    sampled: dict[str, float] = {}
    for number in range(500):
        t_s = begin_s + length_s * (number + 0.5) / 500
        name = datetime.fromtimestamp(t_s, ZoneInfo(zone)).date().isoformat()
        sampled[name] = sampled.get(name, 0.0) + 1 / 500
    for name, part in parts:
        assert part == pytest.approx(sampled.get(name, 0.0), abs=0.005 + (0.02 if length_s > 80_000 else 0))


@pytest.mark.parametrize(("at_day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 6, 1), 24)])
def test_a_day_has_the_hours_that_its_zone_gives_it(at_day: tuple[int, int, int], hours: int) -> None:
    begin_s = datetime(*at_day, tzinfo=BERLIN).timestamp()
    ledger = Ledger([BERLIN])
    key = ("user", "1")
    ledger.book(ledger.span(begin_s - 3600, begin_s + 47 * 3600), [key], "g", 48 * 3600.0)
    assert ledger.used(key, "Europe/Berlin", begin_s + 7200)["g"] == pytest.approx(hours * 3600)


def test_what_spans_midnight_is_split_evenly() -> None:
    judge = judge_of(day(zone=BERLIN))
    for t_s, counter in ((-30.0, 100.0), (10.0, 120.0)):
        judge.feed(Round(MIDNIGHT + t_s, (Sample(process(1), "g", gpu_time_s=counter),)))
    assert used(judge, MIDNIGHT - 1) == 15
    assert used(judge, MIDNIGHT + 1) == 5


def test_only_differences_count_and_a_smaller_counter_has_begun_anew() -> None:
    judge = judge_of(day())
    for t_s, counter in enumerate((500.0, 502.0, None, 506.0, 3.0, 4.0)):
        judge.feed(at(10 * t_s, Sample(process(1), "GPU-a", gpu_time_s=counter)))
    assert used(judge) == 2 + 4 + 3 + 1


def test_no_process_can_have_had_more_than_time_has_passed() -> None:
    judge = judge_of(day())
    for t_s, counter in enumerate((0.0, 5.0, 900.0, 450.0, 440.0)):
        judge.feed(at(10 * t_s, Sample(process(1), "GPU-a", gpu_time_s=counter)))
    assert used(judge) == 5 + 10 + 10 + 10
    assert (grown(5, 900, 10), grown(900, 450, 10), grown(5, 6, 0), grown(6, 5, 0)) == (10, 10, 1, 0)


def test_a_process_that_is_seen_first_counts_whole_if_it_is_younger_than_the_ledger() -> None:
    judge = judge_of(day())
    judge.feed(at(0))
    old, young, unknown = process(1), process(2, started_s=T0 + 4), process(3, started_s=None)
    judge.feed(at(10, *(Sample(one, "GPU-a", gpu_time_s=3.0) for one in (old, young, unknown))))
    assert used(judge) == 3
    judge.feed(at(20, *(Sample(one, "GPU-a", gpu_time_s=4.0) for one in (old, young, unknown))))
    assert used(judge) == 6


def test_who_comes_back_is_booked_from_when_it_was_seen_last_and_not_twice() -> None:
    judge = judge_of(day())
    young = process(2, started_s=T0 + 1)
    judge.feed(at(0))
    judge.feed(at(10, Sample(young, "GPU-a", gpu_time_s=5.0)))
    judge.feed(at(20))
    judge.feed(at(30, Sample(young, "GPU-a", gpu_time_s=8.0)))
    assert used(judge) == 8
    for t_s in range(100, 8000, 100):
        judge.feed(at(t_s))
    judge.feed(at(8000, Sample(young, "GPU-a", gpu_time_s=9.0)))  # forgotten, and older than that: not again
    assert used(judge) == 8


def test_a_clock_that_is_set_back_books_to_the_day_it_shows_and_never_twice() -> None:
    judge = judge_of(day(zone=BERLIN))
    for t_s, counter in ((10.0, 10.0), (20.0, 15.0), (-3600.0, 18.0), (-3590.0, 20.0), (30.0, 25.0)):
        judge.feed(Round(MIDNIGHT + t_s, (Sample(process(1), "g", gpu_time_s=counter),)))
    before, after = used(judge, MIDNIGHT - 1), used(judge, MIDNIGHT + 1)
    assert before + after == 15
    assert before == pytest.approx(3 + 2 + 5 * 3590 / 3620, abs=1e-5)


def test_who_was_forgotten_after_the_clock_was_set_back_is_not_booked_again() -> None:
    judge = judge_of(day())
    seen = process(1, started_s=T0 + 5000)  # by the clock as it was
    judge.feed(at(4990))
    judge.feed(at(5010, Sample(seen, "GPU-a", gpu_time_s=4.0)))
    judge.feed(at(10, Sample(seen, "GPU-a", gpu_time_s=4.0)))
    for t_s in range(100, 5100, 100):
        judge.feed(at(t_s))
    judge.feed(at(5105, Sample(seen, "GPU-a", gpu_time_s=4.5)))
    assert used(judge) == 4


def test_processes_that_are_shorter_than_a_round_are_their_tenants() -> None:
    judge = judge_of(day(per=Per.TENANT), day(per=Per.PROJECT), projects=[Project("p", frozenset({"lab"}))])
    seen = process(1, tenant="lab/x")
    for t_s, (mine, tenant) in enumerate(
        ((0.0, 100.0), (2.0, 105.0), (3.0, 106.0), (5.0, None), (6.0, 111.0))
    ):
        tenants = {} if tenant is None else {"lab/x": {"GPU-a": tenant}}
        judge.feed(at(10 * t_s, Sample(seen, "GPU-a", gpu_time_s=mine), tenants=tenants))
    assert used(judge, what="lab/x") == used(judge, what="lab") == used(judge, what="p") == 11


def test_a_tenants_counter_that_lags_is_not_booked_on_top() -> None:
    judge = judge_of(day(per=Per.TENANT))
    for t_s, (mine, tenant) in enumerate(((0.0, 0.0), (4.0, 3.0), (6.0, 6.0), (6.0, 6.5))):
        judge.feed(
            at(
                10 * t_s,
                Sample(process(1, tenant="a"), "GPU-a", gpu_time_s=mine),
                tenants={"a": {"GPU-a": tenant}},
            )
        )
    assert used(judge, what="a") == 6.5


def test_a_day_that_is_used_up_is_told_while_somebody_is_there_and_ends_who_works() -> None:
    judge = judge_of(day(20, warnings=1, grace_s=20.0, is_hard=True))
    works, idles, spared = process(1), process(2), process(3, cgroup="/spared")
    found = {}
    for number in range(8):
        t_s = number * 10
        counters = ((works, 9.0 * number), (idles, 1.0), (spared, 0.0))
        for one in judge.feed(at(t_s, *(Sample(who, "GPU-a", gpu_time_s=much) for who, much in counters))):
            if one.is_news:
                found[t_s] = (one.act.value, one.processes)
    assert list(found) == [30, 50]
    assert found[50] == ("end", (works,))
    assert judge.feed(at(90, Sample(spared, "GPU-a", gpu_time_s=0.0))) == []
    assert used(judge, T0 + 90) == 63


@settings(deadline=None, max_examples=150)
@given(rounds(), st.sampled_from((None, ("GPU-b",))))
def test_every_second_is_booked_once(moments: list[Round], gpus: tuple[str, ...] | None) -> None:
    """Over all days and GPUs together no more than the counters have counted, and as much where nothing began anew."""
    judge = judge_of(day(zone=BERLIN, gpus=gpus))
    last: dict[tuple[int, str], float] = {}
    most: dict[int, float] = {}
    at_s: float | None = None
    for moment in moments:
        if round(moment.t_s, 3) == at_s:
            continue
        at_s = round(moment.t_s, 3)
        judge.feed(replace(moment, tenants={}))
        for one in moment.samples:
            key, counter, uid = (one.process.pid, one.gpu), one.gpu_time_s, one.process.uid
            if counter is None:
                continue
            if uid is not None:
                is_younger = (one.process.started_s or 0.0) >= round(moments[0].t_s, 3)
                before = last.get(key, 0.0 if is_younger else counter)
                most[uid] = most.get(uid, 0.0) + (counter - before if counter >= before else counter)
            last[key] = counter
    state = judge.state()["ledger"]["Europe/Berlin"]
    for uid in {one.uid for one in POOL} - {None}:
        booked = sum(
            seconds
            for book in state.values()
            for per, ident, gpu, seconds in book
            if (per, ident) == ("user", str(uid)) and gpu in GPUS
        )
        assert booked <= most.get(uid, 0.0) + 1e-6
