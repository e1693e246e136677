# SPDX-License-Identifier: Apache-2.0
"""Real-time priority for a block, where the kernel grants it, and this thread as it was afterwards."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from fairsched.base.realtime import at_realtime_priority
from tests.unit.act.test_holds import GRANT, make_world

NOBODY = 65534


def scheduling() -> tuple[int, int, int]:
    """Policy, real-time priority and nice value of this thread."""
    return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, os.getpriority(os.PRIO_PROCESS, 0)


@pytest.fixture
def _as_before() -> Iterator[None]:
    before = scheduling()
    yield
    os.sched_setscheduler(0, before[0], os.sched_param(before[1]))


@pytest.fixture
def _granted(_as_before: None) -> None:
    policy, priority, _ = scheduling()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(9))
    except PermissionError:
        pytest.skip("host: this kernel grants us no real-time priority")
    os.sched_setscheduler(0, policy, os.sched_param(priority))


@pytest.fixture
def _refused() -> Iterator[None]:
    """No limit above 0, and not the capability that goes beyond it."""
    limits, user = resource.getrlimit(resource.RLIMIT_RTPRIO), os.geteuid()
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, limits[1]))
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        resource.setrlimit(resource.RLIMIT_RTPRIO, limits)


FORMER = [
    (os.SCHED_OTHER, 0),
    (os.SCHED_BATCH, 0),
    (os.SCHED_RR, 3),
    (os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 7),
]


@pytest.mark.usefixtures("_granted")
@pytest.mark.parametrize("former", FORMER)
def test_the_block_runs_at_the_lowest_real_time_priority_and_what_was_before_comes_back(
    former: tuple[int, int],
) -> None:
    os.sched_setscheduler(0, former[0], os.sched_param(former[1]))
    before = scheduling()
    with at_realtime_priority() as is_real_time:
        assert is_real_time is True
        assert scheduling()[:2] == (os.SCHED_FIFO, 1)
    assert scheduling() == before


@pytest.mark.usefixtures("_granted")
@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
@pytest.mark.parametrize("former", FORMER)
def test_what_was_before_comes_back_however_the_block_ends(
    former: tuple[int, int], error: type[BaseException]
) -> None:
    os.sched_setscheduler(0, former[0], os.sched_param(former[1]))
    before = scheduling()
    with pytest.raises(error), at_realtime_priority():
        raise error
    assert scheduling() == before


@pytest.mark.usefixtures("_refused")
def test_where_it_is_refused_the_block_runs_as_it_is() -> None:
    before, ran = scheduling(), []
    with at_realtime_priority() as is_real_time:
        ran.append(is_real_time)
        assert scheduling() == before
    assert ran == [False]
    assert scheduling() == before


@pytest.mark.usefixtures("_refused")
def test_where_it_is_refused_an_error_of_the_block_is_still_its_own() -> None:
    with pytest.raises(OSError, match="of the block"), at_realtime_priority():
        raise OSError("of the block")


@pytest.mark.usefixtures("_granted")
def test_the_end_of_a_grant_is_watched_for_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world, seen = make_world(), []

    def queued_ns(_cgroup_ids: object) -> int:
        seen.append(scheduling()[:2])
        return 50

    monkeypatch.setattr(world.account, "queued_since_hold_ns", queued_ns)
    before = scheduling()
    world.hold("chat", 100)
    world.applier.apply([GRANT], 400)
    assert seen == [(os.SCHED_FIFO, 1)]
    assert scheduling() == before
