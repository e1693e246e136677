# SPDX-License-Identifier: Apache-2.0
"""What one tenant's word about a GPU is worth, and what its neighbours' bursts and anchors make of it."""

from __future__ import annotations

import logging
import random

import pytest

from fairsched.accounting.replay import Replay
from fairsched.accounting.witnesses import EXAMINED_NS, Anchors, Trials
from fairsched.model import Confidence, Snapshot, TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Steps
from tests.unit.accounting.test_turns_in_loop import Tuned
from tests.unit.policy.model_gpu import Simulation, Tenant

S = 1000 * MS
OBJECTOR, WITNESS = (0, 1), (1, 1)
RATIO = 1.5
BURST_NS = 10 * MS
ENOUGH = 8
FEW = 24
"""Anchors of the others."""


class Court:
    """An objector, and a witness whose bursts of 10 ms come with it and without it."""

    def __init__(self, ratio: float = RATIO, *, spread: float = 0.02, owner: str = "honest") -> None:
        self.replay = Replay()
        self.trials = Trials(self.replay)
        self.ratio, self.spread, self.chance = ratio, spread, random.Random(1)
        self.now = S
        for rank, (key, whose) in enumerate(((OBJECTOR, "feigner"), (WITNESS, owner))):
            self.replay.add(key, (rank,))
            self.trials.begin(key, whose, self.now)
        self.owner = owner
        self.is_believed()

    def is_believed(self, after_ns: int = 0) -> bool:
        self.now += after_ns
        return self.trials.are_upheld({"feigner": self.ratio}, self.now)

    def bursts(self, count: int, *, beside: float, cost: float = 1.0) -> Court:
        """Of the witness, charged ``cost`` times its due; the objector was charged ``beside`` times as much."""
        for _ in range(count):
            self.trials.begin(WITNESS, self.owner, self.now)
            begun_ns, spent_ns = self.now, round(BURST_NS * cost * self.chance.lognormvariate(0, self.spread))
            beside_ns = round(spent_ns * beside)
            if beside_ns:
                self.replay._contexts[OBJECTOR].exec_ns += beside_ns
            self.now += spent_ns + beside_ns
            self.trials.end(WITNESS, begun_ns, spent_ns, 20, self.now)
        return self


def test_one_tenants_word_counts_when_nobody_has_spoken_against_it_for_a_while() -> None:
    court = Court()
    assert not court.is_believed(EXAMINED_NS)
    assert court.is_believed(1)


def test_where_it_is_the_only_one_it_counts_at_once() -> None:
    court = Court()
    court.trials.forget(WITNESS)
    assert court.is_believed()
    assert Court(owner="feigner").is_believed(), "what is one tenant's has one voice"


def test_neighbours_whose_work_costs_the_same_without_it_refute_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    court = Court().bursts(ENOUGH, beside=0.0).bursts(ENOUGH, beside=1.0)
    assert not court.is_believed()
    assert not court.is_believed(EXAMINED_NS)
    assert len(caplog.messages) == 1 and "turns=feigned by=feigner company_cost_ratio=1.50" in caplog.text


@pytest.mark.parametrize("ratio", [1.5, 0.6])
def test_neighbours_who_go_without_what_it_has_too_much_bear_it_out(ratio: float) -> None:
    true_cost = 1 / (1 + (1 - 1 / ratio))
    court = Court(ratio).bursts(ENOUGH, beside=0.0).bursts(ENOUGH, beside=1.0, cost=true_cost)
    court.is_believed()
    assert court.is_believed(EXAMINED_NS + 1 - (court.now - S))


@pytest.mark.parametrize(("without", "together"), [(ENOUGH - 1, 40), (40, ENOUGH - 1), (0, 60), (60, 0)])
def test_who_has_not_worked_both_with_it_and_without_it_cannot_tell(without: int, together: int) -> None:
    court = Court().bursts(without, beside=0.0).bursts(together, beside=1.0)
    court.is_believed()
    assert court.is_believed(EXAMINED_NS + 1)


def test_nor_can_one_beside_whom_it_was_for_a_moment_only() -> None:
    court = Court().bursts(ENOUGH, beside=0.0).bursts(20, beside=0.1)
    court.is_believed()
    assert court.is_believed(EXAMINED_NS + 1)


def test_nor_one_whose_work_varies() -> None:
    court = Court(3.0, spread=0.17).bursts(32, beside=0.0).bursts(32, beside=1.0)
    court.is_believed()
    assert court.is_believed(EXAMINED_NS + 1)


def test_what_is_not_confirmed_for_a_while_is_over_and_old_bursts_confirm_nothing() -> None:
    court = Court().bursts(20, beside=0.0).bursts(20, beside=1.0)
    assert not court.is_believed()
    assert not court.is_believed(9 * S), "they are still recent"
    assert court.is_believed(EXAMINED_NS + 2 * S)
    court.bursts(20, beside=0.0).bursts(20, beside=1.0)
    assert not court.is_believed(), "it may be refuted at any time"


def test_a_burst_that_a_hold_touched_says_nothing() -> None:
    court = Court()
    for _ in range(40):
        court.trials.begin(WITNESS, "honest", court.now)
        court.trials.end(WITNESS, court.now - 1, BURST_NS, 20, court.now)
    assert not court.trials._trials["feigner"].bursts


def test_another_replay_begins_without_objections() -> None:
    court = Court().bursts(20, beside=0.0).bursts(20, beside=1.0)
    court.trials.reset()
    assert not court.is_believed()
    assert court.is_believed(EXAMINED_NS + 1)


def test_who_was_believed_before_is_believed_at_once_until_refuted() -> None:
    court = Court()
    assert court.is_believed(EXAMINED_NS + 1)
    court.trials.reset()
    assert court.is_believed(), "or everybody is held for a while after each nature that does not fit either"
    court.bursts(20, beside=0.0).bursts(20, beside=1.0)
    assert not court.is_believed()
    court.trials.reset()
    assert not court.is_believed()


# ---- anchors ----


def heard(**hits_of: tuple[int, int]) -> Anchors:
    """(Hits, misses) by tenant."""
    anchors = Anchors()
    for owner, (hits, misses) in hits_of.items():
        for _ in range(misses):
            anchors.hear(owner, False)
        for _ in range(hits):
            anchors.hear(owner, True)
    return anchors


def test_where_one_alone_misses_the_others_count() -> None:
    assert heard(a=(40, 2), b=(40, 2), odd=(10, 40)).without_one({"a", "b", "odd"}) == pytest.approx(
        0.95, abs=0.03
    )
    assert heard(a=(40, 2), odd=(10, 40)).without_one({"a", "odd"}) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(
    "hits_of",
    [
        {"a": (40, 2), "b": (5, 40), "odd": (5, 40)},
        {"odd": (5, 40)},
        {"a": (10, 0), "odd": (5, 40)},
    ],
    ids=["two miss", "there is nobody else", "the others said little"],
)
def test_otherwise_all_count(hits_of: dict[str, tuple[int, int]]) -> None:
    assert heard(**hits_of).without_one({"a", "b", "odd"}) is None


def test_who_is_gone_says_nothing_any_more() -> None:
    anchors = heard(a=(40, 2), odd=(10, 40))
    assert anchors.without_one({"odd"}) is None
    assert anchors.without_one({"a", "odd"}) is None, "it would have to begin again"


# ---- the closed loop ----


class Feigner(Steps):
    """Its kernels are ``factor`` times as long whenever others are there."""

    def __init__(self, factor: float) -> None:
        super().__init__(4, MS // 2, 0.02, MS // 10)
        self.factor = factor

    def on_start(self, sim: Simulation) -> None:
        has_company = any(process.queue for process in sim.gpus[self.gpu].runlist if process is not self)
        self.kernel_ns = round(MS // 2 * (self.factor if has_company else 1.0))
        super().on_start(sim)


class Watched(Tuned):
    low: int = 0
    looks: int = 0

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        self.looks += len(seen.uses)
        self.low += sum(use.confidence is Confidence.LOW for use in seen.uses)
        return seen


def beside_two(factor: float) -> Watched:
    """Servers with pauses, in which the feigner is alone; its due is a ninth, an equal turn a third."""
    servers = [Tenant(TenantSpec(name), [Steps(20, MS // 2, 0.1, 5 * MS)]) for name in ("chat", "search")]
    return Watched([*servers, Tenant(TenantSpec("feigner", weight=0.25), [Feigner(factor)])], seed=1)


def share(sim: ClosedLoop, name: str) -> float:
    return sim.delivered[name, "gpu0"] / sum(sim.delivered.values())


@pytest.mark.parametrize("factor", [0.5, 1.4, 2.0])
def test_who_feigns_unequal_turns_is_held_like_everybody(factor: float) -> None:
    sim = beside_two(factor)
    errors = sim.errors(5 * S, 20 * S)
    assert sim.account.turns[0].evenness.last, "it is believed to be uneven"
    assert share(sim, "feigner") < 1 / 9 + 0.02
    assert sim.low < 0.05 * sim.looks
    assert max(map(abs, errors.values())) < 0.05


def test_cgroups_of_one_tenant_have_one_voice() -> None:
    sim = beside_two(2.0)
    sim.account.tenant_of = lambda _cgroup_id: "all are mine"
    sim.run(10 * S)
    assert sim.unsure_ns is not None, "it has nobody who could speak against it"
