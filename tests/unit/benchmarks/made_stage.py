# SPDX-License-Identifier: Apache-2.0
"""A host, a rig and a clock that are made up, for a stage to play on without a GPU, root or time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.simgpu import GpuSpec, Residency, Step, Workload
from fairsched.simgpu.node import PARENT


class Clock:
    """Goes on when it is looked at, and when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def monotonic_ns(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@dataclass
class FakeWorker:
    name: str
    log: list[tuple[str, str]]
    counts: Iterator[int]
    """What step_count says, one answer after the other; the last one for ever."""
    is_running: bool = True
    count: int = 0

    def step_count(self) -> int:
        self.count = next(self.counts, self.count)
        return self.count

    def steps(self) -> list[Step]:
        return [Step(n, 1.0, 1) for n in range(self.count)]

    def kill(self) -> None:
        if self.is_running:
            self.log.append(("kill", self.name))
        self.is_running = False


@dataclass
class FakeHost:
    """Contexts and stays as a test wants them."""

    contexts: list[Any] = field(default_factory=list)
    busy_ns: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    """What was started and killed, in order."""
    waits: dict[str, bool] = field(default_factory=dict)
    spawned: list[tuple[str, Path, Workload, Mapping[str, str]]] = field(default_factory=list)
    counts: Callable[[], Iterator[int]] = lambda: iter(range(1000))
    stays: list[Residency] = field(default_factory=list)
    lost: int = 0
    on_stays: Callable[[], None] = lambda: None
    now_ns: int = 0
    process: Any = None

    @property
    def reader(self) -> FakeHost:
        return self

    def snapshot(self, _gpu: int, *, sync: bool) -> tuple[Any, list[Any]]:
        assert not sync, "asking the engine to wake up would change what is measured"
        self.now_ns += 1
        return SimpleNamespace(busy_ns=self.busy_ns, as_of_ns=self.now_ns), list(self.contexts)

    def residencies_since(self, _gpu: int, seen: int) -> Any:
        self.on_stays()
        lost, self.lost = self.lost, 0
        return SimpleNamespace(count=len(self.stays), stays=tuple(self.stays[seen:]), lost=lost)

    def spawn(
        self, workload: Workload, where: Path, name: str, env: Mapping[str, str], wait: bool
    ) -> FakeWorker:
        self.log.append(("spawn", name))
        self.waits[name] = wait
        self.spawned.append((name, where, workload, env))
        return FakeWorker(name, self.log, self.counts())

    def popen(self, _command: list[str], _where: Path, _env: Mapping[str, str]) -> Any:
        return self.process


class FakeRig:
    def __init__(self, root: Path, gpus: int = 1) -> None:
        (root / PARENT.strip("/")).mkdir()
        self.specs = tuple(GpuSpec() for _ in range(gpus))
        self.mount = Mount(str(root))
        self.directory = root
        self.host = FakeHost()
        self.removed: list[str] = []

    def cgroup_path(self, tenant: str) -> str:
        return f"{PARENT}/bench-{tenant}"

    def remove_cgroup(self, ref: CgroupRef) -> None:
        with ref:
            for file in Path(self.mount.absolute(ref.path)).iterdir():
                file.unlink()
            Path(self.mount.absolute(ref.path)).rmdir()
            self.removed.append(ref.path.removeprefix(f"{PARENT}/bench-"))


def context(number: int, owner: int, exec_ns: int = 0, wait_ns: int = 0) -> Any:
    return SimpleNamespace(id=number, owner=owner, exec_ns=exec_ns, wait_ns=wait_ns)
