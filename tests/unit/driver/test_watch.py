# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of the driver: never in the way, whatever loading does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.driver import devices, loading
from fairsched.driver import watch as watch_module
from fairsched.driver.books import DriverCalls, DriverLook, DriverUse
from fairsched.driver.watch import NO_DRIVER, CallTotals, DriverWatch
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.gpu import Gpu
from tests.support import wait_until

S = 1_000_000_000
GPUS = (Gpu("GPU-a"), Gpu("GPU-b"))
find_instances = devices.find_instances


class FakeProbe:
    hook = "kprobe"

    def __init__(self) -> None:
        self.is_closed = False
        self.look = DriverLook((), ())
        self.instances: dict[int, int] = {}

    def set_majors(self, majors: Any) -> None:
        pass

    def set_plain_nodes(self, nodes: Any) -> None:
        self.nodes = nodes

    def set_instances(self, slots: dict[int, int]) -> None:
        self.instances = slots

    def vram_gate(self) -> Any:
        return SimpleNamespace(close=lambda: None)

    def counts(self) -> dict[str, int]:
        return {"objects_made": 5, "call_lost": 1}

    def close(self) -> None:
        self.is_closed = True


class World:
    """A host with or without a driver, and a loader that does what it is told."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.dev = tmp_path / "proc", tmp_path / "dev"
        self.proc.mkdir()
        self.dev.mkdir()
        self.probe = FakeProbe()
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None
        self.starts = 0
        self.answers = threading.Event()
        self.answers.set()
        """Cleared: who asks the driver something does not come back."""
        monkeypatch.setattr(loading, "start", self._load)
        monkeypatch.setattr(loading.hooks, "read_facts", lambda: None)
        monkeypatch.setattr(loading.devices, "find_instances", self._find_instances)
        books = lambda probe, proc: SimpleNamespace(read=lambda: probe.look)  # noqa: E731
        monkeypatch.setattr(watch_module, "DriverBooks", books)

    def load_driver(self) -> None:
        (self.proc / "devices").write_text("Character devices:\n195 nvidia\n\nBlock devices:\n")

    def _find_instances(self, *where: Any) -> devices.Instances:
        assert threading.current_thread() is not threading.main_thread()
        self.answers.wait(10)
        return find_instances(*where)

    def _load(self, facts: Any, *, with_plain_nodes: bool) -> Any:
        self.starts += 1
        self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return self.probe

    def watch(self, mechanism: str = "auto") -> DriverWatch:
        return DriverWatch(mechanism, self.dev, GPUS, self.proc)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.may_end.set()
    made.answers.set()


def look(watch: DriverWatch, seconds: float, tenants: dict[int, str] | None = None) -> None:
    watch.look(int(seconds * S), (tenants or {}).get)


def loaded(watch: DriverWatch) -> None:
    """Until its thread has ended: what it loaded is taken in by the next look."""
    thread = watch._loading.thread if watch._loading is not None else None
    wait_until(lambda: thread is None or not thread.is_alive(), 10, "it is loaded")


def test_a_driver_that_comes_later_is_seen_then(world: World) -> None:
    watch = world.watch()
    look(watch, 1)
    assert (watch.hook, watch.reason, world.starts) == (None, NO_DRIVER, 0)
    world.load_driver()
    look(watch, 5)
    assert world.starts == 0, "one does not look again at once"
    look(watch, 12)
    loaded(watch)
    look(watch, 14)
    assert (watch.hook, watch.reason, world.starts) == ("kprobe", None, 1)
    assert world.probe.instances == {0: 0, 1: 1}
    watch.close()
    assert world.probe.is_closed


def test_no_look_waits_for_the_compiler(world: World) -> None:
    world.load_driver()
    world.may_end.clear()
    watch = world.watch()
    for second in range(1, 5):
        look(watch, second)
    assert watch.reason == "its programs are being loaded"
    assert watch.uses() == ()
    watch.close()
    world.may_end.set()
    wait_until(lambda: world.probe.is_closed, 10, "what came too late is let go of")


def test_no_look_waits_for_a_driver_that_hangs(world: World) -> None:
    world.load_driver()
    world.answers.clear()
    watch = world.watch()
    for second in range(1, 5):
        look(watch, second)
    assert (watch.hook, watch.reason) == (None, "its programs are being loaded")
    world.answers.set()
    loaded(watch)
    look(watch, 6)
    assert watch.hook == "kprobe"


def test_what_is_refused_is_tried_three_times_and_said(world: World) -> None:
    world.load_driver()
    world.error = HostUnsupported("no BTF")
    watch = world.watch()
    for second in range(1, 100):
        look(watch, second)
        loaded(watch)
    assert world.starts == 3
    assert watch.reason == "no BTF"
    assert watch.hook is None


def test_required_fails_at_the_start_and_off_does_nothing(world: World) -> None:
    with pytest.raises(FairschedError, match=NO_DRIVER):
        world.watch("required")
    world.load_driver()
    world.error = HostUnsupported("no BTF")
    with pytest.raises(FairschedError, match="no BTF"):
        world.watch("required")
    watch = world.watch("off")
    look(watch, 1)
    assert watch.reason == "mechanisms.driver is off"
    assert world.starts == 1


def test_plain_files_stand_for_the_nodes_of_a_simulated_gpu(world: World) -> None:
    (world.dev / "nvidia0").write_bytes(b"")
    watch = world.watch("required")
    assert [path.name for path in world.probe.nodes] == ["nvidia0"]
    assert watch.hook == "kprobe"


def test_a_process_is_placed_by_its_contexts_unless_one_is_on_a_gpu_without_a_slot(world: World) -> None:
    world.load_driver()
    watch = world.watch("required")
    world.probe.look = DriverLook(
        (
            DriverUse(7, 1, 0, 1, 0),
            DriverUse(7, 2, 0, 1, 0),
            DriverUse(7, 2, 1, 1, 0),
            DriverUse(7, 3, 1, 1, 0),
            DriverUse(7, 3, None, 1, 0),
            DriverUse(7, 4, 1, 0, 99),  # memory, no context
        ),
        (),
    )
    look(watch, 1)
    assert watch.slots_of([1, 2, 3, 4, 5]) == {1: {0}, 2: {0, 1}}


def test_the_calls_of_a_tenant_never_fall_although_processes_and_cgroups_go(world: World) -> None:
    world.load_driver()
    watch = world.watch("required")

    def calls(pid: int, count: int, *, is_final: bool = False) -> DriverCalls:
        return DriverCalls(7, pid, count, 1, 10, 1, is_final)

    world.probe.look = DriverLook((), (calls(1, 5), calls(2, 3)))
    look(watch, 1, {7: "chat"})
    assert watch.calls() == {"chat": CallTotals(8, 2, 20, 2)}
    world.probe.look = DriverLook((), (calls(1, 6), calls(2, 4, is_final=True)))
    look(watch, 2, {7: "chat"})
    assert watch.calls()["chat"].ioctls == 10
    world.probe.look = DriverLook((), (calls(1, 7, is_final=True),))
    look(watch, 3, {})
    assert watch.calls()["chat"].ioctls == 11, "its cgroup went with its last process"
    world.probe.look = DriverLook((), ())
    look(watch, 4, {})
    assert watch.calls() == {"chat": CallTotals(11, 2, 20, 2)}


def test_a_read_that_fails_is_counted_and_the_next_one_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.load_driver()
    watch = world.watch("required")
    world.probe.look = None  # type: ignore[assignment]
    look(watch, 1)
    assert watch.errors == 1
    world.probe.look = DriverLook((DriverUse(7, 1, 0, 1, 0),), ())
    look(watch, 2)
    assert len(watch.uses()) == 1
    assert watch.counts() == {"call_lost": 1}
