# SPDX-License-Identifier: Apache-2.0
"""Silence means that the work is over, unless the driver sees it run; and what each context has outstanding."""

from __future__ import annotations

import pytest

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.engine import REMEMBERED_TENANTS
from fairsched.accounting.outstanding import SEEN_FOR_NS
from fairsched.accounting.silent import UNSYNCED_NS
from fairsched.bpf import abi
from fairsched.model import Confidence, ContextWork
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of, taught, used

CHAT, PID = 100, 11
HOG = 10_000
S = 1000 * MS


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


def begun(probe: FakeProbe) -> EbpfAccount:
    """One launch at 100 ms that nothing tells about any more."""
    account = account_of(probe)
    probe.create(0, PID, CHAT)
    probe.launch(0, 100 * MS)
    account.read(200 * MS)
    return account


def charged_s(account: EbpfAccount, seconds: range) -> float:
    return sum(sum(used(account.read(now_s * S)).values()) for now_s in seconds) / S


@pytest.mark.parametrize(("waited_ns", "is_late"), [(MS, False), (1000, True), (None, False)])
def test_who_asks_for_what_was_done_before_is_late(
    probe: FakeProbe, waited_ns: int | None, is_late: bool
) -> None:
    """None: it never asks."""
    account = account_of(probe)
    probe.create(0, PID, CHAT)
    for step in range(30):
        probe.launch(0, step * 20 * MS, 10)
        if waited_ns is not None:
            probe.sync(0, step * 20 * MS + 10 * MS, waited_ns)
    account.read(600 * MS)
    (work,) = account.work()
    assert work.is_late is is_late


def test_silent_work_that_nobody_sees_is_over(probe: FakeProbe) -> None:
    assert charged_s(begun(probe), range(1, 10)) <= 2.0


def test_silent_work_that_is_seen_to_run_is_charged(probe: FakeProbe) -> None:
    account, total_s = begun(probe), 0.0
    for now_s in range(1, 10):
        account.seen_running = {(PID, 0): now_s * S - 200 * MS}
        total_s += charged_s(account, range(now_s, now_s + 1))
    assert total_s == pytest.approx(9 - 0.2, abs=0.05)


def test_having_been_seen_counts_for_some_seconds_only(probe: FakeProbe) -> None:
    account = begun(probe)
    account.seen_running = {(PID, 0): 1 * S}
    assert charged_s(account, range(1, 20)) <= 1 + SEEN_FOR_NS / S


@pytest.mark.parametrize("seen", [{(PID, 0): 350 * MS}, {(PID, 1): 900 * MS}, {(12, 0): 900 * MS}])
def test_the_rest_of_a_queue_another_gpu_and_another_process_prove_nothing(
    probe: FakeProbe, seen: dict[tuple[int, int], int]
) -> None:
    account = begun(probe)
    account.seen_running = seen
    assert charged_s(account, range(1, 10)) <= 2.0


def test_work_says_what_is_outstanding_since_when_and_what_was_charged(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, PID, CHAT)
    for burst in range(3):
        probe.launch(0, burst * 100 * MS, 10)
        probe.sync(0, (burst * 100 + 20) * MS)
    account.read(300 * MS)
    (idle,) = account.work()
    assert not idle.is_outstanding and not idle.is_charged
    assert (idle.submitted, idle.completed) == (30, 30)
    probe.launch(0, 400 * MS, 10)
    account.read(450 * MS)
    (work,) = account.work()
    assert work == ContextWork(
        *((0, 1), PID, CHAT, 0, 40, 30, True, 400 * MS, 60 * MS, 110 * MS, work.expected_ns),
        *(True, 400 * MS),
    )
    assert 2 * 20 * MS <= work.expected_ns <= 10 * 20 * MS, "what a burst takes, with room for chance"


def test_a_slot_that_is_another_contexts_by_now_has_no_work(probe: FakeProbe) -> None:
    account = begun(probe)
    probe.contexts_by_slot[0].generation += 1
    assert list(account.work()) == []


# ---- beside work that is in no account ----


def test_beside_unseen_work_an_account_is_right_on_the_average_only(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, PID, CHAT)
    now_ns = taught(probe, account)
    assert {row.confidence for row in account.read(now_ns + MS)} == {Confidence.HIGH}
    account.intruded = {0}
    assert {row.confidence for row in account.read(now_ns + 2 * MS)} == {Confidence.SAMPLED}


@pytest.mark.parametrize("is_hidden", [False, True])
def test_while_somebody_hides_work_nobody_is_taken_to_be_alone(probe: FakeProbe, is_hidden: bool) -> None:
    account = account_of(probe)
    probe.create(0, PID, CHAT)
    account.is_anybody_hidden = is_hidden
    account.read(MS)
    taught(probe, account)
    assert account._engines[0].costs.of(CHAT).is_measured is not is_hidden


def test_a_tenant_that_goes_from_cgroup_to_cgroup_is_known_in_each_and_displaces_nobody(
    probe: FakeProbe,
) -> None:
    account = account_of(probe)
    account.tenant_of = lambda cgroup_id: "hog" if cgroup_id >= HOG else None
    probe.create(0, PID, CHAT)
    now_ns = taught(probe, account)
    probe.create(1, PID + 1, HOG, t_ns=now_ns)
    now_ns = taught(probe, account, 1, start_ns=now_ns)
    costs = account._engines[0].costs
    for number in range(REMEMBERED_TENANTS + 10):
        probe.contexts_by_slot[1].cgroup_id = HOG + number
        now_ns = taught(probe, account, 1, start_ns=now_ns, bursts=1)
    assert costs.of("hog").is_measured
    assert costs.of(CHAT).is_measured


@pytest.mark.parametrize("guessed", [0, 1])
def test_a_process_is_as_sure_as_the_least_sure_of_its_contexts(probe: FakeProbe, guessed: int) -> None:
    """Whatever the order in which they are looked at, and whether they are looked at or remembered."""
    account, silent = account_of(probe, gpus=2), 1 - guessed
    for slot in (0, 1):
        probe.create(slot, PID, CHAT)
    now_ns = taught(probe, account, silent)
    probe.contexts_by_slot[guessed].flags |= abi.CtxFlag.GPU_GUESSED
    probe.launch(silent, now_ns)
    account.read(now_ns + MS)
    now_ns += UNSYNCED_NS + 2 * MS
    probe.launch(silent, now_ns)
    assert [row.confidence for row in account.read(now_ns)] == [Confidence.LOW]
    assert [row.confidence for row in account.read(now_ns + MS)] == [Confidence.LOW]


def test_one_that_was_taken_to_be_done_and_proves_that_it_goes_on_is_charged_again() -> None:
    """Four steps of a second each: nothing is heard for longer than a program that never asks is silent."""
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 1000, HOG)
    probe.launch(0, 0, 4)
    for ms in range(100, 1500, 100):
        account.read(ms * MS)
    assert not account.is_charged((0, 1)), "its silence is taken for the end of it"
    probe.progress(0, 1500 * MS, 1, waited_ns=1500 * MS)
    account.read(1500 * MS)
    assert account.is_charged((0, 1))
    (row,) = account.read(2500 * MS)
    assert row.used_ns == 1000 * MS


def test_streams_that_have_work_are_counted(probe: FakeProbe) -> None:
    account = begun(probe)
    (one,) = account.work()
    probe.contexts_by_slot[0].busy[abi.COMPUTE].streams = 0b1011
    (work,) = account.work()
    assert (one.streams, work.streams) == (1, 3)
