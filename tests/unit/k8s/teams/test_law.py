# SPDX-License-Identifier: Apache-2.0
"""The correction of teams' weights: never out of its bounds, converges, does not swing, and says nothing of nothing.

The plant is not the law's own model: teams on several GPUs, each divided by the weights of who is there, some of them
slowed down by what no weight can mend, and a window that forgets.
"""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.k8s.teams.law import (
    DEADBAND,
    Limits,
    Reading,
    errors_of,
    is_worth_writing,
    step,
    weight_of,
)

LIMITS = Limits()
ROUND_S = 5.0
weights = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.001, 1e6), min_size=1)
amounts = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e12)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[str, float], list[tuple[Reading | None, float, float]], Limits]:
    """Whatever may be read, in whatever order, at whatever pace."""
    nominal = draw(weights)
    reading = st.builds(
        Reading,
        st.dictionaries(st.sampled_from("abcdefg"), amounts),
        st.frozensets(st.sampled_from("abcdefg")),
    )
    one = st.tuples(st.none() | reading, st.floats(0, 1e5), st.floats(-10, 1e5))
    limits = Limits(draw(st.floats(0.1, 10)), draw(st.floats(60, 1e5)))
    return nominal, draw(st.lists(one, max_size=20)), limits


@settings(deadline=None)
@given(rounds(), st.dictionaries(st.sampled_from("abcdef"), st.floats(-100, 100)))
def test_no_reading_takes_a_weight_out_of_its_bounds(
    told: tuple[dict[str, float], list[tuple[Reading | None, float, float]], Limits], start: dict[str, float]
) -> None:
    nominal, sequence, limits = told
    bound = max(1.0, limits.bound)
    corrections = start
    for reading, silent_s, dt_s in sequence:
        corrections = step(corrections, nominal, reading, silent_s, dt_s, limits)
        assert corrections.keys() == nominal.keys()
        for team, value in corrections.items():
            weight = weight_of(nominal[team], value)
            assert nominal[team] / bound * 0.999 <= weight <= nominal[team] * bound * 1.001


class Plant:
    """Teams with pods on GPUs, each a share by weight of who is there; what was got is remembered for a window."""

    def __init__(self, seed: int, window_s: float) -> None:
        self.random = random.Random(seed)
        count = self.random.randint(2, 6)
        self.nominal = {f"t{index}": self.random.choice([0.5, 1, 1, 2, 3, 8]) for index in range(count)}
        gpus = self.random.randint(1, 8)
        self.here = [
            {
                team: self.random.choice([0.6, 0.8, 1, 1, 1.3])
                for team in self.nominal
                if self.random.random() < 0.7
            }
            for _ in range(gpus)
        ]
        """For each GPU who is there, and what becomes of its weight there by what nobody sees."""
        self.past: deque[dict[str, float]] = deque(maxlen=max(1, round(window_s / ROUND_S)))
        self.sums = dict.fromkeys(self.nominal, 0.0)

    def run(self, written: dict[str, float]) -> Reading:
        got = dict.fromkeys(self.nominal, 0.0)
        for gpu in self.here:
            total = sum(written[team] * factor for team, factor in gpu.items())
            for team, factor in gpu.items():
                got[team] += ROUND_S * written[team] * factor / total
        old = self.past[0] if len(self.past) == self.past.maxlen else {}
        self.past.append(got)
        self.sums = {team: self.sums[team] + got[team] - old.get(team, 0.0) for team in self.nominal}
        return Reading(dict(self.sums), {team for gpu in self.here for team in gpu})


@pytest.mark.parametrize("window_s", [60.0, 600.0])
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_on_any_mix_it_comes_to_rest_and_stays_there(window_s: float, seed: int) -> None:
    """After three windows nothing is written any more, whoever is where."""
    plant, limits = Plant(seed, window_s), Limits(window_s=window_s)
    written, corrections = dict(plant.nominal), dict.fromkeys(plant.nominal, 0.0)
    last_write = 0
    total = round(6 * window_s / ROUND_S) + 60
    for number in range(total):
        corrections = step(corrections, plant.nominal, plant.run(written), 0, ROUND_S, limits)
        for team, nominal in plant.nominal.items():
            wanted = weight_of(nominal, corrections[team])
            if is_worth_writing(written[team], wanted, nominal):
                written[team], last_write = wanted, number
    assert last_write <= total / 2 + 30, "it is at rest"


def test_a_team_that_is_held_back_gets_a_part_of_it_back_and_no_more() -> None:
    """One of two equal teams comes to 40 % for what no weight can see; the law says where between that and a half."""
    nominal, written, corrections = {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0}
    past: deque[dict[str, float]] = deque(maxlen=120)
    for _ in range(1000):
        a, b = written["a"] * 2 / 3, written["b"]
        past.append({"a": a / (a + b), "b": b / (a + b)})
        seconds = {team: ROUND_S * sum(one[team] for one in past) for team in nominal}
        corrections = step(corrections, nominal, Reading(seconds, frozenset()), 0, ROUND_S, LIMITS)
        written = {team: weight_of(1.0, corrections[team]) for team in nominal}
    odds = math.log(past[-1]["a"] / past[-1]["b"])
    assert odds == pytest.approx(math.log(2 / 3) / 1.8, abs=0.01)


def test_noise_of_a_twentieth_writes_nothing() -> None:
    rng = random.Random(7)
    nominal, corrections, writes = {"a": 3.0, "b": 1.0}, {"a": 0.0, "b": 0.0}, 0
    written = dict(nominal)
    for _ in range(5000):
        seconds = {"a": 300 * rng.uniform(0.975, 1.025), "b": 100 * rng.uniform(0.975, 1.025)}
        corrections = step(corrections, nominal, Reading(seconds, frozenset()), 0, ROUND_S, LIMITS)
        for team in nominal:
            wanted = weight_of(nominal[team], corrections[team])
            if is_worth_writing(written[team], wanted, nominal[team]):
                written[team], writes = wanted, writes + 1
    assert writes == 0


def test_a_lasting_error_is_answered_within_twenty_seconds() -> None:
    corrections = {"a": 0.0, "b": 0.0}
    reading = Reading({"a": 10.0, "b": 590.0}, {"a", "b"})
    for _ in range(4):
        corrections = step(corrections, {"a": 1, "b": 1}, reading, 0, ROUND_S, LIMITS)
    assert abs(corrections["a"] - math.log(2)) < DEADBAND


@pytest.mark.parametrize(
    "reading",
    [
        Reading({}, frozenset()),
        Reading({"a": 0.9}, {"a", "b"}),
        Reading({"a": 500.0}, {"a"}),
        Reading({"other": 500.0, "more": 10.0}, {"other", "more"}),
    ],
)
def test_what_says_nothing_changes_nothing(reading: Reading) -> None:
    """No data, next to none, one team alone, teams that are nobody's."""
    before = {"a": 0.4, "b": -0.2}
    assert step(before, {"a": 1, "b": 2}, reading, 0, ROUND_S, LIMITS) == before
    assert errors_of({"a": 1, "b": 2}, reading) is None


def test_a_part_that_is_none_as_a_number_is_a_large_error() -> None:
    found = errors_of({"a": 1, "b": 1}, Reading({"a": 5e-324, "b": 1e12}, frozenset()))
    assert found is not None
    assert found["a"] > 700 and found["b"] == pytest.approx(-0.693, abs=1e-3)


def test_silence_holds_for_the_window_and_then_goes_back_to_nominal() -> None:
    before = {"a": 0.4, "b": -0.2}
    assert step(before, {"a": 1, "b": 2}, None, 600, ROUND_S, LIMITS) == before
    after = step(before, {"a": 1, "b": 2}, None, 601, ROUND_S, LIMITS)
    assert after == {"a": pytest.approx(0.2), "b": pytest.approx(-0.1)}, "half of it in a half-life"
    for _ in range(40):
        after = step(after, {"a": 1, "b": 2}, None, 1000, ROUND_S, LIMITS)
    assert [weight_of(1, after["a"]), weight_of(2, after["b"])] == [1, 2]


def test_a_team_that_got_nothing_and_wanted_is_raised_to_the_bound_and_no_further() -> None:
    corrections = {"a": 0.0, "b": 0.0}
    for _ in range(100):
        corrections = step(corrections, {"a": 1, "b": 1}, Reading({"b": 100}, {"a"}), 0, ROUND_S, LIMITS)
    assert weight_of(1, corrections["a"]) == pytest.approx(2)


def test_an_idle_team_is_no_reason_and_loses_its_correction() -> None:
    corrections = {"a": 0.0, "b": 0.0, "idle": 0.5}
    reading = Reading({"a": 100.0, "b": 100.0}, {"a", "b"})
    for _ in range(40):
        corrections = step(corrections, {"a": 1, "b": 1, "idle": 50}, reading, 0, ROUND_S, LIMITS)
    assert max(abs(value) for value in corrections.values()) < 1e-3
