# SPDX-License-Identifier: Apache-2.0
"""The bars, and that a judge can neither be fooled by a missing figure nor by another run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.fair.bars import BARS, Verdict, judge, missed, number, scale_of, show
from tests.unit.benchmarks.made_results import LEAF, WHOLE, document

PROMISED = {
    ("seed-4", "tokens_cv_across_ratio", 0.015),
    ("seed-4", "busy_ratio", 0.98),
    ("equal-4", "tokens_cv_ratio", 0.03),
    ("weights-4211", "share_error_max_points", 1.0),
    ("caps-30-70", "share_error_max_points", 1.0),
    ("caps-10-90", "share_error_max_points", 1.0),
    ("servers-vs-trainer", "share_error_max_points", 1.0),
    ("weights-4211", "jain_1s_mean", 0.98),
    ("servers-vs-trainer", "jain_10s_mean", 0.995),
    ("latency-vs-batch*", "step_p99_ms", 100.0),
    ("latency-vs-batch*", "hold_longest_ms", 500.0),
    ("bursty-owner*", "take_back_beyond_drain_p95_ms", 50.0),
    ("idle-lending*", "tokens_per_s", 0.985),
    ("caps-on-off", "share_error_max_points", 1.0),
    ("min-beside-heavy", "share_error_max_points", 1.0),
    ("graphs", "share_error_max_points", 1.0),
    ("longkernel-*", "share_error_max_points", 1.0),
    ("nested", "share_error_max_points", 1.0),
    ("quota-below-share", "share_error_max_points", 1.0),
    ("tenants-32", "share_error_max_points", 1.0),
    ("hostile-*", "gain_points", 2.0),
    ("hostile-*", "gain_points", -5.0),
    ("beyond-*", "misbehaviour_after_s", 5.0),
    ("beyond-endless*", "misbehaviour_gone_after_s", 6.0),
    ("hostile-pinned", "unsure_after_s", 5.0),
    ("escape-*", "misbehaviour_after_s", 5.0),
    ("two-gpus*", "share_error_max_points", 1.5),
    ("nature-*", "share_error_max_points", 5.0),
    ("nature-*", "account_error_ratio", 0.05),
}


def the(verdicts: list[Verdict], figure: str, scenario: str, *, is_upper: bool | None = None) -> Verdict:
    """``is_upper``: which side of a figure that has a bar on both."""
    (found,) = [
        v
        for v in verdicts
        if v.bar.figure == figure and v.scenario == scenario and is_upper in (None, v.bar.is_upper)
    ]
    return found


def judged(figure: str, *documents: Mapping[str, Any], is_upper: bool | None = None) -> Verdict:
    return the(judge(documents), figure, documents[0]["scenario"], is_upper=is_upper)


def test_everything_that_was_promised_has_a_bar() -> None:
    assert {(bar.scenarios, bar.figure, bar.limit) for bar in BARS} >= PROMISED


def test_every_bar_is_of_a_figure_that_runs_have_and_fits_its_column() -> None:
    for bar in BARS:
        assert bar.figure in {**WHOLE, **LEAF}
        assert len(bar.what) <= 24


def test_without_results_nothing_is_met_and_nothing_missed() -> None:
    verdicts = judge([], names=["hostile-fork", "hostile-ptrace"])
    assert {verdict.state for verdict in verdicts} == {"not measured"}
    assert {v.scenario for v in verdicts if v.bar.scenarios == "hostile-*"} == {
        "hostile-fork",
        "hostile-ptrace",
    }
    assert {bar.scenarios for bar in BARS} - {"hostile-*"} <= {verdict.scenario for verdict in verdicts}
    assert missed(verdicts) == []


@pytest.mark.parametrize(
    ("values", "state"),
    [((0.99, 0.99), "met"), ((0.5, 1.5), "met"), ((0.5, 1.6), "missed"), ((1.1, 1.1), "missed")],
)
def test_the_mean_over_seeds_is_judged(values: tuple[float, float], state: str) -> None:
    runs = [
        document("weights-4211", seed=seed, whole={"share_error_max_points": value})
        for seed, value in enumerate(values)
    ]
    assert judged("share_error_max_points", *runs).state == state


def test_a_lower_bar_is_missed_below_it() -> None:
    assert judged("jain_1s_mean", document("caps-10-90", whole={"jain_1s_mean": 0.98})).state == "met"
    verdict = judged("jain_1s_mean", document("caps-10-90", whole={"jain_1s_mean": 0.979}))
    assert verdict.state == "missed"
    assert missed([verdict]) == [verdict]


def test_only_our_own_runs_are_judged() -> None:
    worse = [
        document("caps-10-90", policy=p, whole={"share_error_max_points": 30.0}) for p in ("none", "token")
    ]
    assert judged("share_error_max_points", *worse).state == "not measured"
    verdict = judged("share_error_max_points", document("caps-10-90"), *worse)
    assert verdict.state == "met"
    assert verdict.without is not None and verdict.without.mean == 30.0


def test_a_seed_without_the_figure_does_not_improve_the_mean() -> None:
    runs = [document("caps-10-90"), document("caps-10-90", seed=2, whole={"share_error_max_points": None})]
    verdict = judged("share_error_max_points", *runs)
    assert (verdict.state, verdict.note) == ("not measured", "known in 1 of 2 seeds only")


def test_busy_is_compared_with_the_run_of_the_same_seed() -> None:
    def runs(*busy: tuple[int, str, float]) -> list[dict[str, Any]]:
        return [document(policy=p, seed=s, whole={"busy_ratio": value}) for s, p, value in busy]

    both = runs((1, "fairsched", 0.5), (1, "none", 0.5), (2, "fairsched", 0.9), (2, "none", 0.9))
    verdict = judged("busy_ratio", *both)
    assert verdict.state == "met" and verdict.value is not None and verdict.value.mean == 1.0
    assert judged("busy_ratio", *runs((1, "fairsched", 0.95), (1, "none", 1.0))).state == "missed"
    alone = judged("busy_ratio", *runs((1, "fairsched", 0.99), (2, "none", 0.99)))
    assert (alone.state, alone.note) == ("not measured", "seed 1 was not run under none")
    assert judged("busy_ratio", *runs((1, "fairsched", 0.99), (1, "none", 0.0))).state == "not measured"


def test_in_time_the_worst_tenant_is_judged_and_all_must_be_known() -> None:
    leaves: dict[str, dict[str, float | None]] = {
        "a": {"tokens_cv_ratio": 0.01},
        "b": {"tokens_cv_ratio": 0.04},
    }
    assert judged("tokens_cv_ratio", document("equal-4", leaves=leaves)).state == "missed"
    leaves["b"] = {"tokens_cv_ratio": None}
    assert judged("tokens_cv_ratio", document("equal-4", leaves=leaves)).state == "not measured"


def test_the_latency_of_the_tenant_entitled_to_a_quarter_is_judged() -> None:
    leaves = {
        "chat": {"entitlement_ratio": 0.7504, "step_p99_ms": 900.0},
        "batch": {"entitlement_ratio": 0.2496, "step_p99_ms": 90.0},
    }
    verdict = judged("step_p99_ms", document("latency-vs-batch-3-1", leaves=leaves))
    assert verdict.value is not None and verdict.value.mean == 90.0
    two = {name: {"entitlement_ratio": 0.25} for name in leaves}
    verdict = judged("step_p99_ms", document("latency-vs-batch-3-1", leaves=two))
    assert (verdict.state, verdict.note) == ("not measured", "2 tenants are entitled to .25")


def test_the_lone_tenant_is_chosen_where_nobody_schedules() -> None:
    def run(policy: str, **rates: float) -> dict[str, Any]:
        share = {"lone": 0.9, "idle": 0.01} if policy == "none" else {"lone": 0.1, "idle": 0.9}
        leaves = {leaf: {"tokens_per_s": rate, "share_ratio": share[leaf]} for leaf, rate in rates.items()}
        return document("idle-lending", policy, leaves=leaves)

    runs = run("fairsched", lone=49.0, idle=0.2), run("none", lone=50.0, idle=0.1)
    verdict = judged("tokens_per_s", *runs)
    assert verdict.value is not None and verdict.value.mean == pytest.approx(0.98)
    assert verdict.state == "missed"


def hostile(scenario: str, **figures: float | None) -> dict[str, Any]:
    return document(scenario, leaves={"honest": {}, "hostile": {"gain_points": 1.0, **figures}})


def test_gain_is_that_of_the_hostile_tenant() -> None:
    def gain(points: float, *, is_upper: bool = True) -> str:
        return judged("gain_points", hostile("hostile-fork", gain_points=points), is_upper=is_upper).state

    assert (gain(-3.0), gain(2.1)) == ("met", "missed")
    assert judged("gain_points", document("hostile-fork"), is_upper=True).note == "no hostile tenant"
    # It is held for its trick, and not starved: a deep queue had .02 of its due .11 once, and that bar was met.
    assert (gain(2.1, is_upper=False), gain(-4.9, is_upper=False)) == ("met", "met")
    assert (gain(-9.2), gain(-9.2, is_upper=False)) == ("met", "missed")


def test_who_cannot_be_held_is_judged_by_what_is_said_of_it_and_not_by_equal_turns() -> None:
    verdicts = judge([hostile("escape-move", gain_points=0.0), hostile("beyond-static", gain_points=0.0)])
    assert "gain_points" not in {
        v.bar.figure for v in verdicts if v.scenario in ("escape-move", "beyond-static")
    }


def test_what_is_never_detected_is_missed_and_not_unmeasured() -> None:
    assert judged("misbehaviour_after_s", hostile("beyond-static", misbehaviour_after_s=4.9)).state == "met"
    assert (
        judged("misbehaviour_after_s", hostile("beyond-static", misbehaviour_after_s=5.1)).state == "missed"
    )
    never = judged("misbehaviour_after_s", hostile("beyond-static"))
    assert never.state == "missed"
    assert never.note == "never detected: hostile (seed 1)"
    assert never.value is not None and show(never.value.mean, never.bar.scale) == "never"
    assert json.loads(json.dumps(never.to_dict(), allow_nan=False))["value"] is None
    # One of two hostile tenants, or one of two seeds, is not enough.
    two = {
        name: {"gain_points": 1.0, "misbehaviour_after_s": after} for name, after in (("a", 1.0), ("b", None))
    }
    assert judged("misbehaviour_after_s", document("beyond-static", leaves=two)).state == "missed"
    seeds = hostile("beyond-static", misbehaviour_after_s=1.0), {**hostile("beyond-static"), "seed": 2}
    assert judged("misbehaviour_after_s", *seeds).state == "missed"


@pytest.mark.parametrize(
    ("scenario", "figure", "what"),
    [
        ("hostile-pinned", "unsure_after_s", "never said to be unsure"),
        ("escape-move", "misbehaviour_after_s", "never detected"),
    ],
)
def test_who_cannot_be_held_is_to_be_named_all_the_same(scenario: str, figure: str, what: str) -> None:
    never = judged(figure, hostile(scenario, low_confidence_ratio=1.0))
    assert (never.state, never.note) == ("missed", f"{what}: hostile (seed 1)")
    assert judged(figure, hostile(scenario, **{figure: 4.9})).state == "met"
    assert judged(figure, hostile(scenario, **{figure: 5.1})).state == "missed"


def test_an_endless_kernel_is_ended_and_not_only_named() -> None:
    named = {"misbehaviour_after_s": 3.0}
    gone = judged(
        "misbehaviour_gone_after_s", hostile("beyond-endless", **named, misbehaviour_gone_after_s=5.5)
    )
    assert gone.state == "met"
    never = judged("misbehaviour_gone_after_s", hostile("beyond-endless-one", **named))
    assert (never.state, never.note) == ("missed", "never gone: hostile (seed 1)")
    older = hostile("beyond-endless", **named)
    del older["measures"]["leaves"]["hostile"]["misbehaviour_gone_after_s"]
    assert judged("misbehaviour_gone_after_s", older).state == "not measured", "nobody looked"


def test_strict_is_not_content_with_a_figure_that_some_seeds_lack() -> None:
    known = hostile("hostile-queue", gain_points=1.0)
    gone = {**document("hostile-queue", leaves={"hostile": {"gain_points": None}}), "seed": 2}
    verdicts = judge([known, gone], ["hostile-move"])
    assert the(verdicts, "gain_points", "hostile-queue", is_upper=True).state == "not measured"
    assert {v.scenario for v in missed(verdicts)} == {"hostile-queue"}, (
        "what was never played is another thing"
    )


def test_an_account_is_right_or_its_tenant_is_unsure_and_not_held() -> None:
    def verdict(**figures: float | None) -> Verdict:
        return judged("account_error_ratio", document("nature-overlap", leaves={"a": figures, "b": {}}))

    assert verdict(account_error_ratio=-0.04).state == "met"
    assert verdict(account_error_ratio=-0.06).state == "missed"
    assert verdict(account_error_ratio=None).state == "not measured"
    unsure = verdict(account_error_ratio=-0.5, low_confidence_ratio=0.95, held_ms_per_s=0.0)
    assert (unsure.state, unsure.note) == ("met", "confidence low, not held: a")
    assert verdict(account_error_ratio=-0.5, low_confidence_ratio=0.95, held_ms_per_s=300.0).state == "missed"
    assert verdict(account_error_ratio=-0.5, low_confidence_ratio=0.5, held_ms_per_s=0.0).state == "missed"


def test_who_is_unsure_most_of_the_time_is_judged_by_the_rest_of_it() -> None:
    def verdict(sure: float | None, held: float = 0.0, low: float = 0.85) -> Verdict:
        figures = {
            "account_error_ratio": -0.5,
            "account_error_sure_ratio": sure,
            "low_confidence_ratio": low,
            "held_ms_per_s": held,
        }
        return judged("account_error_ratio", document("nature-overlap", leaves={"a": figures, "b": {}}))

    assert (verdict(None).state, verdict(0.04).state) == ("met", "met")
    wrong = verdict(0.2)
    assert wrong.state == "missed" and wrong.value is not None and wrong.value.mean == 0.2
    assert verdict(0.04, low=0.5, held=300.0).state == "met", "right where it was sure: held with reason"
    assert verdict(0.04, held=300.0).state == "missed", "held while it was not"


def test_all_unsure_is_excused_and_all_but_somebody_sure_and_wrong_is_not() -> None:
    unsure = {"low_confidence_ratio": 0.9, "account_error_ratio": 0.5, "held_ms_per_s": 0.0}
    both = document("nature-overlap", leaves={"a": unsure, "b": unsure})
    assert judged("account_error_ratio", both).state == "met"
    both["measures"]["leaves"]["b"]["account_error_sure_ratio"] = -0.09
    assert judged("account_error_ratio", both).state == "missed"


def test_an_account_of_a_few_slices_is_not_judged() -> None:
    small = {"share_ratio": 0.05, "account_error_ratio": 0.4}
    both = document("nature-overlap", leaves={"a": small, "b": {}})
    assert judged("account_error_ratio", both).state == "met"
    assert (
        judged("account_error_ratio", document("nature-overlap", leaves={"a": small})).state == "not measured"
    )


def test_who_was_never_held_was_not_held_for_long() -> None:
    quiet = document("latency-vs-batch-3-1", whole={"hold_longest_ms": None, "held_ms_per_s": 0.0})
    assert judged("hold_longest_ms", quiet).state == "met"
    lost = document("latency-vs-batch-3-1", whole={"hold_longest_ms": None})
    assert judged("hold_longest_ms", lost).state == "not measured"


@pytest.mark.parametrize("name", ["beyond-static", "hostile-query", "seed-4", "somebody-s-own"])
def test_an_honest_tenant_that_is_named_is_missed_in_every_scenario(name: str) -> None:
    leaves: dict[str, dict[str, float | None]] = {
        "honest": {"misbehaviour_after_s": 2.0},
        "hostile": {"gain_points": 0.0, "misbehaviour_after_s": 1.0},
    }
    verdict = judged("misbehaviour_count", document(name, leaves=leaves), document(name, seed=2))
    assert verdict.value is not None and verdict.value.mean == 0.5 and verdict.is_missed
    assert (verdict.note, verdict.bar.limit_text()) == ("honest (seed 1)", "<= 0")
    leaves["honest"] = {}
    assert not [v for v in judge([document(name, leaves=leaves)]) if v.bar.figure == "misbehaviour_count"]


def test_where_everybody_is_unsure_and_nobody_held_the_bar_is_met() -> None:
    unsure = {"low_confidence_ratio": 1.0, "held_ms_per_s": 0.0, "account_error_ratio": 0.9}
    everybody = document("nature-overlap", leaves={"a": unsure, "b": unsure})
    verdict = judged("account_error_ratio", everybody)
    assert (verdict.state, verdict.value) == ("met", None)
    both = judged("account_error_ratio", everybody, document("nature-overlap", seed=2))
    assert both.state == "met"
    wrong = document("nature-overlap", seed=2, leaves={"a": {"account_error_ratio": 0.2}})
    assert judged("account_error_ratio", everybody, wrong).state == "missed"


@pytest.mark.parametrize(
    ("figure", "value", "shown"),
    [
        ("share_ratio", 0.2512, "25.12 %"),
        ("share_error_points", -0.4, "-0.40 pt"),
        ("lag_max_ns", 41e6, "41.00 ms"),
        ("rss_bytes", 123.4e6, "123.4 MB"),
        ("jain_1s_mean", 0.99876, "0.9988"),
        ("tokens_per_s", 1234.5, "1234 /s"),
        ("held_ms_per_s", 12.0, "12.00 ms/s"),
        ("misbehaviour_after_s", math.inf, "never"),
        ("step_p99_ms", None, "-"),
    ],
)
def test_a_figure_is_shown_by_the_unit_in_its_name(figure: str, value: float | None, shown: str) -> None:
    assert show(value, scale_of(figure)) == shown
    assert number(value, scale_of(figure)) == shown.split(" ")[0]


def test_limits_are_written_shortly() -> None:
    limits = {bar.figure: bar.limit_text() for bar in BARS if not bar.against_none}
    assert limits["tokens_cv_across_ratio"] == "<= 1.5 %"
    assert limits["jain_10s_mean"] == ">= 0.995"
    assert limits["hold_longest_ms"] == "<= 500 ms"
    assert [bar.limit_text() for bar in BARS if bar.against_none] == [">= 0.98", ">= 0.985"]
