# SPDX-License-Identifier: Apache-2.0
"""``python -m fairsched.simgpu``: an engine by itself, and loads that join it by its environment."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.simgpu import PRESETS, SimGpuError, SimHost
from fairsched.simgpu.guest import SimGuest
from tests.support import wait_until

COMMAND = [sys.executable, "-m", "fairsched.simgpu"]
ROOT = Path(__file__).resolve().parents[3]
NAMES = {"FAIRSCHED_SIM_DIR", "LD_LIBRARY_PATH"}


def environment(**more: str) -> dict[str, str]:
    outside = {key: value for key, value in os.environ.items() if key not in NAMES}
    return {**outside, "PYTHONPATH": str(ROOT), **more}


def simgpu(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args], env=environment(**env), capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment that an engine wrote into its file."""
    file = tmp_path / "sim.env"
    process = subprocess.Popen([*COMMAND, "engine", "--env-file", str(file)], env=environment())
    try:
        wait_until(file.exists, 60, "the engine has written its environment")
        yield dict(line.split("=", 1) for line in file.read_text().splitlines())
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_a_load_joins_the_engine_that_runs(engine: dict[str, str]) -> None:
    assert set(engine) == NAMES
    with SimGuest(Path(engine["FAIRSCHED_SIM_DIR"])) as other:
        rival = other.spawn(PRESETS["trainer"])
        done = simgpu("load", "decode", "--seconds", "1", "--json", **engine)
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)
        truths = {truth.pid: truth for truth in other.truth()}
    assert {row["pid"], rival.pid} <= set(truths), "both are contexts of one engine"
    assert truths[row["pid"]].ended_ns is not None, "a load ends with its command"
    assert row["kernels"] > 0 and truths[row["pid"]].wait_ns > 0, "they took turns"


def test_a_guest_leaves_nothing_behind(engine: dict[str, str]) -> None:
    state = Path(engine["FAIRSCHED_SIM_DIR"])
    with SimGuest(state) as guest:
        worker = guest.spawn(PRESETS["decode"])
        assert worker.is_running
    assert not worker.is_running
    assert list((state / "steps").iterdir()) == []


def test_a_load_without_an_end_prints_the_truth_when_it_is_told_to_end(engine: dict[str, str]) -> None:
    load = subprocess.Popen(
        [*COMMAND, "load", "decode", "--seconds", "0"],
        env=environment(**engine),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert load.stderr is not None
    assert load.stderr.readline() == "running until Ctrl-C\n"
    load.send_signal(signal.SIGTERM)
    table, _ = load.communicate(timeout=20)
    assert load.returncode == 0
    assert re.search(r"^decode1 +0 +\d", table, re.MULTILINE), table


def test_what_engine_prints_is_read_by_a_shell() -> None:
    with SimHost() as host:
        env = host.env()
    printed = subprocess.Popen([*COMMAND, "engine"], env=environment(), stdout=subprocess.PIPE, text=True)
    assert printed.stdout is not None
    lines = [printed.stdout.readline() for _ in env]
    printed.terminate()
    assert printed.wait(20) == 0
    assert {shlex.split(line)[1].split("=")[0] for line in lines} == set(env)


def test_where_no_engine_is_the_remedy_is_said(tmp_path: Path) -> None:
    done = simgpu("load", "decode", FAIRSCHED_SIM_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "no engine answers" in done.stderr and "unset FAIRSCHED_SIM_DIR" in done.stderr
    with pytest.raises(SimGpuError):
        SimGuest(tmp_path)


def test_the_gpus_of_an_engine_are_not_for_its_guests_to_choose(tmp_path: Path) -> None:
    done = simgpu("load", "decode", "--gpus", "2", FAIRSCHED_SIM_DIR=str(tmp_path))
    assert done.returncode == 2
    assert "those of the engine" in done.stderr


@pytest.mark.parametrize(
    "args", [(), ("engine",), ("load",), ("build",)], ids=lambda args: " ".join(args) or "all"
)
def test_help_fits_a_screen_and_says_what_there_is(args: tuple[str, ...]) -> None:
    done = simgpu(*args, "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 100
    if args == ("load",):
        assert [kind for kind in PRESETS if f"\n  {kind} " not in done.stdout] == []
        assert "join the GPUs" in done.stdout
    if args == ("engine",):
        assert "--env-file" in done.stdout
