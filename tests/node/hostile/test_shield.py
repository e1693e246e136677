# SPDX-License-Identifier: Apache-2.0
"""One odd process does not free its siblings: its tenant is charged for the most it may have had, and held for that."""

from __future__ import annotations

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import GREEDY, PATIENCE_S, SHARES_S, STEADY, Site, logged
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

HELPER = Workload("step", kernels=1, kernel_us=50, wait="none", arrival="poisson", rate_per_s=200)
"""Launches 50 us at random moments and never asks: 1 % of a GPU, of which nobody can be sure."""
DUE = 1 / 9
"""Without the charge it is .80: an equal turn for each of its four processes."""
SHARE_ERROR = 0.1


def test_a_helper_that_never_asks_frees_nobody_from_being_held(site: Site) -> None:
    site.configure({"chat": {"weight": 8}, "greedy": {"weight": 1}})
    site.start()
    site.attach()
    inner = site.make_cgroup("greedy/inner")
    site.spawn("greedy", HELPER, cgroup=inner)
    let_run(1.5)  # after a second of it, it is known for one that never asks
    for _ in range(4):
        site.spawn("greedy", GREEDY)
    chat = site.spawn("chat", STEADY)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "all is accounted")
    let_run(2)
    expect_shares(site, {"chat": 1 - DUE, "greedy": DUE}, SHARES_S, SHARE_ERROR)
    assert site.tenant("greedy")["confidence"] == "low", "the helper is odd all the same"
    assert chat.is_running
    assert logged(site.log(), "tick failed|misbehaviour=|turns=unsure") == []
