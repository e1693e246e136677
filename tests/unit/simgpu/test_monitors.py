# SPDX-License-Identifier: Apache-2.0
"""Monitors that others wrote read the stand-in libnvidia-ml as they read NVIDIA's."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from fairsched.simgpu import SimHost, Workload
from tests.support import wait_until

SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.mark.parametrize("command", [("nvitop", "-1"), ("gpustat", "--show-pid", "--no-color")], ids=" ".join)
def test_a_monitor_shows_the_gpu_and_its_processes(host: SimHost, command: tuple[str, ...]) -> None:
    workers = [
        host.spawn(Workload("trainer", kernels=10, kernel_us=500, depth=4, alloc_bytes=alloc_bytes))
        for alloc_bytes in (1 << 20, 1 << 24)
    ]
    wait_until(lambda: all(truth.exec_ns for truth in host.truth()), 30, "both work")
    done = subprocess.run(
        [SCRIPTS / command[0], *command[1:]],
        env={**os.environ, **host.env(), "TERM": "xterm", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Simulated GPU" in done.stdout and "Traceback" not in done.stderr, done
    for worker in workers:
        assert str(worker.pid) in done.stdout, done.stdout
