# SPDX-License-Identifier: Apache-2.0
"""A pid that is another process's by now is never hit. The kernel is made to give the pid again (ns_last_pid)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLAYER = Path(__file__).parent / "reuse_player.py"


def play(attempts: int) -> str:
    """In a pid namespace of its own, whose pids are all ours."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(PLAYER), str(attempts)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_reused_pid_is_not_hit() -> None:
    assert play(300) == "300 attempts, 300 reused, 0 hit\n"


@pytest.mark.rest
def test_ten_thousand_attempts_to_have_a_reused_pid_hit() -> None:
    assert play(10_000) == "10000 attempts, 10000 reused, 0 hit\n"
