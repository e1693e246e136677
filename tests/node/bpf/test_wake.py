# SPDX-License-Identifier: Apache-2.0
"""Which edges wake the daemon: who comes back to a GPU that others have filled, and who leaves one idle; no others."""

from __future__ import annotations

import contextlib
import select
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.simgpu import SimHost, Workload
from fairsched.simgpu.workload import Worker
from tests.node.bpf.conftest import PATIENCE_S, Program
from tests.support import let_run, wait_until

FILLER = Workload("trainer", kernels=20, kernel_us=500, depth=4)
"""Always has work: its interval stays open."""
ORDINARY = Workload("decode", kernels=2, kernel_us=200, gap_us=2000)
VISITOR = Workload("step", kernels=2, kernel_us=200, arrival="onoff", on_us=20_000, off_us=600_000)


class Eye:
    """A probe that somebody sleeps on as the daemon does."""

    def __init__(self, probe: GpuTimeProbe, library: Path) -> None:
        self._probe = probe
        self._library = library
        self._opened_ns: dict[tuple[int, int], int] = {}
        """When the last interval of each context opened."""
        self._epoll = select.epoll()
        self._epoll.register(probe.fileno(), select.EPOLLIN | select.EPOLLET)

    def spawn(self, host: SimHost, workload: Workload) -> Worker:
        return host.spawn(workload, env={"LD_LIBRARY_PATH": str(self._library)})

    def name_gpu(self, host: SimHost) -> None:
        (name,) = host.uuids()
        self._probe.set_uuids({uuid.UUID(name.removeprefix("GPU-")).bytes: 0})

    def is_woken(self, within_s: float) -> bool:
        return bool(self._epoll.poll(within_s))

    def forget(self) -> None:
        """Everything up to now. A wake-up comes after its edge: none is left whose edge is not."""
        self.opens()
        let_run(0.05)
        self._epoll.poll(0)

    def opens(self) -> list[tuple[Edge, int]]:
        """Intervals that opened since the last call, and how long ago the one before it in that context had."""
        found = []
        for edge in self._probe.read_edges():
            if edge.kind == abi.EdgeKind.OPEN:
                key = (edge.slot, edge.generation)
                found.append((edge, edge.t_ns - self._opened_ns.get(key, 0)))
                self._opened_ns[key] = edge.t_ns
        return found

    def close(self) -> None:
        self._epoll.close()


@pytest.fixture(scope="module")
def eye(probe: GpuTimeProbe, library: Path) -> Iterator[Eye]:
    with contextlib.closing(Eye(probe, library.parent)) as eye:
        yield eye


@pytest.fixture
def spawn(eye: Eye) -> Iterator[Callable[[Workload], Worker]]:
    with SimHost() as host:
        eye.name_gpu(host)
        yield lambda workload: eye.spawn(host, workload)


def test_who_comes_back_to_a_busy_gpu_wakes_and_whoever_goes_on_does_not(
    eye: Eye, spawn: Callable[[Workload], Worker]
) -> None:
    spawn(FILLER)
    spawn(ORDINARY)

    def is_quiet() -> bool:
        """Of a stretch in which nobody was held up for so long that it came back."""
        eye.forget()
        is_woken, opens = eye.is_woken(0.3), eye.opens()
        if len(opens) < 10 or any(pause_ns > abi.COMEBACK_NS for _, pause_ns in opens):
            return False
        assert not is_woken
        return True

    wait_until(is_quiet, PATIENCE_S, "an ordinary decoder works for a while")

    visitor = spawn(VISITOR)
    eye.forget()
    assert eye.is_woken(PATIENCE_S)
    came_back = {edge.tgid for edge, pause_ns in eye.opens() if pause_ns > abi.COMEBACK_NS}
    assert visitor.pid in came_back


def test_who_comes_back_to_an_idle_gpu_wakes_nobody(eye: Eye, spawn: Callable[[Workload], Worker]) -> None:
    visitor = spawn(VISITOR)
    eye.forget()
    pauses: list[int] = []

    def has_come_back_twice() -> bool:
        assert not eye.is_woken(0.5)
        pauses.extend(pause_ns for edge, pause_ns in eye.opens() if edge.tgid == visitor.pid)
        return sum(pause_ns > abi.COMEBACK_NS for pause_ns in pauses) >= 2

    wait_until(has_come_back_twice, PATIENCE_S, "it pauses, and works again")


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_gpu_that_falls_idle_wakes_where_somebody_is_held_back(
    eye: Eye, probe: GpuTimeProbe, start: Callable[[], Program], is_wanted: bool
) -> None:
    """The process lives on: nothing but the end of the last work there is can have been told."""
    first, last = start(), start()
    (first_stream,), (last_stream,) = first.streams(1), last.streams(1)
    gpu = last.context.gpu
    assert first.context.gpu == gpu
    probe.set_wake_on_idle(gpu, 0 if is_wanted else None)
    try:
        first.launch(first_stream)
        last.launch(last_stream)
        eye.forget()
        first.call("cuStreamSynchronize", first_stream)
        assert not eye.is_woken(0.2), "the other one has work"
        last.call("cuStreamSynchronize", last_stream)
        assert eye.is_woken(PATIENCE_S if is_wanted else 0.2) == is_wanted
        told = [(edge.tgid, edge.gpu) for edge in probe.read_edges() if edge.kind == abi.EdgeKind.GPU_IDLE]
        assert told == ([(last.pid, gpu)] if is_wanted else [])
    finally:
        probe.set_wake_on_idle(gpu, None)


def test_a_gpu_on_which_only_so_many_have_work_wakes_as_an_idle_one_does(
    eye: Eye, probe: GpuTimeProbe, start: Callable[[], Program]
) -> None:
    """What held contexts have queued stays open in BPF: it cannot know that it is done."""
    held, first, last = start(), start(), start()
    gpu = held.context.gpu
    (held_stream,), (first_stream,), (last_stream,) = (one.streams(1) for one in (held, first, last))
    held.launch(held_stream)
    first.launch(first_stream)
    last.launch(last_stream)
    probe.set_wake_on_idle(gpu, 1)
    try:
        eye.forget()
        assert not probe.is_idle(gpu, 1)
        first.call("cuStreamSynchronize", first_stream)
        assert not eye.is_woken(0.2), "two have work"
        last.call("cuStreamSynchronize", last_stream)
        assert eye.is_woken(PATIENCE_S)
        assert probe.is_idle(gpu, 1)
        assert not probe.is_idle(gpu)
    finally:
        probe.set_wake_on_idle(gpu, None)
