# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of the driver while a real module is loaded, taken out and loaded anew, as in an upgrade."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.driver import devices
from fairsched.driver.hooks import NO_DRIVER
from fairsched.driver.watch import DriverWatch
from fairsched.gpu.nvml import Gpu
from tests.support import wait_until
from tests.vm.conftest import Cgroups, LoadDriver, Record

MIB = 1 << 20
PATIENCE_S = 300
"""A set of programs is compiled for each driver, by an emulated machine."""

StartWatch = Callable[[], DriverWatch]


@pytest.fixture
def start_watch() -> Iterator[StartWatch]:
    made: list[DriverWatch] = []

    def start() -> DriverWatch:
        cards = sorted(devices.read_cards(), key=lambda card: card.minor or 0)
        made.append(DriverWatch("auto", Path("/dev"), tuple(Gpu(card.uuid) for card in cards if card.uuid)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def look_until(watch: DriverWatch, condition: Callable[[], bool], what: str) -> None:
    def step() -> bool:
        watch.poll(time.monotonic_ns(), lambda cgroup_id: "a")
        assert watch.errors == 0
        return condition()

    wait_until(step, PATIENCE_S, f"{what}: {watch.reason}, {watch.lost}")


def test_a_driver_that_is_replaced_is_followed(
    load_driver: LoadDriver, start_actor, cgroups: Cgroups, start_watch: StartWatch, record: Record
) -> None:
    """From a driver with the functions of before 545 to one with those from then on, under one daemon."""
    home = cgroups.make("a")
    driver = load_driver("535")
    watch = start_watch()
    calls = 0

    def hold(mib: int, on: int) -> object:
        actor = start_actor(home, abi=driver.abi)
        client = actor.do("client")
        actor.do("memory", client, actor.do("device", client, on), mib * MIB)
        return actor

    def holds(actor, mib: int, on: int) -> bool:
        return [(use.tgid, use.gpu, use.vram_bytes) for use in watch.uses()] == [(actor.pid, on, mib * MIB)]

    look_until(watch, lambda: watch.reason is None, "the first driver is seen")
    first = hold(3, on=1)
    look_until(watch, lambda: holds(first, 3, 1), "its memory is known")
    calls = watch.calls()["a"].ioctls
    assert calls > 0
    first.kill()
    look_until(watch, lambda: watch.uses() == (), "it is gone")

    driver.unload()
    look_until(watch, lambda: watch.reason == NO_DRIVER, "the driver is gone")
    assert watch.hook is None and watch.lost is not None
    assert watch.calls()["a"].ioctls >= calls, "what was counted stays"
    calls = watch.calls()["a"].ioctls
    ours = f"return_{os.getpid()}_"
    look_until(
        watch, lambda: ours not in Path("/sys/kernel/tracing/kprobe_events").read_text(), "no probe is left"
    )

    driver = load_driver("595")
    look_until(watch, lambda: watch.reason is None, "the other driver is seen")
    assert watch.hook == "kprobe" and watch.lost is None and watch.refused == {}
    second = hold(5, on=2)
    look_until(watch, lambda: holds(second, 5, 2), "its memory is known")
    assert watch.calls()["a"].ioctls > calls
    record("driver taken out and loaded anew", "works", "535, then 595, under one daemon")
