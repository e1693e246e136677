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


@pytest.mark.rest
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
from fairsched.daemon import loop

def failing_on_request(function, fault):
    def call(*args, **named):
        if os.path.exists(fault):
            raise RuntimeError("as asked for")
        return function(*args, **named)
    return call

fault = os.environ["FAULT"]
loop.decide = failing_on_request(loop.decide, fault + ".tick")
loop.Misbehaviour.poll = failing_on_request(loop.Misbehaviour.poll, fault + ".housekeeping")
from fairsched.cli import main
main()
"""


@pytest.fixture
def faulty(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whose name with what is to fail added is the file that makes it fail, as long as it is there."""
    fault = tmp_path / "fault"
    monkeypatch.setenv("FAULT", str(fault))
    site.command = [sys.executable, "-c", FAULTY]
    return fault


def hold_greedy(site: Site) -> None:
    batch = {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}
    site.configure({"chat": {"weight": 4}, "greedy": batch}, mechanisms={"guardian": "off"})
    site.start()
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)


def is_let_go(site: Site) -> bool:
    return any(record["reason"]["code"] == "shutdown" for record in site.decisions("greedy"))


def test_a_tick_that_fails_lets_everybody_go_and_the_next_ones_are_made(site: Site, faulty: Path) -> None:
    fault = faulty.with_suffix(".tick")
    hold_greedy(site)

    def is_let_go_by_a_failure() -> bool:
        """It may also have been its turn just then."""
        site.wait_held("greedy")
        failures = len(logged(site.log(), "tick failed"))
        fault.touch()
        wait_until(lambda: len(logged(site.log(), "tick failed")) > failures + 1, PATIENCE_S, "ticks fail")
        assert not is_asked(site.cgroup("greedy"))
        fault.unlink()
        return is_let_go(site)

    wait_until(is_let_go_by_a_failure, PATIENCE_S, "whoever is held is let go")
    assert any("ticks or actions have failed" in warning for warning in site.status()["warnings"])
    site.wait_held("greedy")
    assert site.stop() == 0


def test_housekeeping_that_fails_lets_everybody_go_and_is_done_again(site: Site, faulty: Path) -> None:
    fault = faulty.with_suffix(".housekeeping")
    hold_greedy(site)
    site.wait_held("greedy")
    fault.touch()
    wait_until(lambda: is_let_go(site), PATIENCE_S, "whoever is held is let go")
    assert site.ping() == site.pid
    assert site.status()["own"]["errors"]["housekeeping"] > 0
    assert any("ticks or actions have failed" in warning for warning in site.status()["warnings"])
    fault.unlink()
    site.wait_held("greedy")
    failures = len(logged(site.log(), "housekeeping failed"))
    let_run(1)
    assert len(logged(site.log(), "housekeeping failed")) == failures
    assert logged(site.log(), "tick failed") == []
    assert site.stop() == 0


def is_live(site: Site) -> bool:
    """What a kubelet's liveness probe asks."""
    return site.cli("health", "--live", "--config", str(site.config_path)).returncode == 0


@pytest.mark.parametrize("part", ["tick", "housekeeping"])
def test_a_loop_that_fails_does_not_feed_the_watchdog(site: Site, faulty: Path, part: str) -> None:
    """A loop in which everything fails schedules nobody: the service manager is to start another daemon."""
    fault = faulty.with_suffix(f".{part}")
    site.configure({"chat": {}})
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{directory}/notify")  # a short path: the name of a socket has 108 bytes at most
        manager.setblocking(False)
        site.daemon.extra_env["NOTIFY_SOCKET"] = f"{directory}/notify"
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
            failures = len(logged(site.log(), f"{part} failed"))
            let_run(3)
            return meals() == 0 and len(logged(site.log(), f"{part} failed")) > failures

        wait_until(lambda: meals() > 0, PATIENCE_S, "one that goes well feeds it")
        fault.touch()
        wait_until(is_starved, PATIENCE_S, "nobody feeds it while each fails")
        assert site.ping() == site.pid, "the loop goes on"
        wait_until(lambda: not is_live(site), PATIENCE_S, "whoever asks for its health is told, too")
        fault.unlink()
        wait_until(lambda: meals() > 0, PATIENCE_S, "the next good ones feed it again")
        assert is_live(site)
    assert site.stop() == 0
