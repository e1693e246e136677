# SPDX-License-Identifier: Apache-2.0
"""Maps and rings that overflow: counted, said, nobody else's problem, and over when there is room again."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from tests.node.daemon.maps import filled
from tests.node.daemon.site import DECODE, PATIENCE_S, STEADY, Site, logged, stand_still
from tests.support import let_run, wait_until

STORM = replace(DECODE, kernels=1, kernel_us=5, gap_us=0)
"""As many bursts of work, and so of edges, as a processor can make."""


def is_warned(site: Site, of: str) -> bool:
    return any(f"BPF counted {of}: " in warning for warning in site.status()["warnings"])


def expect_account(site: Site, tenant: str) -> None:
    """What it gets from now on is accounted, within a quarter."""
    begin_s, begin_ns = site.gpu_time_s(tenant), site.truth_ns()[tenant]
    let_run(3)
    accounted_s, true_s = site.gpu_time_s(tenant) - begin_s, (site.truth_ns()[tenant] - begin_ns) / 1e9
    assert abs(accounted_s / true_s - 1) < 0.25, (accounted_s, true_s)


@pytest.mark.parametrize(
    ("name", "count"),
    [("gpu_time_by_key", "use_full"), ("proc_by_tgid", "proc_full"), ("ctx_by_handle", "handle_full")],
)
def test_full_map_is_counted_and_said_and_costs_nobody_else(site: Site, name: str, count: str) -> None:
    site.configure({"chat": {}, "late": {}})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "it is accounted")
    assert not is_warned(site, count)
    with filled(site.helpers()["attacher"], name):
        late = site.spawn("late", DECODE)
        with site.maps() as maps:
            wait_until(lambda: maps.counts()[count] > 0, PATIENCE_S, "it is counted")
        wait_until(lambda: is_warned(site, count), PATIENCE_S, "status says so")
        before_s = site.gpu_time_s("chat")
        wait_until(
            lambda: site.gpu_time_s("chat") > before_s + 0.2, PATIENCE_S, "the other's account goes on"
        )
        wait_until(lambda: late.step_count() > 0, PATIENCE_S, "who had no place works")
        late.kill()
    before_s = site.gpu_time_s("late")
    site.spawn("late", DECODE)
    wait_until(lambda: site.gpu_time_s("late") > before_s + 0.1, PATIENCE_S, "there is room again")
    assert logged(site.log(), "tick failed|exception=") == []


def test_edges_lost_while_nobody_reads_are_said_and_the_account_recovers(site: Site) -> None:
    """Processes come and go unseen meanwhile; the clock in the kernel has counted on."""
    site.configure({"chat": {}, "storm": {}, "late": {}}, mode="observe")
    site.start()
    site.attach()
    chat = site.spawn("chat", STEADY)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "it is accounted")
    with site.maps() as maps:
        stand_still(site.pid)
        storms = [site.spawn("storm", STORM) for _ in range(2)]
        wait_until(lambda: maps.counts()["edge_dropped"] > 0, 3 * PATIENCE_S, "the ring overflows")
        site.spawn("late", STEADY)  # nobody is told, and no new burst of it will
        wait_until(lambda: site.truth_ns()["late"] > 0, PATIENCE_S, "it works")
        for storm in storms:
            storm.kill()  # nor of this
        os.kill(site.pid, signal.SIGCONT)
        wait_until(lambda: is_warned(site, "edge_dropped"), PATIENCE_S, "status says so")
        wait_until(lambda: site.gpu_time_s("late") > 0.1, PATIENCE_S, "who came meanwhile is accounted")
        expect_account(site, "chat")
        wait_until(lambda: maps.busy_contexts() <= 2, PATIENCE_S, "nobody who has left is busy")
    storm_s = site.gpu_time_s("storm")
    let_run(1)
    assert site.gpu_time_s("storm") == storm_s, "who has left gets nothing"
    assert chat.is_running
    assert logged(site.log(), "tick failed|exception=") == []
