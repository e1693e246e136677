# SPDX-License-Identifier: Apache-2.0
"""The programs in the kernel, loaded, and clients that make one call at a time under their probes."""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.simgpu import GpuSpec, SimHost
from fairsched.simgpu.build import build
from tests.support import wait_until
from tests.unit.simgpu import told
from tests.unit.simgpu.clients import NON_BLOCKING
from tests.unit.simgpu.conftest import Client

PATIENCE_S = 45
MS = 1_000_000
TOLD = Path(told.__file__)


class Program:
    """A client with a context, and that context as the kernel has it."""

    def __init__(self, client: Client, probe: GpuTimeProbe) -> None:
        self._client, self._probe = client, probe
        self.pid = client.pid
        self.handle = int(client.says()["result"])
        self.slot, self.context = self.find(self.handle)

    def find(self, handle: int) -> tuple[int, abi.Ctx]:
        found = self._probe.contexts()
        return next((slot, one) for slot, one in found if (one.tgid, one.handle) == (self.pid, handle))

    def told(self, method: str, *arguments: Any, thread: int = 0) -> Any:
        assert self._client.process.stdin is not None
        self._client.process.stdin.write(json.dumps([thread, method, *arguments]).encode() + b"\n")
        self._client.process.stdin.flush()
        return self._client.says()["result"]

    def rc(self, name: str, *handles: int, thread: int = 0) -> int:
        return int(self.told("rc", name, *handles, thread=thread))

    def call(self, name: str, *handles: int, thread: int = 0) -> None:
        assert self.rc(name, *handles, thread=thread) == 0

    def streams(self, count: int, flags: int = NON_BLOCKING) -> list[int]:
        return [int(self.told("stream", flags)) for _ in range(count)]

    def record(self, stream: int) -> int:
        return int(self.told("record", stream))

    def launch(self, stream: int, ns: int = MS, suffix: str = "", thread: int = 0) -> int:
        """The stream's bit, if it had no work before."""
        before = self.busy()
        self.told("launch", ns, stream, suffix, thread=thread)
        return self.busy() & ~before

    def hold(self, *streams: int) -> int:
        """They stand still until told to open; the event they wait for."""
        event = int(self.told("gate"))
        for stream in streams:
            self.call("cuStreamWaitEvent", stream, event, 0)
        return event

    def open(self) -> None:
        self.told("open")

    def busy(self, engine: int = abi.COMPUTE) -> int:
        """Bits of the streams with outstanding work."""
        return int(self.context.busy[engine].streams)


def charged_ns(probe: GpuTimeProbe, program: Program) -> int:
    return sum(use.gpu_time_ns for key, use in probe.uses() if key.tgid == program.pid)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: another inode, so nobody else's processes run through our probes."""
    return Path(shutil.copy(build().library_dir / "libcuda.so.1", tmp_path_factory.mktemp("lib")))


@pytest.fixture(scope="module")
def probe(library: Path) -> Iterator[GpuTimeProbe]:
    with contextlib.closing(GpuTimeProbe()) as found:
        found.attach_library(str(library), timeout_s=240)
        yield found


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost([GpuSpec(name="one"), GpuSpec(name="two")]) as host:
        yield host


@pytest.fixture
def start(probe: GpuTimeProbe, library: Path, host: SimHost) -> Iterator[Callable[[], Program]]:
    names = [uuid.UUID(name.removeprefix("GPU-")).bytes for name in host.uuids()]
    probe.set_uuids({name: slot for slot, name in enumerate(names)})
    with contextlib.ExitStack() as stack:

        def start_program() -> Program:
            client = Client(host, (), {"LD_LIBRARY_PATH": str(library.parent)}, TOLD)
            stack.callback(client.close)
            return Program(client, probe)

        yield start_program
    wait_until(lambda: not list(probe.contexts()), PATIENCE_S, "who ended has no context left")


@pytest.fixture
def program(start: Callable[[], Program]) -> Program:
    return start()
