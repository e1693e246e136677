# SPDX-License-Identifier: Apache-2.0
"""The unit under a real systemd as PID 1: started, killed, hung, stopped; nobody stays frozen.

One boot (about ten seconds, most of it the restart delay of the unit) answers all tests but the last two. Its
daemon is a stand-in with the real journal, freezer and guardian, because those tests need one that holds on
command. The last boots once more, with the real daemon.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TRY_SERVICE = HERE.parents[2] / "packaging/systemd/try-service"
HOST_CANNOT = 3
"""The kernel gives us no mount namespaces or no overlayfs. All else is a broken set-up, or a broken unit: a failure."""
NEEDED = "bash dirname id unshare systemctl mktemp mkdir mount rm cat sed tail timeout sh"
"""What try-service calls before it boots, but systemd-nspawn."""
SYS_TIME = 1 << 25
SYS_MODULE = 1 << 16
SYS_ADMIN = 1 << 21


def try_service(*command: str) -> dict[str, str]:
    """What happened, by name."""
    run = subprocess.run(
        [str(TRY_SERVICE), *command], capture_output=True, text=True, check=False, timeout=280
    )
    if run.returncode == HOST_CANNOT:
        pytest.skip(f"host: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    return dict(line.split("=", 1) for line in run.stdout.splitlines())


@pytest.fixture(scope="module")
def trial() -> dict[str, str]:
    return try_service(sys.executable, str(HERE / "stand_in.py"))


def test_the_service_becomes_ready_by_notification(trial: dict[str, str]) -> None:
    assert trial["started"] == "yes"


def test_the_sandbox_lets_it_hold(trial: dict[str, str]) -> None:
    """cgroup.freeze is writable, the journal's directory exists, and the guardian came up first."""
    assert trial["held"] == "yes"


def test_it_has_no_capability_beyond_its_trade(trial: dict[str, str]) -> None:
    bounding = int(trial["capabilities"], 16)
    assert bounding & SYS_ADMIN
    assert not bounding & (SYS_TIME | SYS_MODULE)


def test_kill_9_frees_the_held_and_the_service_comes_back(trial: dict[str, str]) -> None:
    assert trial["free_after_kill"] == "yes"
    assert trial["restarted_after_kill"] == "yes"
    assert trial["restarts_after_kill"] == "1"
    assert trial["held_again"] == "yes"


def test_a_reload_does_not_end_it(trial: dict[str, str]) -> None:
    assert trial["reloaded"] == "yes"


def test_a_loop_that_hangs_is_ended_by_the_watchdog_and_the_held_are_freed(trial: dict[str, str]) -> None:
    assert trial["free_after_hang"] == "yes"
    assert trial["restarted_after_hang"] == "yes"
    assert trial["restarts_after_hang"] == "2"


def test_a_stop_leaves_nobody_frozen_and_keeps_the_journal(trial: dict[str, str]) -> None:
    assert trial["stopped"] == "yes"
    assert trial["state_after_stop"] == "inactive"
    assert trial["free_after_stop"] == "yes"
    assert trial["journal_kept"] == "yes"
    assert trial["journal_entries"] == "0"


def test_the_guardian_leaves_after_the_daemon(trial: dict[str, str]) -> None:
    """KillMode=process leaves it alone, so it has to go by itself."""
    assert trial["guardian_gone"] == "yes"


def test_a_broken_set_up_is_no_limit_of_the_host(tmp_path: Path) -> None:
    """A missing package, and a container that does not come up, must not pass for a host that cannot."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in NEEDED.split():
        (tools / tool).symlink_to(str(shutil.which(tool)))
    without = subprocess.run(
        [str(TRY_SERVICE)], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert (without.returncode, "systemd-nspawn" in without.stderr) == (1, True), without.stderr
    broken = tools / "systemd-nspawn"
    broken.write_text("#!/bin/sh\necho no container today >&2\nexit 1\n")
    broken.chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    dead = subprocess.run(
        [str(TRY_SERVICE)], env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (dead.returncode, "no container today" in dead.stderr) == (1, True), dead.stderr


@pytest.mark.rest
def test_the_real_daemon_lives_in_the_sandbox() -> None:
    """It comes up, loads its programs, comes back after kill -9; no line of the unit refuses it anything."""
    trial = try_service(str(Path(sys.executable).with_name("fairsched")))
    assert trial["started"] == "yes"
    assert trial["restarted_after_kill"] == "yes"
    assert trial["stopped"] == "yes"
    assert trial["free_after_stop"] == "yes"
    assert trial["refusals"] == "0"
