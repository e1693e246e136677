# SPDX-License-Identifier: Apache-2.0
"""What is learnt of a context that ends: its tenant's next one begins with it."""

from __future__ import annotations

import pytest

from fairsched.model import Confidence, TenantSpec
from tests.unit.accounting.closed_loop import ClosedLoop, Flood, Steps
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of
from tests.unit.accounting.unseen_loop import S, Watched
from tests.unit.policy.model_gpu import Simulation, Tenant

CGROUP = 100
SETTLED_NS, END_NS = 20 * S, 50 * S


class Mortal(Flood):
    """Launches without end, never asks, and is killed after ``life_ns``."""

    def __init__(self, kernel_ns: int, start_ns: int, life_ns: int) -> None:
        super().__init__(kernel_ns)
        self.start_ns, self.end_ns = start_ns, start_ns + life_ns
        self.is_over = False

    def on_start(self, sim: Simulation) -> None:
        if sim.now >= self.end_ns:
            return
        if self.room == self.DEPTH:
            sim.at(self.end_ns, lambda: self._end(sim))
        super().on_start(sim)

    def _fill(self, sim: Simulation, count: int) -> None:
        if not self.is_over:
            super()._fill(sim, count)

    def _go_on(self, sim: Simulation) -> None:
        if not self.is_over:
            super()._go_on(sim)

    def _end(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        self.is_over = True
        is_running = any(gpu.running is self for gpu in sim.gpus.values())
        while len(self.queue) > is_running:
            self.queue.pop()
        sim.probe.end(sim.slots[self], sim.now)


@pytest.mark.parametrize(("kernel_us", "many", "life_ms", "weight"), [(200, 2, 3000, 4), (50, 2, 4000, 1)])
def test_who_never_asks_is_held_also_if_it_starts_anew_every_few_seconds(
    kernel_us: int, many: int, life_ms: int, weight: int
) -> None:
    """Each is new, and ends before it is borne out: .35 to .50 of due .80 and .31 of .50 were left to its neighbour."""
    life_ns = life_ms * MS
    lives = [
        Mortal(kernel_us * 1000, start_ns, life_ns)
        for first in range(many)
        for start_ns in range(first * life_ns // many, END_NS, life_ns)
    ]
    chat = Tenant(TenantSpec("chat", weight=weight), [Steps(20, 500_000, 0.2, 500_000)])
    sim = Watched([chat, Tenant(TenantSpec("hog"), list(lives))], seed=1)
    sim.run(END_NS)
    due = weight / (weight + 1)
    assert abs(sim.shares(SETTLED_NS, END_NS)["chat"] - due) < 0.08
    assert not sim.accused


def test_who_never_asks_and_ends_leaves_what_its_launches_took() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    for number in range(3):
        begin_ns = 100 * MS * number
        probe.create(0, 11 + number, CGROUP, t_ns=begin_ns)
        probe.launch(0, begin_ns, 10)
        (row,) = account.read(begin_ns + 5 * MS)
        is_first = number == 0
        assert row.confidence is (Confidence.LOW if is_first else Confidence.HIGH)
        assert is_first or abs(row.outstanding_ns - 15 * MS) < 4 * MS
        probe.end(0, begin_ns + 20 * MS)
        account.read(begin_ns + 50 * MS)


def test_who_has_proven_something_is_not_judged_by_what_it_left() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 11, CGROUP)
    for number in range(3):
        probe.launch(0, 100 * MS * number, 10)
        probe.sync(0, 100 * MS * number + 20 * MS)
    probe.launch(0, 300 * MS, 1000)
    probe.end(0, 301 * MS)
    account.read(350 * MS)
    probe.create(0, 12, CGROUP, t_ns=400 * MS)
    probe.launch(0, 400 * MS, 10)
    (row,) = account.read(401 * MS)
    assert row.outstanding_ns > 15 * MS


def test_what_was_launched_before_our_probes_says_nothing_when_it_is_cut_off() -> None:
    """It had done most of its step when the probes came: ten launches seemed to take 2 ms, and what their tenant does
    next was taken to be over in a tenth of its time."""
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 11, CGROUP, is_seen=False)
    probe.launch(0, 0, 10)
    account.read(MS)
    probe.end(0, 2 * MS)
    account.read(50 * MS)
    probe.create(0, 12, CGROUP, t_ns=400 * MS)
    probe.launch(0, 400 * MS, 1000)
    (row,) = account.read(401 * MS)
    assert row.confidence is Confidence.LOW
    assert row.outstanding_ns == 0


@pytest.mark.parametrize("left", ["a process", "nobody"])
def test_who_ends_while_it_is_held_leaves_the_demand_that_its_tenant_was_held_with(left: str) -> None:
    """It was let go with its debt: who had each process end after 30 ms had half of the GPU for a quarter."""
    probe = FakeProbe()
    account = account_of(probe)
    account.tenant_of = lambda _: "hog"
    account.is_lived_in = {"hog": left == "a process"}.__getitem__
    probe.create(0, 11, CGROUP)
    probe.launch(0, 0, 10)
    account.read(5 * MS)
    account.hold([CGROUP], 5 * MS)
    probe.end(0, 10 * MS)
    account.read(20 * MS)
    rows = account.read(200 * MS)
    assert [(row.cgroup_id, row.gpu, row.used_ns, row.outstanding_ns) for row in rows if row.has_demand] == (
        [(CGROUP, 0, 0, 0)] if left == "a process" else []
    )
    account.thaw([CGROUP], 300 * MS)
    assert not account.read(310 * MS)


def test_of_many_cgroups_of_a_tenant_whose_processes_end_one_wants_on_and_is_asked_after() -> None:
    """It may make thousands, each with a process that dies in the hold; and who is in no tenant wants nothing."""
    probe, asked = FakeProbe(), list[str]()
    account = account_of(probe)
    account.tenant_of = lambda cgroup_id: "hog" if cgroup_id > CGROUP else None
    account.is_lived_in = lambda tenant: not asked.append(tenant)  # type: ignore[func-returns-value]
    cgroups = range(CGROUP, CGROUP + 20)
    for slot, cgroup_id in enumerate(cgroups):
        probe.create(slot, 11 + slot, cgroup_id)
        probe.launch(slot, 0, 1)
    account.read(MS)
    account.hold(cgroups, MS)
    for slot, _ in enumerate(cgroups):
        probe.end(slot, 2 * MS)
    account.read(3 * MS)
    asked.clear()
    assert [row.cgroup_id > CGROUP for row in account.read(4 * MS) if row.has_demand] == [True]
    assert asked == ["hog"]
    account.thaw(cgroups, 5 * MS)
    assert not account.read(6 * MS)
    assert asked == ["hog"], "nobody is asked after where nothing has ended in a hold"


@pytest.mark.parametrize("pause", ["of others", "after its work"])
def test_who_ends_in_a_hold_that_began_without_demand_leaves_none(pause: str) -> None:
    probe = FakeProbe()
    account = account_of(probe)
    account.tenant_of = lambda _: "hog"
    probe.create(0, 11, CGROUP)
    probe.launch(0, 0, 10)
    probe.sync(0, 20 * MS)
    begin_ns = 20 * MS if pause == "of others" else 200 * MS
    account.read(begin_ns)
    account.hold([CGROUP], begin_ns, by_others=pause == "of others")
    probe.end(0, begin_ns + MS)
    account.read(begin_ns + 2 * MS)
    assert not account.read(begin_ns + 3 * MS)
