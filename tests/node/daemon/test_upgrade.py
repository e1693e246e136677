# SPDX-License-Identifier: Apache-2.0
"""A libcuda that was upgraded under a running process: its name is gone, or another file's; its calls are seen."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.simgpu.workload import Worker
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, is_running, logged
from tests.support import let_run, wait_until

ACCUSED_S = 12.0
"""Unseen work is named within five seconds, and not before the daemon is five seconds old."""
LIBRARY = "libcuda.so.1"


@pytest.fixture
def own_libraries() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="fairsched-test-upgrade."))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def start_with(site: Site, libraries: Path) -> Worker:
    """A worker with a copy of libcuda of its own."""
    shutil.copytree(site.library_dir, libraries, dirs_exist_ok=True)
    copy = libraries / LIBRARY
    if copy.is_symlink():
        target = copy.resolve()
        copy.unlink()
        shutil.copy(target, copy)
    worker = site.host.spawn(
        replace(DECODE, seed=5), site.cgroup("old"), "old", env={"LD_LIBRARY_PATH": str(libraries)}
    )
    site.workers["old"] = [worker]
    return worker


@pytest.mark.rest
@pytest.mark.parametrize("is_replaced", [False, True], ids=["unlinked", "replaced"])
def test_who_runs_an_upgraded_libcuda_is_accounted_and_accused_of_nothing(
    site: Site, own_libraries: Path, is_replaced: bool
) -> None:
    site.configure({"old": {"on_misbehaviour": "terminate"}, "new": {}})
    worker = start_with(site, own_libraries)
    copy = own_libraries / LIBRARY
    inode = copy.stat().st_ino
    if is_replaced:
        shutil.copy(site.library_dir / LIBRARY, own_libraries / "upgrade")
        os.replace(own_libraries / "upgrade", copy)
        assert copy.stat().st_ino != inode
    else:
        copy.unlink()
    site.start()
    wait_until(lambda: site.gpu_time_s("old") > 0, PATIENCE_S, "its GPU time is accounted")
    before_s, truth_ns = site.gpu_time_s("old"), site.truth_ns()["old"]
    let_run(ACCUSED_S)
    accounted_s = site.gpu_time_s("old") - before_s
    assert accounted_s == pytest.approx((site.truth_ns()["old"] - truth_ns) / 1e9, rel=0.25)
    assert is_running(worker.pid)
    assert site.tenant("old")["misbehaviour"] is None
    assert logged(site.log(), "misbehaviour=|terminate=|Traceback") == []
