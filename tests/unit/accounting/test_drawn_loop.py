# SPDX-License-Identifier: Apache-2.0
"""The drawn GPUs are what they say, and the account is judged by the truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fairsched.accounting.ebpf import EbpfAccount
from tests.unit.accounting import drawn_loop
from tests.unit.accounting.closed_loop import Pipeline, Steps, Totals
from tests.unit.accounting.drawn_loop import DrawnLoop, LaunchBound, Nature, S, draw, play
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of
from tests.unit.policy.model_gpu import Tenant
from tests.unit.policy.model_processes import Process

DRAWS = 2000
ASSUMED = Nature(2 * MS, 100_000)


def test_a_draw_is_the_same_each_time_and_another_for_another_number_or_seed() -> None:
    drawn = [str(draw(seed, number)[0]) for seed, number in ((1, 5), (1, 5), (1, 6), (2, 5))]
    assert drawn[0] == drawn[1]
    assert len({*drawn[1:]}) == 3


def test_all_natures_and_loads_are_drawn() -> None:
    natures, loads = Counter[str](), Counter[str]()
    for number in range(DRAWS):
        nature, tenants = draw(3, number)
        natures.update(
            {
                f"slice {nature.slice_ns / MS:.3f}": True,
                "jitter": nature.jitter_ratio > 0.1,
                "unequal": nature.unequal_ratio > 0.15,
                "completes": nature.is_run_to_completion,
                "shuffled": nature.is_shuffled,
            }
        )
        loads.update(type(process).__name__ for tenant in tenants for process in tenant.processes)
        assert 2 <= len(tenants) <= 8
        assert sum(len(tenant.processes) for tenant in tenants) <= drawn_loop.SLOTS
    for name in (
        "slice 1.024",
        "slice 2.097",
        "slice 10.000",
        "slice 30.000",
        "jitter",
        "unequal",
        "completes",
    ):
        assert natures[name] > DRAWS / 40, name
    assert min(loads.values()) > DRAWS / 10, loads
    assert len(loads) == 4


def shares(nature: Nature, processes: list[Process], account: EbpfAccount | None = None) -> list[float]:
    """What each process had of 5 s, each alone in its tenant and nobody held."""
    tenants = [Tenant(replace(draw(1, 1)[1][0].spec, name=f"t{n}"), [one]) for n, one in enumerate(processes)]
    loop = DrawnLoop(tenants, nature, seed=1, is_enforced=False)
    loop.run(5 * S)
    whole = sum(loop.delivered.values())
    return [loop.delivered[tenant.name, "gpu0"] / whole for tenant in tenants]


def endless(kernel_ns: int = MS // 2) -> Process:
    return Pipeline(20, kernel_ns, 0.01, 6)


def test_turns_are_equal_unless_they_are_not() -> None:
    assert shares(ASSUMED, [endless(), endless()]) == pytest.approx([0.5, 0.5], abs=0.01)
    uneven = shares(replace(ASSUMED, unequal_ratio=0.2), [endless(), endless()])
    assert uneven == pytest.approx([0.4, 0.6], abs=0.01)
    # Kernels of 5 and .5 ms: where none is interrupted, turns of 5 and 2 ms.
    long = [endless(5 * MS), endless()]
    assert shares(ASSUMED, long) == pytest.approx([0.5, 0.5], abs=0.02)
    completes = shares(replace(ASSUMED, is_run_to_completion=True), [endless(5 * MS), endless()])
    assert completes == pytest.approx([5 / 7, 2 / 7], abs=0.04)


def test_a_short_step_has_a_turn_that_is_as_short() -> None:
    """Of 30 ms slices a decoder with steps of 10 ms uses a third."""
    step = Steps(10, MS, 0.01, 100_000)
    assert shares(replace(ASSUMED, slice_ns=30 * MS), [step, endless()])[0] == pytest.approx(0.25, abs=0.02)


def test_a_launch_bound_program_leaves_gaps_when_it_is_alone() -> None:
    loop = DrawnLoop(
        [Tenant(draw(1, 1)[1][0].spec, [LaunchBound(20, MS // 2, 0.01, MS)])],
        ASSUMED,
        seed=1,
        is_enforced=False,
    )
    loop.run(2 * S)
    assert sum(loop.delivered.values()) / (2 * S) == pytest.approx(0.5, abs=0.03)


def test_what_ends_while_it_is_frozen_does_not_make_it_begin_twice() -> None:
    """Each of two kernels that had ended let it begin a step when it ran again, and its queue grew to half a minute."""
    bound = LaunchBound(20, MS // 2, 0.0, MS // 4)
    loop = DrawnLoop([Tenant(draw(1, 1)[1][0].spec, [bound])], ASSUMED, seed=1, is_enforced=False)
    (tenant,) = loop.tenants.values()
    for number in range(1, 20):
        loop.at(number * 100 * MS, lambda: setattr(tenant, "is_frozen", True))
        loop.at(number * 100 * MS + 30 * MS, lambda: loop._release(tenant))
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, len(bound.queue))
        loop.at(loop.now + MS, look)

    loop.at(0, look)
    loop.run(2 * S)
    assert 0 < most <= bound.kernels


def test_a_law_that_is_told_the_truth_is_right_on_any_gpu() -> None:
    """So whatever the account costs can be told from what the law does. Deep queues are repaid over seconds."""
    told = [play(2, number, is_law_told=True, measured_ns=20 * S) for number in range(8)]
    assert max(one.share_error for one in told) < 4.0
    assert max(one.account_error for one in told) > 4.0, "or it was not the account that it was spared"


def with_nature(probe: FakeProbe, nature: Nature) -> EbpfAccount:
    """The daemon's account, told the truth about the GPU."""
    account = account_of(probe)
    account._nature = (nature.slice_ns, nature.switch_ns)
    return account


def test_an_account_that_is_told_the_nature_is_right_where_the_model_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal slices, kernels that can be interrupted, nobody held: the replay assumes just that.

    The order it learns, so what went before is wrong.
    """
    plain = Nature(3 * MS, 50_000)
    long = replace(plain, slice_ns=20 * MS)
    for nature, bound in (
        (plain, 1.0),
        (long, 1.0),
        *((replace(one, is_shuffled=True), 2.0) for one in (plain, long)),
    ):
        monkeypatch.setattr(drawn_loop, "draw_nature", lambda _rng, nature=nature: nature)
        told = [
            play(1, number, is_enforced=False, account_of=with_nature).account_error for number in range(6)
        ]
        assert max(told) < bound, nature
    unequal = replace(plain, slice_ns=20 * MS, unequal_ratio=0.3)
    monkeypatch.setattr(drawn_loop, "draw_nature", lambda _rng: unequal)
    broken = [play(1, number, is_enforced=False, account_of=with_nature).account_error for number in range(6)]
    assert max(broken) > 3.0, "a model that is not the account's own shows what it is worth"


def test_errors_are_in_points_of_what_was_had_between_two_moments() -> None:
    begin = Totals({"a": 5, "b": 5}, {"a": 100, "b": 0})
    span = Totals({"a": 35, "b": 15}, {"a": 130, "b": 10}).since(begin)
    assert (span, span.whole_ns) == (Totals({"a": 30, "b": 10}, {"a": 30, "b": 10}), 40)
    assert span.account_errors() == {"a": 0.0, "b": 0.0}
    assert Totals({"a": 1, "b": 1}, span.had).account_errors() == {"a": 25.0, "b": 25.0}
    assert span.share_errors({"a": 0.5, "b": 0.5}) == {"a": 25.0, "b": 25.0}
    assert span.words({"a": 0.5, "b": 0.5}) == "a 75.0 of 50.0, b 25.0 of 50.0"
    assert Totals({"a": 0}, {"a": 0}).account_errors() == {"a": 0.0}, "of an idle GPU nobody is off"


def test_where_the_gpu_tells_whose_turn_it_is_shares_hold_on_any_nature() -> None:
    """Programs begin with other work than they go on with. Replayed turns: 1.5 in the median, 15 in the worst."""
    played = [play(4242, number, is_traced=True, has_starts=True) for number in range(10)]
    assert max(one.account_error for one in played) < 3, [one.words for one in played]
    errors = sorted(one.share_error for one in played)
    assert errors[len(errors) // 2] < 1
    assert errors[-1] < 8
