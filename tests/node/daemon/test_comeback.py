# SPDX-License-Identifier: Apache-2.0
"""Whoever comes back to a GPU that others have filled is looked at at once, not at the next tick."""

from __future__ import annotations

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import STEADY, Site
from tests.support import wait_until

pytestmark = pytest.mark.alone

VISITOR = Workload("step", kernels=20, kernel_us=500, arrival="onoff", on_us=20_000, off_us=700_000)
TICK_S = 10
LOOKS = 5


def test_a_tenant_that_comes_back_does_not_wait_for_the_next_tick(site: Site) -> None:
    # Nobody may be held, so that nothing but a tick or a return makes the daemon look at the accounts.
    site.configure(
        {"train": {"class": "batch", "exempt": True}, "chat": {}},
        tick_ms=TICK_S * 1000,
        inner_tick_ms=TICK_S * 1000,
    )
    site.start()
    site.attach()
    site.spawn("train", STEADY)
    site.spawn("chat", VISITOR)
    booked_s: set[float] = set()

    def has_looked_often() -> bool:
        booked_s.add(site.gpu_time_s("train"))
        return len(booked_s) > LOOKS

    wait_until(
        has_looked_often, LOOKS * TICK_S / 2, f"it looks {LOOKS} times in the time of half as many ticks"
    )
