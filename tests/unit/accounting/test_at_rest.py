# SPDX-License-Identifier: Apache-2.0
"""A tenant with hundreds of contexts that do nothing: they cost a read, and a hold, next to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from fairsched.model import Confidence
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of, taught

MANY, PER_PROCESS = 640, 16
READS = MANY // 64 + 1
"""In which each has had its turn."""
CHAT, HOG = 100, 200
S = 1000 * MS


@dataclass
class CountingProbe(FakeProbe):
    """Counts which contexts are looked at."""

    contexts_by_slot: list[abi.Ctx] = field(default_factory=lambda: [abi.Ctx() for _ in range(MANY + 1)])
    looked_at: set[int] = field(default_factory=set)

    def context(self, slot: int) -> abi.Ctx:
        self.looked_at.add(slot)
        return super().context(slot)


@pytest.fixture
def probe() -> CountingProbe:
    return CountingProbe()


@pytest.fixture
def account(probe: CountingProbe) -> EbpfAccount:
    """``CHAT`` has slot 0 and has run; all contexts of ``HOG`` are there and have been looked at for long."""
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    for slot in range(1, MANY + 1):
        probe.create(slot, 1000 + slot // PER_PROCESS, HOG)
    taught(probe, account)
    for slot in range(1, MANY + 1):
        probe.launch(slot, S)
        probe.sync(slot, S + 10_000)
    account.read(2 * S)
    account.read(2 * S + 1)
    return account


def looked_at(probe: CountingProbe, account: EbpfAccount, now_ns: int) -> set[int]:
    probe.looked_at.clear()
    account.read(now_ns)
    return set(probe.looked_at)


def test_a_read_looks_at_some_of_those_at_rest_and_in_turn_at_all(
    probe: CountingProbe, account: EbpfAccount
) -> None:
    seen: set[int] = set()
    for read in range(READS):
        looks = looked_at(probe, account, 2 * S + 2 + read)
        assert len(looks) <= 65
        seen |= looks
    assert seen == set(range(MANY + 1))


def test_each_process_has_its_row_whoever_was_looked_at(account: EbpfAccount) -> None:
    rows = account.read(3 * S)
    assert {row.tgid for row in rows} == {11, *(1000 + slot // PER_PROCESS for slot in range(1, MANY + 1))}
    assert not any(row.has_demand or row.used_ns or row.launches for row in rows)


def test_those_not_looked_at_are_no_surer_than_they_were(probe: CountingProbe, account: EbpfAccount) -> None:
    def doubted() -> set[int]:
        return {row.tgid for row in account.read(3 * S) if row.confidence is not Confidence.HIGH}

    found = [doubted() for _ in range(READS)]
    assert all(one == found[0] for one in found)
    assert found[0], "one burst is too little to be sure of"


def test_who_works_again_is_seen_at_once(probe: CountingProbe, account: EbpfAccount) -> None:
    for slot in range(5, MANY, 50):
        probe.launch(slot, 3 * S, 3)
    rows = {row.tgid: row for row in account.read(3 * S + MS)}
    for slot in range(5, MANY, 50):
        row = rows[1000 + slot // PER_PROCESS]
        assert row.has_demand and row.launches == 3


def test_who_waits_is_not_at_rest(probe: CountingProbe, account: EbpfAccount) -> None:
    for slot in range(1, MANY + 1):
        probe.launch(slot, 3 * S, 100)
    for read in range(2 * READS):
        rows = account.read(3 * S + MS + read)
        assert all(row.has_demand for row in rows if row.cgroup_id == HOG)


def test_what_is_not_told_is_counted_when_its_turn_comes(probe: CountingProbe, account: EbpfAccount) -> None:
    slot = 300
    probe.is_losing = True
    probe.launch(slot, 3 * S, 7)
    probe.is_losing, probe.dropped = False, 0  # its tenant has used up its edges: nothing was lost
    told = 0
    for read in range(READS):
        told += sum(row.launches for row in account.read(3 * S + MS + read))
    assert told == 7


def test_a_hold_of_those_that_have_nothing_queued_makes_no_drains(
    probe: CountingProbe, account: EbpfAccount
) -> None:
    probe.launch(1, 3 * S, 100)
    account.read(3 * S)
    account.hold([HOG], 3 * S)
    drains = account._engines[0].drains
    assert set(drains._recent) == {(1, 1)}
    account.thaw([HOG], 3 * S + MS)
    assert not any(row.has_demand for row in account.read(4 * S) if row.tgid == 1000 + 32 // PER_PROCESS)


def test_what_slips_in_before_the_freeze_is_a_drain_all_the_same(
    probe: CountingProbe, account: EbpfAccount
) -> None:
    account.hold([HOG], 3 * S)
    account.read(3 * S)
    probe.launch(9, 3 * S, 100)
    used_ns = 0
    for wait in (MS, 20 * MS):
        used_ns += {row.tgid: row for row in account.read(3 * S + wait)}[1000].used_ns
    assert set(account._engines[0].drains._recent) == {(9, 1)}
    assert used_ns > 0


def test_what_was_submitted_and_never_proven_may_still_drain(
    probe: CountingProbe, account: EbpfAccount
) -> None:
    probe.launch(9, 3 * S, 100)
    account.read(3 * S)
    account.end((9, 1), 3 * S + MS)  # as far as anybody knows
    account.hold([HOG], 4 * S)
    assert set(account._engines[0].drains._recent) == {(9, 1)}


def test_who_was_held_with_work_wants_some_until_it_is_let_go(
    probe: CountingProbe, account: EbpfAccount
) -> None:
    for slot in range(1, MANY + 1):
        probe.launch(slot, 3 * S)
    account.read(3 * S + 1)
    account.hold([HOG], 3 * S + 2)
    for read in range(READS):
        assert all(row.has_demand for row in account.read(4 * S + read) if row.cgroup_id == HOG)


def test_what_drains_while_somebody_else_pauses_it_is_charged_at_once(
    probe: CountingProbe, account: EbpfAccount
) -> None:
    for slot in range(1, MANY + 1):
        probe.launch(slot, 3 * S, 10)
    account.read(3 * S + 1)
    account.hold([HOG], 3 * S + 2, by_others=True)
    for read in range(3):
        account.read(3 * S + 3 + read)
    account.read(5 * S)
    replay = account._engines[0].replay
    assert all(one.reported_ns == replay.exec_ns(one.key) for one in account._contexts.of([HOG]))


def test_a_hold_wakes_none_of_those_that_do_nothing(probe: CountingProbe, account: EbpfAccount) -> None:
    probe.launch(1, 3 * S, 100)
    account.read(3 * S)
    account.hold([HOG], 3 * S)
    assert len(looked_at(probe, account, 3 * S + 1)) <= 66
    account.thaw([HOG], 4 * S)
    assert len(looked_at(probe, account, 4 * S + 1)) <= 66
    assert not any(context.is_held for context in account._contexts.of([HOG]))


def test_one_that_never_submitted_rests_and_is_told_by_its_turn_when_it_is_seen_to_run(
    probe: CountingProbe,
) -> None:
    account = account_of(probe)
    for slot in range(MANY):
        probe.create(slot, 1000 + slot // PER_PROCESS, HOG)
    for read in range(3):
        account.read(2 * S + read)
    assert len(looked_at(probe, account, 2 * S + 3)) <= 64
    account.seen_running = {(1002, 0): 3 * S}
    for read in range(READS):
        rows = account.read(3 * S + MS + read)
    assert {row.tgid for row in rows if row.has_demand} == {1002}
