# SPDX-License-Identifier: Apache-2.0
"""What contradicts an account while somebody is held, and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest

from fairsched.model import ReasonCode, TenantSpec
from fairsched.policy.lag import Gate
from fairsched.policy.watchdog import LET_GO_NS, WINDOW_NS, WINDOWS, Doubt, Look, is_due, watch
from tests.unit.policy.builders import MS, actions, hold, judge, lags, snapshot, specs, use

TICK_NS = 20 * MS
LOAD_EVERY = 12
"""Ticks: four times a second."""


def looks(
    *,
    claimed: float = 1.0,
    loads: Sequence[float] = (),
    is_held: bool = True,
    is_open: bool = True,
    is_silent: bool = True,
) -> Iterator[Look]:
    """Forever; NVML says ``loads`` one after the other, again and again."""
    for tick in count(1):
        number, rest = divmod(tick, LOAD_EVERY)
        said = (loads[number % len(loads)],) if loads and not rest else ()
        yield Look(TICK_NS, round(claimed * TICK_NS), is_held, is_open, said, is_silent)


def contradicted_after_ns(found: Iterator[Look]) -> int | None:
    doubt = Doubt()
    for now_ns in range(TICK_NS, 30_000 * MS, TICK_NS):
        doubt = watch(next(found), doubt, now_ns)
        if doubt.times:
            assert doubt.until_ns == now_ns + LET_GO_NS
            return now_ns
    return None


def test_a_gpu_that_works_far_less_than_is_claimed_contradicts_the_account() -> None:
    found_ns = contradicted_after_ns(looks(claimed=0.97, loads=[0.4, 0.3]))
    assert found_ns == WINDOWS * WINDOW_NS


@pytest.mark.parametrize(
    "found",
    [
        looks(claimed=1.0, loads=[0.95]),
        looks(claimed=0.44, loads=[0.44]),
        looks(claimed=0.5, loads=[1.0, 0.0]),
        looks(claimed=0.5, loads=[0.0, 0.0, 1.0, 1.0]),
        looks(claimed=1.0, loads=[0.3], is_held=False),
        looks(claimed=1.0, loads=[0.3], is_silent=False),
        looks(claimed=1.0),
        looks(claimed=0.0, loads=[0.0]),
    ],
    ids=[
        "it works",
        "a closed loop with gaps",
        "it comes and goes quickly",
        "it comes and goes slowly",
        "nobody is held",
        "launches come slower than their kernels end",
        "NVML says nothing",
        "idle, and so says the account",
    ],
)
def test_what_is_no_contradiction(found: Iterator[Look]) -> None:
    assert contradicted_after_ns(found) is None


def test_one_window_is_no_evidence() -> None:
    """NVML's figure is of up to a second ago: a load that has just begun looks idle."""
    doubt, late, good = Doubt(), looks(loads=[0.2]), looks(loads=[0.9])
    for now_ns in range(TICK_NS, 30_000 * MS, TICK_NS):
        is_late = now_ns // WINDOW_NS % 2 == 0
        doubt = watch(next(late if is_late else good), doubt, now_ns)
    assert doubt.times == 0


def test_who_is_held_while_nothing_at_all_is_open_is_let_go_without_nvml() -> None:
    assert contradicted_after_ns(looks(claimed=1.0, is_open=False)) == 500 * MS
    assert contradicted_after_ns(looks(claimed=0.0, is_open=False, is_held=False)) is None


def test_gaps_in_which_nothing_is_open_do_not_add_up() -> None:
    doubt, opened, idle = Doubt(), looks(), looks(is_open=False)
    for tick in range(1, 1000):
        doubt = watch(next(opened if tick % 20 == 0 else idle), doubt, tick * TICK_NS)
    assert doubt.times == 0


def test_silence_is_asked_for_when_it_may_decide() -> None:
    doubt, asked, found = Doubt(), [], looks(claimed=1.0, loads=[0.2])
    for now_ns in range(TICK_NS, WINDOWS * WINDOW_NS + TICK_NS, TICK_NS):
        if is_due(doubt, TICK_NS):
            asked.append(now_ns)
        doubt = watch(next(found), doubt, now_ns)
    assert asked == [WINDOWS * WINDOW_NS]
    assert doubt.times == 1


def test_who_falls_silent_late_contradicts_then() -> None:
    """The work of a process that was stopped is silent after seconds only."""
    doubt, sounding, silent = Doubt(), looks(loads=[0.2], is_silent=False), looks(loads=[0.2])
    now_ns = 0
    while now_ns < 3 * WINDOW_NS:
        now_ns += TICK_NS
        doubt = watch(next(sounding), doubt, now_ns)
    assert doubt.times == 0
    while not doubt.times:
        now_ns += TICK_NS
        doubt = watch(next(silent), doubt, now_ns)
    assert now_ns <= 4 * WINDOW_NS


def test_where_the_account_is_contradicted_nobody_is_held_but_for_a_quota() -> None:
    rows = [use("a"), use("b")]
    state = replace(lags(a=-200, b=200), gates={"a": Gate("gpu0")})
    snap = replace(snapshot(5, *rows, holds=[hold("a")]), contradicted=frozenset({"gpu0"}))
    assert actions(judge(snap, state)) == [("thaw", "a", ReasonCode.CONTRADICTED)]
    assert not judge(replace(snapshot(20, *rows), contradicted=frozenset({"gpu0"})), lags(a=-200, b=200)).plan
    assert judge(replace(snapshot(20, *rows), contradicted=frozenset({"gpu1"})), lags(a=-200, b=200)).plan
    known = specs(TenantSpec("a", quota_ratio=0.1))
    paid = replace(
        state, gates={"a": Gate("gpu0", is_quota=True)}, quota_level_ns={("a", "gpu0"): 500.0 * MS}
    )
    assert not judge(snap, paid, known).plan
