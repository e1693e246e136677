# SPDX-License-Identifier: Apache-2.0
"""The account from scripted edges and live contexts: who is charged, what is queued, and that every hold ends."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import DEMAND_LINGER_NS, ProcessUse
from fairsched.accounting.ebpf import REMEMBERED_TENANTS
from fairsched.accounting.outstanding import UNSYNCED_IDLE_NS
from fairsched.accounting.silent import UNSYNCED_NS
from fairsched.bpf import abi
from fairsched.model import Confidence
from tests.unit.accounting.fake_probe import MS, SLICE_NS, SWITCH_NS, FakeProbe, account_of, taught, used

CHAT, TRAIN = 100, 200
S = 1000 * MS


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


def only(rows: list[ProcessUse]) -> ProcessUse:
    assert len(rows) == 1
    return rows[0]


# ---- who is charged ----


def test_a_burst_is_charged_to_its_cgroup_and_process(probe: FakeProbe) -> None:
    probe.create(0, 11, CHAT)
    probe.launch(0, 10 * MS, 4)
    probe.sync(0, 30 * MS)
    row = only(account_of(probe).read(40 * MS))
    assert (row.cgroup_id, row.tgid, row.gpu, row.used_ns, row.launches) == (CHAT, 11, 0, 20 * MS, 4)


def test_time_is_reported_once(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0)
    assert [only(account.read(t * MS)).used_ns for t in (10, 20, 20, 50)] == [10 * MS, 10 * MS, 0, 30 * MS]


def test_what_is_taken_in_ahead_of_a_read_is_told_by_that_read_and_once(probe: FakeProbe) -> None:
    def play() -> FakeProbe:
        one = FakeProbe()
        one.create(0, 100, 7)
        one.launch(0, 0)
        one.sync(0, 5 * MS)
        one.end(0, 6 * MS)
        return one

    whole, parts = account_of(play()), account_of(play())
    for portion in (1, 2):
        parts.take_in(portion)
    assert parts.read(10 * MS) == whole.read(10 * MS)
    assert parts.events == whole.events
    assert parts.events.gone_processes == [100]
    assert (parts.read(20 * MS), parts.events) == ([], type(parts.events)())


def test_two_that_share_the_gpu_share_its_time(probe: FakeProbe) -> None:
    account = account_of(probe)
    for slot, cgroup in ((0, CHAT), (1, TRAIN)):
        probe.create(slot, 11 + slot, cgroup)
        probe.launch(slot, 0, 10)
    rounds = 10
    now = rounds * 2 * (SLICE_NS + SWITCH_NS)
    assert used(account.read(now)) == {CHAT: rounds * SLICE_NS, TRAIN: rounds * SLICE_NS}


def test_copies_are_not_compute_time(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0)
    probe.edges = [
        edge if edge.kind == abi.EdgeKind.CTX_NEW else edge._replace(engine=abi.COPY) for edge in probe.edges
    ]
    assert used(account.read(10 * MS)) == {CHAT: 0}


def test_a_process_that_moves_to_another_cgroup_is_charged_there_from_then_on(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0, 10)
    probe.contexts_by_slot[0].cgroup_id = TRAIN
    probe.progress(0, 30 * MS, 5)
    assert used(account.read(50 * MS)) == {CHAT: 30 * MS, TRAIN: 20 * MS}


def test_the_last_burst_of_a_process_that_exits_is_charged(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0, 10)
    probe.end(0, 15 * MS)
    assert used(account.read(100 * MS)) == {CHAT: 15 * MS}
    assert account.events.gone_processes == [11]
    assert account.read(200 * MS) == []


def test_a_slot_that_is_used_again_is_another_context(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0)
    probe.end(0, 10 * MS)
    probe.create(0, 12, TRAIN, t_ns=20 * MS)
    probe.launch(0, 20 * MS)
    assert used(account.read(50 * MS)) == {CHAT: 10 * MS, TRAIN: 30 * MS}


def test_a_context_whose_end_was_dropped_is_found_gone(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0)
    account.read(10 * MS)
    probe.is_losing = True
    probe.end(0, 15 * MS)
    account.read(20 * MS)
    assert account.read(500 * MS) == []
    assert account.idle_gpus() == {0}


def test_processes_are_passed_on(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe._emit(abi.EdgeKind.PROC_NEW, 0, 0)
    probe._emit(abi.EdgeKind.GPU_IDLE, 0, 0)
    account.read(MS)
    assert account.events.new_processes == [11]
    account.read(2 * MS)
    assert account.events.new_processes == []


def test_contexts_older_than_the_probes_stand_in_the_order_their_processes_started(probe: FakeProbe) -> None:
    """Neither the order they are seen in nor that of their pids: born a, b, then c, so c is next after b."""
    account = account_of(probe, born={11: 5, 12: 3})
    probe.create(2, 13, 300, t_ns=10)  # c, seen being made
    for slot, tgid, cgroup in ((0, 11, TRAIN), (1, 12, CHAT)):  # b, a
        probe.create(slot, tgid, cgroup, t_ns=20, is_seen=False)
    for slot in (0, 1, 2):
        probe.launch(slot, 20, 10)
    into_second = 20 + SLICE_NS + SWITCH_NS + SLICE_NS // 2
    assert used(account.read(into_second)) == {TRAIN: SLICE_NS, 300: SLICE_NS // 2, CHAT: 0}


# ---- lost edges, and a replay that does not fit ----


def test_from_the_second_lossy_look_on_the_clock_is_the_account(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0)
    account.read(10 * MS)
    probe.is_losing = True
    probe.sync(0, 12 * MS)
    account.read(20 * MS)
    busy = probe.contexts_by_slot[0].busy[abi.COMPUTE]
    busy.gpu_time_ns += 7 * MS  # what the clock charged for bursts we saw nothing of
    probe.dropped += 1
    assert only(account.read(30 * MS)).used_ns == 7 * MS
    busy.streams, busy.open_ns, busy.v_open_ns = 1, 30 * MS, 30 * MS
    probe.clocks[0].word[abi.COMPUTE] = 1 << abi.CLOCK_SHIFT
    probe.dropped += 1
    assert only(account.read(35 * MS)).used_ns == 5 * MS  # an open interval counts


def test_a_lost_end_is_made_good_at_the_next_look(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0)
    account.read(10 * MS)
    probe.is_losing = True
    probe.sync(0, 12 * MS)
    account.read(20 * MS)
    probe.is_losing = False
    assert only(account.read(500 * MS)).used_ns == 0


def test_a_lost_beginning_is_made_good_at_the_next_look(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    account.read(10 * MS)
    probe.is_losing = True
    probe.launch(0, 12 * MS)
    account.read(20 * MS)
    probe.is_losing = False
    assert only(account.read(50 * MS)).used_ns == 30 * MS


def test_who_came_while_edges_were_lost_and_never_falls_idle_is_found(probe: FakeProbe) -> None:
    account = account_of(probe)
    account.read(10 * MS)
    probe.is_losing = True
    probe.create(0, 11, CHAT)
    probe.launch(0, 12 * MS, 100)
    account.read(20 * MS)
    probe.is_losing = False
    probe.progress(0, 40 * MS, 50)
    assert only(account.read(50 * MS)).used_ns == 30 * MS


@pytest.mark.parametrize("kind", ["unsynced", "lost"])
def test_an_end_that_is_a_guess_judges_nobody(probe: FakeProbe, kind: str) -> None:
    account = account_of(probe)
    for slot, cgroup in ((0, CHAT), (1, TRAIN)):
        probe.create(slot, 11 + slot, cgroup)
        probe.launch(slot, 0, 10)
    probe.contexts_by_slot[0].synced = 1
    account.read(SLICE_NS // 2)
    if kind == "lost":
        probe.is_losing = True
        probe.sync(1, SLICE_NS // 2)
        account.read(SLICE_NS - 1)
    else:
        account.read(UNSYNCED_IDLE_NS + MS)
    assert account._engines[0].replay.misses == 0


# ---- confidence ----


def test_until_completion_was_proven_nothing_is_sure(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.launch(0, 0, 10)
    assert only(account.read(5 * MS)).confidence is Confidence.LOW
    probe.sync(0, 20 * MS)
    assert only(account.read(21 * MS)).confidence is Confidence.HIGH


def test_one_that_stops_proving_completion_is_not_sure_any_more(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.launch(0, now)
    probe.launch(0, now + UNSYNCED_NS // 2)
    assert only(account.read(now + UNSYNCED_NS // 2)).confidence is Confidence.HIGH
    probe.launch(0, now + UNSYNCED_NS + MS)
    assert only(account.read(now + UNSYNCED_NS + MS)).confidence is Confidence.BOUND


def test_a_burst_after_a_long_silence_counts_from_its_beginning(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    begin = taught(probe, account) + 10 * UNSYNCED_NS
    probe.launch(0, begin)
    assert only(account.read(begin + MS)).confidence is Confidence.HIGH
    probe.launch(0, begin + UNSYNCED_NS + MS)
    assert only(account.read(begin + UNSYNCED_NS + MS)).confidence is Confidence.BOUND


@pytest.mark.parametrize(
    ("gpus", "flag", "confidence"),
    [
        (1, abi.CtxFlag.GPU_GUESSED, Confidence.HIGH),
        (2, abi.CtxFlag.GPU_GUESSED, Confidence.LOW),
        (2, abi.CtxFlag.UNSEEN, Confidence.LOW),
        (2, abi.CtxFlag(0), Confidence.HIGH),
    ],
)
def test_a_guessed_gpu_is_unsure_only_among_several(
    probe: FakeProbe, gpus: int, flag: abi.CtxFlag, confidence: Confidence
) -> None:
    account = account_of(probe, gpus=gpus)
    probe.create(0, 11, CHAT)
    probe.contexts_by_slot[0].flags |= flag
    now = taught(probe, account)
    assert only(account.read(now + MS)).confidence is confidence


def test_the_least_sure_context_of_a_process_decides(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.create(1, 11, 999, t_ns=now)  # another cgroup, so that nothing can be borrowed
    probe.contexts_by_slot[1].cgroup_id = CHAT
    account._launches._known.clear()
    probe.edges[-1] = probe.edges[-1]._replace(cgroup_id=CHAT)
    assert only(account.read(now + MS)).confidence is Confidence.LOW


# ---- demand and what is queued ----


def test_a_short_pause_between_bursts_is_demand_and_a_long_one_is_not(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    assert only(account.read(now + DEMAND_LINGER_NS)).has_demand
    assert not only(account.read(now + DEMAND_LINGER_NS + 1)).has_demand


def test_what_is_queued_is_launches_times_their_time_less_what_ran(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account, tau_ms=2)
    probe.launch(0, now, 10)
    assert only(account.read(now)).outstanding_ns == pytest.approx(20 * MS, rel=0.03)
    assert only(account.read(now + 15 * MS)).outstanding_ns == pytest.approx(5 * MS, rel=0.03)
    assert only(account.read(now + 21 * MS)).outstanding_ns < 1.5 * MS
    assert only(account.read(now + 90 * MS)).outstanding_ns == pytest.approx(14 * MS, rel=0.1), "another kind"


def test_the_first_sample_of_a_context_older_than_the_probes_is_ignored(probe: FakeProbe) -> None:
    """It queued work before anybody counted: its first proof says nothing of time per launch."""
    account = account_of(probe)
    probe.create(0, 11, CHAT, is_seen=False)
    probe.launch(0, 0, 1)
    probe.sync(0, 500 * MS)  # 500 ms for one launch: the rest is older
    assert only(account.read(500 * MS)).confidence is Confidence.LOW
    now = taught(probe, account, start_ns=500 * MS)
    probe.launch(0, now, 10)
    assert only(account.read(now)).outstanding_ns == pytest.approx(20 * MS, rel=0.03)


def test_a_second_process_of_a_cgroup_borrows_what_the_first_taught(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.create(1, 12, CHAT, t_ns=now)
    probe.launch(1, now, 5)
    row = next(row for row in account.read(now) if row.tgid == 12)
    assert row.confidence is Confidence.HIGH
    assert row.outstanding_ns == pytest.approx(10 * MS, rel=0.05)


def test_cgroups_that_come_and_go_are_not_remembered_for_ever(probe: FakeProbe) -> None:
    account, now = account_of(probe), 0
    for number in range(REMEMBERED_TENANTS + 10):
        probe.create(0, 11, CHAT + number, t_ns=now)
        probe.launch(0, now, 10)
        probe.sync(0, now + 20 * MS)
        probe.end(0, now + 21 * MS)
        now += 22 * MS
        account.read(now)
    kept = list(account._launches._known)
    assert kept == [CHAT + number for number in range(10, REMEMBERED_TENANTS + 10)]


# ---- holds ----


def test_a_held_context_is_charged_its_drain_and_no_more(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([CHAT], now + 5 * MS)
    assert account.next_drain_end_ns() == pytest.approx(now + 20 * MS, abs=MS // 10)
    total = sum(used(account.read(now + t * MS)).get(CHAT, 0) for t in (10, 30, 1000))
    assert total == pytest.approx(20 * MS, rel=0.03)
    assert probe.drains_ended == [(0, 1, 0)]
    assert account.idle_gpus() == {0}


@pytest.mark.parametrize("when", ["before hold", "after hold"])
def test_a_launch_that_slipped_in_before_the_freeze_still_has_an_end(probe: FakeProbe, when: str) -> None:
    """The lock-out: its OPEN is read after hold(); without an end it would be charged for ever."""
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    if when == "before hold":
        probe.launch(0, now + MS, 10)
    account.hold([CHAT], now + MS)
    if when == "after hold":
        probe.launch(0, now + MS, 10)
    account.read(now + 2 * MS)
    total = sum(used(account.read(now + t * MS)).get(CHAT, 0) for t in (50, 500, 5000))
    assert total <= 21 * MS
    assert probe.drains_ended == [(0, 1, 0)]


def test_more_launches_that_slipped_in_lengthen_the_drain(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.launch(0, now, 5)
    account.read(now)
    account.hold([CHAT], now)
    probe.launch(0, now, 5)
    total = sum(used(account.read(now + t * MS)).get(CHAT, 0) for t in (1, 50, 500))
    assert total == pytest.approx(20 * MS, rel=0.03)


def test_a_held_tenant_keeps_its_demand_if_it_had_any(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    account.hold([CHAT], now + MS)
    assert only(account.read(now + S)).has_demand
    account.thaw([CHAT], now + S)
    assert only(account.read(now + S + DEMAND_LINGER_NS)).has_demand
    assert not only(account.read(now + 2 * S)).has_demand


def test_a_held_tenant_without_demand_gets_none(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account) + S
    account.read(now)
    account.hold([CHAT], now)
    assert not only(account.read(now + MS)).has_demand


def test_after_a_thaw_edges_end_the_work_again(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([CHAT], now)
    account.thaw([CHAT], now + 5 * MS)
    assert only(account.read(now + 100 * MS)).used_ns == 100 * MS
    assert probe.drains_ended == []


def test_a_burst_that_was_held_teaches_nothing(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([CHAT], now + MS)
    account.read(now + 500 * MS)
    account.thaw([CHAT], now + 500 * MS)
    probe.sync(0, now + 501 * MS)
    probe.launch(0, now + 502 * MS, 10)
    rows = account.read(now + 502 * MS)
    assert only(rows).outstanding_ns == pytest.approx(20 * MS, rel=0.03)


def test_only_the_cgroups_named_are_held(probe: FakeProbe) -> None:
    account = account_of(probe)
    for slot, cgroup in ((0, CHAT), (1, TRAIN)):
        probe.create(slot, 11 + slot, cgroup)
    now = taught(probe, account, 0)
    now = taught(probe, account, 1, start_ns=now)
    probe.launch(0, now, 10)
    probe.launch(1, now, 1000)
    account.read(now)
    account.hold([CHAT], now)
    rows = used(account.read(now + S))
    assert rows[CHAT] == pytest.approx(20 * MS, rel=0.03)
    assert rows[TRAIN] > 900 * MS
