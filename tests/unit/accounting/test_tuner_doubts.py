# SPDX-License-Identifier: Apache-2.0
"""What a drain in doubt has touched does not judge a nature: its length was estimated with the nature in question."""

from __future__ import annotations

from fairsched.accounting.tuner import Fit, Tape, fit

MS = 1_000_000
ASSUMED = (2 * MS, 100_000)
LAUNCHES = 10


def beside_doubt(sure: int) -> Fit | None:
    """Of bursts alone on the GPU: ``sure`` equal ones, and 40 of lengths that only a wrong drain explains."""
    tape, now = Tape([("add", ("a", (0,))), ("add", ("b", (1,)))]), 0
    for number in range(sure + 40):
        is_doubtful = number >= sure
        tape.note("open", "a", now)
        tape.note("begin", "a")
        if is_doubtful:
            tape.note("doubt", "b", True)
        now += (9 if is_doubtful and number % 2 else 3) * MS
        tape.note("close", "a", now, True)
        tape.note("burst", "a", LAUNCHES, True)
        if is_doubtful and number % 3:  # it may end with the burst, or go on beyond it
            tape.note("doubt", "b", False)
    return fit(tape, *ASSUMED)


def test_bursts_beside_a_drain_in_doubt_count_only_where_there_are_too_few_others() -> None:
    many, few = beside_doubt(24), beside_doubt(23)
    assert many is not None and few is not None
    assert many.scatter == 0
    assert few.scatter > 0.3


def test_a_burst_in_which_a_doubt_ended_was_beside_it() -> None:
    tape, now = Tape([("add", ("a", (0,))), ("add", ("b", (1,)))]), 0
    for number in range(60):
        tape.note("doubt", "b", True)
        tape.note("open", "a", now)
        tape.note("begin", "a")
        tape.note("doubt", "b", False)
        now += (9 if number % 2 else 3) * MS
        tape.note("close", "a", now, True)
        tape.note("burst", "a", LAUNCHES, True)
        if number < 30:  # beside nobody
            tape.note("open", "a", now)
            tape.note("begin", "a")
            now += 6 * MS
            tape.note("close", "a", now, True)
            tape.note("burst", "a", LAUNCHES, True)
    found = fit(tape, *ASSUMED)
    assert found is not None
    assert found.scatter == 0


def test_bursts_beside_a_doubt_that_was_there_before_and_stays_are_beside_it() -> None:
    tape, now = Tape([("add", ("a", (0,))), ("add", ("b", (1,)))]), 0
    for number in range(70):
        if number == 30:
            tape.note("doubt", "b", True)
        tape.note("open", "a", now)
        tape.note("begin", "a")
        now += (9 if number > 30 and number % 2 else 3) * MS
        tape.note("close", "a", now, True)
        tape.note("burst", "a", LAUNCHES, True)
    found = fit(tape, *ASSUMED)
    assert found is not None
    assert found.scatter == 0


def test_anchors_beside_a_doubt_do_not_judge_a_nature() -> None:
    def anchors(*, is_doubted: bool) -> int:
        tape, now = Tape([("add", (key, (rank,))) for rank, key in enumerate("abc")]), 0
        if is_doubted:
            tape.start.append(("doubt", ("c", True)))
        for _ in range(30):
            for key in "ab":
                tape.note("open", key, now)
                tape.note("begin", key)
            now += 6 * MS
            for key in "ab":
                tape.note("close", key, now, True)
                tape.note("burst", key, LAUNCHES, True)
        found = fit(tape, *ASSUMED)
        assert found is not None
        return found.anchors

    assert anchors(is_doubted=False) == 30
    assert anchors(is_doubted=True) == 0
