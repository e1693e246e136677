# SPDX-License-Identifier: Apache-2.0
"""Beside work that no probe sees, in the closed loop: who does it has its part and no more, the others are equal."""

from __future__ import annotations

import pytest

from fairsched.model import TenantSpec
from tests.unit.accounting.closed_loop import KINDS, MS, Steps, Unseen
from tests.unit.accounting.unseen_loop import S, Watched
from tests.unit.policy.model_gpu import Simulation, Tenant
from tests.unit.policy.model_processes import Process

BEGIN_NS, SETTLED_NS, END_NS = 10 * S, 15 * S, 40 * S
MOST_MORE = 0.07
"""Samples are few: the worst of these has .04 more than its part, of 32 others .08. Unhindered it has .24 more."""
APART = 0.012
LEAST = 1 / 3 - 0.03
"""Of who pauses beside who has a queue: .312 to .338 in twelve plays; .267 in one where known costs were charged."""


def steps() -> Process:
    return Steps(20, 500_000, 0.1, 500_000)


class Wave(Unseen):
    """Works for .6 s in each second."""

    def on_start(self, sim: Simulation) -> None:
        into_ns = sim.now % S
        if into_ns < 600 * MS:
            super().on_start(sim)
        elif self.asked == self.done:
            sim.program(self, sim.now + S - into_ns, lambda: self.on_start(sim))


def unseen(kind: type[Unseen] = Unseen, *, start_ns: int = BEGIN_NS, stop_ns: int | None = None) -> Unseen:
    one = kind(20, 500_000, 0.1, 2)
    one.start_ns, one.stop_ns = start_ns, stop_ns
    return one


def flicker() -> list[Process]:
    """Three at a time, each of which is gone after half a second."""
    begins_ns = [BEGIN_NS + k * 300 * MS + n * 900 * MS for n in range(35) for k in range(3)]
    return [unseen(start_ns=at_ns, stop_ns=at_ns + 500 * MS) for at_ns in begins_ns]


def played(*kinds: str, hostile: list[Process], weight: float, seed: int) -> Watched:
    tenants = [Tenant(TenantSpec(f"honest{n}"), [KINDS.get(kind, steps)()]) for n, kind in enumerate(kinds)]
    tenants.append(Tenant(TenantSpec("hostile", weight=weight), hostile))
    sim = Watched(tenants, seed=seed)
    sim.run(END_NS)
    return sim


def assert_shares(sim: Watched, due: float) -> None:
    shares = sim.shares(SETTLED_NS, END_NS)
    print(shares)
    hostile = shares.pop("hostile")
    assert hostile < due + MOST_MORE
    assert max(shares.values()) - min(shares.values()) < APART, "as fair among each other as before"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("weight", [0.25, 1.0])
@pytest.mark.parametrize("kind", ["always", "wave", "flicker"])
def test_who_works_unseen_has_its_part_and_no_more(kind: str, weight: float, seed: int) -> None:
    hostile = {"always": [unseen()], "wave": [unseen(Wave)], "flicker": flicker()}[kind]
    sim = played("steps", "steps", hostile=hostile, weight=weight, seed=seed)
    assert_shares(sim, weight / (2 + weight))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_it_does_in_the_light_counts_as_well(seed: int) -> None:
    sim = played("steps", "steps", hostile=[steps(), *flicker()], weight=0.25, seed=seed)
    assert_shares(sim, 1 / 9)


@pytest.mark.parametrize("seed", [1, 3])
def test_no_known_cost_sets_one_account_right_at_the_expense_of_another(seed: int) -> None:
    sim = played("steps", "trainer", hostile=[unseen()], weight=1.0, seed=seed)
    assert min(sim.shares(SETTLED_NS, END_NS).values()) > LEAST


@pytest.mark.parametrize("seed", [1, 2])
def test_equals_are_not_held_for_it(seed: int) -> None:
    """A decoder that runs ahead is held for some milliseconds now and then."""
    sim = played("steps", "steps", hostile=[unseen()], weight=0.25, seed=seed)
    for name in ("honest0", "honest1"):
        mine = [record for record in sim.records if record.tenant == name and record.since_ns > SETTLED_NS]
        assert sum(record.until_ns - record.since_ns for record in mine) < 0.03 * (END_NS - SETTLED_NS)
