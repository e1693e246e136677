# SPDX-License-Identifier: Apache-2.0
"""The laws of the policy over random worlds: first random snapshots, then random tenants on the model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model import (
    ActionKind,
    Confidence,
    Hold,
    PolicyParams,
    ReasonCode,
    Snapshot,
    TenantClass,
    TenantSpec,
    Use,
)
from fairsched.policy import Decision, PolicyState, decide
from fairsched.policy.lag import Solos
from fairsched.policy.shares import entitlements, spec_for
from tests.unit.policy.model_gpu import MS, SLICE_NS, SWITCH_NS, Simulation, Tenant
from tests.unit.policy.model_processes import Bursty, ClosedLoop, DeepQueue, Process

S = 1000 * MS
NAMES = ["a", "b", "t/x", "t/y"]
GPUS = ["gpu0", "gpu1"]
PARAMS = PolicyParams()


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, TenantSpec], list[dict[str, Any]]]:
    """Specs, and for each step what every tenant did, who went away, and whom somebody else froze."""
    known = {
        name: TenantSpec(
            name,
            weight=draw(st.floats(0.1, 10)),
            quota_ratio=draw(st.none() | st.none() | st.floats(0.1, 0.9)),
            min_ratio=draw(st.sampled_from([0.0, 0.0, 0.2])),
            tenant_class=draw(st.sampled_from(TenantClass)),
            is_exempt=draw(st.sampled_from([False, False, False, True])),
        )
        for name in draw(st.lists(st.sampled_from([*NAMES, "t"]), unique=True))
    }
    steps = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "interval": st.sampled_from([0, 1, 5, 20, 20, 20, 60, 100]),
                    "rows": st.lists(
                        st.tuples(
                            st.sampled_from(NAMES),
                            st.sampled_from(GPUS),
                            st.integers(0, 100),
                            st.booleans(),
                            st.integers(0, 200),
                            st.sampled_from([Confidence.HIGH] * 5 + [Confidence.LOW]),
                            st.sampled_from([0, 0, 5]),
                        ),
                        unique_by=lambda row: row[:2],
                        max_size=8,
                    ),
                    "foreign": st.sampled_from([None, None, None, *NAMES]),
                    "idle": st.sets(st.sampled_from(GPUS)),
                }
            ),
            min_size=1,
            max_size=25,
        )
    )
    return known, steps


@st.composite
def contended(draw: st.DrawFn) -> tuple[dict[str, TenantSpec], list[dict[str, Any]]]:
    """The same, where one after the other takes the GPU that all want: there tenants are held, and for long."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, unique=True))
    known = {
        name: TenantSpec(
            name, weight=draw(st.floats(0.1, 10)), max_freeze_ms=draw(st.sampled_from([None, 30]))
        )
        for name in names
    }
    steps = []
    for taker in draw(st.lists(st.sampled_from(names), min_size=1, max_size=5)):
        wanting = draw(st.sampled_from([names, names, [taker]]))  # the others may leave while it is held
        for _ in range(draw(st.integers(1, 8))):
            interval, unknown = draw(st.sampled_from([20, 20, 60])), draw(st.sampled_from([0, 0, 5]))
            rows = [
                (name, "gpu0", interval if name == taker else 0, name in wanting, 0, Confidence.HIGH, unknown)
                for name in names
            ]
            steps.append({"interval": interval, "rows": rows, "foreign": None, "idle": set()})
    return known, steps


def _use(
    interval: int,
    name: str,
    gpu: str,
    used: int,
    demand: bool,
    queued: int,
    confidence: Confidence,
    unmeasured: int,
) -> Use:
    """Who has nothing queued has paused when it did not work, and for half of that nobody worked."""
    paused_ns = 0 if queued else max(0, interval - used) * MS
    pauses = {"unmeasured_ns": unmeasured * MS, "paused_ns": paused_ns, "idle_ns": paused_ns // 2}
    return Use(name, gpu, used * MS, demand, queued * MS, confidence, **pauses)


def replay(known: dict[str, TenantSpec], steps: list[dict[str, Any]]) -> list[tuple[Snapshot, Decision]]:
    now, state, holds = 0, PolicyState(), dict[str, Hold]()
    seen = []
    for step in steps:
        now += step["interval"] * MS
        foreign = step["foreign"]
        if foreign is not None:
            holds[foreign] = Hold(foreign, now, 0, False)
        else:
            holds = {name: hold for name, hold in holds.items() if hold.is_ours}
        uses = tuple(_use(step["interval"], *row) for row in step["rows"])
        snapshot = Snapshot(now, step["interval"] * MS, uses, dict(holds), {}, frozenset(step["idle"]))
        decision = decide(snapshot, state, known, PARAMS)
        seen.append((snapshot, decision))
        state = decision.state
        for action in decision.plan:
            if action.kind is ActionKind.HOLD:
                holds[action.tenant] = Hold(action.tenant, now, action.deadline_ns, True)
            else:
                del holds[action.tenant]
    return seen


@given(worlds() | contended())
def test_plans_are_legal_in_any_world(world: tuple) -> None:
    for snapshot, decision in replay(*world):
        targets = [action.tenant for action in decision.plan]
        assert len(targets) == len(set(targets)), "one action per tenant"
        for action in decision.plan:
            if action.kind is ActionKind.THAW:
                assert snapshot.holds[action.tenant].is_ours, "a pause that is not ours is never ended"
                continue
            assert snapshot.interval_ns > 0
            assert action.tenant not in snapshot.holds
            rows = [use for use in snapshot.uses if use.tenant == action.tenant]
            assert all(use.confidence is Confidence.HIGH for use in rows)
            assert not spec_for(action.tenant, world[0]).is_exempt
            assert action.deadline_ns > snapshot.now_ns
            assert action.reason.lag_ns is not None and action.reason.gpu is not None


def test_no_hold_of_ours_outlives_its_deadline() -> None:
    reasons: Counter[ReasonCode] = Counter()

    @given(worlds() | contended())
    def law(world: tuple) -> None:
        for snapshot, decision in replay(*world):
            let_go = {action.tenant for action in decision.plan if action.kind is ActionKind.THAW}
            due = {n for n, h in snapshot.holds.items() if h.is_ours and h.deadline_ns <= snapshot.now_ns}
            assert due <= let_go
            reasons.update(action.reason.code for action in decision.plan if action.tenant in due)

    law()
    assert reasons[ReasonCode.DEADLINE] >= 5, reasons


@given(worlds() | contended())
def test_nobody_stays_frozen_alone(world: tuple) -> None:
    """After every plan, whoever is held (but for quota) shares a GPU with somebody who runs."""
    for snapshot, decision in replay(*world):
        if snapshot.interval_ns == 0:
            continue
        held = {name for name in snapshot.holds if name not in {a.tenant for a in decision.plan}}
        held |= {action.tenant for action in decision.plan if action.kind is ActionKind.HOLD}
        for name in held:
            if name in snapshot.holds and not snapshot.holds[name].is_ours:
                continue
            if decision.state.gates[name].is_quota:
                continue
            gpus = {use.gpu for use in snapshot.uses if use.tenant == name and use.has_demand}
            grace = PARAMS.demand_grace_ns
            running = [
                key
                for key, account in decision.state.accounts.items()
                if key[1] in gpus
                and key[0] not in held | {name} | set(snapshot.holds) - {a.tenant for a in decision.plan}
                and account.active_ns is not None
                and snapshot.now_ns - account.active_ns <= grace
            ]
            assert running, (name, decision)


def test_lags_of_a_gpu_add_up_to_what_they_did_before() -> None:
    """They begin at 0. What is lost at the clamp, or is forgiven with nobody there to take it, is lost once."""
    steps: Counter[str] = Counter()

    @given(worlds())
    def law(world: tuple) -> None:
        sums = dict.fromkeys(GPUS, 0.0)
        for snapshot, decision in replay(*world):
            for gpu in GPUS:
                lags = [acc.lag_ns for key, acc in decision.state.accounts.items() if key[1] == gpu]
                before, sums[gpu] = sums[gpu], sum(lags)
                in_a = [
                    view
                    for view in decision.shares
                    if view.gpu == gpu
                    and view.confidence is Confidence.HIGH
                    and not spec_for(view.tenant, world[0]).is_exempt
                    and view.entitlement_ratio > 0
                ]
                if any(abs(lag) >= PARAMS.lag_clamp_ns for lag in lags):
                    step = "somebody is clamped"
                elif not in_a:
                    step = "nobody is there to take it"
                else:
                    step = "judged" if any(lags) else "nothing is owed"
                    assert abs(sums[gpu] - before) < 10_000, (snapshot, before, lags)
                steps[step] += 1

    law()
    assert steps["judged"] > 0.1 * steps.total(), steps
    assert steps["judged"] > 100, steps


@given(worlds())
def test_the_state_round_trips_and_a_decision_is_a_function(world: tuple) -> None:
    known, steps = world
    for snapshot, decision in replay(known, steps):
        kept = replace(decision.state, solos=Solos())  # those end with the daemon
        stored = PolicyState.from_dict(json.loads(json.dumps(decision.state.to_dict())))
        assert stored == kept
        assert stored.to_dict() == kept.to_dict()
        assert decide(snapshot, stored, known, PARAMS) == decide(snapshot, kept, known, PARAMS)


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_change_the_plan(world: tuple, rng: Any) -> None:
    known, steps = world
    state = PolicyState()
    for snapshot, decision in replay(known, steps):
        rows = list(snapshot.uses)
        rng.shuffle(rows)
        mixed = Snapshot(
            snapshot.now_ns, snapshot.interval_ns, tuple(rows), snapshot.holds, {}, snapshot.idle_gpus
        )
        assert decide(mixed, state, known, PARAMS).plan == decision.plan
        state = decision.state


@st.composite
def tenants(draw: st.DrawFn) -> list[Tenant]:
    """Two to five tenants that always want the GPU: decoders, trainers, bursts."""
    made = []
    for index in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["decoder", "decoder", "trainer", "bursty"]))
        processes: list[Process]
        if kind == "decoder":
            token = draw(st.integers(5, 20)) * MS
            processes = [ClosedLoop(token, draw(st.sampled_from([MS // 2, MS, 2 * MS])))]
        elif kind == "trainer":
            step, depth = draw(st.integers(5, 15)), draw(st.integers(1, 3))
            processes = [DeepQueue(step * MS, depth) for _ in range(draw(st.integers(1, 3)))]
        else:
            processes = [Bursty(draw(st.sampled_from([20, 40, 80])) * MS, MS)]
        spec = TenantSpec(f"t{index}", draw(st.integers(1, 8)), tenant_class=TenantClass.BATCH)
        made.append(Tenant(spec, processes, draw(st.integers(1, 3)) * MS))
    return made


def overdraft_bound_ns(tenant: Tenant, entitlement: float, contexts: int) -> float:
    """H + (1 - phi) T + D + t_fz + (n - 1) slice + floor / 2, with D what its processes can have queued at most.

    The last term is the law's own: nobody is held before the lag itself, without the drain, is below -floor / 2.
    """
    depth = 0
    for process in tenant.processes:
        if isinstance(process, DeepQueue):
            depth += process.step_ns * process.depth
        elif isinstance(process, Bursty):
            depth += process.burst_ns
        elif isinstance(process, ClosedLoop):
            depth += process.token_ns
    latency = tenant.freeze_latency_ns
    threshold = max(10 * MS, 3 * latency, depth / 2)
    # A tenant just thawed may not be held before its dwell is over, so that much may be late, too.
    late = 20 * MS + 10 * latency
    turns = contexts * (SLICE_NS + SWITCH_NS)
    return threshold + (1 - entitlement) * late + depth + latency + turns + 5 * MS


def takes_at_most(tenant: Tenant) -> float:
    """The part of a GPU it could use if it had it alone, with some room for its thaws."""
    loops = [process for process in tenant.processes if isinstance(process, ClosedLoop)]
    if len(loops) < len(tenant.processes):
        return 1.0
    return max(loop.token_ns / (loop.token_ns + loop.gap_ns + tenant.freeze_latency_ns) for loop in loops)


def test_no_starvation_no_hold_alone_none_past_its_deadline_and_lag_bounded() -> None:
    bounds: Counter[str] = Counter()

    @settings(max_examples=25, deadline=None)
    @given(tenants())
    def law(population: list) -> None:
        sim = Simulation(population).run(8 * S)
        owed = entitlements(sim.tenants, sim.specs)
        shares = sim.shares(2 * S, 8 * S)
        for name in sim.tenants:
            # What one context can take beside one other is half of the GPU; alone it has its gaps.
            assert shares[name] >= 0.5 * owed[name], (name, shares, owed)
            lowest = sim.lowest_lag.get((name, "gpu0"), 0.0)
            which, bound = bound_ns(sim, name, owed)
            bounds[which] += 1
            assert -lowest <= bound, (name, which, lowest / MS, bound / MS)
        assert not sim.alone
        for record in sim.records:
            assert record.until_ns <= record.deadline_ns
            assert record.why in (ReasonCode.OVER_ENTITLEMENT, ReasonCode.DEEP_QUEUE)

    law()
    assert bounds["the law's"] > 0.5 * bounds.total(), bounds


def bound_ns(sim: Simulation, name: str, owed: Mapping[str, float]) -> tuple[str, float]:
    """How far a tenant may be overdrawn, and by which rule."""
    contexts = sum(len(tenant.processes) for tenant in sim.tenants.values())
    bound = overdraft_bound_ns(sim.tenants[name], owed[name], contexts)
    others = [rest for rest in sim.tenants.values() if rest.name != name]
    left_ratio = sum(max(0.0, owed[rest.name] - takes_at_most(rest)) for rest in others)
    if left_ratio:
        # What the others are owed and cannot take becomes this one's overdraft, by no fault of the law:
        # as much as comes together in the window in which debt is forgotten.
        return "beside some who cannot take their part", min(
            bound + left_ratio * sim.params.window_ns, sim.params.lag_clamp_ns
        )
    if any(record.tenant == name and record.ended is ReasonCode.GPU_IDLE for record in sim.records):
        # Let go because the GPU stood idle: it runs its dwell and refills its queue on borrowed time.
        return "let go as the GPU stood idle", 2 * bound
    return "the law's", bound


@settings(max_examples=15, deadline=None)
@given(tenants(), tenants())
def test_a_tenant_on_two_gpus_is_not_starved(left: list, right: list) -> None:
    for index, tenant in enumerate(right):
        tenant.spec = TenantSpec(f"r{index}", tenant.spec.weight, tenant_class=TenantClass.BATCH)
        for process in tenant.processes:
            process.gpu = "gpu1"
    both = Tenant(
        TenantSpec("gang", 2, tenant_class=TenantClass.BATCH),
        [DeepQueue(10 * MS, 2, gpu="gpu0"), DeepQueue(10 * MS, 2, gpu="gpu1")],
    )
    sim = Simulation([*left, *right, both]).run(8 * S)
    tightest = min(
        entitlements([t.name for t in side] + ["gang"], sim.specs)["gang"] for side in (left, right)
    )
    for gpu in ("gpu0", "gpu1"):
        assert sim.shares(2 * S, 8 * S, gpu)["gang"] >= 0.5 * tightest
    assert not sim.alone
