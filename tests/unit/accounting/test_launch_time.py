# SPDX-License-Identifier: Apache-2.0
"""Time per launch: what a burst teaches, and what the surplus of others says about a drain."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.launch_time import Drain, LaunchMemory, LaunchTime, settle

MS = 1_000_000
SLICE_NS = 2 * MS


def known(tau_ms: float, samples: int = 50, spread: float = 0.02) -> LaunchTime:
    """A context that was observed that often, in bursts of ten launches, and is known exactly."""
    launch, rnd = LaunchTime(), random.Random(0)
    for _ in range(samples):
        launch.learn(max(10, round(10 * tau_ms * MS * rnd.lognormvariate(0, spread))), 10)
    launch.tau_ns = tau_ms * MS
    return launch


# ---- learn ----


def test_the_first_burst_is_believed_whole() -> None:
    launch = LaunchTime()
    launch.learn(20 * MS, 10)
    assert (launch.tau_ns, launch.samples) == (2 * MS, 1)


def test_many_bursts_average_out() -> None:
    rnd, launch = random.Random(1), LaunchTime()
    for _ in range(500):
        launch.learn(round(20 * MS * rnd.lognormvariate(0, 0.05)), 10)
    assert launch.tau_ns == pytest.approx(2 * MS, rel=0.05)  # four sigma of a mean over ten
    assert launch.spread == pytest.approx(0.05, rel=0.5)


def test_one_burst_far_off_moves_what_is_known_little() -> None:
    launch = LaunchTime()
    for _ in range(20):
        launch.learn(20 * MS, 10)
    launch.learn(2000 * MS, 10)
    assert launch.tau_ns <= 2 * MS * 1.05


def test_a_change_that_lasts_is_followed() -> None:
    launch = LaunchTime()
    for _ in range(20):
        launch.learn(20 * MS, 10)
    for _ in range(60):
        launch.learn(40 * MS, 10)
    assert launch.tau_ns == pytest.approx(4 * MS, rel=0.02)


def test_a_jittery_context_knows_that_it_is() -> None:
    rnd, launch = random.Random(2), LaunchTime()
    for _ in range(200):
        launch.learn(round(20 * MS * rnd.lognormvariate(0, 0.4)), 10)
    assert launch.spread > 0.25


def test_evidence_makes_surer_to_a_floor() -> None:
    values = [known(1, samples).uncertainty for samples in (0, 1, 3, 10, 100)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0.02


def test_a_correction_is_one_step_at_most() -> None:
    launch = known(2)
    launch.correct(10.0, 0.5)
    assert launch.tau_ns == 2 * MS * 1.25
    launch.correct(0.0, 0.5)
    assert launch.tau_ns == 2 * MS
    assert launch.samples == 51


# ---- what remains ----


def test_nothing_is_left_of_no_launches_or_unknown_ones() -> None:
    assert known(2).remaining(0, 5) == (0, 0)
    assert LaunchTime().remaining(10, 0) == (0, 0)


def test_of_a_burst_just_begun_all_is_left() -> None:
    left, doubt = known(2).remaining(10, 0)
    assert left == pytest.approx(20 * MS, rel=0.01)
    assert 0 < doubt < MS


@given(
    tau_ms=st.floats(0.01, 50),
    spread=st.floats(0, 1),
    launches=st.integers(1, 10_000),
    parts=st.lists(st.floats(0, 5), min_size=2, max_size=2),
)
def test_the_longer_it_has_run_the_less_is_left(
    tau_ms: float, spread: float, launches: int, parts: list[float]
) -> None:
    launch = known(tau_ms, spread=spread)
    early, late = (
        launch.remaining(launches, round(part * launch.tau_ns * launches)) for part in sorted(parts)
    )
    sigma = max(0.01, spread, 0.6 / (1 + launch.observed)) * math.sqrt(launch.launches / launches)
    if max(parts) < 1 + 4 * sigma:  # else it is of another kind
        assert early[0] >= late[0] - 1 - early[0] * 1e-6
    assert min(*early, *late) >= 0


def test_what_has_run_far_longer_than_any_that_is_known_runs_on_for_a_part_of_that() -> None:
    launch = known(2)
    for ran_ms in (200, 2000):
        left, doubt = launch.remaining(1, ran_ms * MS)
        assert left == pytest.approx(ran_ms * MS / 5, rel=0.05)
        assert doubt >= left


def test_long_bursts_are_the_ones_that_are_met_running() -> None:
    """Bursts of 20 ms with a spread of 30 %: what is left after 25 ms is what is left of those that got there."""
    rnd = random.Random(6)
    lengths = [rnd.gauss(20 * MS, 6 * MS) for _ in range(200_000)]
    met = [length - 25 * MS for length in lengths if length > 25 * MS]
    launch = known(2)
    launch.spread = 0.3
    left, doubt = launch.remaining(10, 25 * MS)
    assert left == pytest.approx(statistics.fmean(met), rel=0.05)
    assert doubt == pytest.approx(statistics.pstdev(met), rel=0.05)


# ---- settle ----

Taus = st.floats(0.01, 50)
Drains = st.lists(st.tuples(st.integers(0, 400 * MS), st.integers(0, 200 * MS)), max_size=5)


@given(
    tau_ms=Taus,
    samples=st.integers(2, 100),
    spread=st.floats(0, 1),
    spent=st.integers(1, 2000 * MS),
    launches=st.integers(1, 1000),
    drains=Drains,
)
def test_what_is_moved_is_a_part_of_the_surplus(
    tau_ms: float,
    samples: int,
    spread: float,
    spent: int,
    launches: int,
    drains: list[tuple[int, int]],
) -> None:
    own = known(tau_ms, samples, spread)
    asked = [Drain(estimate, doubt, known(8)) for estimate, doubt in drains]
    moved, gain = settle(own, spent, launches, asked, SLICE_NS)
    surplus = spent - own.tau_ns * launches
    assert 0.0 <= gain <= 1.0
    assert len(moved) == len(asked)
    assert sum(moved) == pytest.approx(gain * surplus, abs=len(asked) + abs(surplus) * 1e-9)
    assert all(part * surplus >= 0 for part in moved)  # nobody gains what another loses by it


def test_without_drains_nothing_is_moved() -> None:
    assert settle(known(2), 50 * MS, 10, [], SLICE_NS) == ([], 0.0)
    assert settle(known(2), 50 * MS, 10, [Drain(0, 0, LaunchTime())], SLICE_NS) == ([0], 0.0)


def test_the_drain_that_is_least_known_takes_most() -> None:
    drains = [Drain(80 * MS, 20 * MS, known(8)), Drain(80 * MS, 2 * MS, known(8))]
    moved, _ = settle(known(2), 30 * MS, 10, drains, SLICE_NS)
    assert moved[0] > 50 * moved[1] >= 0


def test_a_context_that_jitters_does_not_blame_others() -> None:
    drains = [Drain(80 * MS, 4 * MS, known(8))]
    calm, calm_gain = settle(known(2, spread=0.02), 30 * MS, 10, drains, SLICE_NS)
    jittery, jittery_gain = settle(known(2, spread=0.6), 30 * MS, 10, drains, SLICE_NS)
    assert calm_gain > 0.7 > 0.2 > jittery_gain
    assert calm[0] > 4 * jittery[0]


def test_what_was_chance_does_not_change_the_time_per_launch() -> None:
    sure, unsure = known(8, samples=100), known(8, samples=1)
    for launch in (sure, unsure):
        Drain(80 * MS, 20 * MS, launch).blame(20 * MS, 0.9)
    assert sure.tau_ns == pytest.approx(8 * MS, rel=0.01)
    assert unsure.tau_ns > 1.1 * 8 * MS


def test_a_drain_of_nothing_is_blamed_for_nothing() -> None:
    launch = known(8)
    for drain in (Drain(0, 5, launch), Drain(5, 0, launch)):
        drain.blame(MS, 0.5)
    assert (launch.tau_ns, launch.samples) == (8 * MS, 50)


def _hold_ten_launches(trainer: LaunchTime, rounds: int, seed: int) -> tuple[int, int]:
    """A trainer of 8 ms a launch is held with ten queued, again and again, beside a decoder whose work is known.

    What its drain was charged too little, the replay gave to the decoder. (charged, executed) of the drains.
    """
    decoder, rnd, charged, true_ns = known(2), random.Random(seed), 0, 80 * MS
    for _ in range(rounds):
        estimate, doubt = trainer.remaining(10, 0)
        spent = round(20 * MS * rnd.lognormvariate(0, 0.02)) + true_ns - estimate
        drain = Drain(estimate, doubt, trainer)
        moved, gain = settle(decoder, spent, 10, [drain], SLICE_NS)
        drain.blame(moved[0], gain)
        charged += estimate + moved[0]
    return charged, rounds * true_ns


@pytest.mark.parametrize("tau_ms", [4, 16])
def test_a_wrong_time_per_launch_converges_from_the_surplus_of_others(tau_ms: float) -> None:
    trainer = known(tau_ms, samples=1)
    charged, executed = _hold_ten_launches(trainer, 120, seed=3)
    assert trainer.tau_ns == pytest.approx(8 * MS, rel=0.05)
    assert charged == pytest.approx(executed, rel=0.05)


def test_a_right_time_per_launch_stays_right() -> None:
    trainer = known(8, samples=1)
    _hold_ten_launches(trainer, 300, seed=4)
    assert trainer.tau_ns == pytest.approx(8 * MS, rel=0.03)


def test_what_a_launch_takes_is_borrowed_within_a_tenant_whatever_cgroup_below_it() -> None:
    memory = LaunchMemory(8, {1: "a", 2: "a", 3: "b"}.get)
    known = LaunchTime()
    known.learn(10 * 1_000_000, 5)
    memory.remember(1, known)
    borrowed = memory.borrow(2)
    assert borrowed is not None and borrowed.tau_ns == known.tau_ns
    assert memory.borrow(3) is None and memory.borrow(4) is None


def test_kernels_of_no_length_at_first_say_little_of_what_follows() -> None:
    """Measured on an H200: 28 bursts of one, then steps of 30; a queue of 60 ms was taken for one of .1 ms."""
    launch = LaunchTime()
    for _ in range(28):
        launch.learn(6_000, 1)
    for _ in range(3):
        launch.learn(30 * 550_000, 30)
    assert launch.tau_ns > 400_000


def test_a_load_at_first_says_little_of_what_follows() -> None:
    """Measured of PyTorch: 1.1 s for 199 launches, then 33 us each; it was taken to need 1.8 ms each from then on."""
    launch = LaunchTime()
    for spent_ns, launches in ((1_141_000_000, 199), (1_400_000, 1), (500_000_000, 283), (128_000_000, 3960)):
        launch.learn(spent_ns, launches)
    for _ in range(8):
        launch.learn(28_000_000, 850)
    assert launch.tau_ns < 300_000


def test_proofs_in_bunches_tell_the_same_as_one_by_one() -> None:
    """After a hold the first proof has the charge of all that was queued, and the next ones nothing."""
    one_by_one, bunched = LaunchTime(), LaunchTime()
    for _ in range(30):
        for part in range(4):
            one_by_one.meter(40_000, 10)
            bunched.meter(0 if part else 160_000, 10)
    assert one_by_one.tau_ns == pytest.approx(4000)
    assert bunched.tau_ns == pytest.approx(4000, rel=0.2)
    assert one_by_one.spread < 0.05 < bunched.spread
