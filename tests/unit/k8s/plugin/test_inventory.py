# SPDX-License-Identifier: Apache-2.0
"""GPUs that come, go, fall ill and recover; NVML that is not there, dies and hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairsched.gpu import health
from fairsched.gpu.health import Report, XidWatch
from fairsched.gpu.nvml import Gpu, Mig
from fairsched.k8s.plugin import inventory
from fairsched.k8s.plugin.inventory import REOPEN_S, STALE_S, Inventory
from tests.support import wait_until
from tests.unit.k8s.plugin.kubelet import A, B, FakeNvml

NEVER_S = 1e9
"""Polls are made by the test."""


class World:
    """What the inventory sees, moved by a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.nvml = FakeNvml(A, B)
        self.opened = 0
        self.troubles: dict[str, str] = {}
        self.at_close: dict[str, Report] = {}
        """Reports that come just before a watch ends."""
        self.watches: list[tuple[str, ...]] = []
        """The GPUs of each."""
        self.probes: Callable[[], None] = lambda: None
        monkeypatch.setattr(inventory, "probe", self._probe)
        monkeypatch.setattr(inventory, "minor_of", lambda nvml, slot: slot)
        monkeypatch.setattr(inventory, "numa_node", lambda nvml, slot: None)
        monkeypatch.setattr(XidWatch, "_run", lambda found, nvml: self.watch(found, nvml))

    def open(self) -> Any:
        self.opened += 1
        return self.nvml

    def _probe(self, nvml: FakeNvml, slot: int) -> str | None:
        self.probes()
        return self.troubles.get(nvml.gpus[slot].uuid)

    def watch(self, found: XidWatch, nvml: FakeNvml) -> None:
        """In place of waiting for NVML's events."""
        over = found._over
        self.watches.append(tuple(gpu.uuid for gpu in nvml.gpus))
        over.wait(60)
        found._reports |= self.at_close


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def found(world: World) -> Iterator[Inventory]:
    one = Inventory(quiet_s=600, open_nvml=world.open, poll_s=NEVER_S, clock=lambda: world.now_s)
    wait_until(lambda: one.has_looked, 20, "it has looked")
    yield one
    one.close()


def troubles(found: Inventory) -> dict[str, str | None]:
    return {one.uuid: one.trouble for one in found.offers()}


def test_a_gpu_that_is_lost_is_unwell_and_well_again_when_it_is_back(world: World, found: Inventory) -> None:
    assert troubles(found) == {A: None, B: None}
    world.troubles = {B: "GPU is lost"}
    found.poll()
    assert troubles(found) == {A: None, B: "GPU is lost"} and found.changed.is_set()
    world.troubles = {}
    found.poll()
    assert troubles(found) == {A: None, B: None}


def test_a_report_makes_the_gpu_unwell_and_its_instances_too(world: World, found: Inventory) -> None:
    instance = Gpu("MIG-1", 1, mig=Mig(B, 3, 0))
    world.nvml.gpus = (Gpu(A, 0), instance)
    found._xids._reports[B] = Report(79, world.now_s)
    found.poll()
    assert troubles(found) == {A: None, "MIG-1": "the driver has reported Xid 79"} | {
        B: "NVML: it does not know it any more"
    }
    world.now_s += 700
    found.poll()
    assert troubles(found)["MIG-1"] is None


def test_an_instance_that_is_destroyed_is_offered_no_more(world: World, found: Inventory) -> None:
    world.nvml.gpus = (Gpu(A, 0), replace(Gpu(B, 1), is_gone=True), Gpu("MIG-1", 1, mig=Mig(B, 3, 0)))
    found.poll()
    assert set(troubles(found)) == {A, "MIG-1"}
    world.nvml.gpus = (*world.nvml.gpus[:2], replace(world.nvml.gpus[2], is_gone=True))
    found.poll()
    assert set(troubles(found)) == {A}


def test_nvml_that_does_not_work_has_no_gpus_and_is_tried_again(world: World) -> None:
    world.nvml = FakeNvml(error="Driver Not Loaded")
    found = Inventory(open_nvml=world.open, poll_s=NEVER_S, clock=lambda: world.now_s)
    wait_until(lambda: found.has_looked, 20, "it has looked")
    assert found.offers() == () and found.error == "Driver Not Loaded"
    world.nvml = FakeNvml(A)
    found.poll()
    assert found.offers() == () and world.opened == 1, "not at once"
    world.now_s += REOPEN_S
    found.poll()
    assert troubles(found) == {A: None} and world.opened == 2
    found.close()


def test_a_driver_that_dies_leaves_the_gpus_that_were_known_unwell(world: World, found: Inventory) -> None:
    first, world.troubles = world.nvml, {A: "NVML: Unknown Error", B: "NVML: Unknown Error"}
    found.poll()
    world.nvml = FakeNvml(error="Driver Not Loaded")
    world.now_s += REOPEN_S
    found.poll()
    assert first.is_closed
    assert troubles(found) == dict.fromkeys((A, B), "NVML: Driver Not Loaded")
    world.nvml, world.troubles = FakeNvml(A, B), {}
    world.now_s += REOPEN_S
    found.poll()
    assert troubles(found) == {A: None, B: None}


def test_one_gpu_that_is_lost_has_nvml_opened_anew_for_nobody(world: World, found: Inventory) -> None:
    """It may count without that one then, or fail."""
    world.troubles = {B: "GPU is lost"}
    for _ in range(5):
        world.now_s += REOPEN_S
        found.poll()
    assert world.opened == 1 and troubles(found)[A] is None


def test_nvml_that_hangs_makes_all_unwell_and_keeps_nobody_waiting(world: World, found: Inventory) -> None:
    hangs, over = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        over.wait(60)

    world.probes = hang
    thread = threading.Thread(target=found.poll)
    thread.start()
    assert hangs.wait(20)
    assert troubles(found) == {A: None, B: None}, "it may only be slow"
    world.now_s += STALE_S + 1
    assert troubles(found) == dict.fromkeys((A, B), "NVML does not answer")
    over.set()
    thread.join()
    assert troubles(found) == {A: None, B: None}


def test_a_gpu_that_is_found_later_has_its_reports_watched_too(world: World, found: Inventory) -> None:
    world.nvml.gpus = (*world.nvml.gpus, Gpu("GPU-new", 2))
    for _ in range(3):
        found.poll()
    wait_until(lambda: world.watches == [(A, B), (A, B, "GPU-new")], 20, "it is watched once more")


def test_what_is_reported_while_the_watch_is_begun_anew_is_not_lost(world: World, found: Inventory) -> None:
    world.at_close = {A: Report(48, world.now_s)}
    world.nvml.gpus = (*world.nvml.gpus, Gpu("GPU-new", 2))
    found.poll()
    assert troubles(found)[A] == "the driver has reported Xid 48"
    world.nvml.gpus = (*world.nvml.gpus, Gpu("GPU-newer", 3))
    world.at_close = {}
    found.poll()
    assert troubles(found)[A] == "the driver has reported Xid 48"


def test_nvml_is_not_closed_under_a_watch_that_hangs(
    world: World, found: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: world.watches, 20, "it waits")
    over = found._xids._over
    found._xids._over = threading.Event()  # what it waits for does not come
    world.troubles = {A: "NVML: Unknown Error", B: "NVML: Unknown Error"}
    found.poll()
    world.now_s += REOPEN_S
    with monkeypatch.context() as short:
        short.setattr(health, "_WAIT_MS", 1)
        found.poll()
    assert (world.opened, world.nvml.is_closed) == (1, False)
    over.set()
    found.poll()
    assert (world.opened, world.nvml.is_closed) == (2, True)
