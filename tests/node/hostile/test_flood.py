# SPDX-License-Identifier: Apache-2.0
"""Processes that launch without end and never ask are held for what all of them queue.

A thousand launches of each are in flight, seconds of work that go on while their tenant is held. What a launch takes
was known of the first of them only, and what the others had queued was taken to be over at once: a neighbour had .32
and .44 of due .75 beside two with launches of 2 ms, .15 and .19 of due .50 beside four of 1 ms.
"""

from __future__ import annotations

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import DECODE, Site
from tests.node.hostile.test_bait import watch

pytestmark = [pytest.mark.alone, pytest.mark.rest]

SETTLED_S, WATCHED_S = 15.0, 40.0
MOST_LOST = 0.2
"""Of the GPU. A hold of such a queue takes five seconds, and so does what comes between two: ten seconds of it are .33
to .87 of the GPU, by which of them is in them."""


@pytest.mark.parametrize(("kernel_ms", "many", "weight"), [(2, 2, 3), (1, 4, 1)])
def test_who_never_asks_is_held_for_what_it_queues(
    site: Site, kernel_ms: int, many: int, weight: int
) -> None:
    site.configure({"chat": {"weight": weight}, "hog": {}})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    for _ in range(many):
        site.spawn("hog", Workload("nosync", kernels=50, kernel_us=1000 * kernel_ms, jitter_ratio=0.2))
    had, _ = watch(site, ("chat", "hog"), SETTLED_S, WATCHED_S)["chat"]
    assert had > weight / (weight + 1) - MOST_LOST
