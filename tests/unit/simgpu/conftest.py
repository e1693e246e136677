# SPDX-License-Identifier: Apache-2.0
"""A simulated host, and client programs on it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.simgpu import GpuSpec, SimHost

CLIENTS = Path(__file__).with_name("clients.py")
CALLS = Path(__file__).with_name("calls.py")
ROOT = Path(__file__).resolve().parents[3]


class Client:
    """A running clients.py, or another: what it says, line by line; its standard input holds it alive."""

    def __init__(
        self, host: SimHost, arguments: tuple[str, ...], env: dict[str, str], program: Path = CLIENTS
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **host.env(), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self.process.pid

    def says(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost([GpuSpec(vram_bytes=1 << 30, copy_bytes_per_s=1_000_000_000)]) as host:
        yield host


@pytest.fixture
def two_gpus() -> Iterator[SimHost]:
    with SimHost([GpuSpec(name="one"), GpuSpec(name="two")]) as host:
        yield host


@pytest.fixture
def start() -> Iterator[Callable[..., Client]]:
    """start(host, "scenario", *arguments, ENV=value) -> Client"""
    with contextlib.ExitStack() as stack:

        def start_client(host: SimHost, *arguments: str, **env: str) -> Client:
            client = Client(host, arguments, env)
            stack.callback(client.close)
            return client

        yield start_client


@pytest.fixture
def call() -> Iterator[Callable[..., dict[str, Any]]]:
    """call(host, "scenario", ENV=value): what a scenario of calls.py says in the end."""
    with contextlib.ExitStack() as stack:

        def run(host: SimHost, *arguments: str, **env: str) -> dict[str, Any]:
            client = Client(host, arguments, env, CALLS)
            stack.callback(client.close)
            return client.says()

        yield run
