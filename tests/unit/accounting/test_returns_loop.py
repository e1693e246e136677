# SPDX-License-Identifier: Apache-2.0
"""What is due where tenants come and go is worked out right."""

from __future__ import annotations

import pytest

from fairsched.model import TenantSpec
from tests.unit.accounting.closed_loop import Pipeline
from tests.unit.accounting.drawn_loop import ASSUMED, S
from tests.unit.accounting.fake_probe import MS
from tests.unit.accounting.returns_loop import OnOff, ReturnsLoop, draw
from tests.unit.policy.model_gpu import Tenant


def due_of_a_goer(*, weight: float, off_ms: int) -> float:
    """Part of what was delivered from 1 s to 5 s that is due to one that works for 200 ms beside a trainer."""
    goer = OnOff(4 * MS, 200 * MS, off_ms * MS, by_chance=False, by_work=False)
    tenants = [
        Tenant(TenantSpec("goer", weight=weight), [goer]),
        Tenant(TenantSpec("trainer"), [Pipeline(10, MS, 0.0, 4)]),
    ]
    loop = ReturnsLoop(tenants, ASSUMED, seed=1, is_enforced=False)
    loop.watch_from(S, 5 * S)
    loop.run(5 * S)
    whole = sum(ns - loop.began.had[name] for name, ns in loop.had.items())
    assert sum(loop.due.values()) == pytest.approx(whole)
    return loop.due["goer"] / whole


@pytest.mark.parametrize(
    ("weight", "off_ms", "due"), [(1, 0, 0.5), (3, 0, 0.75), (3, 200, 0.375), (3, 600, 0.19)]
)
def test_due_is_the_entitlement_for_as_long_as_it_wants_the_gpu(
    weight: float, off_ms: int, due: float
) -> None:
    assert due_of_a_goer(weight=weight, off_ms=off_ms) == pytest.approx(due, abs=0.02)


def test_a_draw_is_the_same_each_time_and_has_somebody_who_goes_beside_somebody_who_queues() -> None:
    kinds = set()
    for number in range(40):
        _, tenants, _ = draw(3, number)
        assert [one.spec for one in tenants] == [one.spec for one in draw(3, number)[1]]
        assert {"goer", "trainer"} <= {one.name.split("/")[-1].rstrip("0123456789") for one in tenants}
        kinds |= {type(process).__name__ for one in tenants for process in one.processes}
    assert kinds == {"OnOff", "Pipeline", "Loading", "Steps"}
