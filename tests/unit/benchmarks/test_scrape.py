# SPDX-License-Identifier: Apache-2.0
"""The figures of make bench-scrape, from made-up steps, stays and laps."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.scale_daemon import LATE, Lap
from benchmarks.scrape import BARS, RESULTS, Arm, delay_figures
from benchmarks.scrape_delay import Delay, bucket, quantile_ms, true_waits_ms
from fairsched.companion.exporter.family import BOUNDS
from fairsched.simgpu import Residency, Step

MS = 1_000_000


def step(start_ms: float, end_ms: float) -> Step:
    return Step(round(end_ms * MS), 1.0, round((end_ms - start_ms) * MS))


def stay(start_ms: float, end_ms: float) -> Residency:
    return Residency(1, round(start_ms * MS), round(end_ms * MS))


def test_a_piece_waits_before_each_of_its_turns() -> None:
    stays = [stay(10, 12), stay(14, 15), stay(25, 30)]
    steps = [step(8, 16), step(24, 30), step(40, 41)]
    waits = [2.0, 2.0, 1.0, 0.0, 0.0]
    assert true_waits_ms("decode", steps, stays, 0, 100 * MS, 2 * MS) == waits, "5 ms at once are three turns"
    assert true_waits_ms("decode", steps, stays, 20 * MS, 35 * MS, 2 * MS) == waits[2:], (
        "only what lies in the window"
    )


def test_a_step_of_a_trainer_begins_when_the_one_before_is_done() -> None:
    """Its log says when it was queued, which is steps ago."""
    stays = [stay(0, 10), stay(20, 30), stay(40, 50)]
    steps = [step(-30, 10), step(-20, 30), step(-10, 50)]
    assert true_waits_ms("trainer", steps, stays, 0, 100 * MS, 10 * MS) == [10.0, 10.0]


def test_a_quantile_is_that_of_prometheus() -> None:
    """Linear inside a bucket, and never beyond the last bound."""
    buckets = [(0.001, 10.0), (0.002, 10.0), (0.004, 30.0), (math.inf, 30.0)]
    assert quantile_ms(buckets, 0.5) == pytest.approx(2.5)
    assert quantile_ms(buckets, 1 / 6) == pytest.approx(0.5)
    assert quantile_ms([(0.001, 1.0), (math.inf, 100.0)], 0.99) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="nothing"):
        quantile_ms([(0.001, 0.0), (math.inf, 0.0)], 0.99)


def test_buckets_are_those_of_the_page() -> None:
    first, second = (float(bound) * 1e3 for bound in BOUNDS[:2])
    assert [bucket(ms) for ms in (0.0, first, second - 1e-6, second)] == [0, 1, 1, 2]
    found = delay_figures([Delay("a", "b", 5, 5, 1.0, 2.2), Delay("a", "c", 5, 5, 16.0, 9.0)])
    assert found["delay_buckets_off"] == 3, "the worst, in either direction"
    assert delay_figures([])["delay_buckets_off"] is None


def test_an_arm_has_the_ticks_of_its_windows() -> None:
    laps = [Lap("tick", at * MS, 2 * MS, MS) for at in range(100)]
    laps += [Lap("tick", 200 * MS, 50 * MS, MS), Lap(LATE, 5 * MS, -3, 0), Lap(LATE, 6 * MS, 4 * MS, 0)]
    arm = Arm()
    arm.add(laps, 0, 50 * MS)
    arm.add(laps, 50 * MS, 150 * MS)
    told = arm.figures()
    assert (told["ticks"], told["tick_p99_ms"], told["window_p99_ms"]) == (100, 2.0, [2.0, 2.0])
    assert told["late_p99_ms"] == 4.0


def test_the_figures_on_record_reach_their_bars_or_say_that_they_do_not() -> None:
    if not RESULTS.is_file():
        pytest.skip("no figures are kept: sudo make bench-scrape")
    found = json.loads(RESULTS.read_text())
    assert found["missed"] == [bar.key for bar in BARS if bar.is_met(found[bar.key]) is False]
    assert found["machine"]
    assert found["kernel"]
    assert not found["is_quick"]
