# SPDX-License-Identifier: Apache-2.0
"""What one tenant's word about a GPU is worth, and what its neighbours' bursts and anchors make of it."""

from __future__ import annotations

import logging
import random

import pytest

from fairsched.accounting.replay import Replay
from fairsched.accounting.witnesses import EXAMINED_NS, Anchors, Claims
from fairsched.model import Confidence, Snapshot, TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Steps
from tests.unit.accounting.test_turns_in_loop import Tuned
from tests.unit.policy.model_gpu import Simulation, Tenant

S = 1000 * MS
CLAIMANT, NEIGHBOUR = (0, 1), (1, 1)
RATIO = 1.5
BURST_NS = 10 * MS
ENOUGH = 8
FEW = 24
"""Anchors of the others."""


class Examined:
    """A claimant, and a neighbour whose bursts of 10 ms come with it and without it."""

    def __init__(self, ratio: float = RATIO, *, spread: float = 0.02, owner: str = "honest") -> None:
        self.replay = Replay()
        self.claims = Claims(self.replay)
        self.ratio, self.spread, self.chance = ratio, spread, random.Random(1)
        self.now = S
        for rank, (key, whose) in enumerate(((CLAIMANT, "feigner"), (NEIGHBOUR, owner))):
            self.replay.add(key, (rank,))
            self.claims.begin(key, whose, self.now)
        self.owner = owner
        self.is_supported()

    def is_supported(self, after_ns: int = 0) -> bool:
        self.now += after_ns
        return self.claims.are_supported({"feigner": self.ratio}, self.now)

    def bursts(self, count: int, *, beside: float, cost: float = 1.0) -> Examined:
        """Of the neighbour, charged ``cost`` times its due; the claimant was charged ``beside`` times as much."""
        for _ in range(count):
            self.claims.begin(NEIGHBOUR, self.owner, self.now)
            begun_ns, spent_ns = self.now, round(BURST_NS * cost * self.chance.lognormvariate(0, self.spread))
            beside_ns = round(spent_ns * beside)
            if beside_ns:
                self.replay._contexts[CLAIMANT].exec_ns += beside_ns
            self.now += spent_ns + beside_ns
            self.claims.end(NEIGHBOUR, begun_ns, spent_ns, 20, self.now)
        return self


def test_one_tenants_word_counts_when_nobody_has_spoken_against_it_for_a_while() -> None:
    examined = Examined()
    assert not examined.is_supported(EXAMINED_NS)
    assert examined.is_supported(1)


def test_where_it_is_the_only_one_it_counts_at_once() -> None:
    examined = Examined()
    examined.claims.forget(NEIGHBOUR)
    assert examined.is_supported()
    assert Examined(owner="feigner").is_supported(), "what is one tenant's has one voice"


def test_neighbours_whose_work_costs_the_same_without_it_refute_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    examined = Examined().bursts(ENOUGH, beside=0.0).bursts(ENOUGH, beside=1.0)
    assert not examined.is_supported()
    assert not examined.is_supported(EXAMINED_NS)
    assert len(caplog.messages) == 1 and "turns=feigned by=feigner company_cost_ratio=1.50" in caplog.text


@pytest.mark.parametrize("ratio", [1.5, 0.6])
def test_neighbours_who_go_without_what_it_has_too_much_bear_it_out(ratio: float) -> None:
    true_cost = 1 / (1 + (1 - 1 / ratio))
    examined = Examined(ratio).bursts(ENOUGH, beside=0.0).bursts(ENOUGH, beside=1.0, cost=true_cost)
    examined.is_supported()
    assert examined.is_supported(EXAMINED_NS + 1 - (examined.now - S))


@pytest.mark.parametrize(("without", "together"), [(ENOUGH - 1, 40), (40, ENOUGH - 1), (0, 60), (60, 0)])
def test_who_has_not_worked_both_with_it_and_without_it_cannot_tell(without: int, together: int) -> None:
    examined = Examined().bursts(without, beside=0.0).bursts(together, beside=1.0)
    examined.is_supported()
    assert examined.is_supported(EXAMINED_NS + 1)


def test_nor_can_one_beside_whom_it_was_for_a_moment_only() -> None:
    examined = Examined().bursts(ENOUGH, beside=0.0).bursts(20, beside=0.1)
    examined.is_supported()
    assert examined.is_supported(EXAMINED_NS + 1)


def test_nor_one_whose_work_varies() -> None:
    examined = Examined(3.0, spread=0.17).bursts(32, beside=0.0).bursts(32, beside=1.0)
    examined.is_supported()
    assert examined.is_supported(EXAMINED_NS + 1)


def test_what_is_not_confirmed_for_a_while_is_over_and_old_bursts_confirm_nothing() -> None:
    examined = Examined().bursts(20, beside=0.0).bursts(20, beside=1.0)
    assert not examined.is_supported()
    assert not examined.is_supported(9 * S), "they are still recent"
    assert examined.is_supported(EXAMINED_NS + 2 * S)
    examined.bursts(20, beside=0.0).bursts(20, beside=1.0)
    assert not examined.is_supported(), "it may be rejected at any time"


def test_a_burst_that_a_hold_touched_says_nothing() -> None:
    examined = Examined()
    for _ in range(40):
        examined.claims.begin(NEIGHBOUR, "honest", examined.now)
        examined.claims.end(NEIGHBOUR, examined.now - 1, BURST_NS, 20, examined.now)
    assert not examined.claims._claims["feigner"].bursts


def test_another_replay_begins_without_claims() -> None:
    examined = Examined().bursts(20, beside=0.0).bursts(20, beside=1.0)
    examined.claims.reset()
    assert not examined.is_supported()
    assert examined.is_supported(EXAMINED_NS + 1)


def test_whose_claim_was_supported_before_is_supported_at_once_until_rejected() -> None:
    examined = Examined()
    assert examined.is_supported(EXAMINED_NS + 1)
    examined.claims.reset()
    assert examined.is_supported(), (
        "or everybody is held for a while after each nature that does not fit either"
    )
    examined.bursts(20, beside=0.0).bursts(20, beside=1.0)
    assert not examined.is_supported()
    examined.claims.reset()
    assert not examined.is_supported()


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
    assert sim.account.trust[0].evenness.last, "it is found to be uneven"
    assert share(sim, "feigner") < 1 / 9 + 0.02
    assert sim.low < 0.05 * sim.looks
    assert max(map(abs, errors.values())) < 0.05


def test_cgroups_of_one_tenant_have_one_voice() -> None:
    sim = beside_two(2.0)
    sim.account.tenant_of = lambda _cgroup_id: "all are mine"
    sim.run(10 * S)
    assert sim.unsure_ns is not None, "it has nobody who could speak against it"
