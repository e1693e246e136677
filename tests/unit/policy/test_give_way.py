# SPDX-License-Identifier: Apache-2.0
"""Somebody with deadlines comes back to a GPU that batch work has filled: for a moment the batch work gives way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.model import TenantClass, TenantSpec, Use
from fairsched.policy import Decision, PolicyState
from fairsched.policy.lag import Account
from tests.unit.policy.builders import MS, held, judge, snapshot, specs, use

BACK = 1000
"""When chat comes back, in ms."""
TRAIN, CHAT = (
    TenantSpec("train", tenant_class=TenantClass.BATCH),
    TenantSpec("chat", tenant_class=TenantClass.LATENCY),
)


def filled(queued: float = 100) -> list[Use]:
    return [use("train", queued=queued), use("chat")]


def coming_back(
    pause: float = 101, *, queued: float = 100, train: TenantSpec = TRAIN, chat: TenantSpec = CHAT
) -> Decision:
    """train has worked all the time, chat wants the GPU again after ``pause``; nobody owes anybody anything."""
    active = {"train": BACK - 20, "chat": BACK - pause}
    before = {(name, "gpu0"): Account(0, round(when * MS)) for name, when in active.items()}
    return judge(snapshot(BACK, *filled(queued)), PolicyState(before), specs(train, chat))


def later(
    decision: Decision,
    ago: float,
    lag: float = 2,
    owed: float = 1,
    *,
    train: TenantSpec = TRAIN,
    queued: float = 100,
) -> Decision:
    """Both have gone on for ``ago`` ms; by now train has this lag and chat is ``owed`` so much."""
    known, state, now = specs(train, CHAT), decision.state, 0.0
    while ago - now > 50:
        now += 50
        state = judge(snapshot(BACK + now, *filled(queued), interval=50), state, known).state
    given = {"train": lag * MS, "chat": owed * MS}
    accounts = {key: account._replace(lag_ns=given[key[0]]) for key, account in state.accounts.items()}
    state = replace(state, accounts=accounts)
    return judge(snapshot(BACK + ago, *filled(queued), interval=ago - now), state, known)


@pytest.mark.parametrize(("ago", "is_held"), [(8, True), (150, True), (150.1, False), (400, False)])
def test_batch_work_that_is_owed_something_gives_way_for_150_ms(ago: float, is_held: bool) -> None:
    # lag 2, but 100 queued: the queue drains anyway, and that is more than its turn.
    assert held(later(coming_back(), ago)) == (["train"] if is_held else [])


@pytest.mark.parametrize(("lag", "is_held"), [(4.9, True), (5.1, False)])
def test_it_gives_way_of_half_a_threshold_and_no_more(lag: float, is_held: bool) -> None:
    assert held(later(coming_back(), 8, lag)) == (["train"] if is_held else [])


def test_batch_work_without_a_queue_has_nothing_to_give_way_with() -> None:
    # 2 - 11 is within H = 10
    assert held(later(coming_back(queued=11), 8, queued=11)) == []
    assert held(later(coming_back(queued=13), 8, queued=13)) == ["train"]


def test_only_batch_work_gives_way() -> None:
    peer = replace(TRAIN, tenant_class=TenantClass.LATENCY)
    assert held(later(coming_back(train=peer), 8, train=peer)) == []
    assert held(later(coming_back(train=peer), 8, -6, train=peer)) == ["train"], "it is held as ever"


@pytest.mark.parametrize(("pause", "is_held"), [(100, False), (100.1, True)])
def test_a_short_pause_is_no_absence(pause: float, is_held: bool) -> None:
    assert held(later(coming_back(pause), 8)) == (["train"] if is_held else [])


def test_batch_work_that_comes_back_is_given_no_way() -> None:
    assert held(later(coming_back(chat=replace(CHAT, tenant_class=TenantClass.BATCH)), 8)) == []


def test_whoever_has_never_been_there_before_comes_back_too() -> None:
    before = PolicyState({("train", "gpu0"): Account(0, (BACK - 20) * MS)})
    new = judge(snapshot(BACK, *filled()), before, specs(TRAIN, CHAT))
    assert held(later(new, 8)) == ["train"]


def test_way_is_given_on_the_gpu_that_somebody_came_back_to_and_on_no_other() -> None:
    known = specs(TRAIN, CHAT, TenantSpec("other"))
    there = {("train", "gpu0"): Account(2 * MS, 990 * MS), ("other", "gpu0"): Account(1 * MS, 990 * MS)}
    rows = [use("train", queued=100), use("other"), use("chat", gpu="gpu1")]
    decision = judge(snapshot(BACK, *rows), PolicyState(there), known)
    assert decision.wake_ns is not None, "somebody came back"
    assert held(decision) == []


@pytest.mark.parametrize("interval", [100.3, 250, 1000])
def test_whoever_wanted_the_gpu_at_the_last_look_has_not_been_away_however_late_the_next_one_is(
    interval: float,
) -> None:
    decision, now = coming_back(20), float(BACK)
    for _ in range(5):
        now += interval
        decision = judge(snapshot(now, *filled(), interval=interval), decision.state, specs(TRAIN, CHAT))
        assert decision.wake_ns is None
    assert decision.state.gpus["gpu0"].back_ns is None


def test_a_state_from_before_a_reboot_makes_nobody_give_way() -> None:
    returned = coming_back()
    gpus = {gpu: replace(account, back_ns=10**9 * MS) for gpu, account in returned.state.gpus.items()}
    assert held(later(replace(returned, state=replace(returned.state, gpus=gpus)), 8)) == []


def test_what_somebody_who_came_back_is_owed_is_looked_at_8_ms_later_once() -> None:
    returned = coming_back()
    assert held(returned) == [], "it is owed nothing yet"
    assert returned.wake_ns == (BACK + 8) * MS
    assert coming_back(20).wake_ns is None
    again = judge(snapshot(BACK + 8, *filled(), interval=8), returned.state, specs(TRAIN, CHAT))
    assert again.wake_ns is None


@pytest.mark.parametrize(("pause", "limit"), [(101, 5), (20, -5)])
def test_the_next_look_is_foretold_by_the_limit_that_the_hold_will_have(pause: float, limit: float) -> None:
    # H = 100/2. Nobody has used anything, so train is taken to use .5 and to earn .5 x .5; to be overdrawn it has to
    # come from 8 to the limit, and .05 x H further to be sure.
    decision = later(coming_back(pause), 8, 8, owed=99)
    assert held(decision) == []
    assert decision.quiet_until_ns == pytest.approx((BACK + 8 + (8 - limit + 2.5) / 0.25) * MS)
