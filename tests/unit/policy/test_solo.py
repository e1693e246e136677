# SPDX-License-Identifier: Apache-2.0
"""A tenant of whose costs too little is known has the GPU to itself for a moment, and nobody suffers from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fairsched.model import ActionKind, Confidence, Hold, ReasonCode, TenantSpec, Use
from fairsched.policy import Decision, PolicyState
from fairsched.policy.lag import Solo
from tests.unit.policy.builders import MS, hold, judge, lags, snapshot, specs, use

NOW = 1000
THREE = specs(TenantSpec("a", weight=2), TenantSpec("b", weight=2), TenantSpec("c", weight=1))
EVEN = lags(a=0, b=0, c=0, active=NOW - 20)


def three(a: Use | None = None, b: Use | None = None, c: Use | None = None) -> list[Use]:
    return [a or use("a", unmeasured=5), b or use("b"), c or use("c")]


def decided(
    rows: Iterable[Use],
    state: PolicyState = EVEN,
    known: dict[str, TenantSpec] | None = None,
    *,
    now: float = NOW,
    holds: Iterable[Hold] = (),
    idle_since: float | None = None,
) -> Decision:
    idle = () if idle_since is None else ("gpu0",)
    snap = snapshot(now, *rows, holds=holds, idle=idle, idle_since=idle_since)
    return judge(snap, state, THREE if known is None else known)


def done(decision: Decision) -> list[tuple[str, ActionKind, ReasonCode]]:
    return sorted((action.tenant, action.kind, action.reason.code) for action in decision.plan)


HELD = [(name, ActionKind.HOLD, ReasonCode.MEASURING) for name in "bc"]


def test_the_others_are_held_for_a_moment_that_is_repaid_in_two_seconds() -> None:
    decision = decided(three())
    assert done(decision) == HELD
    solo = decision.state.solos.latest["gpu0"]
    assert (solo.tenant, solo.until_ns - solo.begin_ns) == ("a", 500 * MS)
    assert decision.wake_ns is not None and decision.wake_ns <= solo.until_ns
    small = decided(three(), known={**THREE, "a": TenantSpec("a", weight=0.1)})
    solo = small.state.solos.latest["gpu0"]
    assert solo.until_ns - solo.begin_ns == pytest.approx(2000 * MS * 0.1 / 3.1, rel=0.01)


@pytest.mark.parametrize(
    "rows",
    [
        three(use("a")),
        three(use("a", unmeasured=5, demand=False)),
        three(use("a", unmeasured=5, confidence=Confidence.LOW)),
        three(b=use("b", confidence=Confidence.LOW)),
        three(use("a", unmeasured=501)),
        three(use("a", unmeasured=5), b=use("b", queued=350)),
        [*three(), use("b", gpu="gpu1")],
        [use("a", unmeasured=5)],
        three(use("a", unmeasured=5), use("b", demand=False), use("c", demand=False)),
    ],
    ids=["known", "idle", "unsure", "other unsure", "long", "deep", "gang", "alone", "others idle"],
)
def test_nobody_is_measured_where_that_cannot_succeed_or_hurts(rows: list[Use]) -> None:
    decision = decided(rows)
    assert ReasonCode.MEASURING not in {action.reason.code for action in decision.plan}
    assert not decision.state.solos.latest


@pytest.mark.parametrize("spec", [TenantSpec("b", is_exempt=True), TenantSpec("b", max_freeze_ms=4)])
def test_not_beside_who_may_not_be_held_so_long(spec: TenantSpec) -> None:
    assert not decided(three(), known={**THREE, "b": spec}).plan


def go_on(
    rows: list[Use], *, at: float, idle_since: float | None = None, known: dict[str, TenantSpec] | None = None
) -> Decision:
    """What is decided ``at`` ms after it began."""
    begun = decided(three())
    holds = [hold(name, NOW, NOW + 500) for name in "bc"]
    return decided(rows, begun.state, known, now=NOW + at, holds=holds, idle_since=idle_since)


def test_it_lasts_for_its_time_and_ends_with_all_running() -> None:
    spent = three(use("a", 100, unmeasured=5))
    assert not go_on(spent, at=100).plan, "b and c are owed something, and held all the same"
    after = go_on(spent, at=500)
    assert {action.tenant for action in after.plan if action.kind is ActionKind.THAW} == {"b", "c"}
    assert after.state.solos.on("gpu0") is None


def test_it_ends_when_the_one_has_nothing_to_do() -> None:
    late = go_on(three(use("a", demand=False)), at=100)
    assert {(action.tenant, action.kind) for action in late.plan} == {(n, ActionKind.THAW) for n in "bc"}
    idle = go_on(three(use("a", unmeasured=5)), at=100, idle_since=NOW + 90)
    assert ("b", ActionKind.THAW, ReasonCode.CAUGHT_UP) in done(idle)
    assert idle.state.solos.on("gpu0") is None


def test_it_ends_when_enough_is_known() -> None:
    spent = three(use("a", 100, unmeasured=0))
    known = go_on(spent, at=100)
    assert {action.tenant for action in known.plan if action.kind is ActionKind.THAW} == {"b", "c"}
    assert known.state.solos.on("gpu0") is None


def test_the_one_is_not_held_while_it_lasts_whatever_it_takes() -> None:
    state = decided(three()).state
    deep = replace(lags(a=-300, b=150, c=150, active=NOW + 80), solos=state.solos)
    holds = [hold("c", NOW, NOW + 500)]
    assert "a" not in {action.tenant for action in decided(three(), deep, now=NOW + 100, holds=holds).plan}


def test_a_held_one_is_let_go_for_it_and_the_deadlines_of_others_bound_it() -> None:
    held = [hold("a", NOW - 100, NOW + 400)]
    behind = lags(a=-20, b=10, c=10, active=NOW - 20)
    assert ("a", ActionKind.THAW, ReasonCode.MEASURING) in done(decided(three(), behind, holds=held))
    other = [hold("b", NOW - 100, NOW + 60)]
    owing = lags(a=10, b=-60, c=10, active=NOW - 20)
    solo = decided(three(), owing, holds=other).state.solos.latest["gpu0"]
    assert solo.until_ns == (NOW + 60) * MS


def test_between_two_all_run_for_as_long_and_three_times_in_a_while_is_enough() -> None:
    begun = decided(three()).state
    over = replace(begun.solos, latest={"gpu0": Solo("a", NOW * MS, (NOW + 500) * MS, is_over=True)})
    for after_ms, is_again in ((900, False), (1001, True)):
        state = replace(lags(a=0, b=0, c=0, active=NOW + after_ms - 20), solos=over)
        again = decided(three(), state, now=NOW + after_ms)
        assert bool(again.plan) is is_again
    tired = replace(over, tries={("a", "gpu0"): (3, NOW * MS)})
    for after_ms, is_again in ((19_000, False), (21_000, True)):
        state = replace(lags(a=0, b=0, c=0, active=NOW + after_ms - 20), solos=tired)
        again = decided(three(), state, now=NOW + after_ms)
        assert bool(again.plan) is is_again
    assert again.state.solos.tries["a", "gpu0"] == (3, (NOW + 21_000) * MS)


def test_who_was_tried_less_often_and_is_entitled_to_more_comes_first() -> None:
    rows = [use(name, unmeasured=5) for name in "cba"]
    assert decided(rows).state.solos.latest["gpu0"].tenant == "a"
    tried = replace(EVEN, solos=replace(EVEN.solos, tries={(name, "gpu0"): (1, NOW * MS) for name in "ab"}))
    assert decided(rows, tried).state.solos.latest["gpu0"].tenant == "c"


def test_who_pauses_so_much_that_its_part_would_not_be_used_is_not_measured() -> None:
    accounts = dict(EVEN.accounts)
    for used_ms, is_measured in ((300, False), (500, True)):  # of a second; it is owed 400
        window = {"used_window_ns": used_ms * MS, "paused_window_ns": (1000 - used_ms) * MS}
        accounts["a", "gpu0"] = EVEN.accounts["a", "gpu0"]._replace(**window)
        assert done(decided(three(), replace(EVEN, accounts=accounts))) == (HELD if is_measured else [])


def test_who_may_have_had_more_than_is_known_is_not_measured() -> None:
    hides = use("a", unmeasured=5)._replace(most_ns=MS)
    assert not decided(three(hides)).state.solos.latest
