# SPDX-License-Identifier: Apache-2.0
"""Programs that nobody wrote for fairsched: numba-cuda, unmodified, under the real daemon."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import numba_tenant
from benchmarks.numba_tenant import NumbaLoad
from fairsched.cgroup.path import Mount
from tests.node.daemon.site import Site
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

LOADS = {"half": NumbaLoad(20, (473,)), "one": NumbaLoad(10, (967,)), "both": NumbaLoad(15, (473, 967))}
COMPILE_S = 60
WARM_S = 4
WINDOW_S = 8
ERROR_RATIO = 0.04
"""A tick at each end of the window is 2.5 %, and a machine that does something else may come late to both."""


@pytest.fixture
def python() -> Path:
    found = numba_tenant.find_python()
    if found is None:
        pytest.skip(f"extra: {numba_tenant.MISSING}")
    return found


@pytest.fixture
def site(tmp_path: Path, mount: Mount) -> Iterator[Site]:
    del mount  # skips where there is none
    site = Site(tmp_path)
    yield site
    site.close()


def start(site: Site, python: Path, tenant: str) -> subprocess.Popen[bytes]:
    """Returns when it is compiled and at work."""
    process = site.host.popen(LOADS[tenant].command(python), site.cgroup(tenant), numba_tenant.environment())
    enough = 10 * LOADS[tenant].kernels

    def is_at_work() -> bool:
        assert process.poll() is None, f"{tenant} ended with {process.poll()}"
        return any(one.pid == process.pid and one.kernels > enough for one in site.host.truth())

    wait_until(is_at_work, COMPILE_S, f"{tenant} is at work")
    return process


def test_their_gpu_time_is_what_the_engine_says(site: Site, python: Path) -> None:
    """They come one by one; each is a Python that compiles, then launches one by one and synchronises."""
    site.configure({name: {} for name in LOADS}, mode="observe")
    site.start()
    site.attach()
    pids = {name: start(site, python, name).pid for name in LOADS}

    def read() -> dict[str, tuple[float, float]]:
        """(as the daemon has it, as it is), in seconds."""
        by_pid = {one.pid: one.exec_ns / 1e9 for one in site.host.truth()}
        return {name: (site.gpu_time_s(name), by_pid[pid]) for name, pid in pids.items()}

    let_run(WARM_S)
    before = read()
    let_run(WINDOW_S)
    after = read()
    seen = {name: [round(b - a, 3) for a, b in zip(before[name], after[name], strict=True)] for name in LOADS}
    assert all(own == pytest.approx(true, rel=ERROR_RATIO) for own, true in seen.values()), seen
    assert sum(true for _, true in seen.values()) > WINDOW_S / 2, "the GPU was theirs"
