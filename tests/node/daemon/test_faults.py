# SPDX-License-Identifier: Apache-2.0
"""Maps and rings that overflow: counted, said, nobody else's problem, and over when there is room again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.daemon.maps import filled
from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged, stand_still
from tests.support import let_run, wait_until

STORM = replace(DECODE, kernels=1, kernel_us=5, gap_us=0)
"""As many bursts of work, and so of edges, as a processor can make."""


def is_warned(site: Site, of: str) -> bool:
    return any(f"BPF counted {of}: " in warning for warning in site.status()["warnings"])


def expect_account(site: Site, tenant: str) -> None:
    """What it gets from now on is accounted, within a quarter; a tick at one end is 2 % of it."""
    begin_s, begin_ns = site.gpu_time_s(tenant), site.truth_ns()[tenant]
    let_run(5)
    accounted_s, true_s = site.gpu_time_s(tenant) - begin_s, (site.truth_ns()[tenant] - begin_ns) / 1e9
    assert abs(accounted_s / true_s - 1) < 0.25, (accounted_s, true_s)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpu_time_by_key", "use_full"),
        ("delay_by_key", "use_full"),
        ("proc_by_tgid", "proc_full"),
        ("ctx_by_handle", "handle_full"),
    ],
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


@pytest.mark.timeout(600)
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


FAULTY = """
import os, sys
from fairsched import daemon
decide = daemon.decide

def fail_on_request(*args):
    if os.path.exists(os.environ["FAULT"]):
        raise RuntimeError("as asked for")
    return decide(*args)

daemon.decide = fail_on_request
from fairsched.cli import main
main()
"""


def test_a_tick_that_fails_lets_everybody_go_and_the_next_ones_are_made(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault"
    monkeypatch.setenv("FAULT", str(fault))
    site.command = [sys.executable, "-c", FAULTY]
    batch = {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}
    site.configure({"chat": {"weight": 4}, "greedy": batch}, mechanisms={"guardian": "off"})
    site.start()
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)

    def is_let_go_by_a_failure() -> bool:
        """It may also have been its turn just then."""
        site.wait_held("greedy")
        failures = len(logged(site.log(), "tick failed"))
        fault.touch()
        wait_until(lambda: len(logged(site.log(), "tick failed")) > failures + 1, PATIENCE_S, "ticks fail")
        assert not is_asked(site.cgroup("greedy"))
        fault.unlink()
        return any(record["reason"]["code"] == "shutdown" for record in site.decisions("greedy"))

    wait_until(is_let_go_by_a_failure, PATIENCE_S, "whoever is held is let go")
    assert any("ticks or actions have failed" in warning for warning in site.status()["warnings"])
    site.wait_held("greedy")
    assert site.stop() == 0


def test_ticks_that_fail_do_not_feed_the_watchdog(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop in which every tick fails schedules nobody: the service manager is to start another daemon."""
    fault = tmp_path / "fault"
    monkeypatch.setenv("FAULT", str(fault))
    site.command = [sys.executable, "-c", FAULTY]
    site.configure({"chat": {}})
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{directory}/notify")  # a short path: the name of a socket has 108 bytes at most
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{directory}/notify")
        site.start()

        def meals() -> int:
            """Since the last look."""
            count = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    count += manager.recv(4096) == b"WATCHDOG=1"
            return count

        def is_starved() -> bool:
            """Three seconds, as long as three meals, without any."""
            meals()
            failures = len(logged(site.log(), "tick failed"))
            let_run(3)
            return meals() == 0 and len(logged(site.log(), "tick failed")) > failures

        wait_until(lambda: meals() > 0, PATIENCE_S, "ticks that go well feed it")
        fault.touch()
        wait_until(is_starved, PATIENCE_S, "nobody feeds it while all ticks fail")
        assert site.ping() == site.pid, "it is the ticks that fail, the loop goes on"
        fault.unlink()
        wait_until(lambda: meals() > 0, PATIENCE_S, "the next good ticks feed it again")
    assert site.stop() == 0
