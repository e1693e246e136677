# SPDX-License-Identifier: Apache-2.0
"""numba-cuda, cuda.core with NVRTC and cuda-bindings, unmodified, on the stand-in libcuda."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import numba_tenant
from fairsched.simgpu import SimHost

PROGRAMS = Path(__file__).with_name("real_programs.py")
KERNEL_NS = 100_000
"""What a real kernel takes that nobody said anything of."""


@pytest.fixture(scope="module")
def python() -> Path:
    found = numba_tenant.find_python()
    if found is None:
        pytest.skip("numba-cuda is not installed: sudo make setup-numba")
    return found


def run(host: SimHost, python: Path, name: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, PROGRAMS, name],
        env={**os.environ, **host.env()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_numba_cuda_runs_and_gets_its_bytes_back(host: SimHost, python: Path) -> None:
    seen = run(host, python, "numba_cuda")
    assert seen["capability"] == [9, 0]
    assert seen["back"] and seen["column"] == [float(1 + 8 * row) for row in range(8)]
    assert (seen["pinned"], seen["managed"], seen["threads"]) == (24.0, 32.0, 1024)
    assert seen["ms"] >= KERNEL_NS / 1e6 - 0.01
    (truth,) = host.truth()
    assert (truth.kernels, truth.exec_ns) == (1, KERNEL_NS)


def test_cuda_core_compiles_launches_and_links(host: SimHost, python: Path) -> None:
    assert run(host, python, "cuda_core") == {"capability": [9, 0], "missing": 0}
    (truth,) = host.truth()
    assert (truth.kernels, truth.exec_ns) == (6, 6 * KERNEL_NS)


def test_cuda_bindings_call_the_driver_by_its_names(host: SimHost, python: Path) -> None:
    assert run(host, python, "cuda_bindings") == {"text": "xxxx4567", "range": [True, 64]}


@pytest.mark.parametrize("words", [["--kernels", "0"], ["--kernel-us", "x"], ["--gap-us", "-1"]])
def test_a_load_that_makes_no_sense_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        numba_tenant.parse(words)
    assert error.value.code == 2


def test_a_load_is_read_back_from_its_own_command() -> None:
    load = numba_tenant.NumbaLoad(7, (473, 967.5), 200, 3)
    assert numba_tenant.parse(load.command(Path("python"))[3:]) == load
    assert numba_tenant.durations(load) == "numba_step0_=473,numba_step1_=967.5"


def test_the_tenant_s_kernels_last_as_long_as_it_was_told(host: SimHost, python: Path) -> None:
    load = numba_tenant.NumbaLoad(4, (200, 300), 0, 0.5)
    done = subprocess.run(
        load.command(python),
        env={**os.environ, **host.env(), **numba_tenant.environment()},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ready, end = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True} and end["kernels"] == 4 * end["steps"] > 0
    (truth,) = host.truth()
    assert truth.kernels == end["kernels"] + 2
    assert truth.exec_ns == truth.kernels // 2 * 500_000


def test_a_python_without_numba_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(numba_tenant.VARIABLE, str(tmp_path / "nothing"))
    assert numba_tenant.find_python() is None
