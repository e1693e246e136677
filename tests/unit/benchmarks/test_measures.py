# SPDX-License-Identifier: Apache-2.0
"""The figures of made-up runs whose answers can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmarks.fair.against import beside_solo
from benchmarks.fair.measures import LeafMeasures, measure
from benchmarks.fair.recording import Recording
from tests.unit.benchmarks.made_recordings import MS, Leaf, Part, S, record, steps, turns, two

BUSY = steps(0, 20_000, 10)


# ---- shares, lag, Jain ----


def test_three_to_one_as_promised_is_without_error() -> None:
    made = two("aaab", (3.0, 1.0))
    assert made.leaves["a"].share_ratio == pytest.approx(0.75)
    assert made.leaves["a"].entitlement_ratio == pytest.approx(0.75)
    assert made.whole.share_error_max_points == pytest.approx(0, abs=1e-6)
    assert made.whole.jain_1s_mean == made.whole.jain_1s_worst == pytest.approx(1)
    assert made.whole.lag_max_ns is not None and made.whole.lag_max_ns < 3 * MS
    assert made.whole.busy_ratio == pytest.approx(1)
    assert made.whole.jain_10s_mean is None, "there are no ten seconds"


def test_equal_turns_of_unequal_weights_are_an_error_with_a_sign() -> None:
    made = two("ab", (3.0, 1.0), ms=12_000)
    assert made.leaves["a"].share_error_points == pytest.approx(-25)
    assert made.leaves["b"].share_error_points == pytest.approx(25)
    assert made.whole.share_error_max_points == pytest.approx(25)
    assert made.whole.lag_max_ns == pytest.approx(3 * S, rel=1e-3)
    assert made.leaves["b"].lag_max_ns == pytest.approx(3 * S, rel=1e-3), "too much is a lag as well"
    x, y = 0.5 / 0.75, 0.5 / 0.25
    expected = (x + y) ** 2 / (2 * (x * x + y * y))
    assert made.whole.jain_1s_mean == pytest.approx(expected, rel=1e-3)
    assert made.whole.jain_10s_worst == pytest.approx(expected, rel=1e-3)


def test_shares_are_of_what_was_delivered() -> None:
    made = two("aaab....", (3.0, 1.0))
    assert made.whole.share_error_max_points == pytest.approx(0, abs=1e-6)
    assert made.leaves["b"].share_ratio == pytest.approx(0.25)
    assert made.whole.busy_ratio == pytest.approx(0.5)


def test_the_worst_second_is_found_where_it_is() -> None:
    """Fair but for one second that begins at 3.3 s: there one has it all."""
    ran = {name: turns("ab", name, 0, 3300) + turns("ab", name, 4300, 8000) for name in "ab"}
    ran["a"] = sorted([*ran["a"], (3300, 4300)])
    leaves = {name: Leaf(ran=ran[name], steps=steps(0, 8000, 10)) for name in "ab"}
    whole = measure(record(leaves, ms=8000)).whole
    assert whole.jain_1s_worst == pytest.approx(0.5, abs=1e-6)
    assert whole.jain_1s_mean is not None and whole.jain_1s_mean > 0.85


def test_windows_in_which_a_leaf_wanted_a_part_of_the_time_do_not_count_for_jain() -> None:
    short: list[Part] = [(1000 * n + 200, 1000 * n + 250) for n in range(4)]
    leaves = {
        "a": Leaf(ran=[(0, 4000)], steps=steps(0, 4000, 10)),
        "b": Leaf(steps=short, waited=short),
    }
    assert measure(record(leaves, ms=4000)).whole.jain_1s_mean is None


def test_a_late_joiner_is_owed_nothing_before_it_came() -> None:
    leaves = {
        "a": Leaf(ran=[(0, 2000), *turns("ab", "a", 2000, 6000)], steps=steps(0, 6000, 10)),
        "b": Leaf(ran=turns("ab", "b", 2000, 6000), steps=steps(2000, 6000, 10), present=(1900, 6000)),
    }
    made = measure(record(leaves, ms=6000))
    assert made.leaves["a"].share_ratio == pytest.approx(4 / 6)
    assert made.leaves["b"].entitlement_ratio == pytest.approx(2 / 6)
    assert made.whole.share_error_max_points == pytest.approx(0, abs=0.05)
    assert made.whole.jain_1s_worst == pytest.approx(1, abs=1e-4), "windows without b do not count"
    assert made.leaves["b"].tokens_per_s == pytest.approx(100 * 4000 / 4100), "while it was there"


def test_each_gpu_is_judged_by_itself() -> None:
    """Each has half of all GPU time, and each is wronged on one GPU."""
    leaves = {
        "a": Leaf(ran=turns("aaab", "a", 0, 2000), steps=steps(0, 2000, 10)),
        "b": Leaf(ran=turns("aaab", "b", 0, 2000), steps=steps(0, 2000, 10)),
        "c": Leaf(ran=turns("cd", "c", 0, 2000), steps=steps(0, 2000, 10), gpu=1),
        "d": Leaf(ran=turns("cd", "d", 0, 2000), steps=steps(0, 2000, 10), gpu=1),
    }
    made = measure(record(leaves, ms=2000))
    assert made.gpus[0]["leaves"]["b"]["share_error_points"] == pytest.approx(-25)
    assert made.gpus[1]["leaves"]["c"]["share_error_points"] == pytest.approx(0, abs=1e-6)
    assert made.whole.share_error_max_points == pytest.approx(25)
    assert made.gpus[1]["busy_ratio"] == pytest.approx(1)
    assert made.series["busy"][0] == pytest.approx(1)
    assert made.whole.jain_1s_worst == pytest.approx(0.8, rel=1e-3)


def test_a_leaf_on_two_gpus_is_judged_on_the_one_where_it_is_worst() -> None:
    """a has .25 of one and .6 of the other; both are to have half of each."""
    leaves = {
        "a": Leaf(ran=turns("abbb", "a", 0, 2000), steps=steps(0, 2000, 10)),
        "b": Leaf(ran=turns("abbb", "b", 0, 2000), steps=steps(0, 2000, 10)),
        "c": Leaf(ran=turns("cdcdc", "c", 0, 2000), steps=steps(0, 2000, 10), gpu=1),
        "d": Leaf(ran=turns("cdcdc", "d", 0, 2000), steps=steps(0, 2000, 10), gpu=1),
    }
    made = measure(renamed(record(leaves, ms=2000), {"a": "a", "b": "b", "c": "a", "d": "b"}))
    assert made.leaves["a"].share_error_points == pytest.approx(-25)
    assert made.leaves["a"].share_ratio == pytest.approx((0.25 + 0.6) / 2)
    assert made.gpus[1]["leaves"]["a"]["share_error_points"] == pytest.approx(10)
    assert made.leaves["a"].tokens_per_s == pytest.approx(200)


def renamed(made: Recording, names: Mapping[str, str]) -> Recording:
    """Leaves that get the same name are one."""

    def counters(given: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return {(names[leaf], gpu): value for (leaf, gpu), value in given.items()}

    return replace(
        made,
        leaves=tuple(dict.fromkeys(names.values())),
        stays=tuple(replace(stay, leaf=names[stay.leaf]) for stay in made.stays),
        samples=tuple(
            replace(s, exec_ns=counters(s.exec_ns), wait_ns=counters(s.wait_ns)) for s in made.samples
        ),
        steps={
            new: tuple(log for old, logs in made.steps.items() if names[old] == new for log in logs)
            for new in names.values()
        },
    )


def test_the_gain_of_a_hostile_leaf_is_its_share_beyond_what_was_fair() -> None:
    leaves = {
        "a": Leaf(ran=turns("aab", "a", 0, 3000), is_always_wanting=True, is_hostile=True),
        "b": Leaf(ran=turns("aab", "b", 0, 3000), steps=steps(0, 3000, 10)),
    }
    made = measure(record(leaves, ms=3000))
    assert made.leaves["a"].gain_points == pytest.approx(100 / 6)
    assert made.leaves["b"].gain_points is None, "nobody asked"
    clumsy = {**leaves, "b": replace(leaves["b"], is_hostile=True)}
    assert measure(record(clumsy, ms=3000)).leaves["b"].gain_points == pytest.approx(-100 / 6)


# ---- tokens and steps ----


def test_a_steady_leaf_has_no_variation_though_its_steps_do_not_fit_the_seconds() -> None:
    leaves = {"a": Leaf(ran=[(0, 20_000)], steps=steps(0, 20_000, 1000 / 14.3))}
    made = measure(record(leaves, ms=19_000))
    assert made.leaves["a"].tokens_per_s == pytest.approx(14.3)
    cv = made.leaves["a"].tokens_cv_ratio
    assert cv is not None and cv < 1e-4


def test_variation_in_time_is_over_the_seconds_in_which_it_wanted() -> None:
    """100, 100, nothing wanted, 50, 50 tokens."""
    work = [*steps(0, 2000, 10), *steps(3000, 5000, 20)]
    made = measure(record({"a": Leaf(ran=work, steps=work)}, ms=5000))
    assert made.leaves["a"].tokens_cv_ratio == pytest.approx((4 * 625 / 3) ** 0.5 / 75, rel=1e-3)
    short = measure(record({"a": Leaf(ran=work, steps=work)}, ms=2900))
    assert short.leaves["a"].tokens_cv_ratio is None, "two seconds are too few"


def test_variation_across_the_leaves_of_a_group() -> None:
    leaves = {
        "a": Leaf(ran=turns("abc", "a", 0, 3000), steps=steps(0, 3000, 10)),
        "b": Leaf(ran=turns("abc", "b", 0, 3000), steps=steps(0, 3000, 20)),
        "c": Leaf(ran=turns("abc", "c", 0, 3000), steps=steps(0, 3000, 10)),
    }
    made = record(leaves, ms=3000)
    assert measure(made, equal_groups=[["a", "c"]]).whole.tokens_cv_across_ratio == pytest.approx(0, abs=1e-9)
    unequal = measure(made, equal_groups=[["a", "b"], ["a", "c"]]).whole.tokens_cv_across_ratio
    assert unequal == pytest.approx(1250**0.5 / 75)
    cost = {"a": 1.0 * MS, "b": 2.0 * MS}
    assert measure(
        made, equal_groups=[["a", "b"]], token_cost_ns=cost
    ).whole.tokens_cv_across_ratio == pytest.approx(0, abs=1e-9)


def test_step_latencies_are_of_the_steps_that_ended_in_the_measured_part() -> None:
    work: list[Part] = [(-500, -100), *steps(0, 990, 9.9), (990, 1990), (2010, 9000)]
    made = measure(record({"a": Leaf(ran=work, steps=work)}, ms=2000)).leaves["a"]
    assert made.step_p50_ms == pytest.approx(9.9)
    assert made.step_p99_ms == pytest.approx(9.9) and made.step_p95_ms == pytest.approx(9.9)
    assert (
        len(measure(record({"a": Leaf(ran=work, steps=work)}, ms=2000)).series["latency_cdf_ms"]["a"]) == 101
    )
    assert (
        measure(record({"a": Leaf(ran=work, steps=work)}, ms=2000)).series["latency_cdf_ms"]["a"][-1] == 1000
    )


def latencies(made: Recording, leaf: str = "a") -> list[float]:
    found: list[float] = measure(made).series["latency_cdf_ms"].get(leaf, [])
    return found


def test_a_step_under_way_at_the_end_counts_with_all_that_is_known_of_it() -> None:
    """Eight of 100 ms, then one that took until long after the end."""
    work: list[Part] = [*steps(0, 800, 100), (800, 2600)]
    assert latencies(record({"a": Leaf(ran=work, steps=work)}, ms=1000))[-1] == 1800
    gone = record({"a": Leaf(ran=work, steps=work, present=(0, 900))}, ms=1000)
    assert latencies(gone)[-1] == 100, "it was killed: nobody waits any more"


def test_a_step_that_nobody_ever_saw_the_end_of_is_as_old_as_the_pause_before_it_allows() -> None:
    """The first of two processes ended its last step at 400 ms; the loop's pause is of 50."""
    logs = [steps(0, 400, 100), steps(0, 1100, 100)]
    made = record({"a": Leaf(ran=[(0, 1000)], steps=logs)}, ms=1000)
    thinking = replace(made, think_ns={"a": (50 * MS, 50 * MS)})
    assert latencies(thinking)[-1] == 550
    assert latencies(replace(made, think_ns={"a": (700 * MS, 50 * MS)}))[-1] == 100, "it thinks still"
    starved = record({"a": Leaf(steps=[(-50, -10)], waited=[(0, 2000)])}, ms=2000)
    only = measure(replace(starved, think_ns={"a": (0,)})).leaves["a"]
    assert only.step_p50_ms == only.step_p99_ms == pytest.approx(2010), (
        "it has a latency, though no step ended"
    )
    assert only.queue_delay_ms is None, "but no step to divide by"


def test_where_steps_come_by_a_clock_one_is_under_way_while_the_engine_says_so() -> None:
    clocked = Leaf(ran=[(0, 200)], steps=[[(100, 200)], [(0, 100)]], waited=[(500, 1100)])
    assert latencies(record({"a": clocked}, ms=1000))[-1] == pytest.approx(500), "since work was seen to wait"
    idle = Leaf(ran=[(0, 200)], steps=[[(100, 200)], [(0, 100)]])
    assert latencies(record({"a": idle}, ms=1000))[-1] == 100, "nothing had arrived"


def test_queue_delay_is_the_time_the_engine_let_it_wait() -> None:
    leaves = {
        "a": Leaf(
            ran=turns("ab", "a", 0, 2000), waited=turns("ab", "b", 0, 2000), steps=[*steps(0, 1000, 10)]
        ),
        "b": Leaf(ran=turns("ab", "b", 0, 2000), steps=steps(0, 2000, 10)),
    }
    made = measure(record(leaves, ms=2000))
    assert made.leaves["a"].wait_ratio == pytest.approx(0.5, rel=0.01)
    assert made.leaves["a"].queue_delay_ms == pytest.approx(1000 / 100)
    assert made.leaves["b"].wait_ratio == 0


# ---- holds ----


def test_holds_and_what_ran_during_them() -> None:
    """Two holds: 100 ms with a drain of 12 ms, 300 ms with one of 4 ms; a third began before."""
    ran: list[Part] = [(0, 1000), (1000, 1012), (1100, 2000), (2000, 2004), (2300, 4000)]
    leaf = Leaf(ran=ran, steps=steps(0, 4000, 10), held=[(-600, -10), (-200, 50), (1000, 1100), (2000, 2300)])
    made = measure(record({"a": leaf}, ms=4000))
    assert made.leaves["a"].held_ms_per_s == pytest.approx((50 + 100 + 300) / 4)
    assert made.leaves["a"].holds_per_s == pytest.approx(2 / 4)
    assert made.leaves["a"].hold_longest_ms == pytest.approx(650), "two that overlap are one"
    assert made.leaves["a"].drain_overshoot_p50_ms == pytest.approx(8, abs=0.01)
    assert made.leaves["a"].drain_overshoot_p95_ms == pytest.approx(4 + 0.95 * 8, abs=0.01)
    assert made.whole.held_ms_per_s == pytest.approx((50 + 100 + 300) / 4)


def test_without_holds_there_is_nothing_to_tell_of_them() -> None:
    made = two("ab").leaves["a"]
    assert made.held_ms_per_s == 0 and made.holds_per_s == 0
    assert made.hold_longest_ms is None and made.drain_overshoot_p95_ms is None


# ---- what is handed on ----


def test_the_document_is_json_of_numbers_and_none() -> None:
    made = two("ab", ms=12_000, cpu_ratio=0.02, rss_bytes=1000).to_dict()
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    for section in (made["whole"], *made["leaves"].values()):
        assert all(value is None or type(value) in (int, float) for value in section.values())
    assert len(json.dumps(made)) < 40_000


def test_series_show_when_it_happened() -> None:
    """Two seconds of a : b = 1 : 1, then a has it all."""
    leaves = {
        "a": Leaf(ran=[*turns("ab", "a", 0, 2000), (2000, 4000)], steps=steps(0, 4000, 10)),
        "b": Leaf(ran=turns("ab", "b", 0, 2000), steps=[*steps(0, 2000, 20), (2000, 4100)]),
    }
    series = measure(record(leaves, ms=4000)).series
    assert series["at_s"][0] == 1.0 and series["at_s"][-1] == 4.0 and len(series["at_s"]) == 31
    assert series["share"]["b"][0] == pytest.approx(0.5) and series["share"]["b"][-1] == pytest.approx(0)
    assert series["share"]["b"][15] == pytest.approx(0.25, abs=0.01)
    assert series["entitlement"]["b"] == pytest.approx([0.5] * 31, abs=1e-3)
    assert series["tokens_per_s"]["b"][0] == pytest.approx(50)
    assert series["jain_1s"][0] == pytest.approx(1) and series["jain_1s"][-1] == pytest.approx(0.5)
    assert series["busy"] == pytest.approx([1.0] * 31)


def test_nothing_happened_is_a_measurement_too() -> None:
    made = measure(record({"a": Leaf(), "b": Leaf()}, ms=2000, present_ns={}))
    assert made.whole.share_error_max_points is None and made.whole.jain_1s_mean is None
    assert made.leaves["a"] == replace(
        LeafMeasures(**dict.fromkeys(LeafMeasures.__dataclass_fields__)),  # type: ignore[arg-type]
        held_ms_per_s=0.0,
        holds_per_s=0.0,
        take_backs=0,
    )
    assert made.whole.busy_ratio == 0


def test_the_steps_of_a_leaf_stand_beside_those_it_makes_alone() -> None:
    mine = two("ab").to_dict()["leaves"]["a"]
    alone = measure(record({"a": Leaf(ran=BUSY, steps=steps(0, 4000, 5))}, ms=4000)).to_dict()["leaves"]["a"]
    beside = beside_solo(mine, alone)
    assert beside["step_p99_vs_solo_ratio"] == beside["step_p50_vs_solo_ratio"] == pytest.approx(2)
    assert beside["step_p99_solo_ms"] == pytest.approx(5)
    assert set(beside_solo(mine, {}).values()) == {None}
    assert beside_solo({**mine, "step_p50_ms": None}, alone)["step_p50_vs_solo_ratio"] is None


def test_the_worst_ten_seconds_of_who_always_wants_tell_a_lock_out() -> None:
    """Served in turns, then not at all for eight seconds."""
    gap = {"a": [*turns("ab", "a", 0, 12_000), (12_000, 20_000)], "b": turns("ab", "b", 0, 12_000)}
    leaves = {name: Leaf(ran=ran, is_always_wanting=True) for name, ran in gap.items()}
    made = measure(record(leaves, ms=20_000))
    assert made.leaves["b"].least_of_due_10s_ratio == pytest.approx(0.2, abs=0.01)
    assert made.leaves["a"].least_of_due_10s_ratio == pytest.approx(1, abs=0.01)
    assert made.whole.least_of_due_10s_ratio == made.leaves["b"].least_of_due_10s_ratio


def test_who_wants_nothing_for_a_while_is_not_locked_out_meanwhile() -> None:
    leaves = {
        "a": Leaf(ran=[(0, 20_000)], is_always_wanting=True),
        "b": Leaf(ran=[(0, 100)], steps=[(0, 100)]),
    }
    assert measure(record(leaves, ms=20_000)).leaves["b"].least_of_due_10s_ratio is None
    assert two("ab").whole.least_of_due_10s_ratio is None, "there are no ten seconds"
