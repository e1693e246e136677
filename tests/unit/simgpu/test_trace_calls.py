# SPDX-License-Identifier: Apache-2.0
"""The stand-in of the driver's trace refuses what the driver refuses, and does not let pass what would fault there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.simgpu import SimHost
from tests.unit.simgpu.conftest import ROOT

TRACED = Path(__file__).with_name("traced.py")
BAD_ARGUMENT, BAD_CLIENT, BAD_SIZE, NOT_SUPPORTED, NOT_FOUND = 0x1F, 0x23, 0x3A, 0x56, 0x57


def run(host: SimHost, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A program of traced.py; ``env``: instead of the environment with which the trace can be read."""
    what, *rest = words
    return subprocess.run(
        [sys.executable, str(TRACED), what, str(host.device_dir), *rest],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or host.trace_env())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def module_host() -> Iterator[SimHost]:
    with SimHost() as host:
        yield host


@pytest.fixture(scope="module")
def said(module_host: SimHost) -> dict[str, Any]:
    done = run(module_host, "calls")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("right", [0] * 5),
        ("bound twice", 0),
        ("unknown object", [NOT_FOUND] * 3),
        ("client of another file", [BAD_CLIENT] * 3),
        ("client of a closed file", BAD_CLIENT),
        ("size", [BAD_SIZE] * 4),
        ("unknown command", [NOT_SUPPORTED] * 2),
        ("unknown class", 0x22),
        ("parent", 0x36),
        ("handle that is taken", 0x19),
        ("no such GPU", 0x26),
        ("memory that may be written", [BAD_ARGUMENT] * 2),
        ("memory too small", BAD_ARGUMENT),
        ("get beyond the end", BAD_ARGUMENT),
        ("unknown flag", BAD_ARGUMENT),
        ("no map yet", "EINVAL"),
        ("mapped", 0),
        ("mapped twice", 0x63),
        ("map to write", [BAD_ARGUMENT, "EACCES"]),
        ("map not from 0", "EINVAL"),
        ("header", [0, 0, 0, 0]),
        ("unknown ioctl", "EINVAL"),
        ("another file", "ENOTTY"),
    ],
)
def test_a_call_is_answered_as_the_driver_does(said: dict[str, Any], what: str, status: object) -> None:
    assert said[what] == status


@pytest.mark.parametrize("name", ["subdevice", "record", "notify"])
def test_what_would_fault_in_the_driver_ends_the_process(module_host: SimHost, name: str) -> None:
    done = run(module_host, "fault", name)
    assert done.returncode == -signal.SIGABRT
    assert "the driver would fault in the kernel" in done.stderr


def test_who_does_not_preload_it_has_plain_files(module_host: SimHost) -> None:
    done = run(module_host, "reader", module_host.uuids()[0], env=module_host.env())
    assert "Inappropriate ioctl" in done.stdout


def test_a_gpu_that_is_not_there_is_refused(module_host: SimHost) -> None:
    done = run(module_host, "reader", "GPU-00000000-0000-0000-0000-000000000000")
    assert "refused" in done.stdout
