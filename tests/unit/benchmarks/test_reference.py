# SPDX-License-Identifier: Apache-2.0
"""The fluid reference: who wanted what, who was owed what, who got what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fair import reference
from benchmarks.fair.recording import Recording
from benchmarks.fair.reference import Truth, entitled, fluid
from fairsched.model import TenantSpec
from fairsched.policy.shares import entitlements
from tests.unit.benchmarks.made_recordings import MS, ORIGIN, Leaf, Part, at, record, steps, turns

# ---- entitlement ----


@st.composite
def promises(draw: st.DrawFn) -> tuple[list[str], dict[str, TenantSpec]]:
    """Trees up to three deep; a leaf has no children, as in a scenario."""
    leaves, specs = [], {}

    def grow(prefix: str, depth: int) -> None:
        for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True)):
            path = f"{prefix}{name}"
            specs[path] = TenantSpec(
                path,
                weight=draw(st.floats(0.05, 20)),
                quota_ratio=draw(st.none() | st.none() | st.floats(0.02, 1)),
                min_ratio=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
            )
            if depth and draw(st.booleans()):
                grow(f"{path}/", depth - 1)
            else:
                leaves.append(path)

    grow("", 2)
    return leaves, specs


@given(promises(), st.data())
@settings(max_examples=150, deadline=None)
def test_two_implementations_of_the_promise_agree(
    tree: tuple[list[str], dict[str, TenantSpec]], data: st.DataObject
) -> None:
    leaves, specs = tree
    rows = data.draw(
        st.lists(st.lists(st.booleans(), min_size=len(leaves), max_size=len(leaves)), min_size=1, max_size=4)
    )
    parts = entitled(np.array(rows, dtype=np.bool_), leaves, specs)
    for row, part in zip(rows, parts, strict=True):
        active = [leaf for leaf, wants in zip(leaves, row, strict=True) if wants]
        theirs = entitlements(active, specs)
        ours = {leaf: value for leaf, value in zip(leaves, part.tolist(), strict=True) if leaf in active}
        assert ours == pytest.approx(theirs, abs=1e-9)
        assert part.sum() == pytest.approx(sum(theirs.values()), abs=1e-9), (
            "nothing for those who want nothing"
        )


def owed(specs: dict[str, dict[str, Any]], *wanting: str) -> dict[str, float]:
    leaves = [name for name in specs if not any(other.startswith(f"{name}/") for other in specs)]
    wants = np.array([[leaf in wanting for leaf in leaves]])
    made = {name: TenantSpec(name, **spec) for name, spec in specs.items()}
    return dict(zip(leaves, entitled(wants, leaves, made)[0].tolist(), strict=True))


def test_weights_nest_and_count_among_siblings() -> None:
    tree = {"t": {"weight": 1.0}, "t/x": {"weight": 3.0}, "t/y": {}, "u": {"weight": 3.0}}
    assert owed(tree, "t/x", "t/y", "u") == pytest.approx({"t/x": 3 / 16, "t/y": 1 / 16, "u": 3 / 4})
    assert owed(tree, "t/y", "u") == pytest.approx({"t/x": 0, "t/y": 1 / 4, "u": 3 / 4})


def test_what_a_quota_leaves_goes_to_the_others_and_a_floor_comes_from_them() -> None:
    tree: dict[str, dict[str, Any]] = {
        "a": {"quota_ratio": 0.1},
        "b": {},
        "c": {"weight": 8.0},
        "d": {"min_ratio": 0.3},
    }
    assert owed(tree, "a", "b", "c", "d") == pytest.approx({"a": 0.07, "b": 0.07, "c": 0.56, "d": 0.3})
    assert owed(tree, "a", "b") == pytest.approx({"a": 0.1, "b": 0.9, "c": 0, "d": 0})
    assert owed(tree, "a")["a"] == pytest.approx(0.1)


# ---- demand ----


def demand(leaf: Leaf, ms: float = 1000, **changed: Any) -> list[Part]:
    return in_ms(Truth(record({"a": leaf}, ms=ms, **changed)).demand["a"])


def in_ms(spans: Any) -> list[Part]:
    return [(round(start, 3), round(end, 3)) for start, end in ((spans - ORIGIN) / MS).tolist()]


def test_think_time_is_demand_and_a_pause_is_not() -> None:
    assert demand(Leaf(steps=[(0, 20), (24.9, 40), (46, 60)])) == [(0, 40), (46, 60)]


def test_demand_is_that_of_all_processes() -> None:
    assert demand(Leaf(steps=[[(0, 20), (100, 120)], [(15, 50), (118, 140)]])) == [(0, 50), (100, 140)]


def test_a_hold_between_two_steps_is_no_pause() -> None:
    pause: list[Part] = [(0, 20), (203, 230)]
    assert demand(Leaf(steps=pause)) == [(0, 20), (203, 230)]
    assert demand(Leaf(steps=pause, held=[(21, 201)])) == [(0, 230)]
    assert demand(Leaf(steps=pause, held=[(40, 201)])) == [(0, 20), (203, 230)], "it paused before the hold"


def test_a_step_that_never_ended_is_demand_while_its_work_runs_or_waits() -> None:
    unfinished = Leaf(steps=[(0, 100)], ran=[(0, 100), (120, 300)], waited=[(300, 700)])
    assert demand(unfinished) == [(0, 100), (120, 700)]
    assert demand(Leaf(steps=[(0, 100)], ran=[(0, 100)])) == [(0, 100)]


def test_who_never_finished_a_step_wanted_all_the_same() -> None:
    assert demand(Leaf(ran=[(100, 200)], waited=[(200, 500)])) == [(100, 500)]
    one_is_stuck = Leaf(steps=[[(0, 400)], []], ran=[(0, 400)], waited=[(400, 900)])
    assert demand(one_is_stuck) == [(0, 900)]
    one_goes_on = Leaf(steps=[[(0, 100)], [(0, 400), (700, 720)]], waited=[(100, 900)])
    assert demand(one_goes_on) == [(0, 900)]


def test_who_never_waits_wants_from_its_first_work_to_its_end() -> None:
    leaf = Leaf(ran=[(200, 260)], present=(60, 900), is_always_wanting=True)
    assert demand(leaf) == [(200, 900)]
    assert demand(Leaf(present=(60, 900), is_always_wanting=True)) == [], "without work there is no demand"
    before = Leaf(ran=[(-500, 100)], present=(-500, 900), is_always_wanting=True)
    assert demand(before) == [(-500, 900)], "it had worked before the first sample"


def test_who_never_started_wants_nothing() -> None:
    assert demand(Leaf(), present_ns={}) == []


def test_on_two_gpus_demand_is_where_the_work_is() -> None:
    """Two processes of one leaf: one always on GPU 0, the other now and then on GPU 1; the logs name no GPU."""
    both = record(
        {"a": Leaf(ran=[(0, 1000)], steps=[steps(0, 1000, 10), [(400, 500)]]), "b": Leaf(gpu=1)}, ms=1000
    )
    moved = with_work(both, "a", 1, [(400, 500)])
    truth = Truth(moved)
    assert truth.gpus == {"a": (0, 1), "b": ()}
    assert in_ms(truth.demand_on("a", 0)) == [(0, 1000)]
    assert in_ms(truth.demand_on("a", 1)) == [(400, 500)]


def with_work(recording: Recording, leaf: str, gpu: int, ran: list[Part]) -> Recording:
    """The same, with execution on another GPU."""
    other = record({"x": Leaf(ran=ran)}, ms=(recording.end_ns - ORIGIN) / MS)
    samples = tuple(
        replace(sample, exec_ns={**sample.exec_ns, (leaf, gpu): more.exec_ns["x", 0]})
        for sample, more in zip(recording.samples, other.samples, strict=True)
    )
    stays = tuple(replace(stay, leaf=leaf, gpu=gpu) for stay in other.stays)
    return replace(recording, samples=samples, stays=recording.stays + stays)


# ---- service ----


def test_stays_say_when_within_a_sample() -> None:
    curve = Truth(record({"a": Leaf(ran=[(42, 45), (47, 58)])}, ms=100)).received["a", 0]
    assert curve.grown(at(0), [at(44), at(46), at(50), at(60)]) == pytest.approx([2e6, 3e6, 6e6, 14e6])


def test_without_stays_or_with_overlap_service_is_even_between_samples() -> None:
    for changed in ({"has_stays": False}, {"overlap": 2}):
        curve = Truth(record({"a": Leaf(ran=[(40, 50)])}, ms=100, **changed)).received["a", 0]
        assert float(curve.grown(at(0), at(44))) == pytest.approx(2e6)
        assert float(curve.grown(at(0), at(60))) == pytest.approx(10e6)


def test_a_stay_that_was_not_logged_is_not_lost() -> None:
    """A context that is alone stays until somebody comes; its last stay is in no log."""
    full = record({"a": Leaf(ran=[(42, 45), (50, 500)])}, ms=1000)
    truth = Truth(record({"a": Leaf(ran=[(42, 45), (50, 500)])}, ms=1000, stays=full.stays[:1]))
    assert float(truth.received["a", 0].grown(at(0), at(1000))) == pytest.approx(453e6)
    assert float(truth.received["a", 0].grown(at(100), at(200))) == pytest.approx(100e6)


def test_two_samples_of_one_moment_do_no_harm() -> None:
    made = record({"a": Leaf(ran=[(0, 100)])}, ms=100)
    doubled = record(
        {"a": Leaf(ran=[(0, 100)])}, ms=100, samples=tuple(s for s in made.samples for _ in "12")
    )
    curve = Truth(doubled).received["a", 0]
    assert float(curve.grown(at(0), at(50))) == pytest.approx(50e6)
    assert np.isfinite(curve.total).all()


def test_service_is_never_taken_back() -> None:
    """Stays may run ahead of the counters; counters may vanish with the process."""
    made = record({"a": Leaf(ran=[(40, 50)])}, ms=100)
    ahead = record(
        {"a": Leaf(ran=[(40, 50)])}, ms=100, stays=record({"a": Leaf(ran=[(40, 58)])}, ms=100).stays
    )
    gone = tuple(replace(s, exec_ns={}) if s.at_ns > at(70) else s for s in made.samples)
    for recording in (ahead, replace(made, samples=gone)):
        curve = Truth(recording).received["a", 0]
        assert (np.diff(curve.total) >= 0).all()
        assert float(curve.grown(at(0), at(100))) == pytest.approx(10e6)


# ---- the fluid reference ----


def flow(leaves: dict[str, Leaf], ms: float, **changed: Any) -> reference.Fluid:
    return fluid(Truth(record(leaves, ms=ms, **changed)), 0)


def test_delivery_is_owed_to_those_who_want_it_then() -> None:
    """b comes after 400 of 1000 ms: 400 + 300 ms are owed to a, 300 to b, whoever gets them."""
    late = flow(
        {
            "a": Leaf(ran=[(0, 1000)], steps=steps(0, 1000, 10)),
            "b": Leaf(steps=[(400, 1000)], present=(390, 1000)),
        },
        1000,
        samples=tuple(
            s for s in record({"a": Leaf(ran=[(0, 1000)]), "b": Leaf(waited=[(400, 1000)])}, ms=1000).samples
        ),
    )
    assert float(late.owed["a"].grown(at(0), at(1000))) == pytest.approx(700e6)
    assert float(late.owed["b"].grown(at(0), at(1000))) == pytest.approx(300e6)
    assert float(late.owed["b"].grown(at(0), at(400))) == 0
    assert late.lag_ns("b").max() == pytest.approx(300e6)


def test_what_the_hardware_loses_is_nobodys_debt() -> None:
    """Delivered 900 of 1000 ms, 3 : 1."""
    ran_a, ran_b = turns("aaab.aaab.", "a", 0, 1000), turns("aaab.aaab.", "b", 0, 1000)
    leaves = {
        "a": Leaf(ran=ran_a, steps=steps(0, 1000, 10), spec={"weight": 3.0}),
        "b": Leaf(ran=ran_b, steps=steps(0, 1000, 10)),
    }
    made = flow(leaves, 1000)
    assert float(made.owed["a"].grown(at(0), at(1000))) == pytest.approx(600e6)
    assert float(made.owed["b"].grown(at(0), at(1000))) == pytest.approx(200e6)
    assert max(np.abs(made.lag_ns("a"))) < 5e6


def test_alone_with_a_quota_the_rest_is_owed_to_nobody() -> None:
    """30 % of the time in bursts; a neighbour that comes and goes for nothing must not change that."""
    bursts: list[Part] = [(n * 100, n * 100 + 30) for n in range(10)]
    blinks: list[Part] = [(n * 50 + 7, n * 50 + 8) for n in range(20)]
    leaves = {
        "a": Leaf(ran=bursts, steps=steps(0, 1000, 10), spec={"quota_ratio": 0.3}),
        "b": Leaf(steps=blinks, waited=blinks, spec={"quota_ratio": 0.01}),
    }
    made = flow(leaves, 1000)
    assert float(made.owed["a"].grown(at(0), at(1000))) == pytest.approx(300e6, rel=0.04)
    assert float(made.pie.grown(at(0), at(1000))) == pytest.approx(1000e6, rel=0.04)


def test_a_quota_that_is_overrun_is_overrun() -> None:
    leaves = {
        "a": Leaf(ran=turns("aabb.", "a", 0, 1000), steps=steps(0, 1000, 10), spec={"quota_ratio": 0.3})
    }
    made = flow(leaves, 1000)
    assert float(made.owed["a"].grown(at(0), at(1000))) == pytest.approx(300e6)
    assert float(made.pie.grown(at(0), at(1000))) == pytest.approx(1000e6)


def test_a_quota_that_is_not_used_up_for_lack_of_work_is_no_debt() -> None:
    leaves = {
        "a": Leaf(ran=turns("a....", "a", 0, 1000), steps=steps(0, 1000, 10), spec={"quota_ratio": 0.3})
    }
    assert float(flow(leaves, 1000).owed["a"].grown(at(0), at(1000))) == pytest.approx(200e6)


# ---- what comes from outside ----


def owed_ms(leaf: Leaf, other: Leaf, ms: float = 1000, **changed: Any) -> tuple[float, float]:
    made = flow({"a": leaf, "b": other}, ms, **changed)
    grown = (float(made.owed[name].grown(at(0), at(ms))) / MS for name in "ab")
    return next(grown), next(grown)


LATE: list[Part] = [(n * 50, n * 50 + 50) for n in range(20)]
"""Requests of 10 ms that are served 40 ms after they came, when the next one comes."""
SERVED: list[Part] = [(n * 50 + 40, n * 50 + 50) for n in range(20)]
OTHER = Leaf(ran=[(n * 50, n * 50 + 40) for n in range(20)], steps=[(0, 1000)])


def test_requests_that_are_served_late_are_owed_no_more_than_they_ask_for() -> None:
    late = Leaf(ran=SERVED, steps=LATE, comes=(20.0, 10.0))
    assert owed_ms(late, OTHER) == pytest.approx((200, 800), abs=10)
    assert owed_ms(replace(late, comes=None), OTHER) == pytest.approx((500, 500), abs=10), (
        "a closed loop would ask"
    )


def test_requests_that_are_not_served_are_owed_what_their_weight_says() -> None:
    """50 a second of 10 ms: half of the GPU; a tenth of it is served, in order."""
    served: list[Part] = [(n * 20, n * 100 + 100) for n in range(10)]
    starved = Leaf(ran=[(n * 100 + 90, n * 100 + 100) for n in range(10)], steps=served, comes=(50.0, 10.0))
    other = Leaf(ran=[(n * 100, n * 100 + 90) for n in range(10)], steps=[(0, 1000)])
    assert owed_ms(starved, other) == pytest.approx((500, 500), abs=25)
    assert owed_ms(replace(starved, steps=[], waited=[(0, 1000)]), other) == pytest.approx(
        (500, 500), abs=25
    ), "nor is any ever done"


def test_what_came_before_the_measured_part_and_was_not_served_is_asked_for_in_it() -> None:
    before: list[Part] = [(-500 + n, n * 10 + 10) for n in range(40)]
    behind = Leaf(ran=[(0, 400)], steps=before, comes=(0.001, 10.0), present=(-500, 1000))
    other = Leaf(ran=[(400, 1000)], steps=[(0, 1000)])
    assert owed_ms(behind, other)[0] == pytest.approx(400, abs=15), "later than it had it"
    assert owed_ms(replace(behind, steps=before[:10], ran=[(0, 100)]), other)[0] == pytest.approx(100, abs=15)


def test_requests_that_are_served_at_once_are_owed_what_they_ask_for() -> None:
    """Weighted sharing would have taken twice as long for each, and would have served them all."""
    prompt: list[Part] = [(n * 50, n * 50 + 10) for n in range(20)]
    other = Leaf(ran=[(n * 50 + 10, n * 50 + 50) for n in range(20)], steps=[(0, 1000)])
    assert owed_ms(Leaf(ran=prompt, steps=prompt, comes=(20.0, 10.0)), other) == pytest.approx(
        (200, 800), abs=15
    )
