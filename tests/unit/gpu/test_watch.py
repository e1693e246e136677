# SPDX-License-Identifier: Apache-2.0
"""What the loop may ask of NVML, and that it waits for no GPU that does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from fairsched.base import beside
from fairsched.gpu import watch as gpu_watch
from fairsched.gpu.nvml import Clients, Gpu, GpuUse, Nvml
from fairsched.gpu.watch import GpuWatch, OnMps
from tests.support import wait_until

PATIENCE_S = 10.0
HOUR_S = 3600.0


class Driver:
    """Nvml; while ``lets_go`` is not set, GPU 1 does not answer."""

    def __init__(self) -> None:
        self.gpus = (Gpu("GPU-a"), Gpu("GPU-b"))
        self.error = None
        self.lets_go = threading.Event()
        self.lets_go.set()
        self.processes: dict[tuple[int, int], int | None] = {(7, 0): 100, (8, 0): 1, (8, 1): None}
        self.clients: Clients = {}
        self.is_broken = False
        self.asked = 0
        """For loads."""
        self.watched: list[int] = []
        """GPUs whose PCIe was."""

    def use(self, slot: int) -> GpuUse:
        if self.is_broken:
            raise RuntimeError("a bug of pynvml")
        if slot == 1:
            self.lets_go.wait(PATIENCE_S)
        return GpuUse(memory_used_bytes=slot + 1, is_up=True)

    def pcie(self, slot: int) -> dict[str, float]:
        self.watched.append(slot)
        return {"to_gpu": 1e6 * len(self.watched)}

    def refresh(self) -> bool:
        return False

    def mps_clients(self) -> Clients:
        return self.clients

    def load(self, slot: int) -> float | None:
        self.asked += 1
        return 0.5 if slot == 0 else None

    def listed(self, clients: Clients) -> dict[tuple[int, int], int | None]:
        theirs = {(pid, slot): size for slot, said in clients.items() for pid, size in said.items()}
        return {**self.processes, **theirs}


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.lets_go.set()


@pytest.fixture
def watch(driver: Driver) -> Iterator[GpuWatch]:
    watch = GpuWatch(cast(Nvml, driver), poll_s=HOUR_S)
    wait_until(lambda: watch.use(1).is_up, PATIENCE_S, "it asks at once")
    yield watch
    driver.lets_go.set()
    watch.close()


def test_what_nvml_says_is_told(watch: GpuWatch) -> None:
    assert [watch.use(slot).memory_used_bytes for slot in (0, 1)] == [1, 2]
    assert watch.use(2) == GpuUse(), "one that NVML never listed"
    assert watch.slots_of({8, 9}) == {8: {0, 1}}
    assert watch.silent_s() is None


def test_what_passes_over_pcie_is_asked_of_one_gpu_after_each_answer(
    driver: Driver, watch: GpuWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes NVML 40 ms, in which it would answer nothing else."""
    monkeypatch.setattr(gpu_watch, "_FRESH_S", PATIENCE_S)
    for polls in (1, 2, 3):
        wait_until(lambda: len(driver.watched) >= polls, PATIENCE_S, "after the answer")  # noqa: B023
        assert len(driver.watched) == polls
        watch.listed()
    assert driver.watched[:3] == [1, 0, 1]
    assert watch.use(0).pcie_bytes_per_s == {"to_gpu": 2e6}
    assert watch.use(1).pcie_bytes_per_s == {"to_gpu": 3e6}


def test_a_process_that_has_just_started_is_listed(
    driver: Driver, watch: GpuWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "_FRESH_S", PATIENCE_S)  # a busy machine
    driver.processes = {(9, 1): 5}
    assert watch.listed() == {(9, 1): 5}


def test_servers_and_clients_of_mps_are_told_apart_by_one_answer(
    driver: Driver, watch: GpuWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "_FRESH_S", PATIENCE_S)
    driver.clients = {0: {9: 5}}
    assert watch.listed() == {**driver.processes, (9, 0): 5}
    assert watch.mps == {0: OnMps(frozenset({9}), frozenset({7, 8}))}


def test_nobody_waits_for_a_gpu_that_does_not_answer(
    driver: Driver, watch: GpuWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = watch.listed()
    driver.lets_go.clear()
    driver.processes = {}
    begun_s = time.monotonic()
    assert watch.listed() == before, "as of before"
    assert watch.use(0).memory_used_bytes == 1
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    monkeypatch.setattr(gpu_watch, "STALE_S", 0.0)
    assert watch.use(0) == GpuUse(), "nobody knows any more"
    silent_s = watch.silent_s()
    assert silent_s is not None and silent_s > 0
    monkeypatch.setattr(beside, "_CLOSE_S", 0.01)
    assert not watch.close()


def test_a_failure_is_not_the_end_of_asking(
    driver: Driver, watch: GpuWatch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.is_broken = True
    before = watch.listed()
    wait_until(lambda: "nvml=failed" in caplog.text, PATIENCE_S, "it is told")
    monkeypatch.setattr(gpu_watch, "_FRESH_S", PATIENCE_S)
    driver.is_broken, driver.processes = False, {(1, 0): 1}
    assert watch.listed() == {(1, 0): 1} != before


def test_loads_are_asked_for_often_while_somebody_wants_them_and_nothing_else_is(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "_CLOSE_S", 0.001)
    watch = GpuWatch(cast(Nvml, driver), poll_s=HOUR_S)
    try:
        wait_until(lambda: watch.use(0).is_up, PATIENCE_S, "it asks at once")
        assert (watch.take_loads(0), driver.asked) == ((), 0)
        driver.is_broken = True  # whoever asks for all fails
        watch.is_close = True
        watch._poller.ask()
        wait_until(lambda: driver.asked > 40, PATIENCE_S, "again and again")
        loads = watch.take_loads(0)
        assert 0 < len(loads) <= 16 and set(loads) == {0.5}
        assert watch.take_loads(1) == watch.take_loads(2) == ()
        assert watch.silent_s() is None
    finally:
        watch.is_close = False
        watch.close()
