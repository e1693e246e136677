# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs with their device files, a cgroup of the test's own, and processes that are hard to end."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.cgroup.path import Mount
from tests.node.daemon.site import Site

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reclaim") / "targets"
    subprocess.run(["gcc", "-O1", "-pthread", "-o", path, HERE / "targets.c"], check=True)
    return path


@pytest.fixture
def site(tmp_path: Path, mount: Mount) -> Iterator[Site]:
    """With a configuration that finds the device files of its GPUs; its daemon is not started."""
    del mount
    site = Site(tmp_path, 2)
    try:
        site.configure({"chat": {}, "batch": {}}, gpu={"device_dir": str(site.host.device_dir)})
        yield site
    finally:
        site.close()


@pytest.fixture
def cgroup(mount: Mount) -> Iterator[Path]:
    path = Path(mount.absolute(f"/fairsched-test-reclaim-{os.getpid()}"))
    path.mkdir()
    yield path
    for file, value in (("cgroup.freeze", "0"), ("cgroup.kill", "1")):
        (path / file).write_text(value)
    from tests.support import wait_until

    wait_until(lambda: "populated 0" in (path / "cgroup.events").read_text(), 30, "the cgroup is empty")
    with contextlib.suppress(OSError):
        path.rmdir()
