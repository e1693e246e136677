# SPDX-License-Identifier: Apache-2.0
"""What is said of the daemon's account, of made-up runs whose answers can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fair.measures import measure
from benchmarks.fair.recording import AccountReading
from tests.unit.benchmarks.made_recordings import MS, Leaf, at, record, steps, turns, two


def reading(
    ms: float, said: Mapping[str, float], true: Mapping[str, float], **changed: Any
) -> AccountReading:
    made = AccountReading(
        at(ms),
        {leaf: round(value * MS) for leaf, value in said.items()},
        {leaf: round(value * MS) for leaf, value in true.items()},
        dict.fromkeys(true, "high"),
    )
    return replace(made, **changed)


def test_the_account_is_compared_by_what_it_grew_while_measured() -> None:
    readings = (
        reading(-900, {"a": 0, "b": 0}, {"a": 700, "b": 0}),
        reading(-5, {"a": 100, "b": 100}, {"a": 900, "b": 100}),
        reading(4000, {"a": 2140, "b": 2080}, {"a": 2900, "b": 2100}),
    )
    made = two("ab", accounts=readings)
    assert made.leaves["a"].account_error_ratio == pytest.approx(0.02)
    assert made.leaves["b"].account_error_ratio == pytest.approx(-0.01)
    assert made.whole.account_error_max_ratio == pytest.approx(0.02)


def test_too_small_an_account_is_an_error_as_well_and_who_has_gone_is_judged_until_then() -> None:
    zero = {"a": 0.0, "b": 0.0}
    readings = (
        reading(-5, {"a": 0.0}, zero),
        reading(100, {"a": 100.0, "b": 50.0}, {"a": 100.0, "b": 100.0}),
        reading(2000, {"a": 1000.0, "b": 950.0}, {"a": 1000.0, "b": 1100.0}),
        reading(4000, {"a": 2020.0}, {"a": 2000.0, "b": 1100.0}),
    )
    made = two("ab", accounts=readings)
    assert made.leaves["b"].account_error_ratio == pytest.approx(-0.1)
    assert made.whole.account_error_max_ratio == pytest.approx(0.1)


def test_an_account_that_says_it_is_unsure_is_not_held_against_it() -> None:
    true = {"a": 900.0, "b": 100.0}
    unsure = {"a": "low", "b": "high"}
    readings = (
        reading(-5, true, true),
        reading(2000, true, true, confidence=unsure),
        reading(4000, {"a": 9900.0, "b": 1130.0}, {"a": 1900.0, "b": 1100.0}),
    )
    made = two("ab", accounts=readings)
    assert made.leaves["a"].account_error_ratio == pytest.approx(8)
    assert made.leaves["a"].low_confidence_ratio == pytest.approx(1 / 3)
    assert made.leaves["b"].low_confidence_ratio == 0
    assert made.whole.account_error_max_ratio == pytest.approx(0.03)


def test_a_leaf_with_next_to_nothing_does_not_count_for_the_account() -> None:
    zero = {"a": 0.0, "b": 0.0}
    readings = (reading(-5, zero, zero), reading(4000, {"a": 1000.0, "b": 20.0}, {"a": 1000.0, "b": 10.0}))
    made = two("ab", accounts=readings)
    assert made.leaves["b"].account_error_ratio == pytest.approx(1)
    assert made.whole.account_error_max_ratio == pytest.approx(0)


def told(readings: str, errors: str, until_ms: int = 4000) -> tuple[AccountReading, ...]:
    """A reading every 500 ms for each letter: sure (h) or not (l). Two leaves have half of the GPU each; ``errors``: by
    what digit, times 10 %, the account of the first is too much in the half second that ends there."""
    found, said, true = [], 0.0, 0.0
    for number, (sure, error) in enumerate(zip(readings, errors, strict=True)):
        if number:
            true, said = true + 250.0, said + 250.0 * (1 + int(error) / 10)
        ms = until_ms - 500 * (len(readings) - 1 - number)
        confidence = {"a": "high" if sure == "h" else "low", "b": "high"}
        found.append(reading(ms, {"a": said, "b": true}, {"a": true, "b": true}, confidence=confidence))
    return tuple(found)


def test_an_account_is_judged_where_it_was_sure() -> None:
    """Measured from the fifth reading: two seconds unsure and wrong, then two that are sure."""
    made = two("ab", accounts=told("llllllllhhhhh", "0000099990111"))
    assert made.leaves["a"].account_error_ratio == pytest.approx((4 * 0.9 + 0.3) / 8)
    assert made.leaves["a"].account_error_sure_ratio == pytest.approx(0.3 / 4)
    short = two("ab", accounts=told("llllllllllhhh", "0000099990111"))
    assert short.leaves["a"].account_error_sure_ratio is None, "a second says nothing"
    assert short.leaves["b"].account_error_sure_ratio == pytest.approx(0)


def test_the_worst_two_seconds_that_were_sure_are_found_before_the_measured_part_too() -> None:
    """Sure and wrong for two seconds of what is played before; then it notices, and is right from there on."""
    made = two("ab", accounts=told("hhhhhllllllll" + "hhhhh", "044440000999900000"))
    assert made.leaves["a"].account_error_sure_max_ratio == pytest.approx(0.4)
    assert made.whole.account_error_sure_max_ratio == pytest.approx(0.4)
    assert made.whole.account_error_max_ratio == pytest.approx(0), "nobody but b was sure all the time"
    unsure = two("ab", accounts=told("hllllllllllll", "0999999999999"))
    assert unsure.leaves["a"].account_error_sure_max_ratio is None
    brief = two("ab", accounts=told("hhhlllhhlllll", "0440000000000"))
    assert brief.leaves["a"].account_error_sure_max_ratio == pytest.approx(0.4), "its longest stretch"


def test_two_sure_seconds_of_a_leaf_with_next_to_nothing_are_no_great_error() -> None:
    """10 ms of 2 s, accounted as 20: half a point of the GPU."""
    true = ({"a": 0.0, "b": 0.0}, {"a": 10.0, "b": 1990.0})
    readings = reading(0, true[0], true[0]), reading(2000, {"a": 20.0, "b": 1990.0}, true[1])
    assert two("ab", accounts=readings).leaves["a"].account_error_sure_max_ratio == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("readings", "errors", "unsettled_s"),
    [
        ("hhhhhhhhhhhhh", "0000000000000", 0.0),
        ("lhhhhhhhhhhhh", "0900000000000", 0.0),
        ("hhhllllllllll", "0999999999999", 1.5),
        ("hhhhhhhhhhhhh", "0999000000000", 3.0),
        ("hhhhhhhhhhhhh", "0999999999999", 6.0),
        ("lllhhhhhhlllh", "0000333330000", 2.5),
        ("hhhhhhhhhhhhh", "0000000011110", 0.0),
    ],
    ids=["right", "unsure and right", "unsure in time", "right in time", "never", "sure too soon", "nearly"],
)
def test_holds_before_the_account_is_right_or_unsure_and_while_it_is_wrong_are_counted(
    readings: str, errors: str, unsettled_s: float
) -> None:
    """Held for 100 ms at the beginning of each half second, b as well; the first reading is at -2 s."""
    held = [(-2000 + 500 * n, -1900 + 500 * n) for n in range(12)]
    leaves = {
        name: Leaf(ran=turns("ab", name, 0, 4000), steps=steps(0, 4000, 10), held=held) for name in "ab"
    }
    made = measure(record(leaves, ms=4000, accounts=told(readings, errors)))
    assert made.whole.account_unsettled_s == pytest.approx(unsettled_s)
    assert made.leaves["a"].held_unsettled_ms == pytest.approx(200 * unsettled_s)
    assert made.whole.held_unsettled_ms == pytest.approx(400 * unsettled_s)


def test_misbehaviour_is_timed_until_it_is_called_what_it_is() -> None:
    zero = {"a": 0.0, "b": 0.0}
    readings = tuple(
        reading(ms, zero, zero, misbehaviour={"a": "endless" if ms < 3000 else "unseen"})
        for ms in (1000, 2000, 3000)
    )
    assert two("ab", accounts=readings).leaves["a"].misbehaviour_after_s == pytest.approx(1.0)
    known = two("ab", accounts=readings, expected={"a": "unseen"})
    assert known.leaves["a"].misbehaviour_after_s == pytest.approx(3.0)
    assert known.misbehaviour == {"a": "endless"}, "what it was called first is told all the same"
    never = two("ab", accounts=readings[:2], expected={"a": "unseen"})
    assert never.leaves["a"].misbehaviour_after_s is None


def test_misbehaviour_is_timed_from_the_start_of_the_leaf() -> None:
    zero = {"a": 0.0, "b": 0.0}
    readings = tuple(
        reading(ms, zero, zero, misbehaviour={} if ms < 800 else {"a": f"endless kernel ({ms})"})
        for ms in (-5, 400, 800, 1200)
    )
    present = {"a": (at(-1000), at(4000)), "b": (at(0), at(4000))}
    made = two("ab", accounts=readings, present_ns=present)
    assert made.leaves["a"].misbehaviour_after_s == pytest.approx(1.8)
    assert made.misbehaviour == {"a": "endless kernel (800)"}
    assert made.leaves["b"].misbehaviour_after_s is None
    settling = (reading(-500, zero, zero, misbehaviour={"b": "unseen work"}), *readings)
    named = two("ab", accounts=settling, present_ns={**present, "b": (at(-900), at(4000))})
    assert named.leaves["b"].misbehaviour_after_s == pytest.approx(0.4), "while settling counts"


def test_how_long_it_took_until_it_was_said_that_nobody_can_be_sure() -> None:
    zero = {"a": 0.0, "b": 0.0}
    readings = (
        reading(-900, zero, zero, confidence={"a": "none", "b": "none"}),
        reading(-500, zero, zero, confidence={"a": "low", "b": "high"}),
        reading(2000, zero, zero, confidence={"a": "high", "b": "high"}),
    )
    made = two("ab", accounts=readings, present_ns={"a": (at(-1000), at(4000)), "b": (at(0), at(4000))})
    assert made.leaves["a"].unsure_after_s == pytest.approx(0.5), "while settling counts"
    assert made.leaves["b"].unsure_after_s is None


def test_who_was_named_is_gone_when_it_executes_no_more() -> None:
    zero = {"a": 0.0, "b": 0.0}
    named = {"a": "endless", "b": "endless"}
    readings = tuple(reading(ms, zero, zero, misbehaviour=named) for ms in (1000, 2000, 3000))
    leaves = {
        "a": Leaf(ran=turns("a", "a", 0, 4000), steps=steps(0, 4000, 10)),
        "b": Leaf(ran=turns("b", "b", 0, 2500), steps=steps(0, 2500, 10)),
    }
    made = measure(record(leaves, ms=4000, accounts=readings))
    assert made.leaves["b"].misbehaviour_gone_after_s == pytest.approx(1.5, abs=0.2)
    assert made.leaves["a"].misbehaviour_gone_after_s is None, "it is there to the end"
    unnamed = measure(record(leaves, ms=4000))
    assert unnamed.leaves["b"].misbehaviour_gone_after_s is None


def test_without_an_account_nothing_is_said_about_one() -> None:
    made = two("ab")
    assert made.whole.account_error_max_ratio is None
    assert made.leaves["a"].account_error_ratio is None and made.leaves["a"].low_confidence_ratio is None
