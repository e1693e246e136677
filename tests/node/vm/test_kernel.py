# SPDX-License-Identifier: Apache-2.0
"""One other kernel on every run: tests/vm under Debian's 6.1. The others: make test-vm-all.

Two guests at once, each with a part of the files: an emulated machine seldom uses more than one processor. Walks go a
part of the way here; FAIRSCHED_FULL=1 has them go all of it, as make test-vm does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.alone, pytest.mark.rest]

ROOT = Path(__file__).resolve().parents[3]
CANNOT = 3
ENDED_S = 30.0
IS_FULL = os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")
FIRST = {"test_gate.py", "test_gpu_time.py", "test_pid_view_calls.py"}
"""What one guest runs, half of the time. Everything else is the other's: most of it shares the programs on ioctls."""
RUNGS = "test_rungs.py"
"""Measures shares, which wants a guest of its own for minutes: make test-vm-rungs."""


def parts() -> list[list[str]]:
    names = {path.name for path in (ROOT / "tests/vm").glob("test_*.py")} - {RUNGS}
    assert names > FIRST, "a file of the first part has another name now"
    return [[f"tests/vm/{name}" for name in sorted(part)] for part in (FIRST, names - FIRST)]


def start(files: list[str], output: Path) -> subprocess.Popen[bytes]:
    short = [] if IS_FULL else ["--short"]
    command = [sys.executable, ROOT / "scripts/vm/run.py", "6.1", *short, "--durations=12", *files]
    with output.open("wb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Its guest ends with it."""
    process.terminate()
    try:
        process.wait(ENDED_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.timeout(2400 if IS_FULL else 1500)
def test_the_tests_of_other_kernels_pass_under_6_1(tmp_path: Path) -> None:
    outputs = {tmp_path / str(number): files for number, files in enumerate(parts())}
    with contextlib.ExitStack() as stack:
        running = []
        for output, files in outputs.items():
            running.append(start(files, output))
            stack.callback(end, running[-1])
        statuses = [process.wait() for process in running]
    texts = [output.read_text(errors="replace") for output in outputs]
    print("\n".join(texts))
    if CANNOT in statuses:
        pytest.skip(texts[statuses.index(CANNOT)].strip().splitlines()[-1])
    assert statuses == [0] * len(statuses), "tests/vm failed under 6.1: its output is above"
