# SPDX-License-Identifier: Apache-2.0
"""Contexts of which nothing is heard are not worked out at each read: what is told of them stays true all the same."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import Move
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from fairsched.model import Confidence
from tests.unit.accounting.fake_probe import MS, SLICE_NS, FakeProbe, account_of, taught

CHAT, TRAIN = 100, 200
S = 1000 * MS


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


def two_waiting(probe: FakeProbe, account: EbpfAccount) -> int:
    """Slot 0 runs, and slot 1 waits for its turn; both have been looked at. Returns the time."""
    probe.create(0, 11, CHAT)
    probe.create(1, 22, TRAIN)
    now = max(taught(probe, account), taught(probe, account, 1, start_ns=S))
    probe.launch(0, now, 100)
    probe.launch(1, now, 100)
    account.read(now + MS // 4)
    account.read(now + MS // 2)
    return now + MS // 2


def test_what_waits_for_its_turn_still_wants_the_gpu_and_has_as_much_queued(probe: FakeProbe) -> None:
    account = account_of(probe)
    now = two_waiting(probe, account)
    first, then = ({row.tgid: row for row in account.read(now + wait)}[22] for wait in (1, MS))
    assert (then.used_ns, then.launches) == (0, 0)
    assert then.has_demand and then.confidence is Confidence.HIGH
    assert then.outstanding_ns == first.outstanding_ns > 100 * MS


def test_what_has_waited_for_its_turn_is_charged_for_it(probe: FakeProbe) -> None:
    account = account_of(probe)
    now = two_waiting(probe, account)
    assert {row.tgid: row for row in account.read(now + 2 * SLICE_NS)}[22].used_ns > SLICE_NS // 2


def test_a_process_that_moves_is_held_with_its_new_cgroup(probe: FakeProbe) -> None:
    account = account_of(probe)
    now = two_waiting(probe, account)
    probe.contexts_by_slot[1].cgroup_id = CHAT + 1
    probe.sync(1, now)
    probe.launch(1, now, 100)
    account.read(now)
    assert account.events.moves == [Move(now, (1, 1), 22, 0, TRAIN, CHAT + 1)]
    account.hold([TRAIN], now)
    assert not account._contexts.of([TRAIN])
    account.hold([CHAT + 1], now)
    assert [context.tgid for context in account._contexts.of([CHAT + 1]) if context.is_held] == [22]


def test_what_is_submitted_while_it_waits_is_seen(probe: FakeProbe) -> None:
    account = account_of(probe)
    now = two_waiting(probe, account)
    before = {row.tgid: row for row in account.read(now)}[22]
    probe.launch(1, now, 50)
    after = {row.tgid: row for row in account.read(now + 1)}[22]
    assert after.launches == 50
    assert after.outstanding_ns > before.outstanding_ns + 50 * MS


def test_what_waits_is_held_as_any_other(probe: FakeProbe) -> None:
    account = account_of(probe)
    now = two_waiting(probe, account)
    account.hold([TRAIN], now)
    rows = {row.tgid: row for row in account.read(now + 1000 * MS)}
    assert rows[22].used_ns > 100 * MS and rows[22].outstanding_ns == 0, "its drain ran, and is over"


def test_what_the_clock_added_while_the_replay_was_the_account_is_not_charged_later(probe: FakeProbe) -> None:
    account = account_of(probe)
    now = two_waiting(probe, account)
    probe.dropped += 1
    account.read(now)
    account.read(now)
    probe.contexts_by_slot[1].busy[abi.COMPUTE].gpu_time_ns += 7 * MS
    account.read(now)
    probe.dropped += 1
    assert {row.tgid: row for row in account.read(now)}[22].used_ns == 0


def test_a_gpu_that_stands_still_takes_nothing_from_another(probe: FakeProbe) -> None:
    account = account_of(probe, gpus=2)
    probe.create(0, 11, CHAT)
    probe.create(1, 22, TRAIN, gpu=1)
    probe.launch(1, 0)  # and never ends
    for burst in range(3):
        probe.launch(0, 40 * burst * MS, 4)
        probe.sync(0, (40 * burst + 20) * MS)
    assert {row.gpu: row.used_ns for row in account.read(100 * MS)} == {0: 60 * MS, 1: 100 * MS}
