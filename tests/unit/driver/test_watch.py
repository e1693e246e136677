# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of the driver: never in the way, whatever loading does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.bpf.abi import Node
from fairsched.driver import devices, loading
from fairsched.driver import watch as watch_module
from fairsched.driver.books import DriverCalls, DriverLook, DriverUse
from fairsched.driver.watch import LOADING, NO_DRIVER, CallTotals, DriverWatch
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.gpu.nvml import Gpu
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
        self.refused = {"lsm": "not permitted"}
        self.majors: dict[int, Any] = {}
        self.uvm_attached = 0
        self.may_close = threading.Event()
        self.may_close.set()

    def set_majors(self, majors: Any) -> None:
        self.majors = dict(majors)

    def attach_uvm(self) -> None:
        self.uvm_attached += 1

    def set_plain_nodes(self, nodes: Any) -> None:
        self.nodes = nodes

    def set_instances(self, slots: dict[int, int]) -> None:
        self.instances = slots

    def vram_gate(self) -> Any:
        return SimpleNamespace(close=lambda: None)

    def counts(self) -> dict[str, int]:
        return {"objects_made": 5, "call_lost": 1}

    def close(self) -> None:
        self.may_close.wait(10)
        self.is_closed = True


class World:
    """A host with or without a driver, and a loader that does what it is told."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.dev, self.modules = (tmp_path / name for name in ("proc", "dev", "module"))
        for directory in (self.proc, self.dev, self.modules):
            directory.mkdir()
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

    def load_driver(self, *others: str) -> None:
        """``others``: further lines of /proc/devices, as of modules that are loaded."""
        lines = "".join(f"{line}\n" for line in ("195 nvidia", *others))
        (self.proc / "devices").write_text(f"Character devices:\n{lines}\nBlock devices:\n")

    def load_module(self, name: str) -> None:
        """Taken out before, when it was there: it gets another inode."""
        made = self.modules / f"{name}.new"
        made.mkdir()
        (made / "initstate").write_text("live\n")
        if (self.modules / name).exists():
            (self.modules / name).rename(self.modules / f"{name}.{made.stat().st_ino}")
        made.rename(self.modules / name)

    def _find_instances(self, *where: Any) -> devices.Instances:
        assert threading.current_thread() is not threading.main_thread()
        self.answers.wait(10)
        return find_instances(*where)

    def _load(self, facts: Any, *, with_plain_nodes: bool) -> Any:
        self.starts += 1
        self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        if self.starts > 1:
            self.probe = FakeProbe()
        return self.probe

    def watch(self, mechanism: str = "auto") -> DriverWatch:
        return DriverWatch(mechanism, self.dev, GPUS, self.proc, self.modules)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.may_end.set()
    made.answers.set()


def look(watch: DriverWatch, seconds: float, tenants: dict[int, str] | None = None) -> None:
    watch.poll(int(seconds * S), (tenants or {}).get)


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
    assert watch.refused == {"lsm": "not permitted"}
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


def ended(watch: DriverWatch) -> None:
    """Until what is done beside the looks is done; the next look takes it in."""
    wait_until(lambda: not any(one.is_running for one in watch._ending), 10, "what was given up has ended")
    asking = watch._asking
    wait_until(lambda: asking is None or not asking.is_running, 10, "the driver has answered")
    loaded(watch)


def test_a_driver_that_is_loaded_anew_is_seen_again(world: World) -> None:
    world.load_driver()
    world.load_module("nvidia")
    watch = world.watch("required")
    former, known = world.probe, {7: "chat"}
    former.look = DriverLook((DriverUse(7, 1, 0, 1, 99),), (DriverCalls(7, 1, 5, 1, 10, 1, False),))
    look(watch, 1, known)
    world.load_module("nvidia")
    former.may_close.clear()
    look(watch, 2, known)
    assert (watch.hook, watch.reason, watch.gate, watch.since_ns) == (None, LOADING, None, None)
    assert watch.lost is not None and watch.uses() == ()
    look(watch, 3, known)
    assert world.starts == 1, "the next probe waits until the last one is gone"
    former.may_close.set()
    ended(watch)
    look(watch, 4, known)
    loaded(watch)
    look(watch, 5, known)
    assert former.is_closed and world.probe is not former
    assert (watch.hook, watch.reason, watch.lost, world.starts) == ("kprobe", None, None, 2)
    assert watch.calls() == {"chat": CallTotals(5, 1, 10, 1)}, "totals never fall"
    look(watch, 6, known)
    assert world.starts == 2


def test_a_driver_that_is_taken_out_is_said_to_be_gone(world: World) -> None:
    world.load_driver()
    world.load_module("nvidia")
    watch = world.watch("required")
    (world.modules / "nvidia/initstate").write_text("going\n")
    (world.proc / "devices").write_text("")
    look(watch, 1)
    assert (watch.hook, watch.reason) == (None, NO_DRIVER)
    ended(watch)
    assert world.probe.is_closed
    watch.close()


def test_a_driver_that_is_half_loaded_is_waited_for(world: World) -> None:
    """What is probed then is a worse hook, or has to be given up when the driver is there."""
    world.load_driver()
    world.load_module("nvidia")
    (world.modules / "nvidia/initstate").write_text("coming\n")
    watch = world.watch()
    look(watch, 1)
    assert world.starts == 0
    (world.modules / "nvidia/initstate").write_text("live\n")
    for second in (2, 3, 4):
        look(watch, second)
        loaded(watch)
    assert (watch.hook, world.starts) == ("kprobe", 1)


def test_unified_memory_that_is_loaded_late_is_seen_and_nothing_is_forgotten(world: World) -> None:
    world.load_driver()
    world.load_module("nvidia")
    watch = world.watch("required")
    look(watch, 1)
    assert world.probe.majors == {195: Node.GPU}
    world.load_driver("511 nvidia-uvm")
    world.load_module("nvidia_uvm")
    look(watch, 2)
    assert world.probe.majors == {195: Node.GPU, 511: Node.UVM}
    assert world.probe.uvm_attached == 1
    world.load_module("nvidia_uvm")
    look(watch, 3)
    assert world.probe.uvm_attached == 2, "anew, with the same number"
    assert (watch.hook, world.starts) == ("kprobe", 1)


def test_other_gpus_are_asked_about_beside_the_looks(world: World) -> None:
    world.load_driver()
    watch = world.watch("required")
    world.probe.instances = {}
    card = world.proc / "driver/nvidia/gpus/0000:65:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text(f"Device Minor:\t 0\nGPU UUID:\t GPU-{'0' * 36}\n")
    world.answers.clear()
    for second in (1, 2, 3):
        look(watch, second)
    assert world.probe.instances == {}
    world.answers.set()
    ended(watch)
    world.probe.instances = {9: 9}
    look(watch, 4)
    assert world.probe.instances == {}, "the GPU that came has no slot"


def test_what_one_driver_was_refused_is_tried_with_the_next(world: World) -> None:
    world.load_driver()
    world.load_module("nvidia")
    world.error = HostUnsupported("no such function")
    watch = world.watch()
    for second in range(1, 60):
        look(watch, second)
        loaded(watch)
    assert world.starts == 3
    world.error = None
    world.load_module("nvidia")
    look(watch, 60)
    loaded(watch)
    look(watch, 61)
    assert watch.hook == "kprobe"


def test_what_is_loaded_for_a_driver_that_is_gone_meanwhile_is_not_used(world: World) -> None:
    world.load_driver()
    world.load_module("nvidia")
    world.may_end.clear()
    watch = world.watch()
    look(watch, 1)
    world.load_module("nvidia")
    look(watch, 2)
    world.may_end.set()
    ended(watch)
    assert world.probe.is_closed
    look(watch, 3)
    loaded(watch)
    look(watch, 4)
    assert (watch.hook, world.starts) == ("kprobe", 2)
