# SPDX-License-Identifier: Apache-2.0
"""Who queues so much that its proofs come late is held as long as is due, and not for as long as it can be.

With more in flight than a queue holds a launch waits, and no call that asks does: each proof is of work that was done
long ago. The charge of all that was taken to be of the few launches proven, and so its queue for twenty times as long:
it had .003 to .017 of the GPU, was charged .3, and its neighbours were charged a third too little.
"""

from __future__ import annotations

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import DECODE, Site
from tests.node.hostile.test_bait import watch

pytestmark = [pytest.mark.alone, pytest.mark.rest]

DEEP = Workload("trainer", kernels=20, kernel_us=500, jitter_ratio=0.1, depth=64)
DUE = {"chat": 4 / 9, "late": 4 / 9, "hog": 1 / 9}
MOST_WRONG = 0.06


def test_who_asks_long_after_its_work_is_done_has_what_is_due(site: Site) -> None:
    site.configure({"chat": {"weight": 4}, "late": {"weight": 4}, "hog": {}})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    site.spawn("late", DECODE)
    site.spawn("hog", DEEP)
    for name, (had, charged) in watch(site, ("chat", "late", "hog")).items():
        assert abs(had - DUE[name]) < MOST_WRONG, name
        assert abs(charged - had) < MOST_WRONG, name
