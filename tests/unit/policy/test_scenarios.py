# SPDX-License-Identifier: Apache-2.0
"""The law against the model of the GPU: shares, work conservation and the classic failures.

Measured from 2 s to 12 s, as the bars are. ``error`` = the largest distance of a share of what was
delivered from weight / sum of weights. Figures in comments are what the model gave when this was written.
"""

from __future__ import annotations

import pytest

from fairsched.model import Confidence, PolicyParams, ReasonCode, TenantClass, TenantSpec
from fairsched.policy.shares import entitlements
from tests.unit.policy.model_gpu import INNER_TICK_NS, MS, Simulation, Tenant
from tests.unit.policy.model_processes import Bursty, ClosedLoop, DeepQueue, OnOff, Process

S = 1000 * MS
FROM, TO = 2 * S, 12 * S
BATCH = TenantClass.BATCH


def tenant(name: str, weight: float, *processes: Process, latency: int = MS, **promise: object) -> Tenant:
    return Tenant(TenantSpec(name, weight, **promise), list(processes), latency)  # type: ignore[arg-type]


def decoder(name: str, weight: float = 1, gap_ns: int = MS, **promise: object) -> Tenant:
    return tenant(name, weight, ClosedLoop(gap_ns=gap_ns), **promise)


def trainer(
    name: str, weight: float = 1, processes: int = 1, step: int = 30, depth: int = 3, **promise: object
) -> Tenant:
    promise.setdefault("tenant_class", BATCH)
    return tenant(name, weight, *(DeepQueue(step * MS, depth) for _ in range(processes)), **promise)


def greedy(name: str = "greedy", weight: float = 1, **promise: object) -> Tenant:
    """Three processes, 100 ms queued between them."""
    return trainer(name, weight, 3, 11, 3, **promise)


def run(*tenants: Tenant, seconds: int = 12, **how: object) -> Simulation:
    return Simulation(tenants, **how).run(seconds * S)  # type: ignore[arg-type]


def error(sim: Simulation, gpu: str = "gpu0", start: int = FROM, stop: int = TO) -> float:
    present = [name for name, one in sim.tenants.items() if gpu in one.gpus()]
    owed = entitlements(present, sim.specs)
    shares = sim.shares(start, stop, gpu)
    return max(abs(shares[name] - owed[name]) for name in present)


def four_with_greedy(**promise: object) -> list[Tenant]:
    return [decoder("a", 4), decoder("b", 2), decoder("c", 1), greedy(**promise)]


def test_four_two_one_one_with_a_greedy_tenant_is_within_the_bars() -> None:
    # .499/.250/.126/.125; unscheduled .167/.167/.167/.5 (six contexts)
    free, sim = run(*four_with_greedy(), is_enforced=False), run(*four_with_greedy())
    assert error(free) > 0.3
    assert error(sim) <= 0.005
    assert sim.busy_ratio(FROM, TO) >= 0.98 * free.busy_ratio(FROM, TO)
    assert sum(sim.jain(FROM, TO)) / 10 >= 0.97
    assert not sim.alone


@pytest.mark.parametrize(
    "how",
    [
        {"noise_ratio": 0.05},
        {"outstanding_error_ratio": 0.5},
        {"honours_wake": False},
        {"seed": 1},
    ],
    ids=str,
)
def test_the_bars_hold_with_a_noisy_account_a_wrong_drain_or_late_wakes(how: dict[str, object]) -> None:
    sim = run(*four_with_greedy(), **how)
    assert error(sim) <= 0.01 and not sim.alone


def test_a_biased_account_costs_no_more_than_its_bias() -> None:
    # The worst signs: +-5 % on a .5 share is 1.25 points and its normalisation as much again. .481 for .5
    tenants = four_with_greedy()
    for one, bias in zip(tenants, (0.05, -0.05, 0.05, -0.05), strict=True):
        one.account_bias_ratio = bias
    assert error(run(*tenants)) <= 0.025


def test_slow_freezes_stay_within_the_bars() -> None:
    tenants = four_with_greedy()
    for one in tenants:
        one.freeze_latency_ns = 3 * MS
    sim = run(*tenants)
    assert error(sim) <= 0.01
    assert sim.busy_ratio(FROM, TO) >= 0.98


def test_four_equal_decoders_are_left_alone() -> None:
    sim = run(*(decoder(name) for name in "abcd"))
    assert error(sim) <= 0.002
    assert len(sim.records) == 0


def test_three_equal_decoders_and_an_equal_greedy_tenant_get_a_quarter_each() -> None:
    sim = run(decoder("a"), decoder("b"), decoder("c"), greedy())
    assert error(sim) <= 0.002
    assert sim.busy_ratio(FROM, TO) >= 0.98


@pytest.mark.parametrize(("weight", "gap"), [(3, MS // 2), (3, MS), (3, 2 * MS), (1 / 3, MS)])
def test_decoder_and_trainer_share_by_weight_either_way(weight: float, gap: int) -> None:
    # .749/.251 .752/.248 .746/.254 and .250/.750
    free = run(decoder("a", weight, gap), trainer("t"), is_enforced=False)
    sim = run(decoder("a", weight, gap), trainer("t"))
    assert error(sim) <= 0.006
    # While the trainer is held the decoder is alone, with its gaps: no thaw fits into 1-2 ms. What
    # that costs is partly won back in switches not made.
    assert sim.delivered_ratio(FROM, TO) >= 0.97 * free.delivered_ratio(FROM, TO)


def test_a_trainer_of_four_processes_gets_one_third_not_two() -> None:
    free = run(decoder("a"), decoder("b"), trainer("t", 1, 4, 10), is_enforced=False)
    sim = run(decoder("a"), decoder("b"), trainer("t", 1, 4, 10))
    assert error(free) > 0.3 and error(sim) <= 0.005
    assert sim.busy_ratio(FROM, TO) >= 0.98


def test_bursts_beat_the_prototype() -> None:
    # Prototype .478/.250/.125/.147
    burst = tenant("g", 1, Bursty(80 * MS, MS), tenant_class=BATCH)
    assert error(run(decoder("a", 4), decoder("b", 2), decoder("c", 1), burst)) <= 0.01


def test_weights_nest() -> None:
    # team 1 : solo 1; in the team 3 : 1 -> .375 / .125 / .5
    sim = run(decoder("team/chat", 3), decoder("team/eval", 1), trainer("solo", 1, 2, 10))
    assert sim.shares(FROM, TO) == pytest.approx(
        {"team/chat": 0.375, "team/eval": 0.125, "solo": 0.5}, abs=0.005
    )


def test_a_quota_caps_a_tenant_alone_on_an_idle_gpu_in_every_second() -> None:
    sim = run(trainer("q", 1, 1, 10, quota_ratio=0.3))
    assert sim.delivered_ratio(FROM, TO) == pytest.approx(0.3, abs=0.005)
    # one second: quota 300 + burst 30 + one queue 30 + one tick 20
    for start in range(FROM, TO - S, 100 * MS):
        assert sim.got("q", start, start + S) <= 380 * MS
    assert {record.why for record in sim.records} == {ReasonCode.OVER_QUOTA}


def test_what_a_capped_tenant_leaves_goes_to_the_other() -> None:
    sim = run(trainer("q", 9, 1, 10, quota_ratio=0.3), decoder("a"))
    assert sim.shares(FROM, TO) == pytest.approx({"q": 0.3, "a": 0.7}, abs=0.01)


def test_a_guarantee_holds_against_heavy_weights() -> None:
    # min .3; the rest 5 : 5
    sim = run(decoder("m", 0.1, min_ratio=0.3), decoder("a", 5), trainer("g", 5, 2, 10))
    assert sim.shares(FROM, TO) == pytest.approx({"m": 0.3, "a": 0.35, "g": 0.35}, abs=0.01)


def test_class_decides_who_waits_longer_not_who_gets_more() -> None:
    sim = run(decoder("a"), trainer("l", 1, 2, 10, tenant_class=TenantClass.LATENCY), trainer("b", 1, 2, 10))
    assert error(sim) <= 0.005
    assert sim.longest_hold_ns("l") <= 500 * MS


def gang(weight: float = 1) -> Tenant:
    return tenant(
        "gang", weight, DeepQueue(10 * MS, 3, gpu="gpu0"), DeepQueue(10 * MS, 3, gpu="gpu1"),
        tenant_class=BATCH,
    )  # fmt: skip


def test_a_gang_gets_its_tightest_share_and_its_rivals_the_rest() -> None:
    # gpu0 1:1, gpu1 1:3: the gang is one program, so a quarter of both; x takes what it cannot use.
    sim = run(gang(), tenant("x", 1, ClosedLoop(gpu="gpu0")), tenant("y", 3, ClosedLoop(gpu="gpu1")))
    assert sim.shares(FROM, TO, "gpu1")["gang"] == pytest.approx(0.25, abs=0.01)
    assert sim.shares(FROM, TO, "gpu0")["gang"] == pytest.approx(0.25, abs=0.01)
    # While both run x may get ahead: what the gang could not use is no debt of x, but once in these 12 s x took
    # 5.5 ms more than its half with 8 ms queued, and the gang had credit. That hold is the law. It ends at the
    # next look, because by then the gang is held for gpu1 and x is the last with demand.
    held = [(r.why, r.ended) for r in sim.records if r.tenant == "x"]
    assert set(held) <= {(ReasonCode.OVER_ENTITLEMENT, ReasonCode.LAST_WITH_DEMAND)}
    assert len(held) <= 1 and sim.longest_hold_ns("x") <= INNER_TICK_NS and not sim.alone


def test_a_gang_cannot_escape_by_holding_a_gpu_of_its_own() -> None:
    sim = run(gang(), tenant("x", 3, ClosedLoop(gpu="gpu0")))
    assert sim.shares(FROM, TO, "gpu0") == pytest.approx({"gang": 0.25, "x": 0.75}, abs=0.01)


def test_gpus_do_not_lend_lag_to_each_other() -> None:
    sim = run(
        tenant("a", 3, ClosedLoop(gpu="gpu0")), tenant("b", 1, DeepQueue(10 * MS, 3, gpu="gpu0")),
        tenant("c", 1, ClosedLoop(gpu="gpu1")), tenant("d", 1, DeepQueue(10 * MS, 3, gpu="gpu1")),
    )  # fmt: skip
    assert error(sim, "gpu0") <= 0.01 and error(sim, "gpu1") <= 0.01


def test_when_all_others_exit_the_held_tenant_runs_at_once() -> None:
    # The lock-out of the prototype: nobody delivers, so its lag would never recover.
    leave = 5030 * MS
    sim = run(
        trainer("g", 1, 3, 11),
        tenant("a", 4, ClosedLoop(stop_ns=leave)),
        tenant("b", 4, ClosedLoop(stop_ns=leave)),
    )
    during = [r for r in sim.records if r.since_ns <= leave <= r.until_ns]
    assert [r.tenant for r in during] == ["g"], "the scenario needs g to be held when the others exit"
    assert during[0].until_ns - leave <= 10 * MS, "within the grace of a CPU gap"
    assert sim.got("g", 6 * S, TO) >= 0.99 * 0.95 * 6 * S
    assert all(r.since_ns < leave for r in sim.records)


def test_a_tenant_frozen_by_somebody_else_neither_blocks_nor_is_thawed() -> None:
    tenants = four_with_greedy()
    tenants[0].foreign_from_ns, tenants[0].foreign_to_ns = 4 * S, 8 * S
    sim = run(*tenants)
    # Without a: b 2 : c 1 : greedy 1
    shares = sim.shares(5 * S, 8 * S)
    assert shares["a"] == 0
    assert shares == pytest.approx({"a": 0, "b": 0.5, "c": 0.25, "greedy": 0.25}, abs=0.03)
    # Back again it is neither punished nor repaid for its absence.
    assert error(sim, start=9 * S, stop=12 * S) <= 0.03


def test_a_low_confidence_tenant_is_never_held_and_the_rest_is_still_fair() -> None:
    guess = greedy()
    guess.confidence = Confidence.LOW
    sim = run(decoder("a", 4), decoder("b", 1), guess)
    shares = sim.shares(FROM, TO)
    assert sim.longest_hold_ns("greedy") == 0
    assert shares["a"] / (shares["a"] + shares["b"]) == pytest.approx(0.8, abs=0.01)


def test_thirty_two_tenants_get_their_weights() -> None:
    # A token is 20 ms and a weight of 1 is owed 12.5 ms/s: 1.6 s between two, so the class is batch.
    sim = run(*(decoder(f"t{index:02}", 1 + index % 4, tenant_class=BATCH) for index in range(32)))
    assert error(sim) <= 0.003
    assert sim.busy_ratio(FROM, TO) >= 0.98


def test_an_on_off_tenant_gets_its_part_while_it_is_on_and_owes_nothing_while_off() -> None:
    sim = run(decoder("a", 2), tenant("o", 1, OnOff()), greedy())
    shares = sim.shares(FROM, TO)
    assert shares["a"] / shares["greedy"] == pytest.approx(2, abs=0.15)
    assert sim.busy_ratio(FROM, TO) >= 0.97


def test_short_cpu_gaps_do_not_open_the_door_but_long_ones_do() -> None:
    # docs/decisions/0002: thawing in every gap costs 21 points of share error, and wins 2 % busy.
    short = run(decoder("a", 3, MS), trainer("t"))
    assert not any(r.ended is ReasonCode.GPU_IDLE for r in short.records)
    long = run(decoder("a", 3, 8 * MS), trainer("t"))
    assert any(r.ended is ReasonCode.GPU_IDLE for r in long.records)
    # Each such thaw costs the confirmation (3 ms) and the time it takes (1 ms); nothing else leaves the GPU idle.
    thaws = [r for r in long.records if r.ended is ReasonCode.GPU_IDLE and FROM <= r.until_ns < TO]
    lost_ns = len(thaws) * (PolicyParams().idle_confirm_ns + MS)
    assert long.busy_ratio(FROM, TO) == pytest.approx(1 - lost_ns / (TO - FROM), abs=0.0005)
    # It can come no sooner again than after a tick, and the trainer's 90 ms of queue between turns of a decoder
    # that works 20 ms (which take 40) of 48: 154 ms. So at least 1 - 4 / 174 is busy; the model gives .978.
    assert long.busy_ratio(FROM, TO) >= 1 - 4 / 174


def test_thawing_in_every_gap_would_ruin_the_shares() -> None:
    hasty = run(decoder("a", 3, MS), trainer("t"), params=PolicyParams(idle_confirm_ns=0))
    assert error(hasty) > 0.15


NO_GRANTS = PolicyParams(deep_queue_ratio=1e9)


def test_a_queue_that_would_outlast_the_longest_hold_is_granted_in_parts() -> None:
    # Without grants every thaw refills 100 ms; with at most 500 ms between two, a weight of 1/8 gets .19.
    sim = run(*four_with_greedy(tenant_class=TenantClass.LATENCY), params=NO_GRANTS)
    assert 0.17 <= sim.shares(FROM, TO)["greedy"] <= 0.21
    granted = run(*four_with_greedy(tenant_class=TenantClass.LATENCY))
    assert error(granted) <= 0.005
    assert granted.longest_hold_ns("greedy") <= 500 * MS
    assert sum(record.why is ReasonCode.DEEP_QUEUE for record in granted.records) > 10


def test_equal_decoders_beside_half_a_second_of_queued_work_get_their_quarter() -> None:
    deep = trainer("d", 1, 3, 19, 8, tenant_class=TenantClass.LATENCY)
    without = run(decoder("a"), decoder("b"), decoder("c"), deep, seconds=22, params=NO_GRANTS)
    assert error(without, stop=22 * S) >= 0.05
    deep = trainer("d", 1, 3, 19, 8, tenant_class=TenantClass.LATENCY)
    sim = run(decoder("a"), decoder("b"), decoder("c"), deep, seconds=22)
    assert error(sim, stop=22 * S) <= 0.01
    assert sim.busy_ratio(FROM, 22 * S) >= 0.98


def test_one_grain_larger_than_a_hold_can_repay_is_held_for_longer() -> None:
    sim = run(decoder("a", 7), tenant("long", 1, DeepQueue(200 * MS, 1)), seconds=22)
    assert sim.shares(FROM, 22 * S)["long"] == pytest.approx(1 / 8, abs=0.02)
    assert sim.longest_hold_ns("long") <= 2000 * MS


def test_beyond_its_own_limit_one_grain_stays_out_of_reach() -> None:
    # The floor: a kernel of 200 ms runs during each hold of 500 ms, whatever the weight says.
    sim = run(decoder("a", 7), tenant("long", 1, DeepQueue(200 * MS, 1), max_freeze_ms=500), seconds=22)
    assert sim.shares(FROM, 22 * S)["long"] == pytest.approx(200 / 500, abs=0.04)
    assert sim.longest_hold_ns("long") <= 501 * MS
