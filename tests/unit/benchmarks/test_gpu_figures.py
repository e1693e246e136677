# SPDX-License-Identifier: Apache-2.0
"""What was not measured is never met, and says why."""

from __future__ import annotations

import pytest

from benchmarks.bars import WIDTH
from benchmarks.gpu.account import doubts
from benchmarks.gpu.fairness import judge_equal
from benchmarks.gpu.figures import (
    BARS,
    Verdict,
    complete,
    exit_status,
    measured,
    not_possible,
    render,
)
from benchmarks.gpu.freeze import QUEUE_MS, Hold, judge

MS = 1_000_000


def hold(drain_ms: float | None = 190, *, launches: int = 0, returns: int = 0, thaw_ms: float = 3) -> Hold:
    drain_ns = None if drain_ms is None else round(drain_ms * MS)
    return Hold(2 * MS, launches, returns, drain_ns, round(thaw_ms * MS))


def verdicts(holds: list[Hold]) -> dict[str, Verdict]:
    return {figure.bar.key: figure.verdict for figure in judge(holds)}


def test_a_figure_is_met_missed_or_not_possible() -> None:
    assert measured("coverage_spin_error", 0.01).verdict is Verdict.MET
    assert measured("coverage_spin_error", 0.011).verdict is Verdict.MISSED
    assert measured("busy_ratio", 0.98).verdict is Verdict.MET
    assert measured("busy_ratio", 0.97).verdict is Verdict.MISSED
    assert not_possible("busy_ratio", "no GPU").verdict is Verdict.NOT_POSSIBLE


def test_a_bar_that_depends_on_the_run_comes_with_the_figure() -> None:
    assert measured("account_nvml_points", 5, limit=6).verdict is Verdict.MET
    assert measured("account_nvml_points", 7, limit=6).verdict is Verdict.MISSED
    assert measured("account_nvml_points", 5).verdict is Verdict.NOT_POSSIBLE


def test_what_is_not_possible_says_why() -> None:
    with pytest.raises(ValueError, match="say why"):
        not_possible("busy_ratio", "")


def test_every_figure_of_a_section_is_in_the_table_measured_or_not() -> None:
    figures = complete([measured("frozen_launches", 0)], ["freeze"], "it failed")
    assert [one.bar.key for one in figures] == [bar.key for bar in BARS if bar.section == "freeze"]
    assert {one.verdict for one in figures} == {Verdict.MET, Verdict.NOT_POSSIBLE}
    assert all(one.note == "it failed" for one in figures if one.value is None)


def test_keys_are_unique_and_belong_to_a_section() -> None:
    assert len({bar.key for bar in BARS}) == len(BARS)
    assert {bar.section for bar in BARS} == {"coverage", "account", "freeze", "fairness"}


def test_exit_status_is_that_of_what_was_missed_and_nothing_measured_is_no_success() -> None:
    met, missed = measured("busy_ratio", 1.0), measured("busy_ratio", 0.5)
    unknown = not_possible("busy_ratio", "no GPU")
    assert exit_status([met, unknown]) == 0
    assert exit_status([met, missed]) == 1
    assert exit_status([unknown]) == 1
    assert exit_status([]) == 1


def test_the_table_fits_a_terminal_and_shows_each_verdict() -> None:
    figures = complete([measured("thaw_latency_ms", 12.3, "x" * 70)], {bar.section for bar in BARS}, "no GPU")
    lines = render(figures)
    assert max(map(len, lines)) <= WIDTH
    assert any("thaw_latency_ms" in line and "12.30 ms" in line and "met" in line for line in lines)
    assert sum("not possible" in line for line in lines) == len(BARS) - 1


def test_a_launch_or_a_return_while_frozen_is_a_miss() -> None:
    assert set(verdicts([hold(), hold()]).values()) == {Verdict.MET}
    assert verdicts([hold(), hold(launches=1)])["frozen_launches"] is Verdict.MISSED
    assert verdicts([hold(), hold(returns=1)])["frozen_returns"] is Verdict.MISSED


def test_a_drain_longer_than_the_queue_or_none_at_all_is_a_miss() -> None:
    assert verdicts([hold(), hold(QUEUE_MS * 1.2)])["drain_ratio"] is Verdict.MISSED
    assert verdicts([hold(), hold(1)])["drain_least_ratio"] is Verdict.MISSED
    unknown = verdicts([hold(), hold(None)])
    assert unknown["drain_ratio"] is unknown["drain_least_ratio"] is Verdict.NOT_POSSIBLE
    assert unknown["frozen_launches"] is Verdict.MET


def test_latencies_are_judged_by_their_median() -> None:
    (figure,) = (
        one for one in judge([hold(thaw_ms=ms) for ms in (2, 4, 300)]) if one.bar.key == "thaw_latency_ms"
    )
    assert (figure.value, figure.note) == (4.0, "up to 300.00 ms")


def test_what_the_daemon_doubts_is_quoted() -> None:
    tenants = [{"name": "a", "confidence": "high"}, {"name": "b", "confidence": "low"}]
    status = {"tenants": tenants, "warnings": ["the model of GPU-1 does not hold"]}
    assert doubts(status) == ["b is of low confidence", "the model of GPU-1 does not hold"]
    assert doubts({"tenants": tenants[:1], "warnings": []}) == []


def test_equal_decoders_are_judged_by_the_worst_and_one_that_made_nothing_is_no_zero() -> None:
    assert judge_equal({"a": 0.01, "b": 0.02}).value == 0.02
    assert judge_equal({"a": 0.01, "b": None}).verdict is Verdict.NOT_POSSIBLE
