# SPDX-License-Identifier: Apache-2.0
"""The programs on the driver's ioctls, on this kernel, with plain files for device nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.cgroup.path import Mount
from fairsched.driver import devices, hooks
from fairsched.driver.books import DriverBooks, DriverLook
from fairsched.driver.probe import DriverProbe, start
from fairsched.simgpu import GpuSpec, SimHost
from tests.support import wait_until

ACTOR = Path(__file__).with_name("actor.py")
Totals = dict[tuple[int, int], tuple[int, int]]
"""(pid, GPU) -> (contexts, VRAM bytes)."""


class Actor:
    """A process of actor.py."""

    def __init__(self, host: SimHost, cgroup: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ACTOR)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **host.env()},
        )
        self.pid = self.process.pid
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(self.pid))
        self.do("!cuda = Cuda()")

    def do(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        state, _, value = answer.partition(" ")
        assert state == "ok", answer
        return value

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Site:
    """Two simulated GPUs, the programs, the books."""

    def __init__(self, host: SimHost, probe: DriverProbe) -> None:
        self.host = host
        self.probe = probe
        self.books = DriverBooks(probe)

    def truth(self) -> Totals:
        found: Totals = {}
        for context in self.host.truth():
            if context.is_alive:
                contexts, vram_bytes = found.get((context.pid, context.gpu), (0, 0))
                found[context.pid, context.gpu] = contexts + 1, vram_bytes + context.vram_bytes
        return found

    def seen(self) -> Totals:
        return {
            (use.tgid, -1 if use.gpu is None else use.gpu): (use.contexts, use.vram_bytes)
            for use in self.look().uses
        }

    def look(self) -> DriverLook:
        return self.books.read()

    def unexpected(self) -> dict[str, int]:
        """What was counted and should not have happened."""
        counts = self.probe.counts()
        return {name: n for name, n in counts.items() if n and not name.startswith("objects_")}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with SimHost([GpuSpec(vram_bytes=1 << 30), GpuSpec(vram_bytes=2 << 30)]) as host:
        probe = start(hooks.read_facts(), hooks=["tracepoint"], with_plain_nodes=True)
        probe.set_plain_nodes(devices.plain_nodes(host.state_dir / "dev"))
        probe.set_instances({0: 0, 1: 1})
        try:
            yield Site(host, probe)
        finally:
            probe.close()


@pytest.fixture
def cgroup(mount: Mount) -> Iterator[Callable[[str], Path]]:
    root = Path(mount.path)
    made: list[Path] = []

    def make(name: str) -> Path:
        path = root / f"fairsched-test-driver-{os.getpid()}-{name}"
        path.mkdir()
        made.append(path)
        return path

    yield make
    for path in reversed(made):
        (path / "cgroup.kill").write_text("1")
        wait_until(lambda path=path: "populated 0" in (path / "cgroup.events").read_text(), 10, "it is empty")
        path.rmdir()


@pytest.fixture
def start_actor(site: Site) -> Iterator[Callable[..., Actor]]:
    made: list[Actor] = []

    def make(where: Path | None = None) -> Actor:
        made.append(Actor(site.host, where))
        return made[-1]

    yield make
    for actor in made:
        actor.end()
