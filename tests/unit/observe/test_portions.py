# SPDX-License-Identifier: Apache-2.0
"""A flood of edges is taken in by portions; what the read then says is what it would have said."""

from __future__ import annotations

from typing import cast

import pytest

from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.observe.ordinals import Ordinals
from fairsched.observe.owners import Owners
from fairsched.observe.portions import PORTION, Portions
from fairsched.observe.sensors import Sensors
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of


def flood(probe: FakeProbe, begin: int, bursts: int) -> None:
    """Two launches and half a millisecond each: two edges."""
    for number in range(begin, begin + bursts):
        probe.launch(0, number * MS, 2)
        probe.sync(0, number * MS + MS // 2)


@pytest.fixture
def probe() -> FakeProbe:
    """Has four portions of edges."""
    found = FakeProbe()
    found.create(0, 11, 100)
    found.edges.clear()
    flood(found, 0, 2 * PORTION)
    return found


def test_a_flood_is_taken_in_by_portions_and_told_whole(probe: FakeProbe) -> None:
    account = account_of(probe)
    portions = Portions(cast("GpuTimeProbe", probe), account)
    assert [portions.has_caught_up() for _ in range(3)] == [False, False, True]
    assert probe.unread_edges == PORTION, "what is left is for the read"
    (row,) = account.read(2 * PORTION * MS)
    assert row.launches == 4 * PORTION
    assert row.used_ns == pytest.approx(PORTION * MS, rel=0.05)
    assert (row.cgroup_id, row.tgid) == (100, 11)
    flood(probe, 3 * PORTION, PORTION // 2)
    assert portions.has_caught_up()
    assert probe.unread_edges == PORTION


def test_what_comes_in_meanwhile_puts_off_no_read(probe: FakeProbe) -> None:
    portions = Portions(cast("GpuTimeProbe", probe), account_of(probe))
    answers = []
    for number in range(3):
        answers.append(portions.has_caught_up())
        flood(probe, (2 + number) * PORTION, PORTION)
    assert answers == [False, False, True]


def test_a_portion_that_fails_fails_the_read_and_not_the_loop(
    probe: FakeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that fails lets everybody go; what is raised before it would end the daemon."""
    sensors = Sensors.__new__(Sensors)
    sensors.nvml, sensors.account, sensors._ordinals = None, account_of(probe), cast("Ordinals", object())
    sensors.owners, sensors._follow = Owners(), lambda: None  # type: ignore[method-assign]
    sensors._portions = Portions(cast("GpuTimeProbe", probe), sensors.account)

    def refuse(_most: int | None = None) -> None:
        raise KeyError("an edge")

    with monkeypatch.context() as patched:
        patched.setattr(sensors.account, "take_in", refuse)
        assert sensors.has_caught_up()
    with pytest.raises(KeyError, match="an edge"):
        sensors.read(0)
    assert [sensors.has_caught_up() for _ in range(3)] == [False, False, True], "and it goes on"
