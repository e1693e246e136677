# SPDX-License-Identifier: Apache-2.0
"""In the closed loop: training that queues whole steps, or never asks, beside tenants that are owed a part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.model import TenantSpec
from tests.unit.accounting.closed_loop import MS, Flood, Pipeline, Steps
from tests.unit.accounting.deep_draws import draw_deep, play_deep
from tests.unit.accounting.draws import mean_error
from tests.unit.accounting.flood_draws import play_flood
from tests.unit.accounting.unseen_loop import S, Watched
from tests.unit.policy.model_gpu import Tenant
from tests.unit.policy.model_processes import Process

SETTLED_NS, END_NS = 20 * S, 60 * S


def played(
    trainers: list[Process], longest_ns: int | None = None, *, weight: int = 3, end_ns: int = END_NS
) -> Watched:
    """Beside a decoder that weighs so many times as much."""
    decoder = Steps(20, 500_000, 0.2, 500_000)
    sim = Watched(
        [Tenant(TenantSpec("chat", weight=weight), [decoder]), Tenant(TenantSpec("train"), trainers)], seed=1
    )
    if longest_ns is not None:
        sim.params = replace(sim.params, longest_hold_ns=longest_ns)
    sim.run(end_ns)
    return sim


@pytest.mark.parametrize(
    "trainers",
    [
        [Steps(200, 5 * MS, 0.1, MS)],
        [Steps(200, 10 * MS, 0.1, MS)],
        [Steps(200, 5 * MS, 0.1, MS) for _ in range(3)],
        [Pipeline(200, 5 * MS, 0.1, 2) for _ in range(2)],
    ],
    ids=["1 s", "2 s", "three of 1 s", "two with two of 1 s"],
)
def test_who_queues_whole_steps_has_no_more_than_its_part(trainers: list[Process]) -> None:
    """It was .32 to .59."""
    assert played(trainers).shares(SETTLED_NS, END_NS)["chat"] == pytest.approx(0.75, abs=0.06)


def test_nor_has_it_after_minutes() -> None:
    """After 98 s each hold began some milliseconds after its grant, and none was followed by a longer one: .65."""
    pipelines: list[Process] = [Pipeline(200, 5 * MS, 0.1, 2) for _ in range(2)]
    share = played(pipelines, end_ns=140 * S).shares(SETTLED_NS, 140 * S)["chat"]
    assert share == pytest.approx(0.75, abs=0.06)


def test_with_holds_of_two_seconds_it_has() -> None:
    shares = played([Steps(200, 10 * MS, 0.1, MS)], 0).shares(SETTLED_NS, END_NS)
    assert shares["chat"] < 0.6


@pytest.mark.parametrize(("kernel_ms", "many"), [(5, 2), (5, 3), (2, 3)])
def test_who_never_asks_is_not_endless_because_it_cannot_launch_while_its_queue_is_full(
    kernel_ms: int, many: int
) -> None:
    """A thousand launches of each are in flight: one after the other nothing is heard of it for seconds."""
    assert not played([Flood(kernel_ms * MS) for _ in range(many)]).accused


@pytest.mark.parametrize(
    ("kernel_ms", "many", "weight"), [(1, 4, 1), (2, 2, 1), (2, 2, 3), (5, 1, 3), (5, 2, 1)]
)
def test_who_never_asks_has_no_more_than_its_part_either(kernel_ms: int, many: int, weight: int) -> None:
    """It was .68 to .82: held for what was known of one, while what the others had queued went on."""
    floods: list[Process] = [Flood(kernel_ms * MS) for _ in range(many)]
    due = weight / (weight + 1)
    assert played(floods, weight=weight).shares(SETTLED_NS, END_NS)["chat"] == pytest.approx(due, abs=0.1)


def test_drawn_mixes_beside_processes_that_never_ask() -> None:
    """Before all of them were known: 7.9."""
    results = [play_flood(95, number) for number in range(8)]
    assert mean_error(results) < 6, [one.words for one in results]


def test_drawn_mixes_beside_training_that_queues_whole_steps() -> None:
    """Before holds lasted so long: 9.2."""
    results = [play_deep(52, number) for number in range(10)]
    assert mean_error(results) < 7, [one.words for one in results]


def test_a_draw_is_the_same_for_the_same_arguments() -> None:
    one, other = draw_deep(3, 4), draw_deep(3, 4)
    assert str(one[0]) == str(other[0])
    assert [tenant.spec for tenant in one[1]] == [tenant.spec for tenant in other[1]]
