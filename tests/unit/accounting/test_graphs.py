# SPDX-License-Identifier: Apache-2.0
"""Graphs: which a burst launched, what each takes and costs, and that a tenant with many is nobody else's trouble."""

from __future__ import annotations

import statistics

import pytest

from fairsched.accounting.costs import MOST_GRAPHS, Costs
from fairsched.accounting.graphs import LOST, MOST_OF_CONTEXT, Graphs, GraphTimes, graphs_of
from fairsched.bpf import abi
from fairsched.model import TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import ClosedLoop, Pipeline, Steps
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of
from tests.unit.accounting.long_loop import Graphs as Replays
from tests.unit.accounting.long_loop import Piece, S, play
from tests.unit.policy.model_gpu import Tenant

HERE = (3, 1)
SHORT, LONG = 0x1000, 0x2000
A, B = "a", "b"


def kept(*launches: tuple[int, int], generation: int = 1) -> abi.Graphs:
    """What BPF keeps after these launches of graphs: sequence number and handle."""
    found = abi.Graphs(generation=generation)
    for seq, handle in launches:
        found.latest[found.total % abi.KEPT_GRAPHS] = (seq, handle)
        found.total += 1
    return found


# ---- which ----


def test_a_burst_is_known_by_its_graphs_and_about_how_many_kernels_came_with_each() -> None:
    latest = kept((1, SHORT), (5, LONG), (9, SHORT))
    assert graphs_of(HERE, latest, 0, 4) == Graphs(HERE, (SHORT,), 2)
    assert graphs_of(HERE, latest, 4, 9) == Graphs(HERE, (LONG, SHORT), 1)
    assert not graphs_of(HERE, latest, 1, 4), "kernels only"
    assert not graphs_of(HERE, latest, 9, 9), "nothing at all"


def test_of_another_context_in_the_same_slot_nothing_follows() -> None:
    assert not graphs_of(HERE, kept((1, LONG), generation=0), 0, 1)
    assert not graphs_of(HERE, kept(), 0, 1)


def test_of_more_graphs_than_are_kept_no_more_is_known_than_that_they_were() -> None:
    many = kept(*((seq, 0x10 * seq) for seq in range(1, abi.KEPT_GRAPHS + 3)))
    assert graphs_of(HERE, many, 0, 1).handles == (LOST,)
    assert graphs_of(HERE, many, 2, 3).handles == (0x30,)
    last = abi.KEPT_GRAPHS + 2
    assert graphs_of(HERE, many, last - 1, last).handles == (0x10 * last,)


# ---- how long ----


def one(handle: int) -> Graphs:
    return Graphs(HERE, (handle,))


def test_graphs_of_one_context_are_told_apart_and_a_bunch_is_their_sum() -> None:
    times = GraphTimes()
    for _ in range(5):
        times.learn(one(SHORT), 20 * MS)
        times.learn(one(LONG), 200 * MS)
    both = times.of(Graphs(HERE, (SHORT, LONG)))
    assert both is not None
    assert 2 * both.tau_ns == 220 * MS
    assert times.of(Graphs(HERE, (SHORT, 0x3000))) is None, "of one of them nothing is known"


def test_what_was_estimated_for_a_held_graph_teaches_nothing_about_it() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 1000, 100)
    now = 0
    for _ in range(10):
        probe.launch(0, now, 1, SHORT)
        now += 20 * MS
        probe.sync(0, now)
    probe.launch(0, now, 1, LONG)
    account.read(now + MS)
    account.hold([100], now + MS)
    account.read(now + 300 * MS)
    account.thaw([100], now + 300 * MS)
    probe.sync(0, now + 301 * MS)
    account.read(now + 301 * MS)
    (context,) = account._contexts.all()
    assert context.graphs.of(Graphs(context.key, (SHORT,))) is not None
    assert context.graphs.of(Graphs(context.key, (LONG,))) is None


def test_the_times_of_the_latest_graphs_are_kept() -> None:
    times = GraphTimes()
    for handle in range(1, 2 * MOST_OF_CONTEXT):
        times.learn(one(handle), MS)
    assert len(times.all()) == MOST_OF_CONTEXT
    assert times.of(one(1)) is None
    assert times.of(one(2 * MOST_OF_CONTEXT - 1)) is not None


# ---- what they cost ----


def learn(costs: Costs, owner: str, handle: int, ms: float, *, alone: bool = True, many: int = 5) -> None:
    for _ in range(many):
        costs.learn(owner, round(ms * MS), 1, one(handle), is_alone=alone, waited_ns=round(ms * MS))


def test_a_graph_costs_what_it_costs_whatever_else_is_launched() -> None:
    costs = Costs(8)
    for handle, ms in ((SHORT, 20), (LONG, 200)):
        learn(costs, A, handle, ms)
        learn(costs, A, handle, 1.5 * ms, alone=False)
    cost = costs.of(A)
    assert cost.owed_ns(1, one(SHORT)) == pytest.approx(20 * MS, rel=0.05)
    assert cost.owed_ns(1, one(LONG)) == pytest.approx(200 * MS, rel=0.05)
    assert cost.owed_ns(2, Graphs(HERE, (SHORT, LONG))) == pytest.approx(220 * MS, rel=0.05)


def test_of_a_graph_that_was_not_seen_yet_the_replay_is_believed() -> None:
    costs = Costs(8)
    learn(costs, A, SHORT, 20)
    assert costs.charge_ns(A, 200 * MS, 1, one(LONG)) == 200 * MS
    learn(costs, A, LONG, 200, alone=False)
    assert costs.of(A).owed_ns(1, one(LONG)) is None, "no other graph tells how far off the replay is"


def test_one_graph_that_was_charged_next_to_nothing_does_not_multiply_what_others_are_charged() -> None:
    costs = Costs(8)
    learn(costs, A, SHORT, 200)
    learn(costs, A, SHORT, 0.1, alone=False)
    learn(costs, A, LONG, 50, alone=False)
    owed_ns = costs.of(A).owed_ns(1, one(LONG))
    assert owed_ns is not None
    assert owed_ns < 5 * 50 * MS


def test_a_tenant_with_a_hundred_thousand_graphs_is_charged_their_mean_and_hurts_nobody_else() -> None:
    costs = Costs(8)
    learn(costs, B, SHORT, 20)
    for handle in range(1, 100_001):
        costs.learn(A, 50 * MS, 1, one(handle), is_alone=True, waited_ns=50 * MS)
    cost = costs.of(A)
    assert len(cost._graphs) == MOST_GRAPHS
    assert cost.is_measured, "there is nothing more to be measured in a moment of its own"
    assert cost.owed_ns(1, one(LONG << 32)) == pytest.approx(50 * MS)
    assert costs.of(B).owed_ns(1, one(SHORT)) == pytest.approx(20 * MS)


# ---- in the account ----


def test_what_is_left_of_a_burst_is_what_its_graph_takes() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 1000, 100)
    now = 0
    for number in range(20):
        handle, ms = ((SHORT, 20), (LONG, 200))[number % 2]
        probe.launch(0, now, 1, handle)
        now += ms * MS
        probe.sync(0, now)
    account.read(now)
    left = {}
    for handle in (SHORT, LONG):
        probe.launch(0, now, 1, handle)
        (row,) = account.read(now)
        left[handle] = row.outstanding_ns
        now += 250 * MS
        probe.sync(0, now)
        account.read(now)
    assert left[SHORT] == pytest.approx(20 * MS, rel=0.1)
    assert left[LONG] == pytest.approx(200 * MS, rel=0.1)


def in_turn(*, knows_graphs: bool, seed: int = 1) -> tuple[dict[str, float], float]:
    """Graphs of 20 and 200 ms in turn beside a decoder and a trainer: errors of their accounts, and of its share."""
    pieces = [Piece(SHORT, 1, 20 * MS), Piece(LONG, 1, 200 * MS)]
    loop = ClosedLoop(
        [
            Tenant(TenantSpec("long", weight=1), [Replays(pieces, 0.01, MS, 1, is_random=False)]),
            Tenant(TenantSpec("decode", weight=2), [Steps(20, MS // 2, 0.1, MS // 2)]),
            Tenant(
                TenantSpec("train", weight=2, tenant_class=TenantClass.BATCH), [Pipeline(20, MS // 2, 0.1, 2)]
            ),
        ],
        seed=seed,
    )
    loop.probe.knows_graphs = knows_graphs
    errors = loop.errors(6 * S, 20 * S)
    return errors, loop.shares(6 * S, 20 * S)["long"] - 0.2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_graphs_of_different_lengths_in_turn_have_their_share(seed: int) -> None:
    errors, share_error = in_turn(knows_graphs=True, seed=seed)
    assert max(map(abs, errors.values())) < 0.15
    assert abs(share_error) < 0.03


def test_graphs_that_are_not_told_apart_are_far_from_their_share() -> None:
    share_errors = [in_turn(knows_graphs=False, seed=seed)[1] for seed in (1, 2, 3)]
    assert statistics.mean(share_errors) > 0.1, "or the test above says nothing"


def test_a_graph_that_was_never_seen_may_drain_for_long() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    now = 0
    probe.create(0, 1000, 100)
    for _ in range(10):
        probe.launch(0, now, 1, SHORT)
        now += 20 * MS
        probe.sync(0, now)
    found = {}
    for handle in (SHORT, LONG):
        probe.launch(0, now, 1, handle)
        account.read(now)
        account.hold([100], now)
        context = account._contexts.all()[0]
        later = now + 100 * MS
        account.read(later)
        found[handle] = account._engines[0].drains.may_run(context, later)
        account.thaw([100], later)
        probe.sync(0, later + MS)
        now = later + 2 * MS
        account.read(now)
    assert found == {SHORT: False, LONG: True}


def test_a_draw_is_the_same_each_time_and_who_knows_graphs_is_nearer_to_what_is_due() -> None:
    short = {"settle_ns": 4 * S, "measured_ns": 8 * S}
    seeing = [play(1, number, **short) for number in (8, 18)]
    assert seeing[0] == play(1, 8, **short)
    blind = [play(1, number, is_blind=True, **short) for number in (8, 18)]
    assert sum(one.share_error for one in seeing) < sum(one.share_error for one in blind)


# ---- told ----


def test_the_graphs_of_a_tenant_are_told_with_how_well_they_are_known() -> None:
    costs = Costs(8)
    assert costs.of(A).graphs() is None
    learn(costs, A, SHORT, 20)
    learn(costs, A, LONG, 90, alone=False)
    costs.learn(A, 9 * MS, 1, Graphs(HERE, (LOST,)), is_alone=True, waited_ns=9 * MS)
    costs.learn(A, 110 * MS, 2, Graphs(HERE, (SHORT, LONG)), is_alone=True, waited_ns=110 * MS)
    told = costs.of(A).graphs()
    assert told is not None
    assert (told.count, told.shortest_ms, told.longest_ms) == (2, pytest.approx(20), pytest.approx(90))
    assert not told.is_measured
    learn(costs, A, LONG, 100)
    now = costs.of(A).graphs()
    assert now is not None
    assert (now.longest_ms, now.is_measured) == (pytest.approx(100), True)
    assert 0 < now.error_ratio < told.error_ratio
