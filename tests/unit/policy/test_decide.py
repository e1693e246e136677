# SPDX-License-Identifier: Apache-2.0
"""One decision at a time: who is held, who is let go, and with which numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.model import ActionKind, Confidence, PolicyParams, ReasonCode, TenantClass, TenantSpec, Use
from fairsched.policy import Decision, PolicyState
from fairsched.policy.lag import Account, GpuAccount
from tests.unit.policy.builders import MS, actions, held, hold, judge, lags, only, snapshot, specs, use


def test_an_overdrawn_tenant_is_held_for_one_that_is_owed_and_the_reason_has_the_numbers() -> None:
    # lag -30 and 10 queued: effective -40 < -H = -max(10, 3 x 1, 10/2)
    decision = judge(snapshot(20, use("a", 0, queued=10), use("b", 0)), lags(a=-30, b=30))
    action = only(decision)
    assert (action.kind, action.tenant, action.deadline_ns) == (ActionKind.HOLD, "a", 520 * MS)
    reason = action.reason
    assert (reason.code, reason.gpu) == (ReasonCode.OVER_ENTITLEMENT, "gpu0")
    assert (reason.lag_ns, reason.outstanding_ns, reason.threshold_ns) == (-30 * MS, 10 * MS, 10 * MS)
    assert reason.entitlement_ratio == pytest.approx(0.5)


def test_nobody_is_held_within_the_threshold() -> None:
    assert not judge(snapshot(20, use("a"), use("b")), lags(a=-9, b=9)).plan


def test_the_drain_is_predicted_before_the_decision() -> None:
    # -8 alone is within H; with 30 queued: -38 < -15 = -drain/2
    assert held(judge(snapshot(20, use("a", queued=30), use("b")), lags(a=-8, b=8))) == ["a"]


def test_a_queue_alone_is_no_reason_to_hold() -> None:
    # Every decoder has a token in flight; nobody is overdrawn in fact.
    rows = [use(name, 5, queued=20) for name in "abcd"]
    assert not judge(snapshot(20, *rows), lags(a=-4, b=4, c=2, d=-2)).plan


def test_a_slow_freeze_raises_the_threshold() -> None:
    # 3 x 12 ms = 36 > 30
    snap = snapshot(20, use("a"), use("b"), latency={"a": 12 * MS})
    assert not judge(snap, lags(a=-30, b=30)).plan


def test_nobody_is_held_unless_somebody_gains() -> None:
    assert not judge(snapshot(20, use("a"), use("b")), lags(a=-50, b=-20)).plan


def test_the_last_tenant_with_demand_is_never_held() -> None:
    idle = use("b", demand=False)
    assert not judge(snapshot(50, use("a", 20), idle), lags(a=-100, b=0)).plan


def test_a_tenant_that_is_held_is_no_beneficiary() -> None:
    # c is owed 50 but held itself (dwell not over): holding a would leave the GPU to nobody.
    snap = snapshot(25, use("a"), use("c"), holds=[hold("c", 20)])
    decision = judge(snap, lags(a=-50, c=50, active=20))
    assert "a" not in held(decision)


def test_nobody_is_held_for_one_that_cannot_run_though_a_third_runs() -> None:
    rows, state = [use("a"), use("b"), use("c")], lags(a=-50, b=50, c=0, active=20)
    assert not judge(snapshot(25, *rows, holds=[hold("b", 20)]), state).plan, "b is held, c is owed nothing"
    assert held(judge(snapshot(25, *rows), state)) == ["a"], "where b runs it gains"


def test_a_foreign_hold_is_neither_thawed_nor_a_competitor() -> None:
    snap = snapshot(20, use("a"), use("b"), holds=[hold("b", 0, 1, ours=False)])
    assert not judge(snap, lags(a=-100, b=100)).plan


def test_interval_zero_thaws_but_never_holds() -> None:
    rows = [use("a", queued=90), use("b"), use("c")]
    state = lags(a=-100, b=100, c=0)
    assert not judge(snapshot(0, *rows, interval=0), state).plan
    snap = snapshot(600, *rows, interval=0, holds=[hold("c", 0, 500)])
    assert actions(judge(snap, state)) == [("thaw", "c", ReasonCode.DEADLINE)]


def test_thawed_when_it_has_caught_up_but_not_before_the_dwell() -> None:
    # -0.2 x 10 = -2; dwell 10 x 1 ms
    rows = [use("a"), use("b")]
    state = lags(a=-1.9, b=1.9)
    assert not judge(snapshot(9, *rows, holds=[hold("a")]), state).plan
    assert actions(judge(snapshot(10, *rows, holds=[hold("a")]), state)) == [
        ("thaw", "a", ReasonCode.CAUGHT_UP)
    ]
    assert not judge(snapshot(10, *rows, holds=[hold("a")]), lags(a=-2.1, b=2.1)).plan


def test_what_still_drains_counts_against_a_thaw() -> None:
    rows = [use("a", queued=50), use("b")]
    assert not judge(snapshot(100, *rows, holds=[hold("a")]), lags(a=0, b=0)).plan


def test_a_thawed_tenant_is_not_held_again_within_the_dwell() -> None:
    rows = [use("a"), use("b")]
    state = judge(snapshot(100, *rows, holds=[hold("a")]), lags(a=0, b=0)).state
    overdrawn = PolicyState(lags(a=-90, b=90, active=109).accounts, gates=state.gates)
    assert not judge(snapshot(109, *rows), overdrawn).plan
    assert held(judge(snapshot(110, *rows), overdrawn)) == ["a"]


def test_a_deadline_ends_a_hold_and_grants_a_minimum_run() -> None:
    rows = [use("a"), use("b")]
    before = lags(a=-300, b=300, active=500)
    assert not judge(snapshot(499, *rows, holds=[hold("a", 0, 500)]), before).plan
    decision = judge(snapshot(500, *rows, holds=[hold("a", 0, 500)]), before)
    assert actions(decision) == [("thaw", "a", ReasonCode.DEADLINE)]
    again = lags(a=-300, b=300, active=529)
    state = PolicyState(again.accounts, gates=decision.state.gates)
    assert not judge(snapshot(529, *rows), state).plan
    assert held(judge(snapshot(530, *rows), state)) == ["a"]


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        (TenantSpec("a"), 500),
        (TenantSpec("a", tenant_class=TenantClass.BATCH), 2000),
        (TenantSpec("a", max_freeze_ms=70), 70),
    ],
)
def test_the_deadline_comes_from_the_class_or_the_spec(spec: TenantSpec, limit: int) -> None:
    action = only(judge(snapshot(20, use("a"), use("b")), lags(a=-50, b=50), specs(spec)))
    assert action.deadline_ns == (20 + limit) * MS


def test_the_decision_says_when_the_next_deadline_falls() -> None:
    # It would have repaid a little later: of 1900 ms the next 450 are.
    decision = judge(
        snapshot(20, use("a"), use("b")), lags(a=-1900, b=50), params=PolicyParams(lag_clamp_ns=2000 * MS)
    )
    assert decision.wake_ns == 520 * MS


def test_held_alone_is_let_go_at_once_even_within_the_dwell() -> None:
    snap = snapshot(101, use("a"), use("b", demand=False), holds=[hold("a", 100)])
    assert actions(judge(snap, lags(a=-300, b=300))) == [("thaw", "a", ReasonCode.LAST_WITH_DEMAND)]


def test_of_two_held_without_a_runner_the_most_entitled_goes_first_and_the_other_waits_for_it() -> None:
    rows = [use("a"), use("b")]
    snap = snapshot(100, *rows, holds=[hold("a", 95), hold("b", 95)])
    assert actions(judge(snap, lags(a=-80, b=-20, active=95))) == [("thaw", "b", ReasonCode.LAST_WITH_DEMAND)]


def test_a_latency_tenant_is_thawed_before_a_batch_tenant_that_is_owed_more() -> None:
    known = specs(TenantSpec("a", tenant_class=TenantClass.BATCH))
    snap = snapshot(100, use("a"), use("b"), holds=[hold("a", 95), hold("b", 95)])
    assert judge(snap, lags(a=-20, b=-80, active=95), known).plan[0].tenant == "b"


def test_batch_is_held_before_latency() -> None:
    known = specs(TenantSpec("z", tenant_class=TenantClass.BATCH))
    rows = [use("a"), use("b"), use("z")]
    assert held(judge(snapshot(20, *rows), lags(a=-60, b=90, z=-30), known)) == ["z", "a"]


def test_a_held_tenant_that_wants_nothing_is_let_go() -> None:
    snap = snapshot(5, use("a", demand=False), use("b"), holds=[hold("a")])
    assert actions(judge(snap)) == [("thaw", "a", ReasonCode.NO_DEMAND)]


def test_a_hold_whose_tenant_vanished_is_ended_without_a_traceback() -> None:
    decision = judge(snapshot(5, use("b"), holds=[hold("gone")]))
    assert actions(decision) == [("thaw", "gone", ReasonCode.NO_DEMAND)]
    assert "gone" not in decision.state.gates


def test_lost_confidence_ends_a_hold_and_forbids_the_next() -> None:
    rows = [use("a", confidence=Confidence.LOW), use("b")]
    assert actions(judge(snapshot(5, *rows, holds=[hold("a")]))) == [("thaw", "a", ReasonCode.LOW_CONFIDENCE)]
    assert not judge(snapshot(20, *rows), lags(a=-200, b=200)).plan


def test_an_exempt_tenant_is_thawed_and_never_held() -> None:
    known = specs(TenantSpec("a", is_exempt=True))
    rows = [use("a"), use("b")]
    assert actions(judge(snapshot(5, *rows, holds=[hold("a")]), known=known)) == [
        ("thaw", "a", ReasonCode.EXEMPT)
    ]
    assert not judge(snapshot(20, *rows), lags(a=-200, b=200), known).plan


def test_an_idle_gpu_is_confirmed_then_given_to_the_most_entitled_held_tenant() -> None:
    # b is in a CPU gap; a and c are held. 3 ms later the GPU is still idle.
    rows = [use("a"), use("b", demand=False), use("c")]
    holds = [hold("a", 95), hold("c", 95)]
    state = lags(a=-80, b=120, c=-40, active=100)
    first = judge(snapshot(101, *rows, interval=1, holds=holds, idle=["gpu0"]), state)
    assert not first.plan and first.wake_ns == 104 * MS
    second = judge(snapshot(104, *rows, interval=3, holds=holds, idle=["gpu0"]), first.state)
    assert actions(second) == [("thaw", "c", ReasonCode.GPU_IDLE)]


def test_a_gpu_known_to_be_idle_for_long_enough_needs_no_second_look() -> None:
    rows = [use("a"), use("b", 5, demand=False)]
    snap = snapshot(104, *rows, interval=9, holds=[hold("a", 90)], idle=["gpu0"], idle_since=101)
    assert actions(judge(snap, lags(a=-80, b=80, active=95))) == [("thaw", "a", ReasonCode.GPU_IDLE)]


def quiet_ms(decision: Decision) -> float:
    assert decision.quiet_until_ns is not None
    return decision.quiet_until_ns / MS


def test_a_held_tenant_is_looked_at_when_it_should_have_caught_up() -> None:
    # H = 10: from -20 to a little more than -2, of which it earns one half.
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a", 80)])
    assert quiet_ms(judge(snap, lags(a=-30, b=30, active=80))) == pytest.approx(100 + 18.5 / 0.5)


def wake_ms(decision: Decision) -> float | None:
    return None if decision.wake_ns is None else decision.wake_ns / MS


@pytest.mark.parametrize(
    ("owes", "since", "wakes"),
    [
        (30, 80, 100 + 18.5 / 0.5),
        (13.5, 80, 100 + 2 / 0.5),
        (12.2, 80, 103),  # it lacks 1.4 ms of time, and a look costs something as well
        (12.2, 99, 109),  # a hold lasts ten freeze latencies at least
    ],
)
def test_the_end_of_a_hold_is_not_missed(owes: float, since: int, wakes: float) -> None:
    # Booking this snapshot it earns 10 of the 20 that b used; H = 10.
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a", since)])
    decision = judge(snap, lags(a=-owes, b=owes, active=80))
    assert not decision.plan
    assert wake_ms(decision) == pytest.approx(wakes)


def test_each_that_is_held_postpones_the_look_for_their_sake() -> None:
    def waking(count: int) -> float | None:
        """``count`` GPUs of two tenants each, of whom one is held."""
        uses, accounts = [], {}
        for number in range(count):
            gpu, name, other = f"gpu{number}", f"t{number}", f"b{number}"
            uses += [use(name, gpu=gpu), use(other, 20, gpu=gpu)]
            accounts |= lags(gpu, active=80, **{name: -13, other: 13}).accounts
        snap = snapshot(100, *uses, holds=[hold(f"t{number}", 80, 400) for number in range(count)])
        return wake_ms(judge(snap, PolicyState(accounts)))

    assert [waking(count) for count in (1, 4, 8)] == [103, 112, 124]


def test_where_three_share_a_gpu_no_look_is_for_the_sake_of_a_hold_alone() -> None:
    snap = snapshot(100, use("a"), use("b", 20), use("c"), holds=[hold("a", 80, 400)])
    assert wake_ms(judge(snap, lags(a=-13, b=6, c=7, active=80))) == 400


@pytest.mark.parametrize(("since", "wakes"), [(38, 100 + 18.5 / 0.5), (36, 400)])
def test_a_long_hold_is_looked_at_when_a_look_is_due_anyway(since: int, wakes: float) -> None:
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a", since, 400)])
    assert wake_ms(judge(snap, lags(a=-30, b=30, active=80))) == pytest.approx(wakes)


def test_holds_that_end_otherwise_are_not_looked_at_for_being_repaid() -> None:
    known = quota()
    over = judge(snapshot(100, use("q", 80), use("b", 20), interval=100), lags(b=10, active=0), known)
    assert over.plan[0].reason.code is ReasonCode.OVER_QUOTA
    later = snapshot(120, use("q"), use("b", 20), holds=[hold("q", 100, 620)])
    assert wake_ms(judge(later, over.state, known)) == pytest.approx(100 + 50 / 0.3)
    theirs = snapshot(100, use("a"), use("b", 20), holds=[hold("a", 80, ours=False)])
    assert wake_ms(judge(theirs, lags(a=-13, b=13, active=80))) == pytest.approx(10_000)


def test_a_gang_is_looked_at_when_the_last_gpu_should_agree() -> None:
    holds = [hold("gang", 80)]
    state = gang_state(-4, -14)
    decision = judge(snapshot(100, *GANG, holds=holds), state)
    assert not decision.plan
    assert wake_ms(decision) == pytest.approx(
        100 + 12.5 / 0.25
    )  # nothing was delivered lately: .5 of the time


@pytest.mark.parametrize(("others", "rooms"), [("b", (5.5, 5.5, 5.5)), ("bc", (10.5, 7.5, 5.5))])
def test_of_two_a_tenant_that_was_let_go_is_looked_at_with_the_queue_in_mind_that_it_will_have(
    others: str, rooms: tuple[float, ...]
) -> None:
    # Nothing is queued yet, but lately 8 were: with them it is over the threshold of 10 as soon as it owes 5.
    # Of three only what is queued now counts.
    state = lags(active=80, a=-2, **dict.fromkeys(others, 2 / len(others)))
    mine = {("a", "gpu0"): state.accounts["a", "gpu0"]._replace(drain_ns=8 * MS)}
    owed = 1 / (1 + len(others))
    for queued, room in zip((0, 3, 8), rooms, strict=True):
        rest = [use(name, 20 * owed) for name in others]
        decision = judge(
            snapshot(100, use("a", 20 * owed, queued=queued), *rest), PolicyState(state.accounts | mine)
        )
        assert quiet_ms(decision) == pytest.approx(100 + 3 * (room - 2) / (1 - owed))


def test_a_tenant_that_runs_is_looked_at_when_its_part_should_have_overdrawn_it() -> None:
    # a took .75 and is owed .5: a little more than 10 is used up in 42 ms.
    snap = snapshot(100, use("a", 15), use("b", 5))
    assert quiet_ms(judge(snap, lags(a=5, b=-5, active=80))) == pytest.approx(100 + 10.5 / 0.25)


def test_a_tenant_within_its_part_is_still_looked_at_in_case_the_others_stop() -> None:
    # Alone it would need 21 ms; three times that is the longest that nobody looks.
    snap = snapshot(100, use("a", 10), use("b", 10))
    assert quiet_ms(judge(snap, lags(a=0, b=0, active=80))) == pytest.approx(100 + 3 * 10.5 / 0.5)


def test_two_gaps_with_work_between_them_are_not_one_long_idle_time() -> None:
    rows = [use("a"), use("b", 5, demand=False)]
    state = lags(a=-80, b=80, active=100)
    holds = [hold("a", 95)]
    first = judge(snapshot(101, *rows, interval=1, holds=holds, idle=["gpu0"]), state)
    second = judge(snapshot(110, *rows, interval=9, holds=holds, idle=["gpu0"]), first.state)
    assert not second.plan


def test_an_idle_gpu_without_a_recent_runner_is_given_away_at_once() -> None:
    rows = [use("a"), use("b", demand=False)]
    snap = snapshot(101, *rows, interval=1, holds=[hold("a", 95)], idle=["gpu0"])
    assert [action[:2] for action in actions(judge(snap, lags(a=-80, b=80, active=80)))] == [("thaw", "a")]


def quota(**more: object) -> dict[str, TenantSpec]:
    return specs(TenantSpec("q", quota_ratio=0.3, **more))  # type: ignore[arg-type]


def test_over_quota_is_held_even_if_the_gpu_idles_and_until_the_debt_is_paid() -> None:
    # 80 used in 100 ms, 30 allowed: 50 ahead > burst 0.1 x 0.3 x 1 s = 30. Paid after 50 / 0.3 = 167 ms.
    decision = judge(snapshot(100, use("q", 80), interval=100), known=quota())
    assert actions(decision) == [("hold", "q", ReasonCode.OVER_QUOTA)]
    assert decision.plan[0].reason.used_ratio == pytest.approx(0.8)
    waiting = snapshot(260, use("q"), interval=160, holds=[hold("q", 100)], idle=["gpu0"])
    decision = judge(waiting, decision.state, quota())
    assert not decision.plan
    paid = snapshot(270, use("q"), interval=10, holds=[hold("q", 100)], idle=["gpu0"])
    assert actions(judge(paid, decision.state, quota())) == [("thaw", "q", ReasonCode.CAUGHT_UP)]


def test_within_quota_nobody_is_held() -> None:
    assert not judge(snapshot(100, use("q", 30), interval=100), known=quota()).plan


def test_the_quota_of_a_parent_is_used_up_by_its_children_together() -> None:
    known = specs(TenantSpec("team", quota_ratio=0.3))
    snap = snapshot(100, use("team/a", 40), use("team/b", 40), interval=100)
    assert sorted(held(judge(snap, known=known))) == ["team/a", "team/b"]


def test_a_hold_for_quota_has_a_deadline_too() -> None:
    decision = judge(snapshot(100, use("q", 100, queued=900), interval=100), known=quota(max_freeze_ms=50))
    snap = snapshot(150, use("q", queued=900), holds=[hold("q", 100, 150)])
    assert actions(judge(snap, decision.state, quota())) == [("thaw", "q", ReasonCode.DEADLINE)]


def gang_state(on_0: float, on_1: float) -> PolicyState:
    return PolicyState(
        lags(gang=on_0, x=-on_0, active=100).accounts | lags("gpu1", gang=on_1, y=-on_1, active=100).accounts
    )


GANG = [use("gang"), use("gang", gpu="gpu1"), use("x"), use("y", gpu="gpu1")]


def test_a_gang_is_decided_on_its_most_overdrawn_gpu() -> None:
    action = only(judge(snapshot(100, *GANG), gang_state(-30, -90)))
    assert (action.tenant, action.reason.gpu) == ("gang", "gpu1")


def test_a_gang_is_let_go_when_no_contended_gpu_objects() -> None:
    holds = [hold("gang", 0)]
    assert not judge(snapshot(100, *GANG, holds=holds), gang_state(0, -30)).plan
    assert actions(judge(snapshot(100, *GANG, holds=holds), gang_state(0, 0)))[0][2] is ReasonCode.CAUGHT_UP


def test_holding_a_gang_lets_go_whom_it_leaves_alone_on_another_gpu() -> None:
    # x is held on gpu0 where only the gang runs; the gang is now held for gpu1.
    state = gang_state(30, -90)
    decision = judge(snapshot(100, *GANG, holds=[hold("x", 90)]), state)
    assert actions(decision) == [
        ("hold", "gang", ReasonCode.OVER_ENTITLEMENT),
        ("thaw", "x", ReasonCode.LAST_WITH_DEMAND),
    ]


def test_a_hold_that_failed_is_asked_for_again() -> None:
    rows = [use("a"), use("b")]
    first = judge(snapshot(20, *rows), lags(a=-50, b=50))
    assert held(first) == ["a"]
    # The next snapshot shows no hold: after the dwell it is tried again.
    state = PolicyState(lags(a=-50, b=50, active=40).accounts, gates=first.state.gates)
    second = judge(snapshot(40, *rows), state)
    assert not second.plan
    state = PolicyState(lags(a=-50, b=50, active=60).accounts, gates=second.state.gates)
    assert held(judge(snapshot(60, *rows), state)) == ["a"]


def test_the_arguments_are_left_as_they_were() -> None:
    state = lags(a=-50, b=50)
    before = state.to_dict()
    known: dict[str, TenantSpec] = {}
    judge(snapshot(20, use("a", 10), use("b")), state, known)
    assert state.to_dict() == before and not known


def test_a_wrong_drain_estimate_cannot_outweigh_every_credit() -> None:
    # An estimate of an hour counts as the clamp.
    rows = [use("a", queued=3_600_000), use("b")]
    action = only(judge(snapshot(20, *rows), lags(a=-6, b=6)))
    assert action.reason.threshold_ns == 200 * MS


def test_parameters_are_obeyed() -> None:
    params = PolicyParams(threshold_floor_ns=100 * MS)
    assert not judge(snapshot(20, use("a"), use("b")), lags(a=-90, b=90), params=params).plan


def test_an_account_without_history_holds_nobody() -> None:
    assert Account() == Account(lag_ns=0.0, active_ns=None)
    assert not judge(snapshot(20)).plan


@pytest.mark.parametrize(
    ("uses", "is_contended"),
    [
        ((use("a"), use("b")), True),
        ((use("a"), use("b", demand=False)), False),
        ((use("a"), use("b", gpu="gpu1")), False),
        ((use("a"), use("a", gpu="gpu1"), use("b", gpu="gpu1")), True),
    ],
)
def test_a_gpu_is_contended_when_two_want_it(uses: tuple[Use, ...], is_contended: bool) -> None:
    assert judge(snapshot(100, *uses)).is_contended is is_contended


def test_nobody_gives_way_to_himself() -> None:
    known = specs(TenantSpec("a", tenant_class=TenantClass.BATCH), TenantSpec("b"))
    state = replace(lags(active=80, a=2, b=0), gpus={"gpu0": GpuAccount(back_ns=90 * MS)})
    nobody_behind = judge(snapshot(100, use("a", 0, queued=100), use("b", 0)), state, known)
    assert held(nobody_behind) == []
    one_behind = judge(snapshot(100, use("a", 0, queued=100), use("b", 0)), _with_lag(state, "b", 1), known)
    assert held(one_behind) == ["a"]


def _with_lag(state: PolicyState, tenant: str, lag: float) -> PolicyState:
    key = (tenant, "gpu0")
    return replace(state, accounts={**state.accounts, key: state.accounts[key]._replace(lag_ns=lag * MS)})
