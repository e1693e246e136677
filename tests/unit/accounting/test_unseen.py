# SPDX-License-Identifier: Apache-2.0
"""Beside work that no probe sees, in the closed loop: honest accounts are right or unsure, and soon right again."""

from __future__ import annotations

import pytest

from tests.unit.accounting.closed_loop import KINDS, Steps
from tests.unit.accounting.unseen_loop import S, Watched, beside_unseen
from tests.unit.policy.model_processes import Process

BEGIN_NS, END_NS = 10 * S, 24 * S


def steps() -> Process:
    return Steps(20, 500_000, 0.1, 500_000)


def played(*kinds: str, seed: int) -> Watched:
    sim = beside_unseen(*(KINDS.get(kind, steps)() for kind in kinds), start_ns=BEGIN_NS, seed=seed)
    sim.run(END_NS)
    return sim


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "kinds", [("steps", "steps"), ("steps",) * 4, ("graph", "decode"), ("steps", "trainer")]
)
def test_honest_accounts_are_right_or_unsure_and_right_again(kinds: tuple[str, ...], seed: int) -> None:
    sim = played(*kinds, seed=seed)
    assert sim.found_ns is not None and sim.counted_ns is not None
    assert sim.let_go == 0
    for name in (name for name in sim.tenants if name != "hostile"):
        assert abs(sim.error(name, 8 * S, END_NS)) < 0.08, (
            "where it was sure, until it was suspected included"
        )
        settled_ns = sim.counted_ns + 2 * S
        assert abs(sim.error(name, settled_ns, END_NS)) < 0.02
        assert sim.low_ratio(name, END_NS - 4 * S, END_NS) < 0.1, "and it is sure again"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equals_are_not_held_for_it(seed: int) -> None:
    """A decoder that runs ahead is held for some milliseconds now and then; before, for whole deadlines."""
    sim = played("steps", "steps", seed=seed)
    for name in ("honest1", "honest2"):
        mine = [record for record in sim.records if record.tenant == name and record.since_ns > BEGIN_NS]
        assert sum(record.until_ns - record.since_ns for record in mine) < 0.03 * (END_NS - BEGIN_NS)
