# SPDX-License-Identifier: Apache-2.0
"""What a guest must not pass with: shares that a rung did not promise, a lock-out, somebody who was left frozen."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.vm import rungs
from tests.vm.rungs import Stretch
from tests.vm.test_rungs import check

STATUS = {"source_error_points": {"1": 36.5, "10": 11.6, "60": 4.7}}
WITHOUT = Stretch({"gold": 500, "bronze": 500})


def split(gold: int) -> Stretch:
    return Stretch({"gold": gold, "bronze": 1000 - gold})


@pytest.mark.parametrize("gold", [640, 750, 860])
def test_shares_within_the_promise_pass(gold: int) -> None:
    assert check(WITHOUT, split(gold), [split(gold)], STATUS) == 11.6


@pytest.mark.parametrize(
    ("without", "gold", "stretches"),
    [
        (WITHOUT, 630, [630]),  # below the promise
        (WITHOUT, 880, [880]),  # above it
        (split(600), 660, [660]),  # as promised, and hardly better than nothing
        (WITHOUT, 750, [750, 950]),  # who had next to nothing for ten seconds was locked out
    ],
)
def test_shares_that_were_not_promised_do_not(without: Stretch, gold: int, stretches: list[int]) -> None:
    with pytest.raises(AssertionError):
        check(without, split(gold), [split(one) for one in stretches], STATUS)


@pytest.mark.parametrize(
    ("file", "text", "is_found"),
    [
        ("a/cgroup.freeze", "1\n", True),
        ("a/cgroup.freeze", "0\n", False),
        ("a/b/freezer.state", "FROZEN\n", True),
        ("a/b/freezer.state", "FREEZING\n", True),
        ("a/b/freezer.state", "THAWED\n", False),
    ],
)
def test_a_frozen_cgroup_is_found_in_any_hierarchy(
    file: str, text: str, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(rungs, "HIERARCHIES", (tmp_path / "none", tmp_path))
    assert bool(rungs.frozen_cgroups()) is is_found


def test_a_stopped_process_is_found() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert not rungs.is_stopped(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: process.pid in rungs.stopped_processes(), 10, "it is found")
        finally:
            process.kill()
