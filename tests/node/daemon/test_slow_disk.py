# SPDX-License-Identifier: Apache-2.0
"""A disk that takes its time: ticks go on, who asked for a change waits, and what was answered outlives a crash."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.daemon.site import COMMAND, PATIENCE_S, STEADY, Site
from tests.support import wait_until

WATCHED_S = 4.0
TOLERATED = 0.08
SLOW = """
import fcntl, os, sys
gate, state, fsync = sys.argv.pop(1), sys.argv.pop(1), os.fsync
def slow(descriptor):
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(state):
        with open(gate) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    fsync(descriptor)
os.fsync = slow
from fairsched.cli import main; main()
"""
"""``fairsched`` on a disk that keeps what is below a directory when a file is not locked."""


@contextlib.contextmanager
def standing_still(gate: Path) -> Iterator[None]:
    """The disk keeps nothing meanwhile."""
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def set_weight(site: Site, weight: int) -> subprocess.Popen[str]:
    """A client that waits for its answer."""
    where = ["--socket", str(site.socket_path)]
    return subprocess.Popen(
        [*COMMAND, "tenant", "set", "chat", "--weight", str(weight), *where],
        env=site.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_begun(site: Site) -> None:
    wait_until(
        lambda: any(site.state_dir.glob(".overrides.yaml.*")), PATIENCE_S, "the daemon waits for the disk"
    )


def ticks(site: Site) -> int:
    return sum(site.status()["own"]["ticks"]["counts"])


@pytest.mark.rest
def test_ticks_go_on_while_a_disk_keeps_what_was_set_and_a_crash_loses_nothing_that_was_answered(
    site: Site, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    site.command = [sys.executable, "-c", SLOW, str(gate), str(site.state_dir)]
    site.configure({"chat": {"weight": 1}, "batch": {"weight": 3}})
    site.start()
    site.attach()
    for name in ("chat", "batch"):
        site.spawn(name, STEADY)
    site.wait_held("chat")

    with standing_still(gate):
        waiting = set_weight(site, 3)
        wait_begun(site)
        before, failed = ticks(site), site.status()["own"]["errors"]
        got = site.shares(["chat", "batch"], WATCHED_S)
        assert ticks(site) - before > WATCHED_S * 5, "ticks go on"
        assert abs(got["chat"] - 0.25) < TOLERATED, f"and with them the shares of before: {got}"
        assert site.status()["own"]["errors"] == failed
        assert waiting.poll() is None and site.tenant("chat")["weight"] == 1, "nobody was told otherwise"
    said, _ = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0 and "weight 1 -> 3" in said
    site.kill()
    site.start()
    assert site.tenant("chat")["weight"] == 3, "what was answered is there"

    with standing_still(gate):
        waiting = set_weight(site, 9)
        wait_begun(site)
        os.kill(site.pid, 9)
        _, said = waiting.communicate(timeout=PATIENCE_S)
        assert waiting.returncode == 1 and "broke off" in said, "who was not answered knows"
    site.start()
    assert site.tenant("chat")["weight"] == 3, "and half of it is never there"
    assert site.stop() == 0
