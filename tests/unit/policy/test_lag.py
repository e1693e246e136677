# SPDX-License-Identifier: Apache-2.0
"""The accounts: what moves a lag, what ends one, and that none is made out of nothing."""

from __future__ import annotations

import json
import math

import pytest

from fairsched.model import Confidence, PolicyParams, TenantSpec
from fairsched.policy import PolicyState
from fairsched.policy.lag import Account, Gate
from tests.unit.policy.builders import MS, hold, judge, lag_ms, lags, only, snapshot, specs, use

A_B = ("a", "b")


def test_lag_is_entitlement_of_what_was_delivered_less_what_was_used() -> None:
    # delivered 20: a is owed 3/4 = 15, got 10 -> +5; b is owed 5, got 10 -> -5
    known = specs(TenantSpec("a", 3), TenantSpec("b", 1))
    after = judge(snapshot(20, use("a", 10), use("b", 10)), known=known)
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([5, -5])


def test_lag_counts_what_the_gpu_delivered_not_wall_clock() -> None:
    # Of 100 ms only 10 were delivered (gaps): 5 owed to each, not 50.
    after = judge(snapshot(100, use("a", 8), use("b", 2), interval=100))
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([-3, 3])


def test_a_tenant_alone_is_never_in_debt_for_using_an_idle_gpu() -> None:
    after = judge(snapshot(1000, use("a", 900), interval=1000))
    assert lag_ms(after, "a") == 0


def test_capped_tenants_alone_on_a_gpu_run_up_no_debt_beyond_each_other() -> None:
    # Caps .2 and .2 leave .6 owed to nobody; equal use is still no overdraft between the two.
    known = specs(TenantSpec("a", quota_ratio=0.2), TenantSpec("b", quota_ratio=0.2))
    after = judge(snapshot(20, use("a", 10), use("b", 10)), known=known)
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([0, 0])


def test_a_new_tenant_starts_at_zero() -> None:
    after = judge(snapshot(20, use("a", 0), use("b", 0), use("new", 0)), lags(a=50, b=-50, active=0))
    assert lag_ms(after, "new") == 0


def test_credit_that_no_taker_is_owed_a_part_of_stays_with_who_has_earned_it() -> None:
    # The floor of t/y fills the cap of t, so t/x is owed nothing; t/y is held for another GPU.
    known = specs(TenantSpec("t", quota_ratio=0.1), TenantSpec("t/y", min_ratio=0.2))
    state = PolicyState(gates={"t/y": Gate(hold_gpu="gpu1")})
    rows = [use("t/x", 1), use("t/y", 1), use("t/y", gpu="gpu1")]
    after = judge(snapshot(20, *rows, holds=[hold("t/y")]), state, known)
    assert [lag_ms(after, name) for name in ("t/x", "t/y")] == pytest.approx([-1, 1])


def test_positive_lag_expires_without_demand_and_forgives_those_who_owed_it() -> None:
    # a goes away with +60; b and c owed it 30 each.
    snap = snapshot(50, use("a", 0, demand=False), use("b", 0), use("c", 0))
    after = judge(snap, lags(a=60, b=-30, c=-30))
    assert [lag_ms(after, name) for name in "abc"] == pytest.approx([0, 0, 0])


def test_a_cpu_gap_shorter_than_the_grace_is_still_demand() -> None:
    snap = snapshot(8, use("a", 0, demand=False), use("b", 8), interval=8)
    after = judge(snap, lags(a=30, b=-30, active=0))
    # 8 delivered, 4 owed to each
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([34, -34])


def test_debt_survives_a_short_pause_and_fades_over_the_window() -> None:
    state = lags(a=-100, b=0)
    state = judge(snapshot(50, use("a", 0, demand=False), use("b", 20), interval=50), state).state
    # exp(-50/1000) = .951
    assert state.accounts["a", "gpu0"].lag_ns / 1e6 == pytest.approx(-95.1, abs=0.1)
    for now in range(70, 3050, 20):
        state = judge(snapshot(now, use("a", 0, demand=False), use("b", 20)), state).state
    assert state.accounts["a", "gpu0"].lag_ns / 1e6 == pytest.approx(-100 * math.exp(-3.03), rel=0.02)


def test_the_window_of_debt_is_configurable() -> None:
    params = PolicyParams(window_ns=10_000_000_000)
    snap = snapshot(1000, use("a", 0, demand=False), use("b", 20), interval=1000)
    assert lag_ms(judge(snap, lags(a=-100, b=0), params=params), "a") == pytest.approx(-90.5, abs=0.1)


def test_a_drain_is_charged_to_its_owner_while_it_is_held() -> None:
    # Held a drains 20: a and b are owed 10 each.
    after = judge(snapshot(20, use("a", 20, queued=80), use("b", 0), holds=[hold("a")]))
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([-10, 10])


def test_a_drain_is_predicted_or_charged_but_never_both() -> None:
    # Effective lag = lag - outstanding. With weights 1:1 and b idle-waiting, every drained ms costs a
    # 1 ms of lag and returns 1 ms of outstanding; only the entitlement (half) accrues on top.
    state = lags(a=-60, b=60, active=0)
    first = judge(snapshot(20, use("a", 0, queued=80), use("b", 0), holds=[hold("a")]), state)
    second = judge(snapshot(40, use("a", 40, queued=40), use("b", 0), holds=[hold("a")]), first.state)
    effective = [lag_ms(first, "a") - 80, lag_ms(second, "a") - 40]
    assert effective == pytest.approx([-140, -120])


def test_a_drain_under_a_foreign_hold_is_charged_but_earns_nothing() -> None:
    after = judge(snapshot(20, use("a", 20), use("b", 0), holds=[hold("a", ours=False)]))
    # 20 less the first 20 ms of forgetting, the same on both sides
    assert lag_ms(after, "b") == pytest.approx(20 * math.exp(-0.02))
    assert lag_ms(after, "a") == pytest.approx(-20 * math.exp(-0.02))


def test_a_tenant_somebody_else_froze_this_moment_is_owed_nothing() -> None:
    # It had demand 5 ms ago, within the grace of a gap; the hold ends that at once: b is owed all 20.
    snap = snapshot(5, use("a", 0), use("b", 20), interval=5, holds=[hold("a", ours=False)])
    after = judge(snap, lags(a=0, b=0, active=0))
    assert lag_ms(after, "b") == 0
    assert {view.tenant: view.entitlement_ratio for view in after.shares} == {"a": 0, "b": 1}


def test_lag_is_clamped_and_what_is_cut_off_goes_to_the_others() -> None:
    # x cannot use what it is owed: its credit stops at 400, and y : z keep their own difference.
    state = lags(x=395, y=-190, z=-205, active=0)
    after = judge(snapshot(20, use("x", 0), use("y", 10), use("z", 20)), state)
    # owed 10 each: x 405 -> 400, 5 cut off go by entitlement to all three; x stays at the clamp.
    assert lag_ms(after, "x") == 400
    assert lag_ms(after, "y") == pytest.approx(-190 + 5 / 3)
    assert lag_ms(after, "z") == pytest.approx(-215 + 5 / 3)


@pytest.mark.parametrize("used", [0, 10_000])
def test_lag_never_leaves_the_clamp(used: int) -> None:
    state = PolicyState()
    for step in range(1, 50):
        state = judge(snapshot(step * 100, use("a", used), use("b", 100), interval=100), state).state
        assert all(abs(account.lag_ns) <= 400e6 for account in state.accounts.values())


def test_a_tenant_of_low_confidence_is_taken_off_the_top() -> None:
    # 30 delivered in all, 10 of it by guesswork: a and b share the 20.
    snap = snapshot(20, use("a", 15), use("b", 5), use("guess", 10, confidence=Confidence.LOW))
    after = judge(snap)
    assert [lag_ms(after, name) for name in ("a", "b", "guess")] == pytest.approx([-5, 5, 0])


def test_an_exempt_tenant_is_taken_off_the_top() -> None:
    known = specs(TenantSpec("free", is_exempt=True))
    after = judge(snapshot(20, use("a", 15), use("b", 5), use("free", 10)), known=known)
    assert [lag_ms(after, name) for name in ("a", "b", "free")] == pytest.approx([-5, 5, 0])


def test_what_is_due_and_what_was_used_are_parts_of_the_same_whole() -> None:
    """A third of the GPU goes to one that is never held: the others are due parts of what it left, and have them."""
    known, state = specs(TenantSpec("a", 3), TenantSpec("free", is_exempt=True)), PolicyState()
    for now in range(20, 3000, 20):
        decision = judge(snapshot(now, use("a", 9), use("b", 3), use("free", 6)), state, known)
        state = decision.state
    seen = {view.tenant: (view.entitlement_ratio, view.used_ratio) for view in decision.shares}
    assert seen["a"] == pytest.approx((1 / 2, 1 / 2)) and seen["b"] == pytest.approx((1 / 6, 1 / 6))
    assert seen["free"] == pytest.approx((1 / 5, 1 / 3)), "what its weight would be worth"


def test_a_reason_and_a_view_have_the_same_entitlement() -> None:
    known = specs(TenantSpec("free", is_exempt=True))
    snap = snapshot(20, use("a", 0, queued=10), use("b", 0), use("free", 20))
    decision = judge(snap, lags(a=-30, b=30), known)
    shown = {view.tenant: view.entitlement_ratio for view in decision.shares}
    assert only(decision).reason.entitlement_ratio == shown["a"] == 0, "it took all that there was"


def test_a_gang_held_for_one_gpu_earns_no_credit_on_the_other() -> None:
    both = [use("gang", 0), use("gang", 0, gpu="gpu1"), use("x", 20), use("y", 20, gpu="gpu1")]
    state = PolicyState(lags(gang=-50, x=50).accounts | lags("gpu1", gang=0, y=0).accounts)
    first = judge(snapshot(20, *both), state)
    assert only(first).reason.gpu == "gpu0"
    second = judge(snapshot(40, *both, holds=[hold("gang", 20)]), first.state)
    assert lag_ms(second, "gang") > lag_ms(first, "gang")
    assert lag_ms(second, "gang", "gpu1") == lag_ms(first, "gang", "gpu1")


def test_a_vanished_tenant_leaves_the_state_when_its_debt_is_forgotten() -> None:
    state = lags(gone=-100, rich=80, b=0)
    state = judge(snapshot(20, use("b", 20)), state).state
    assert set(state.accounts) == {("gone", "gpu0"), ("b", "gpu0")}, "credit goes at once, debt does not"
    for now in range(1020, 20_000, 1000):
        state = judge(snapshot(now, use("b", 20), interval=1000), state).state
    assert set(state.accounts) == {("b", "gpu0")}


def test_a_restart_of_a_tenant_does_not_clear_its_debt() -> None:
    state = judge(snapshot(20, use("b", 20)), lags(a=-100, b=100)).state
    assert lag_ms(judge(snapshot(40, use("a", 0), use("b", 0)), state), "a") < -90


def test_the_state_survives_json() -> None:
    known = specs(TenantSpec("a", quota_ratio=0.3))
    snap = snapshot(20, use("a", 20, queued=70), use("b", 0), idle=["gpu0"])
    state = judge(snap, lags(a=-100, b=100), known).state
    assert state.gates and state.quota_level_ns
    loaded = PolicyState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert loaded == state
    assert judge(snapshot(40, use("a", 0), use("b", 0)), loaded, known) == judge(
        snapshot(40, use("a", 0), use("b", 0)), state, known
    )


def test_a_state_from_before_a_reboot_forbids_nothing_for_long() -> None:
    # The clock restarted: stamps of the saved state lie in the future.
    state = judge(snapshot(900_000, use("a", 20), use("b", 0)), lags(a=-100, b=100)).state
    state = judge(snapshot(900_020, use("a", 0), use("b", 0)), state).state
    held_at = None
    for now in range(20, 200, 20):
        decision = judge(snapshot(now, use("a", 10), use("b", 10)), state)
        state = decision.state
        if decision.plan:
            held_at = now
            break
    assert held_at is not None and held_at <= 100


def light(lag: float = 0, other: float = 0) -> PolicyState:
    """``a`` works for a twentieth of the time if nobody hinders it, and is owed half."""
    window = {"active_ns": 0, "used_window_ns": 50.0 * MS, "paused_window_ns": 950.0 * MS}
    return PolicyState({("a", "gpu0"): Account(lag * MS, **window), ("b", "gpu0"): Account(other * MS, 0)})


def test_a_light_tenant_earns_credit_for_what_it_would_use_and_no_more() -> None:
    # 20 delivered, of which it had .2 and would have had 1; half would be 10.
    after = judge(snapshot(20, use("a", 0.2, paused=10), use("b", 19.8)), light())
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([0.8, -0.8])


def test_a_light_tenant_spends_its_credit_by_keeping_the_gpu_idle() -> None:
    # The other one is held for it: 1 of use and 6 in which nobody works, of the 9 that it was owed.
    rows = [use("a", 1, paused=19, idle=6), use("b", 0)]
    after = judge(snapshot(20, *rows, holds=[hold("b")]), light(9, -9))
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([2.05, -2.05])
    rows[0] = use("a", 1, paused=19, idle=16)
    after = judge(snapshot(20, *rows, holds=[hold("b")]), light(9, -9))
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([0, 0])


def test_who_had_less_than_it_was_charged_has_neither_credit_nor_a_past() -> None:
    rows = [use("a", 1, paused=10)._replace(is_anew=True), use("b", 19)]
    state = PolicyState(
        {("a", "gpu0"): Account(9 * MS, 0, used_window_ns=900.0 * MS), ("b", "gpu0"): Account(-9 * MS, 0)}
    )
    after = judge(snapshot(20, *rows), state)
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([0, 0])
    account = after.state.accounts["a", "gpu0"]
    assert (account.used_window_ns, account.paused_window_ns) == (1 * MS, 10 * MS)


def test_its_debt_is_not_forgotten() -> None:
    rows = [use("a", 12)._replace(is_anew=True), use("b", 8)]
    state = PolicyState({("a", "gpu0"): Account(-9 * MS, 0), ("b", "gpu0"): Account(9 * MS, 0)})
    assert lag_ms(judge(snapshot(20, *rows), state), "a") == pytest.approx(-11)


def test_who_was_light_and_works_now_is_in_debt_for_no_more_than_anybody() -> None:
    # 20 delivered: owed 10, had 8 and then 15.
    assert lag_ms(judge(snapshot(20, use("a", 8), use("b", 12)), light()), "a") == 0
    assert lag_ms(judge(snapshot(20, use("a", 15), use("b", 5)), light()), "a") == pytest.approx(-5)


def test_pauses_cost_no_credit_while_a_tenant_would_use_its_part_all_the_same() -> None:
    state = PolicyState()
    for now in range(20, 400, 20):  # half of the time; it is owed a quarter
        state = judge(
            snapshot(now, use("a", 3, paused=3, idle=1), use("b", 15)),
            state,
            specs(TenantSpec("b", weight=3)),
        ).state
    assert state.accounts["a", "gpu0"].lag_ns == pytest.approx(19 * (18 / 4 - 3) * MS)


def test_where_all_are_light_nobody_owes_for_what_nobody_else_would_use() -> None:
    window = {"active_ns": 0, "used_window_ns": 50.0 * MS, "paused_window_ns": 950.0 * MS}
    state = PolicyState({(name, "gpu0"): Account(0, **window) for name in A_B})
    after = judge(snapshot(20, use("a", 2, paused=10), use("b", 1, paused=10)), state)
    assert [lag_ms(after, name) for name in A_B] == pytest.approx([0, 0])


def test_a_pause_that_is_no_demand_any_more_says_nothing_of_what_a_tenant_can_use() -> None:
    state = judge(snapshot(20, use("a", 10), use("b", 10))).state
    for now in range(40, 2000, 20):
        state = judge(snapshot(now, use("a", 0, paused=20, demand=False), use("b", 20)), state).state
    assert state.accounts["a", "gpu0"].most_ratio == 1


def test_used_ratio_is_of_what_was_delivered_in_the_window() -> None:
    state = PolicyState()
    for now in range(20, 3000, 20):
        decision = judge(snapshot(now, use("a", 9), use("b", 3)), state)
        state = decision.state
    assert {view.tenant: round(view.used_ratio, 3) for view in decision.shares} == {"a": 0.75, "b": 0.25}


def test_the_share_view_of_an_unenforced_tenant_shows_what_its_weight_is_worth() -> None:
    rows = [use("a", 10, confidence=Confidence.LOW), use("b", 10, confidence=Confidence.LOW)]
    decision = judge(snapshot(20, *rows), known=specs(TenantSpec("a", 3)))
    assert [view.entitlement_ratio for view in decision.shares] == pytest.approx([0.75, 0.25])
    assert not decision.plan
