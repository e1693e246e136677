# SPDX-License-Identifier: Apache-2.0
"""How long a tenant pauses: when none of its contexts has work, and nobody keeps it from having some."""

from __future__ import annotations

import pytest

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.pauses import TenantPauses
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of, taught

ONE, TWO = (0, 1), (1, 1)
CHAT, TRAIN = 100, 200
S = 1000 * MS


def test_a_pause_is_told_once_and_up_to_now() -> None:
    pauses = TenantPauses()
    pauses.note(ONE, "chat", 10, wants=True)
    pauses.note(ONE, "chat", 30, wants=False)
    assert pauses.paused_ns("chat", 35) == 5
    pauses.go_on(35)
    assert pauses.paused_ns("chat", 45) == 10
    pauses.note(ONE, "chat", 50, wants=True)
    assert pauses.paused_ns("chat", 60) == 15
    pauses.go_on(60)
    assert pauses.paused_ns("chat", 70) == 0


def test_a_tenant_pauses_when_all_of_its_contexts_do() -> None:
    pauses = TenantPauses()
    pauses.note(ONE, "chat", 10, wants=True)
    pauses.note(TWO, "chat", 20, wants=True)
    pauses.note(ONE, "chat", 30, wants=False)
    assert pauses.paused_ns("chat", 40) == 0
    pauses.note(TWO, "chat", 45, wants=False)
    assert pauses.paused_ns("chat", 50) == 5


def test_who_has_never_worked_does_not_pause_and_whose_context_is_gone_neither() -> None:
    pauses = TenantPauses()
    pauses.note(ONE, "chat", 10, wants=False)
    assert pauses.paused_ns("chat", 50) == 0
    pauses.note(ONE, "chat", 60, wants=True)
    pauses.forget(ONE, "chat", 70)
    assert pauses.paused_ns("chat", 90) == 0


def test_who_goes_from_cgroup_to_cgroup_leaves_nothing_behind() -> None:
    """Who is in no tenant counts by its cgroup."""
    pauses = TenantPauses()
    for cgroup_id in range(1000):
        pauses.note(ONE, cgroup_id, 10 * cgroup_id, wants=True)
        pauses.note(ONE, cgroup_id + 1, 10 * cgroup_id + 5, wants=False)
    pauses.go_on(10_000)
    assert len(pauses._since_ns) + len(pauses._over_ns) + len(pauses._wanting.tenants) <= 1


def test_who_moves_in_its_pauses_leaves_nothing_behind_either() -> None:
    pauses = TenantPauses()
    for cgroup_id in range(1000):
        now_ns = 100 * MS * cgroup_id
        pauses.note(ONE, cgroup_id, now_ns, wants=True)
        pauses.note(ONE, cgroup_id, now_ns + MS, wants=False)
        pauses.go_on(now_ns + 50 * MS)
    assert len(pauses._since_ns) <= 1


def test_a_context_whose_tenant_becomes_known_while_it_works_is_that_ones() -> None:
    pauses = TenantPauses()
    pauses.note(TWO, "chat", 5, wants=True)
    pauses.note(TWO, "chat", 6, wants=False)
    pauses.note(ONE, 55, 10, wants=True)
    pauses.note(ONE, "chat", 20, wants=True)
    pauses.go_on(20)
    assert pauses.paused_ns("chat", 1000) == 0
    assert 55 not in pauses._wanting.tenants and 55 not in pauses._since_ns


# ---- as the account tells it ----


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


def told(account: EbpfAccount, now_ns: int) -> dict[int, tuple[int, int]]:
    """By process: (paused, idle) in ms."""
    return {row.tgid: (row.paused_ns // MS, row.idle_ns // MS) for row in account.read(now_ns)}


def test_the_gpu_is_idle_in_a_pause_only_where_nobody_works(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    probe.create(1, 22, TRAIN)
    probe.launch(0, 10 * MS)
    probe.sync(0, 12 * MS)
    probe.launch(1, 15 * MS)
    probe.sync(1, 19 * MS)
    assert told(account, 20 * MS) == {11: (8, 4), 22: (1, 1)}  # 22 had never worked before 15


def test_a_tenant_of_two_processes_pauses_once(probe: FakeProbe) -> None:
    account = account_of(probe)
    for slot, pid in ((0, 11), (1, 12)):
        probe.create(slot, pid, CHAT)
        probe.launch(slot, 10 * MS)
    for slot in (0, 1):
        probe.sync(slot, (12 + slot) * MS)
    assert sorted(told(account, 20 * MS).values()) == [(0, 0), (7, 7)]


def test_a_held_tenant_does_not_pause(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, CHAT)
    now = taught(probe, account)
    account.read(now)
    account.hold([CHAT], now + 2 * MS)
    assert told(account, now + 100 * MS) == {11: (2, 2)}
    account.thaw([CHAT], now + 150 * MS)
    assert told(account, now + 153 * MS) == {11: (3, 3)}
