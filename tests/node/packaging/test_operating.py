# SPDX-License-Identifier: Apache-2.0
"""docs/operating.md, executed word for word in a bare Debian under a real systemd."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOST_CANNOT = 3
RUN = ROOT / "scripts/operating/run.py"

pytestmark = [
    pytest.mark.rest,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        shutil.which("debootstrap") is None or shutil.which("systemd-nspawn") is None,
        reason="no debootstrap or systemd-nspawn: sudo make setup (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)",
    ),
]


def test_the_commands_of_the_handbook_do_what_it_says() -> None:
    """Install, a simulated GPU and tenants, upgrade, rollback, backup, restore, removal."""
    done = subprocess.run(
        [sys.executable, str(RUN)], capture_output=True, text=True, check=False, timeout=1700
    )
    if done.returncode == HOST_CANNOT:
        pytest.skip(f"host: {done.stderr.strip()}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "-line-" in done.stdout and "=done in" in done.stdout
    assert done.stdout.endswith("ended=yes\n")


@pytest.mark.parametrize("commit", ["efc98c3", "9563bf40"])
def test_an_older_version_is_upgraded_and_gone_back_to_while_it_holds_people(commit: str) -> None:
    """From 26 November 2026: the last version without releases, and the first with them."""
    done = subprocess.run(
        [sys.executable, str(RUN), "--upgrade-from", commit],
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    if done.returncode == HOST_CANNOT:
        pytest.skip(f"host: {done.stderr.strip()}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("ended=yes\n")
