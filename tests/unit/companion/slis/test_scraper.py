# SPDX-License-Identifier: Apache-2.0
"""One thread per page: at full seconds, less often after failures, and none waits for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fairsched.companion.slis import scraper
from fairsched.companion.slis.page import counters_of
from fairsched.companion.slis.scraper import PageReader, wait_s
from tests.unit.companion.slis.test_fetch import PAGE, http, says, serving

S = 1_000_000_000
Wait = Callable[..., None]


def reader(url: str, timeout_s: float = 10.0) -> PageReader:
    return PageReader(url, counters_of("made"), timeout_s)


@pytest.mark.parametrize(
    ("now_ns", "failures", "seconds"),
    [
        (5 * S, 0, 1),
        (5 * S + 1, 0, 1),
        (6 * S - 1, 0, 0),
        (5 * S, 3, 1),
        (5 * S, 4, 2),
        (5 * S, 6, 8),
        (5 * S, 99, 10),
    ],
)
def test_pages_are_read_at_full_seconds_and_failing_ones_less_often(
    now_ns: int, failures: int, seconds: int
) -> None:
    assert wait_s(now_ns, failures) == pytest.approx(seconds, abs=1e-6)
    assert (now_ns + round(wait_s(now_ns, failures) * 1e9)) % S in (0, 1, S - 1)


def test_a_reading_has_the_moment_of_the_answer() -> None:
    with serving(says(http(PAGE))) as server:
        one, before_ns = reader(server.url()), time.monotonic_ns()
        assert one.read()
    ((t_ns, found),) = one.take()
    assert before_ns < t_ns < time.monotonic_ns()
    assert list(found.series.values()) == [5]
    assert (one.error, one.failures, one.take()) == (None, 0, [])


def test_failures_are_counted_and_said_and_forgotten_when_it_works_again() -> None:
    with serving(says(http(PAGE, status="503 Busy"))) as server:
        one = reader(server.url())
        assert [one.read(), one.read()] == [False, False]
    assert (one.error, one.failures, one.take()) == ("it answers 503", 2, [])
    with serving(says(http(b"other 5\n"))) as server:
        one.url = server.url()
        assert not one.read()
        assert one.error is not None and "no token counter" in one.error
    with serving(says(http(PAGE))) as server:
        one.url = server.url()
        assert one.read()
    assert (one.error, one.failures, len(one.take())) == (None, 3, 1)


def test_what_comes_after_the_question_mark_is_shown_to_nobody() -> None:
    assert reader("http://h/m?key=hunter2").shown_url == "http://h/m"


def test_a_fault_of_ours_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(scraper, "fetch", broken)
    one = reader("http://h/m")
    assert not one.read()
    assert (one.error, one.failures) == ("fairsched could not read it, see its log", 1)


def test_a_page_that_hangs_keeps_no_other_waiting(wait_until: Wait) -> None:
    is_over = threading.Event()
    with serving(lambda _: wait(is_over)) as silent, serving(says(http(PAGE))) as well:
        slow = [reader(silent.url(), 20) for _ in range(4)]
        quick = reader(well.url())
        for one in (*slow, quick):
            one.start()
        try:
            got = []
            wait_until(lambda: got.extend(quick.take()) or len(got) >= 3, 20, "three readings")
            assert got[2][0] - got[0][0] < 8 * S
            assert all(one.failures == 0 and not one.take() for one in slow)
        finally:
            is_over.set()
            for one in (*slow, quick):
                one.close()


def wait(event: threading.Event) -> None:
    event.wait(20)


def test_a_reader_that_is_closed_reads_no_more(wait_until: Wait) -> None:
    with serving(says(http(PAGE))) as server:
        one = reader(server.url())
        one.start()
        wait_until(lambda: one.take(), 20, "it reads")
        one.close()
        wait_until(lambda: not one._thread.is_alive(), 20, "its thread ends")


def test_readings_that_nobody_picks_up_do_not_pile_up() -> None:
    with serving(says(http(PAGE))) as server:
        one = reader(server.url())
        for _ in range(scraper._MOST_WAITING + 5):
            assert one.read()
    assert len(one.take()) == scraper._MOST_WAITING
