# SPDX-License-Identifier: Apache-2.0
"""A tenant that hardly works does not keep the GPU from those that do, whatever it is owed."""

from __future__ import annotations

import pytest

from fairsched.model import TenantClass, TenantSpec
from tests.unit.accounting.closed_loop import Pipeline, Steps
from tests.unit.accounting.drawn_loop import DrawnLoop, Nature, S
from tests.unit.accounting.fake_probe import MS
from tests.unit.policy.model_gpu import Tenant

ASSUMED = Nature(2 * MS, 100_000)
LIGHT_US = {"100 us of 2.5 ms": (100, 2400), "200 us of 5 ms": (200, 5000), "1 ms of 23": (1000, 22_000)}


def busy_ratio(light_us: tuple[int, int], *, is_enforced: bool, weight: float = 1) -> tuple[float, float]:
    """Of the GPU, all of it and the light one's part; from 4 s to 10 s."""
    work_us, pause_us = light_us
    light = Tenant(
        TenantSpec("light", weight), [Steps(1, work_us * 1000, 0.05, pause_us * 1000, start_ns=MS)]
    )
    heavy = Tenant(TenantSpec("heavy", tenant_class=TenantClass.BATCH), [Pipeline(30, MS // 2, 0.1, 4)])
    heavy.processes[0].start_ns = 2 * MS
    loop = DrawnLoop([light, heavy], ASSUMED, seed=3, is_enforced=is_enforced)
    before: list[dict[tuple[str, str], int]] = []
    loop.at(4 * S, lambda: before.append(dict(loop.delivered)))
    loop.run(10 * S)
    had = {name: ns - before[0][name, gpu] for (name, gpu), ns in loop.delivered.items()}
    return sum(had.values()) / (6 * S), had["light"] / (6 * S)


@pytest.mark.parametrize("light", LIGHT_US)
@pytest.mark.parametrize("weight", [0.3, 1, 4])
def test_a_light_tenant_costs_its_neighbour_next_to_nothing(light: str, weight: float) -> None:
    """Where credit was earned all the time, 9 of 10 parts of the GPU were lost, or 1 of 10."""
    free, _ = busy_ratio(LIGHT_US[light], is_enforced=False)
    held, _ = busy_ratio(LIGHT_US[light], is_enforced=True, weight=weight)
    assert held >= 0.9 * free


@pytest.mark.parametrize("other_us", [(20_000, 28_000), (2000, 3000), (8000, 12_000)], ids=str)
def test_two_that_are_light_leave_each_other_alone(other_us: tuple[int, int]) -> None:
    """Together they want less than the GPU. The other one had .06 where credit was limited beside heavy ones only."""
    had = []
    for is_enforced in (False, True):
        tenants = [
            Tenant(
                TenantSpec(name), [Steps(1, work_us * 1000, 0.05, pause_us * 1000, start_ns=(1 + at) * MS)]
            )
            for at, (name, (work_us, pause_us)) in enumerate((("a", (100, 2400)), ("b", other_us)))
        ]
        loop = DrawnLoop(tenants, ASSUMED, seed=3, is_enforced=is_enforced)
        loop.run(8 * S)
        had.append(loop.delivered["b", "gpu0"])
    assert had[1] >= 0.95 * had[0]


def test_it_is_not_hindered_either() -> None:
    _, free = busy_ratio(LIGHT_US["1 ms of 23"], is_enforced=False)
    _, held = busy_ratio(LIGHT_US["1 ms of 23"], is_enforced=True)
    assert held >= 0.97 * free
