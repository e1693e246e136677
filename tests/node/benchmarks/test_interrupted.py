# SPDX-License-Identifier: Apache-2.0
"""benchmarks/fairness.py is interrupted: it cleans up, and given again it does what is missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.simgpu.host import default_state_root
from tests.node.benchmarks.plays import PATIENCE_S, cgroups, users_of
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[3]
LIGHT = """
settle_s: 1
seconds: 2
tenants:
  a: {loads: [{}]}
  b: {loads: [{}]}
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """With a path so short that sockets may lie in it."""
    path = Path(tempfile.mkdtemp(prefix="fairness-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.rest
def test_after_ctrl_c_the_same_command_does_only_what_is_missing(scratch: Path) -> None:
    file, root, temporary = scratch / "light.yaml", scratch / "results", scratch / "t"
    file.write_text(LIGHT)
    temporary.mkdir()
    command = [sys.executable, "benchmarks/fairness.py", "--scenario", str(file), "--results", str(root)]
    command += ["--policy", "none", "--policy", "fairsched", "--no-plots"]
    env = {**os.environ, "TMPDIR": str(temporary)}
    first = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    prefix = f"bench-{first.pid}-"
    try:
        none = root / "light" / "none-seed1.json"
        wait_until(none.exists, 4 * PATIENCE_S, "the first is done")

        def is_in_the_middle() -> bool:
            assert first.poll() is None
            return any((path / "cgroup.procs").read_text() for path in cgroups(prefix)) and bool(
                list(temporary.glob("fairsched-bench-*/daemon1/run/*.sock"))
            )

        wait_until(is_in_the_middle, 4 * PATIENCE_S, "the second is played beside a daemon")
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does
        _, errors = first.communicate(timeout=4 * PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == 130, errors
    assert "Traceback" not in errors
    assert cgroups(prefix) == []
    assert list(temporary.iterdir()) == []
    assert list(default_state_root().glob(f"{first.pid}-*")) == []
    wait_until(lambda: not users_of(temporary), PATIENCE_S, "daemon and helpers are gone")
    assert [path.name for path in root.rglob("*.json")] == [none.name]

    done_at = none.stat().st_mtime_ns
    begun_s = time.time()
    second = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=8 * PATIENCE_S
    )
    assert second.returncode == 0, second.stderr
    assert "1 of 2 are done already" in second.stderr
    assert "light none" not in second.stderr
    assert none.stat().st_mtime_ns == done_at
    assert (root / "light" / "fairsched-seed1.json").stat().st_mtime > begun_s
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("end", ["ctrl-c", "sigterm"])
def test_what_is_played_beside_others_ends_with_the_command(scratch: Path, end: str) -> None:
    file, root, temporary = scratch / "pair.yaml", scratch / "results", scratch / "t"
    file.write_text(f"beside_others: true\n{LIGHT}")
    temporary.mkdir()
    command = [sys.executable, "benchmarks/fairness.py", "--scenario", str(file), "--results", str(root)]
    command += ["--policy", "none", "--no-plots", *(word for n in range(1, 7) for word in ("--seed", str(n)))]
    env = {**os.environ, "TMPDIR": str(temporary)}
    played = subprocess.Popen(
        command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(lambda: list(root.rglob("*.json")), 4 * PATIENCE_S, "one is done")
        wait_until(lambda: users_of(temporary), PATIENCE_S, "another is played")
        if end == "ctrl-c":
            os.killpg(played.pid, signal.SIGINT)
        else:
            played.send_signal(signal.SIGTERM)
        _, errors = played.communicate(timeout=4 * PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(played.pid, signal.SIGKILL)
    assert played.returncode == 130, errors
    assert "Traceback" not in errors and "failed" not in errors
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not users_of(temporary), PATIENCE_S, "all processes are gone")
    assert len(list(root.rglob("*.json"))) < 6, "those that had not begun were not begun"
