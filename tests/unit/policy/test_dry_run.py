# SPDX-License-Identifier: Apache-2.0
"""A dry run under the law: nobody is frozen, and its holds begin and end as if they were real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model import (
    Action,
    ActionKind,
    Confidence,
    Hold,
    PolicyParams,
    Reason,
    ReasonCode,
    Snapshot,
    TenantSpec,
    Use,
)
from fairsched.policy import Decision, PolicyState, decide
from fairsched.policy.dry_run import as_if_held
from tests.unit.policy.model_gpu import MS, HoldRecord, S, Simulation, Tenant
from tests.unit.policy.test_properties import PARAMS, _use, contended, worlds
from tests.unit.policy.test_scenarios import decoder, four_with_greedy, trainer

SPECS = {name: TenantSpec(name) for name in ("a", "b", "c")}


class DryRun(Simulation):
    """Holds are on record, and stop nobody."""

    decision: Decision | None = None

    def __init__(self, tenants: list[Tenant]) -> None:
        super().__init__(tenants)
        self.watch = self._remember

    def _remember(self, _sim: Simulation, _snapshot: Snapshot, decision: object) -> None:
        assert isinstance(decision, Decision)
        self.decision = decision

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        return as_if_held(seen, self.decision) if self.holds else seen

    def _hold(self, name: str, deadline_ns: int, why: ReasonCode) -> None:
        self.holds[name] = Hold(name, self.now, deadline_ns, True)
        self.open[name] = HoldRecord(name, self.now, self.now, deadline_ns, why)
        self.records.append(self.open[name])

    def _thaw(self, name: str, why: ReasonCode) -> None:
        del self.holds[name]
        self._close(name, why)

    def _grant(self, action: Action) -> None:
        if action.grant_ns is not None:
            self._hold(action.tenant, action.deadline_ns, ReasonCode.DEEP_QUEUE)


def held_ratio(sim: Simulation, name: str, seconds: int = 12) -> float:
    held_ns = sum(one.until_ns - one.since_ns for one in sim.records if one.tenant == name)
    return held_ns / (seconds * S)


MIXES: dict[str, tuple[Callable[[], list[Tenant]], float]] = {
    "a decoder and a trainer": (lambda: [decoder("a", 3), trainer("b")], 0.01),
    "two trainers": (lambda: [trainer("a", 4), trainer("b")], 0.01),
    "a deep queue": (lambda: [decoder("a", 3), trainer("b", 1, 1, 200, 3)], 0.01),
    "a quota": (lambda: [decoder("a"), trainer("b", quota_ratio=0.2)], 0.01),
    "three decoders and a greedy tenant": (four_with_greedy, 0.08),
    "a decoder that pauses": (lambda: [decoder("a", 3, 10 * MS), trainer("b")], 0.08),
}


@pytest.mark.parametrize("mix", MIXES)
def test_it_would_hold_each_for_as_long_as_enforce_does(mix: str) -> None:
    """.947 and .947, .955 and .955, .997 and .996, .955 and .957, at most .523 and .456, .942 and .888."""
    make, bar = MIXES[mix]
    real, dry = Simulation(make()).run(12 * S), DryRun(make()).run(12 * S)
    free = Simulation(make(), is_enforced=False).run(12 * S)
    assert max(held_ratio(real, name) for name in real.tenants) > 0.5
    for name in real.tenants:
        assert held_ratio(dry, name) == pytest.approx(held_ratio(real, name), abs=bar)
        assert dry.got(name, 0, 12 * S) == free.got(name, 0, 12 * S), "nobody is held"


def use(tenant: str, used: int, queued: int = 0, **more: Any) -> Use:
    return Use(tenant, "gpu0", used * MS, True, queued * MS, Confidence.HIGH, **more)


def after(*uses: Use, holds: tuple[str, ...] = ("a",), plan: tuple[Action, ...] = ()) -> dict[str, Use]:
    """What is made of these uses, 20 ms after ``a`` was held with 6 ms queued."""
    first = Snapshot(0, 20 * MS, (use("a", 10, 6), use("b", 10), use("c", 0)))
    before = decide(first, PolicyState(), SPECS, PolicyParams())
    before = Decision(plan, before.state, draft=before.draft)
    held = {name: Hold(name, 0, S, is_ours=True) for name in holds}
    made = as_if_held(Snapshot(20 * MS, 20 * MS, uses, held), before)
    return {one.tenant: one for one in made.uses}


def test_a_held_tenant_gets_what_it_had_queued_and_the_others_get_the_rest() -> None:
    found = after(use("a", 10, 50), use("b", 10))
    assert (found["a"].charged_ns, found["a"].outstanding_ns) == (6 * MS, 0)
    assert found["b"].charged_ns == 14 * MS
    assert [one.used_ns for one in found.values()] == [10 * MS, 10 * MS], "what is shown stays"


def test_a_queue_that_lasts_longer_goes_on_draining() -> None:
    found = after(use("a", 4, 50), use("b", 16))
    assert (found["a"].charged_ns, found["a"].outstanding_ns) == (4 * MS, 2 * MS)


def test_a_grant_is_queued_at_once() -> None:
    grant = Action(ActionKind.THAW, "a", Reason(ReasonCode.CAUGHT_UP, "gpu0"), S, 3 * MS)
    assert after(use("a", 10), use("b", 10), plan=(grant,))["a"].charged_ns == 9 * MS


def test_the_others_get_it_by_the_time_in_which_their_work_waited() -> None:
    found = after(use("a", 10), use("b", 10), use("c", 0, paused_ns=15 * MS))
    assert found["b"].charged_ns == round((10 + 4 * 10 / 15) * MS)
    assert found["c"].charged_ns == round(4 * 5 / 15 * MS)


def test_what_nobody_waits_for_is_lost() -> None:
    assert after(use("a", 10), use("b", 9, paused_ns=10 * MS))["b"].charged_ns == 10 * MS
    assert after(use("a", 10), use("b", 9)._replace(has_demand=False))["b"].charged_ns == 9 * MS


def test_a_held_tenant_wants_the_gpu_though_its_work_has_ended() -> None:
    found = after(use("a", 10, paused_ns=5 * MS)._replace(has_demand=False), use("b", 10))["a"]
    assert (found.has_demand, found.paused_ns) == (True, 0)


def replay_dry(
    known: dict[str, TenantSpec], steps: list[dict[str, Any]]
) -> list[tuple[Snapshot, Snapshot, Decision]]:
    """As it was seen, as it was rewritten, and what was decided."""
    now, holds, decision = 0, dict[str, Hold](), Decision((), PolicyState())
    found = []
    for step in steps:
        now += step["interval"] * MS
        uses = tuple(_use(step["interval"], *row) for row in step["rows"])
        seen = Snapshot(now, step["interval"] * MS, uses, dict(holds), {}, frozenset(step["idle"]))
        made = as_if_held(seen, decision)
        decision = decide(made, decision.state, known, PARAMS)
        found.append((seen, made, decision))
        for action in decision.plan:
            if action.kind is ActionKind.THAW:
                del holds[action.tenant]
            if action.kind is ActionKind.HOLD or action.grant_ns is not None:
                holds[action.tenant] = Hold(action.tenant, now, action.deadline_ns, True)
    return found


@given(st.one_of(worlds(), contended()))
def test_the_time_of_a_gpu_is_dealt_out_anew_and_never_grows(
    world: tuple[dict[str, TenantSpec], list[dict[str, Any]]],
) -> None:
    for seen, made, decision in replay_dry(*world):
        assert [one.used_ns for one in made.uses] == [one.used_ns for one in seen.uses]
        really: dict[str, int] = {}
        for was, one in zip(seen.uses, made.uses, strict=True):
            assert 0 <= one.charged_ns <= max(was.charged_ns, seen.interval_ns)
            assert one.charged_ns <= was.charged_ns or one.tenant not in seen.holds
            really[one.gpu] = really.get(one.gpu, 0) + was.charged_ns - one.charged_ns
        assert all(lost_ns >= -len(made.uses) for lost_ns in really.values()), "but for rounding"
        thawed = {action.tenant for action in decision.plan if action.kind is ActionKind.THAW}
        overdue = {name for name, hold in seen.holds.items() if hold.deadline_ns <= seen.now_ns}
        assert overdue <= thawed
