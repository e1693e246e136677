# SPDX-License-Identifier: Apache-2.0
"""Costs of launches: what is learnt of whom, what that makes of a charge, and what becomes of time nobody claims."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.costs import Cost, Costs

MS, S = 1_000_000, 1_000_000_000
A, B, C, D = 100, 101, 102, 103


def learn(
    costs: Costs, cgroup_id: int, per_launch_ns: float, *, launches: int = 10, alone: bool, many: int = 20
) -> None:
    for _ in range(many):
        spent_ns = round(per_launch_ns * launches)
        costs.learn(cgroup_id, spent_ns, launches, is_alone=alone, waited_ns=spent_ns)


def test_what_is_not_known_is_charged_as_the_replay_has_it() -> None:
    costs = Costs(8)
    assert costs.charge_ns(A, 7 * MS, 10) == 7 * MS
    learn(costs, A, MS, alone=False)
    assert costs.charge_ns(A, 7 * MS, 10) == 7 * MS
    assert not costs.of(A).is_measured


@pytest.mark.parametrize("charged_ratio", [0.3, 0.8, 1.5, 3.0])
def test_who_was_alone_is_charged_what_that_cost_whatever_the_replay_says(charged_ratio: float) -> None:
    costs = Costs(8)
    learn(costs, A, MS, alone=True)
    learn(costs, A, charged_ratio * MS, alone=False)
    assert costs.of(A).is_measured
    assert costs.of(A).owed_ns(10) == pytest.approx(10 * MS, rel=0.05)


def noisy(costs: Costs, spread: float, *, alone: bool, many: int = 200, mean_ratio: float = 1.0) -> None:
    rng = random.Random(3)
    for _ in range(many):
        spent_ns = round(max(0.1, rng.gauss(mean_ratio, spread)) * 10 * MS)
        costs.learn(A, spent_ns, 10, is_alone=alone, waited_ns=spent_ns)


@pytest.mark.parametrize(("alone", "kept_ratio"), [(0.3, 1.0), (0.0, 0.0)])
def test_how_a_whole_burst_differs_counts_as_far_as_such_differ_alone(
    alone: float, kept_ratio: float
) -> None:
    costs = Costs(8)
    noisy(costs, alone, alone=True)
    noisy(costs, 0.3, alone=False)
    cost = costs.of(A)
    mean_ns, beside_ns = cost.owed_ns(10), cost._kinds[4].beside.ns * 10
    assert mean_ns is not None
    expected_ns = mean_ns + kept_ratio * (14 * MS - beside_ns)
    assert cost.charge_ns(14 * MS, 10, is_whole=True) == pytest.approx(expected_ns, rel=0.08)
    assert cost.charge_ns(14 * MS, 10, is_whole=False) == mean_ns, "of what a hold cut nothing is its own"


def test_enough_is_known_when_the_mean_is_and_of_nearly_all_it_does() -> None:
    costs = Costs(8)
    noisy(costs, 0.3, alone=True, many=20)
    assert costs.of(A).is_measured
    assert not costs.of(A).is_settled
    learn(costs, B, MS, alone=True)
    assert costs.of(B).is_settled
    learn(costs, B, MS, launches=100, alone=False)
    assert not costs.of(B).is_settled, "it does something else, too"


def test_where_the_replay_is_right_nobody_need_be_alone() -> None:
    costs = Costs(8)
    assert not costs.is_replay_right, "nothing is known"
    learn(costs, A, MS, alone=True)
    learn(costs, A, 1.02 * MS, alone=False, many=300)
    assert costs.is_replay_right
    learn(costs, A, 1.4 * MS, alone=False, many=300)
    assert not costs.is_replay_right


def test_what_is_chance_is_no_mistake_of_the_replay() -> None:
    costs = Costs(8)
    noisy(costs, 0.3, alone=True, many=60)
    noisy(costs, 0.3, alone=False, mean_ratio=1.4)
    kind = costs.of(A)._kinds[4]
    chance = kind.alone.variance + kind.beside.variance
    assert chance > 0.003
    square = math.log(kind.beside.ns / kind.alone.ns) ** 2
    assert costs.of(A).error(10) == pytest.approx(square - chance)


def test_a_replay_that_is_wrong_makes_nobodys_work_another() -> None:
    """What it charges changes with the company, by as much as it is off."""
    costs = Costs(8)
    learn(costs, A, MS, alone=True, many=60)
    learn(costs, A, 1.3 * MS, alone=False, many=200)
    learn(costs, A, 1.8 * MS, alone=False, many=200)
    assert costs.of(A).is_measured


def test_prompts_are_another_kind_than_tokens() -> None:
    costs = Costs(8)
    learn(costs, A, MS, alone=True, launches=10)
    learn(costs, A, 3 * MS, alone=True, launches=40)
    assert costs.of(A).owed_ns(10) == pytest.approx(10 * MS)
    assert costs.of(A).owed_ns(40) == pytest.approx(120 * MS)


def test_a_kind_that_was_never_alone_is_scaled_as_the_known_ones_are() -> None:
    costs = Costs(8)
    learn(costs, A, MS, alone=True, launches=10, many=100)
    learn(costs, A, 6 * MS, alone=False, launches=40, many=2)
    learn(costs, A, 2 * MS, alone=False, launches=10)
    assert costs.of(A).owed_ns(40) == pytest.approx(120 * MS, rel=0.1)


def test_what_a_program_begins_with_says_nothing_of_the_turns_it_goes_on_with() -> None:
    """32 kernels of no length, 30 us each alone and charged 1 ms beside others; then bursts of six of 260 us, never
    alone. On an H100 these were charged a quarter."""
    costs = Costs(8)
    learn(costs, A, MS // 30, alone=True, launches=1, many=28)
    learn(costs, A, MS, alone=False, launches=1, many=4)
    learn(costs, A, 260_000, alone=False, launches=6, many=30)
    assert costs.of(A).owed_ns(6) is None, "as the replay has it"


def test_gaps_of_a_program_that_launches_slowly_are_not_its_work() -> None:
    """20 kernels of .5 ms, one each millisecond: alone it takes 20 ms, and waits .5 in the end."""
    cost = Cost()
    for _ in range(20):
        cost.learn(20 * MS, 20, is_alone=True, waited_ns=MS // 2)
    assert cost.owed_ns(20) == pytest.approx(20 * MS), "nothing else is known"
    for _ in range(20):
        cost.learn(11 * MS, 20, is_alone=False, waited_ns=MS // 2)
    assert cost.owed_ns(20) == pytest.approx(11 * MS)
    for _ in range(200):
        cost.learn(2 * MS, 20, is_alone=False, waited_ns=MS // 2)
    assert cost.owed_ns(20) == pytest.approx(10 * MS), "no kernel is shorter than what it waits for"


def test_of_few_that_vary_the_mean_in_company_counts_too_where_the_replay_is_right_about_others() -> None:
    costs, rnd = Costs(8), random.Random(3)
    learn(costs, B, MS, alone=True, many=100)
    learn(costs, B, MS, alone=False, many=300)
    for spent_ms in (100, 180, 190):
        costs.learn(A, spent_ms * MS, 1, is_alone=True, waited_ns=spent_ms * MS)
    for _ in range(40):
        costs.learn(A, round(100 * MS * rnd.lognormvariate(0, 0.4)), 1, is_alone=False, waited_ns=MS)
    assert costs.of(A).owed_ns(1) == pytest.approx(105 * MS, rel=0.2)


@pytest.mark.parametrize(("charged_ratio", "is_vague"), [(1.0, True), (1.6, False)])
def test_a_cost_is_vague_while_the_replay_is_surer(charged_ratio: float, is_vague: bool) -> None:
    """Of kernels that vary by 40 % three alone say less than a replay that is off by 3 %, and more than by half."""
    costs = Costs(8)
    for spent_ms in (6, 10, 14):
        costs.learn(A, spent_ms * MS, 10, is_alone=True, waited_ns=spent_ms * MS)
    learn(costs, B, MS, alone=True)
    learn(costs, B, charged_ratio * MS, alone=False, many=200)
    assert costs.of(A).is_vague(10) is is_vague
    assert not costs.of(B).is_vague(10), "steady ones are known"


def test_whose_work_becomes_another_is_measured_anew() -> None:
    costs = Costs(8)
    for one in (A, B):
        learn(costs, one, MS, alone=True)
        learn(costs, one, MS, alone=False, many=40)
    learn(costs, A, 2 * MS, alone=False, many=60)
    assert not costs.of(A).is_measured
    assert costs.of(B).is_measured


def test_if_everybody_seems_dearer_nobodys_work_is_another() -> None:
    """As when work that no probe sees takes turns with them."""
    costs = Costs(8)
    for one in (A, B):
        learn(costs, one, MS, alone=True)
        learn(costs, one, MS, alone=False, many=40)
    for _ in range(60):
        learn(costs, A, 2 * MS, alone=False, many=1)
        learn(costs, B, 2 * MS, alone=False, many=1)
    assert costs.of(A).is_measured and costs.of(B).is_measured


@pytest.mark.parametrize("lie", [4, 10])
def test_who_shows_cheap_work_while_it_is_alone_pays_for_what_is_missing(lie: int) -> None:
    """A's launches take 1 ms in company and a part of that alone; both have half of the time."""
    costs = Costs(8)
    learn(costs, A, MS / lie, alone=True)
    learn(costs, B, MS, alone=True)
    charged = {A: 0, B: 0}
    for _ in range(400):
        for one in (A, B):
            charged[one] += costs.charge_ns(one, 10 * MS, 10)
    assert charged[B] == pytest.approx(4000 * MS, rel=0.02), "the honest one pays nothing"
    assert charged[A] > 0.7 * charged[B]
    assert sum(charged.values()) > 0.86 * 8000 * MS


def test_who_settles_nothing_without_end_makes_nobody_else_pay() -> None:
    """B was held: its first proof is charged for all that it had queued, the next one for nothing. A tenant whose work
    takes no time proves a thousand times meanwhile."""
    costs = Costs(8)
    learn(costs, A, MS, alone=True)
    learn(costs, B, MS, alone=True)
    charged = 0
    for _ in range(100):
        for _ in range(1000):
            costs.charge_ns(7, 0, 1)
        for _ in range(16):
            costs.charge_ns(A, 10 * MS, 10)
        charged += costs.charge_ns(B, 40 * MS, 10) + costs.charge_ns(B, 0, 30)
    assert charged == pytest.approx(4000 * MS, rel=0.01)


def test_all_together_are_charged_no_more_than_there_was() -> None:
    """A was taken to be alone when it was not: its launches seem to cost four times what they do."""
    costs = Costs(8)
    learn(costs, A, 4 * MS, alone=True)
    learn(costs, B, MS, alone=True)
    charged = {A: 0, B: 0}
    for _ in range(1000):
        for one in charged:
            charged[one] += costs.charge_ns(one, 10 * MS, 10)
    assert charged[B] == pytest.approx(10_000 * MS, rel=0.05), (
        "who is owed no more than it spent pays for nothing"
    )
    assert sum(charged.values()) < 1.3 * 20_000 * MS, "and not 2.5 times that; the replay may be off by .25"


def test_a_gpu_that_loses_time_between_turns_is_no_lie() -> None:
    costs = Costs(8)
    for one in (A, B):
        learn(costs, one, 0.9 * MS, alone=True)
    charged = sum(costs.charge_ns(one, 10 * MS, 10) for _ in range(100) for one in (A, B))
    assert charged == pytest.approx(1800 * MS, rel=0.01)


def test_a_replay_that_is_wrong_is_known_to_be() -> None:
    costs = Costs(8)
    learn(costs, A, MS, alone=True)
    learn(costs, A, 1.05 * MS, alone=False)
    assert not costs.is_contradicted
    assert costs.of(A).is_confirmed(10) is True
    learn(costs, B, MS, alone=True)
    learn(costs, B, 1.5 * MS, alone=False)
    assert costs.is_contradicted
    assert costs.of(B).is_confirmed(10) is False
    assert costs.of(B).is_confirmed(1000) is None, "nothing is known of those"


def test_the_one_longest_unheard_of_is_forgotten() -> None:
    costs = Costs(2)
    for cgroup_id in (1, 2, 1, 3):
        learn(costs, cgroup_id, MS, alone=True, many=2)
    assert [costs.of(one).is_measured for one in (1, 2, 3)] == [True, False, True]
    costs.forget()
    assert not costs.of(1).is_measured


@given(
    told=st.lists(
        st.tuples(st.integers(1, 500 * MS), st.integers(1, 5000), st.booleans(), st.integers(0, 500 * MS)),
        max_size=40,
    ),
    spent_ns=st.integers(0, 500 * MS),
    launches=st.integers(1, 10_000),
)
def test_whatever_it_is_told_a_charge_is_a_time(
    told: list[tuple[int, int, bool, int]], spent_ns: int, launches: int
) -> None:
    costs = Costs(2)
    for number, (spent, many, alone, waited) in enumerate(told):
        costs.learn(number % 3, spent, many, is_alone=alone, waited_ns=waited)
    for cgroup_id in range(3):
        assert costs.charge_ns(cgroup_id, spent_ns, launches) >= 0


def test_what_a_hold_cut_off_may_be_the_beginning_of_a_longer_burst() -> None:
    """A program loads with a few long kernels and goes on with 850 short ones a step: twenty of them are no load."""
    costs = Costs(8)
    learn(costs, A, 5 * MS, alone=True, launches=20, many=3)
    learn(costs, A, 0.03 * MS, alone=True, launches=850, many=10)
    assert costs.of(A).expected_ns(20) == pytest.approx(20 * 0.03 * MS, rel=1)
    assert costs.of(A).charge_ns(MS, 20, is_whole=False) == pytest.approx(20 * 0.03 * MS, rel=1)
    assert costs.of(A).charge_ns(100 * MS, 20, is_whole=True) == pytest.approx(100 * MS, rel=0.1)


def test_what_is_known_of_a_little_of_its_work_says_nothing_of_the_rest() -> None:
    costs = Costs(8)
    learn(costs, A, 0.005 * MS, alone=True, launches=1, many=20)
    learn(costs, A, 0.5 * MS, alone=False, launches=30, many=1)
    assert costs.of(A).owed_ns(120) is None, "but for kernels of no length nothing was seen alone"


def test_of_who_was_not_alone_after_all_what_was_known_before_stays() -> None:
    """A is measured at one moment, B since another, C at both, and dearer at the second: somebody else was there, and
    still when D was measured."""
    costs, second = Costs(8), 10 * S
    moments = {A: (0,), B: (second,), C: (0, second), D: (second, 2 * second)}
    for owner, begun in moments.items():
        for begin_ns in begun:
            for number in range(3):
                spent_ns = (20 if begin_ns == 0 else 40) * MS
                t_ns = begin_ns + number * 50 * MS
                costs.learn(owner, spent_ns, 20, is_alone=True, waited_ns=2 * MS, t_ns=t_ns)
    costs.forget_alone(second - MS)
    assert [costs.of(owner).is_measured for owner in moments] == [True, False, True, False]
    assert costs.of(C).owed_ns(20) == pytest.approx(20 * MS)
    costs.forget_alone(0)
    assert [costs.of(owner).is_measured for owner in moments] == [False] * 4


def test_who_has_begun_other_work_is_not_measured_any_more() -> None:
    costs = Costs(8)
    learn(costs, A, MS, alone=True, launches=4, many=100)
    assert costs.of(A).is_measured
    learn(costs, A, 0.1 * MS, alone=False, launches=40, many=60)
    assert not costs.of(A).is_measured
