# SPDX-License-Identifier: Apache-2.0
"""What a cluster leaves when its run is killed, and what is not its to end. Before any cluster of this run is there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.k8s.cluster import PODS, PREFIX, pod_trees, sweep
from tests.k8s.places import UNIFIED, why_not
from tests.k8s.pods import PATIENCE_S
from tests.support import wait_until


def test_the_cgroups_of_another_kubelet_are_left_alone() -> None:
    """Without a cgroup of ours whose process is gone there is nothing to tidy up."""
    if pod_trees():
        pytest.skip("host: a kubelet runs on it")
    theirs = UNIFIED / PODS
    theirs.mkdir()
    try:
        sweep()
        assert theirs.exists()
    finally:
        theirs.rmdir()


def test_what_a_killed_run_has_left_is_ended_by_the_next() -> None:
    """Its process, also in /kubepods of every hierarchy; that of a run that goes on is left."""
    if pod_trees():
        pytest.skip("host: a kubelet runs on it")
    if reason := why_not():
        pytest.skip(reason)
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale, going = UNIFIED / f"{PREFIX}{gone.pid}", UNIFIED / f"{PREFIX}{os.getppid()}"
    places = (stale, UNIFIED / PODS, going)
    for place in places:
        place.mkdir()
    left = [subprocess.Popen(["sleep", "600"]) for _ in places]
    try:
        for place, process in zip(places, left, strict=True):
            (place / "cgroup.procs").write_text(str(process.pid))
        sweep()
        assert [process.wait(PATIENCE_S) for process in left[:2]] == [-signal.SIGKILL] * 2
        assert not stale.exists() and not pod_trees()
        assert left[2].poll() is None and going.exists()
    finally:
        for process in left:
            process.kill()
            process.wait()
        for place in places:
            wait_until(lambda place=place: remove(place), PATIENCE_S, f"{place} is gone")


def remove(cgroup: Path) -> bool:
    with contextlib.suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()
