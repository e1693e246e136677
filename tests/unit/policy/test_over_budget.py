# SPDX-License-Identifier: Apache-2.0
"""A tenant that has work which nobody can see: charged for the most it may have used, owed nothing."""

from __future__ import annotations

import pytest

from fairsched.model import Confidence, Use
from fairsched.policy import Decision
from tests.unit.policy.builders import MS, held, hold, judge, lags, snapshot, use


def over(name: str, most: float) -> Use:
    """Nothing of what it does is seen, and that much it may have used."""
    return use(name, 0, confidence=Confidence.LOW)._replace(most_ns=round(most * MS), may_be_owed=False)


def test_who_has_work_that_nobody_can_see_is_held_for_all_it_may_have_used() -> None:
    decision = judge(snapshot(20, over("a", 20), use("b", 0)), lags(a=-5, b=5))
    assert held(decision) == ["a"]
    assert lags_of(decision)["a"] == pytest.approx(-15 * MS), "half of the twenty was its own"


def test_and_earns_nothing_by_being_held() -> None:
    snap = snapshot(100, over("a", 0), use("b", 100), holds=[hold("a", 20)])
    assert lags_of(judge(snap, lags(a=-10, b=10, active=20)))["a"] == 0


def test_and_is_not_held_where_nobody_else_wants_the_gpu() -> None:
    assert not judge(snapshot(20, over("a", 20)), lags(a=-100)).plan


def lags_of(decision: Decision) -> dict[str, float]:
    return {tenant: account.lag_ns for (tenant, _), account in decision.state.accounts.items()}
