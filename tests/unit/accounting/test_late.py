# SPDX-License-Identifier: Apache-2.0
"""Who asks for its work long after that is done: its proofs measure nothing, and its queue is no longer than it is."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import Context
from fairsched.model import TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Flood, Steps
from tests.unit.accounting.fake_probe import FakeProbe, account_of
from tests.unit.accounting.late_draws import LateAsker, draw_late
from tests.unit.accounting.unseen_loop import S, Watched
from tests.unit.policy.model_gpu import Simulation, Tenant

SETTLED_NS, END_NS = 12 * S, 40 * S
CGROUP = 7


def share_of_late(depth: int, launch_ms: int, seed: int = 1) -> tuple[float, float]:
    """What a tenant of weight 1 had and was charged, beside two of weight 4, in parts of the GPU."""
    tenants = [
        Tenant(TenantSpec(name, weight=4), [Steps(20, MS // 2, 0.1, MS // 2, start_ns=10 * seed * MS)])
        for name in ("chat", "other")
    ]
    tenants.append(Tenant(TenantSpec("late"), [LateAsker(20, MS // 2, 0.1, depth, launch_ms * MS)]))
    sim = Watched(tenants, seed=seed)
    sim.run(END_NS)
    charged_ns, had_ns = sim._added("late", SETTLED_NS, END_NS)
    return had_ns / (END_NS - SETTLED_NS), charged_ns / (END_NS - SETTLED_NS)


@pytest.mark.parametrize("depth, launch_ms", [(64, 11), (64, 20), (64, 28), (40, 28), (24, 28)])
def test_who_asks_late_has_what_is_due_and_is_charged_it(depth: int, launch_ms: int) -> None:
    """It was .001 to .02 of the GPU, and charged up to .1, where steps took 20 ms and more to launch."""
    had, charged = share_of_late(depth, launch_ms)
    assert had == pytest.approx(1 / 9, abs=0.03)
    assert charged == pytest.approx(had, abs=0.02)


class Deep(Flood):
    """Keeps 3,000 launches in flight, in several streams, and asks every 6 ms for those that are done."""

    DEPTH = 3000

    def __init__(self, kernel_ns: int) -> None:
        super().__init__(kernel_ns)
        self.done = 0
        self.is_asking = False

    def on_start(self, sim: Simulation) -> None:
        if not self.is_asking:
            self.is_asking = True
            sim.program(self, sim.now + 6 * MS, lambda: self._ask(sim))
        super().on_start(sim)

    def _ask(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        if self.done:
            sim.progressed(self, self.done, 1000)
        sim.program(self, sim.now + 6 * MS, lambda: self._ask(sim))

    def freed(self, sim: Simulation) -> None:
        self.done += 1
        super().freed(sim)


@pytest.mark.parametrize("seed", [1, 2])
def test_who_asks_late_on_purpose_has_no_more_for_it(seed: int) -> None:
    """On the real daemon it had .345."""
    chats = [
        Tenant(TenantSpec(name, weight=4), [Steps(20, MS // 2, 0.1, MS // 2)]) for name in ("chat", "other")
    ]
    sim = Watched([*chats, Tenant(TenantSpec("late"), [Deep(MS // 2)])], seed=seed)
    sim.run(END_NS)
    _, had_ns = sim._added("late", 20 * S, END_NS)
    assert had_ns / (20 * S) < 1 / 9 + 0.05


class Asked:
    """A program with steps of ten launches of a millisecond, and 200 steps in flight, alone on the GPU."""

    STEP, IN_FLIGHT = 10, 2000

    def __init__(self, *, is_seen: bool = True) -> None:
        self.probe = FakeProbe()
        self.account = account_of(self.probe)
        self.probe.create(0, 11, CGROUP, is_seen=is_seen)
        self.probe.launch(0, 0, self.IN_FLIGHT)

    def ask(self, t_ns: int, completed: int, waited_ns: int = 1000) -> None:
        self.probe.launch(0, t_ns, self.STEP)
        self.probe.progress(0, t_ns, completed, waited_ns)
        self.account.read(t_ns)

    def tau_ns(self) -> float:
        return self.context.launch.tau_ns

    @property
    def context(self) -> Context:
        (context,) = self.account._contexts.all()
        return context


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_the_first_late_proof_is_of_what_is_proven_and_half_of_what_is_in_flight(asked: Asked) -> None:
    asked.ask(1000 * MS, 10)
    assert asked.tau_ns() == pytest.approx(MS, rel=0.05)


def test_late_proofs_say_what_a_launch_takes_when_there_were_many(asked: Asked) -> None:
    for number in range(1, 1000):
        asked.ask((1000 + 10 * number) * MS, 10 * number)
    assert asked.tau_ns() == pytest.approx(MS, rel=0.15)


def test_a_proof_that_was_waited_for_is_not_late(asked: Asked) -> None:
    asked.ask(10 * MS, 10, waited_ns=10 * MS)
    assert asked.context.seq == 10
    assert asked.tau_ns() == pytest.approx(MS, rel=0.01)


def test_what_ran_in_a_hold_is_not_queued_any_more(asked: Asked) -> None:
    """A second of two has drained in the hold; it asks for the first of it when it runs again."""
    asked.ask(10 * MS, 10, waited_ns=10 * MS)
    asked.account.hold([CGROUP], 10 * MS)
    for moment in range(10, 1000, 100):
        asked.account.read(moment * MS)
    asked.account.thaw([CGROUP], 1010 * MS)
    asked.ask(1010 * MS + 1, 20)
    asked.account.hold([CGROUP], 1011 * MS)
    (row,) = asked.account.read(1011 * MS)
    assert row.outstanding_ns == pytest.approx(1010 * MS, rel=0.03)


def test_a_wrong_guess_is_set_right_when_there_were_many(asked: Asked) -> None:
    asked.ask(300 * MS, 10)
    assert asked.tau_ns() < MS / 2
    for number in range(2, 1000):
        asked.ask((300 + 10 * number) * MS, 10 * number)
    assert asked.tau_ns() == pytest.approx(MS, rel=0.1)


def test_who_was_there_before_the_probes_is_known_by_its_later_proofs() -> None:
    older = Asked(is_seen=False)
    for number in range(1, 250):
        older.ask(10 * number * MS, 10 * number)
    assert older.tau_ns() == pytest.approx(MS, rel=0.1)


def run_on(asked: Asked, held_ns: int, completed: int) -> None:
    """Held so long after a step whose end it waited for; then it asks for more."""
    asked.ask(10 * MS, 10, waited_ns=10 * MS)
    asked.account.hold([CGROUP], 10 * MS)
    asked.account.read(10 * MS + held_ns)
    asked.account.thaw([CGROUP], 10 * MS + held_ns)
    asked.ask(10 * MS + held_ns + 1, completed)


def test_what_follows_a_late_proof_measures_nothing(asked: Asked) -> None:
    """All that ran in the hold would be of these twenty launches."""
    run_on(asked, 1000 * MS, 20)
    asked.ask(1020 * MS, 40, waited_ns=9 * MS)
    assert asked.tau_ns() < 2 * MS


def test_who_proves_more_than_it_was_charged_is_not_behind(asked: Asked) -> None:
    """200 launches were done in a hold of 20 ms; the next are as long as they are, and not by what these lack."""
    run_on(asked, 20 * MS, 210)
    asked.account.hold([CGROUP], 31 * MS)
    (row,) = asked.account.read(31 * MS)
    assert row.outstanding_ns == pytest.approx(1810 * MS, rel=0.03)


def test_draws_are_the_same_for_the_same_arguments() -> None:
    (nature, tenants), (again, others) = draw_late(3, 4), draw_late(3, 4)
    late, other = tenants[-1].processes[0], others[-1].processes[0]
    assert isinstance(late, LateAsker) and isinstance(other, LateAsker)
    assert (nature, late.depth, late.launch_ns) == (again, other.depth, other.launch_ns)
