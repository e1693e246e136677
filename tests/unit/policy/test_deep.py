# SPDX-License-Identifier: Apache-2.0
"""Queues that outlast a hold: what is granted at a thaw, and how long a hold may be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fairsched.model import ActionKind, PolicyParams, ReasonCode, TenantClass, TenantSpec
from fairsched.policy import PolicyState
from fairsched.policy.deep import longest_pulse_ns
from fairsched.policy.lag import Gate
from tests.unit.policy.builders import MS, hold, judge, lags, only, snapshot, specs, use


def deep(queued: float = 400, **lag: float) -> PolicyState:
    """a was seen with so much queued; everybody's lag is given."""
    state = lags(active=80, **lag)
    key = ("a", "gpu0")
    return replace(
        state, accounts={**state.accounts, key: state.accounts[key]._replace(refill_ns=queued * MS)}
    )


def test_a_tenant_of_deep_queues_is_let_go_to_queue_its_part_and_no_more() -> None:
    # A hold of 500 ms repays 250; the one that may follow has a deadline of its own.
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a")])
    action = only(judge(snap, deep(a=-1, b=1)))
    assert (action.kind, action.reason.code) == (ActionKind.THAW, ReasonCode.CAUGHT_UP)
    assert (action.grant_ns, action.deadline_ns) == (100 * MS, 600 * MS)


@pytest.mark.parametrize(
    ("queued", "owes", "spec", "limit"),
    [
        (400, 501, TenantSpec("a"), 2000),  # half of 500 ms repays 250
        (400, 500, TenantSpec("a"), 500),
        (249, 751, TenantSpec("a"), 500),
        (400, 751, TenantSpec("a", max_freeze_ms=500), 500),
        (400, 4000, TenantSpec("a", max_freeze_ms=5000), 5000),
        (1000, 4001, TenantSpec("a", tenant_class=TenantClass.BATCH), 2000),
    ],
)
def test_a_debt_that_two_holds_cannot_repay_is_repaid_by_one_longer_one_unless_the_tenant_has_a_limit(
    queued: float, owes: float, spec: TenantSpec, limit: int
) -> None:
    state, known = deep(queued, a=-owes, b=owes), specs(spec)
    wide = PolicyParams(lag_clamp_ns=10_000 * MS)
    action = only(judge(snapshot(100, use("a"), use("b")), state, known, wide))
    assert (action.kind, action.deadline_ns) == (ActionKind.HOLD, (100 + limit) * MS)
    is_longer = spec == TenantSpec("a") and limit == 2000
    assert action.reason.long_hold_ns == (2000 * MS if is_longer else None)


@pytest.mark.parametrize("spec", [TenantSpec("a"), TenantSpec("a", tenant_class=TenantClass.BATCH)])
@pytest.mark.parametrize(
    ("queued", "weight", "before", "limit"),
    [
        (3000, 1, 2000, 4000),
        (3000, 1, 4000, 6000),  # others have had as much by then
        (2000, 3, 5000, 8000),
        (9000, 1, 8000, 10_000),
    ],
)
def test_while_long_holds_do_not_do_they_double_until_the_others_have_had_as_much_as_it_queues(
    queued: float, weight: int, before: float, limit: float, spec: TenantSpec
) -> None:
    known = specs(spec, TenantSpec("b", weight=weight))
    snap = snapshot(before, use("a"), use("b"), holds=[hold("a", 0, before)])
    action = only(judge(snap, deep(queued, a=-queued, b=queued), known))
    assert (action.kind, action.reason.code) == (ActionKind.THAW, ReasonCode.DEADLINE)
    assert action.deadline_ns == pytest.approx((before + limit) * MS, rel=1e-3)


def test_a_hold_without_a_grant_knows_that_the_last_one_did_not_do() -> None:
    """One that did is the end of it."""
    state, snap = deep(8000, a=-8000, b=8000), snapshot(4000, use("a"), use("b"), holds=[hold("a", 0, 4000)])
    after = judge(snap, state).state
    assert after.gates["a"].vain_ns == 4000 * MS
    for now in (4500, 4600):  # a change less than its dwell ago forbids the first
        later = judge(snapshot(now, use("a"), use("b")), after)
        after = later.state
    assert only(later).reason.long_hold_ns == 8000 * MS
    kept = PolicyState.from_dict(json.loads(json.dumps(later.state.to_dict())))
    assert kept.gates["a"].vain_ns == 4000 * MS
    repaid = deep(8000, a=-1, b=1)
    done = judge(snap, replace(repaid, gates=later.state.gates))
    assert (only(done).reason.code, done.state.gates["a"].vain_ns) == (ReasonCode.DEADLINE, 4000 * MS)
    done = judge(replace(snap, now_ns=3000 * MS), replace(repaid, gates=later.state.gates))
    assert (only(done).reason.code, done.state.gates["a"].vain_ns) == (ReasonCode.CAUGHT_UP, 0)


@pytest.mark.parametrize("is_quota", [False, True])
def test_that_a_hold_for_a_quota_did_not_do_says_nothing_of_queues(is_quota: bool) -> None:
    known = specs(TenantSpec("a", tenant_class=TenantClass.BATCH, quota_ratio=0.1), TenantSpec("b"))
    state = replace(deep(8000, a=-8000, b=8000), gates={"a": Gate("gpu0", is_quota)})
    snap = snapshot(4000, use("a"), use("b"), holds=[hold("a", 0, 4000)])
    decided = judge(snap, state, known)
    assert only(decided).reason.code is ReasonCode.DEADLINE
    assert decided.state.gates["a"].vain_ns == (0 if is_quota else 4000 * MS)


def test_an_operators_limit_holds_whatever_is_queued() -> None:
    known = specs(TenantSpec("a", max_freeze_ms=3000))
    action = only(judge(snapshot(100, use("a"), use("b")), deep(9000, a=-9000, b=9000), known))
    assert (action.deadline_ns, action.reason.long_hold_ns) == (3100 * MS, None)


@pytest.mark.parametrize(("queued", "most"), [(100, 400), (1500, 1500), (60_000, 10_000)])
def test_nobody_owes_more_than_the_deepest_queue_on_the_gpu(queued: float, most: float) -> None:
    """And nobody is owed more: what is clamped goes to all."""
    snap = snapshot(100, use("a", 20), use("b"))
    accounts = judge(snap, deep(queued, a=-20_000, b=20_000)).state.accounts
    assert accounts["a", "gpu0"].lag_ns == pytest.approx(-most * MS, rel=1e-2)
    assert accounts["b", "gpu0"].lag_ns == pytest.approx(most * MS, rel=1e-2)


@pytest.mark.parametrize(("queued", "limit"), [(15, 500), (17, 2000)])
def test_among_many_a_single_step_is_deep(queued: float, limit: int) -> None:
    """Of a 32nd of the GPU half a second is worth 15.6 ms."""
    known = specs(TenantSpec("a", 1), TenantSpec("b", 31))
    action = only(judge(snapshot(100, use("a"), use("b")), deep(queued, a=-200, b=200), known))
    assert (action.kind, action.deadline_ns) == (ActionKind.HOLD, (100 + limit) * MS)


def test_a_quota_is_paid_back_in_holds_of_the_class() -> None:
    known = specs(TenantSpec("a", quota_ratio=0.1), TenantSpec("b"))
    action = only(judge(snapshot(100, use("a", 90), use("b"), interval=100), deep(a=-390, b=390), known))
    assert (action.reason.code, action.deadline_ns) == (ReasonCode.OVER_QUOTA, 600 * MS)


@pytest.mark.parametrize(("owes", "limit"), [(400, 500), (401, 2000)])
def test_what_it_is_let_go_to_queue_counts_as_owed(owes: float, limit: int) -> None:
    snap = snapshot(600, use("a"), use("b"), holds=[hold("a", 0, 500)])
    action = only(judge(snap, deep(a=-owes, b=owes), params=PolicyParams(lag_clamp_ns=1000 * MS)))
    assert (action.grant_ns, action.deadline_ns) == (100 * MS, (600 + limit) * MS)
    assert action.reason.long_hold_ns == (2000 * MS if limit == 2000 else None)


@pytest.mark.parametrize(
    ("since", "deadline", "owes", "limit"),
    [
        (0, 2000, 60, 2000),
        (5, 2000, 60, 2000),  # after a grant, which took 5 ms to queue
        (1500, 2000, 60, 500),
        (0, 3000, 1, 500),  # caught up: it begins anew
    ],
)
def test_a_long_hold_that_did_not_do_is_followed_by_another(
    since: float, deadline: float, owes: float, limit: int
) -> None:
    snap = snapshot(2000, use("a"), use("b"), holds=[hold("a", since, deadline)])
    action = only(judge(snap, deep(a=-owes, b=owes)))
    assert (action.grant_ns, action.deadline_ns) == (100 * MS, (2000 + limit) * MS)


def test_a_deadline_is_no_way_around_the_grant() -> None:
    snap = snapshot(600, use("a"), use("b", 20), holds=[hold("a", 0, 500)])
    action = only(judge(snap, deep(a=-50, b=50)))
    assert (action.reason.code, action.grant_ns) == (ReasonCode.DEADLINE, 100 * MS)


def test_a_small_part_may_still_queue_the_threshold() -> None:
    known = specs(TenantSpec("a", 1), TenantSpec("b", 99))
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a")])
    assert only(judge(snap, deep(a=-1, b=1), known)).grant_ns == 10 * MS


def test_shallow_queues_are_let_go_without_conditions() -> None:
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a")])
    action = only(judge(snap, deep(249, a=-1, b=1)))
    assert (action.grant_ns, action.deadline_ns) == (None, 0)
    patient = specs(TenantSpec("a", tenant_class=TenantClass.BATCH))
    assert only(judge(snap, deep(999, a=-1, b=1), patient)).grant_ns is None


def test_nobody_is_rationed_on_a_gpu_nobody_else_wants() -> None:
    snap = snapshot(100, use("a"), use("b", demand=False), holds=[hold("a")])
    assert only(judge(snap, deep(a=-1, b=0))).grant_ns is None


def test_deep_queues_are_forgotten_in_minutes_and_not_before() -> None:
    def refill_ms(after_s: int) -> float:
        state = deep(a=0, b=0)
        for second in range(1, after_s + 1):
            snap = snapshot(second * 1000, use("a", 10), use("b", 10), interval=1000)
            state = judge(snap, state).state
        return state.accounts["a", "gpu0"].refill_ns / MS

    assert refill_ms(30) > 200
    assert refill_ms(180) < 25


def test_while_it_runs_its_queue_is_looked_at_soon_and_often() -> None:
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a")])
    assert judge(snap, deep(a=-1, b=1)).wake_ns == 105 * MS
    running = snapshot(100, use("a", 10), use("b", 10))
    assert judge(running, deep(a=0, b=0)).quiet_until_ns is None
    assert judge(running, deep(20, a=0, b=0)).quiet_until_ns is not None


def test_nothing_is_granted_to_a_queue_that_nobody_sees() -> None:
    """It is over its budget: a look just after the grant would know no more than this one."""
    state = deep(a=-1, b=1)
    for may_be_owed in (True, False):
        hidden = use("a")._replace(may_be_owed=may_be_owed, most_ns=0)
        action = only(judge(snapshot(100, hidden, use("b", 20), holds=[hold("a")]), state))
        assert (action.kind, action.grant_ns is not None) == (ActionKind.THAW, may_be_owed)


def test_alone_on_its_gpu_even_one_of_deep_queues_may_queue_at_any_moment() -> None:
    assert judge(snapshot(100, use("a", 20, queued=5)), deep(600, a=0)).quiet_until_ns is not None


def test_a_queue_that_no_grant_would_cut_is_let_go_without_one() -> None:
    # Owed a hundredth: a hold of 500 ms repays 5 ms, and the least grant is 10.
    known = specs(TenantSpec("a", 1), TenantSpec("b", 99))
    snap = snapshot(100, use("a"), use("b", 20), holds=[hold("a")])
    assert only(judge(snap, deep(9, a=-1, b=1), known)).grant_ns is None
    assert only(judge(snap, deep(11, a=-1, b=1), known)).grant_ns == 10 * MS


@pytest.mark.parametrize(
    ("asked", "spec", "longest"),
    [
        (1000, TenantSpec("a"), 500),
        (1001, TenantSpec("a"), 2000),
        (4000, TenantSpec("a", max_freeze_ms=500), 500),
        (400, TenantSpec("a", max_freeze_ms=150), 150),
        (4001, TenantSpec("a", tenant_class=TenantClass.BATCH), 2000),
    ],
)
def test_a_pulse_is_longer_than_was_promised_only_for_what_two_of_these_do_not_repay(
    asked: int, spec: TenantSpec, longest: int
) -> None:
    assert longest_pulse_ns(asked * MS, spec, PolicyParams()) == longest * MS
