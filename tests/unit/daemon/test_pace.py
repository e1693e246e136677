# SPDX-License-Identifier: Apache-2.0
"""When the daemon looks next: the moments that matter, and no others."""

from __future__ import annotations

import pytest

from fairsched.config import Config
from fairsched.daemon.pace import LEAST_INTERVAL_NS, IdleWatch, next_tick_ns
from fairsched.model import NEVER_NS
from fairsched.policy.decide import Decision
from fairsched.policy.lag import PolicyState

MS = 1_000_000
NOW = 1000 * MS
TICK, INNER = 100 * MS, 20 * MS


def decision(*, contended: bool = True, quiet: int | None = None, wake: int | None = None) -> Decision:
    return Decision((), PolicyState(), contended, quiet, wake)


def due(decided: Decision | None, *, holds: bool = False, drain_end: int | None = None) -> int:
    return next_tick_ns(NOW, decided, Config(), holds, drain_end) - NOW


def test_it_looks_often_only_while_two_compete_or_somebody_is_held() -> None:
    assert due(None) == due(decision(contended=False)) == TICK
    assert due(decision()) == due(decision(contended=False), holds=True) == INNER


def test_it_does_not_look_before_anything_is_likely_to_be_decided_but_at_each_tick() -> None:
    assert due(decision(quiet=NOW + 37 * MS)) == 37 * MS
    assert due(decision(quiet=NOW + 5 * MS)) == INNER
    assert due(decision(quiet=NOW + 1000 * MS)) == TICK


@pytest.mark.parametrize("quiet", [None, NOW + 90 * MS])
def test_a_moment_that_matters_goes_before_the_quiet(quiet: int | None) -> None:
    decided = decision(quiet=quiet, wake=NOW + 3 * MS)
    assert due(decided) == 3 * MS
    assert due(decided, holds=True, drain_end=NOW + 2 * MS) == 2 * MS
    assert due(decided, holds=True, drain_end=NOW - MS) == LEAST_INTERVAL_NS


def test_an_idle_gpu_is_worth_a_tick_when_it_stays_idle() -> None:
    watch = IdleWatch(3 * MS)
    assert watch.due_ns == NEVER_NS
    watch.note({0: NOW})
    assert watch.due_ns == NOW + 3 * MS
    assert watch.is_confirmed(NOW + 3 * MS, lambda _slot: True)
    assert watch.take() == {0: NOW}
    assert watch.due_ns == NEVER_NS


def test_a_pause_between_two_steps_is_forgotten() -> None:
    watch = IdleWatch(3 * MS)
    watch.note({0: NOW})
    assert not watch.is_confirmed(NOW + 3 * MS, lambda _slot: False)
    assert (watch.due_ns, watch.take()) == (NEVER_NS, {})


def test_a_second_pause_counts_from_its_own_beginning() -> None:
    watch = IdleWatch(3 * MS)
    watch.note({0: NOW})
    watch.note({0: NOW + 2 * MS})
    assert not watch.is_confirmed(NOW + 3 * MS, lambda _slot: True)
    assert watch.is_confirmed(NOW + 5 * MS, lambda _slot: True)


def test_gpus_are_idle_each_for_itself() -> None:
    watch = IdleWatch(3 * MS)
    watch.note({0: NOW, 1: NOW + MS})
    assert not watch.is_confirmed(NOW + 3 * MS, lambda slot: slot == 1)
    assert watch.due_ns == NOW + 4 * MS
    assert watch.is_confirmed(NOW + 4 * MS, lambda slot: slot == 1)
    assert watch.take() == {1: NOW + MS}
