# SPDX-License-Identifier: Apache-2.0
"""A flood of edges is taken in by portions; what the read then says is what it would have said."""

from __future__ import annotations

from typing import cast

import pytest

from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.observe.portions import PORTION, PUT_OFF_NS, has_caught_up
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of


@pytest.fixture
def probe() -> FakeProbe:
    """Has four portions of edges: bursts of two launches and half a millisecond."""
    found = FakeProbe()
    found.create(0, 11, 100)
    found.edges.clear()
    for number in range(2 * PORTION):
        found.launch(0, number * MS, 2)
        found.sync(0, number * MS + MS // 2)
    return found


def test_a_flood_is_taken_in_by_portions_and_told_whole(probe: FakeProbe) -> None:
    account, asked = account_of(probe), cast("GpuTimeProbe", probe)
    assert probe.unread_edges == 4 * PORTION
    assert [has_caught_up(asked, account, 0) for _ in range(3)] == [False, False, True]
    assert has_caught_up(asked, account, 0), "what is left is for the read"
    assert probe.unread_edges == PORTION
    (row,) = account.read(2 * PORTION * MS)
    assert row.launches == 4 * PORTION
    assert row.used_ns == pytest.approx(PORTION * MS, rel=0.05)
    assert (row.cgroup_id, row.tgid) == (100, 11)


def test_a_read_is_not_put_off_for_long(probe: FakeProbe) -> None:
    assert has_caught_up(cast("GpuTimeProbe", probe), account_of(probe), PUT_OFF_NS + 1)
    assert probe.unread_edges == 4 * PORTION
