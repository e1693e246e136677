# SPDX-License-Identifier: Apache-2.0
"""Who is asked for the load of the GPUs, who is believed, and that the loop waits for none of them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from fairsched.base import beside
from fairsched.gpu.loads import STALE_PERIODS, DeviceLoad, LoadError, LoadWatch
from fairsched.gpu.nvml import Gpu, Mig
from tests.support import wait_until

PATIENCE_S = 10.0
PARTS = ((1, 0), (2, 0), (2, 1))
"""GPU instance and compute instance."""
HOUR_S = 3600.0


class Reader:
    """Tells ``loads``, or why not."""

    def __init__(self, name: str, loads: dict[str, float] | str) -> None:
        self.name, self.loads = name, loads
        self.period_s = 1.0
        self.asked = 0
        self.is_closed = False
        self.age_s = 0.0
        self.lets_go = threading.Event()
        self.lets_go.set()

    @property
    def where(self) -> str:
        return f"{self.name} somewhere"

    def read(self) -> Mapping[str, DeviceLoad]:
        self.asked += 1
        self.lets_go.wait(PATIENCE_S)
        if isinstance(self.loads, str):
            raise LoadError(self.loads)
        at_s = time.monotonic() - self.age_s
        return {uuid: DeviceLoad(load, at_s, "GR_ENGINE_ACTIVE") for uuid, load in self.loads.items()}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def watch_of() -> Iterator[Callable[..., LoadWatch]]:
    """watch_of(reader, ...) on GPU-a and GPU-b; its thread has asked once, and asks no more by itself."""
    with contextlib.ExitStack() as stack:

        def begin(*readers: Reader) -> LoadWatch:
            watch = LoadWatch(readers, ["GPU-a", "GPU-b"], poll_s=HOUR_S)
            stack.callback(watch.close)
            stack.callback(lambda: [reader.lets_go.set() for reader in readers])
            assert watch.wait_asked(PATIENCE_S)
            return watch

        yield begin


def test_loads_are_told_by_slot_and_what_is_not_known_is_none(watch_of: Callable[..., LoadWatch]) -> None:
    watch = watch_of(Reader("dcgm", {"GPU-b": 0.25, "GPU-c": 1.0}))
    assert [watch.load(slot) for slot in (-1, 0, 1, 2)] == [None, None, 0.25, None]
    age_s = watch.age_s(1)
    assert age_s is not None and 0 <= age_s < PATIENCE_S and watch.age_s(0) is None
    assert watch.is_live and watch.where == "dcgm somewhere"


def test_instances_are_told_by_gpu_instance_and_two_parts_of_one_by_nobody(
    watch_of: Callable[..., LoadWatch],
) -> None:
    watch = watch_of(Reader("dcgm", {"GPU-a": 0.1, "GPU-a/1": 0.25, "GPU-a/2": 0.5}))
    parts = [Gpu(f"MIG-{n}", 0, mig=Mig("GPU-a", instance, part)) for n, (instance, part) in enumerate(PARTS)]
    watch.take_in([*parts, Gpu("GPU-a", is_gone=True)])
    assert [watch.load(slot) for slot in range(4)] == [0.25, None, None, None]
    assert watch.period_s == 1.0


def test_the_first_that_answers_is_believed_and_the_others_are_not_asked(
    watch_of: Callable[..., LoadWatch],
) -> None:
    first, second = Reader("dcgm", {"GPU-a": 0.1}), Reader("page", {"GPU-a": 0.9})
    watch = watch_of(first, second)
    assert (watch.load(0), first.asked, second.asked) == (0.1, 1, 0)


def test_the_next_stands_in_and_the_first_is_taken_back(watch_of: Callable[..., LoadWatch]) -> None:
    first, second = Reader("dcgm", "no host engine"), Reader("page", {"GPU-a": 0.9})
    watch = watch_of(first, second)
    assert (watch.load(0), watch.where) == (0.9, "page somewhere")
    first.loads = {"GPU-a": 0.1}
    now_s = time.monotonic()
    watch.poll(now_s + 1.0)
    assert (watch.load(0), first.asked) == (0.9, 1), "it is not asked again at once"
    watch.poll(now_s + 3.0)
    assert (watch.load(0), watch.where, first.asked) == (0.1, "dcgm somewhere", 2)
    first.loads = "gone again"
    watch.poll(now_s + 5.0)
    watch.poll(now_s + 8.0)
    assert first.asked == 4, "who answered meanwhile is asked as soon again as at first"


def test_one_that_fails_is_asked_less_and_less_often_and_told_once(
    watch_of: Callable[..., LoadWatch], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reader = Reader("dcgm", "no host engine")
    watch = watch_of(reader)
    begun_s = time.monotonic()
    for second in range(120):
        watch.poll(begun_s + second)
    assert 6 <= reader.asked <= 9
    assert caplog.text.count("no host engine") == 1
    assert "no host engine" in watch.error and watch.load(0) is None and watch.where is None


def test_a_reading_that_is_too_old_counts_as_none(watch_of: Callable[..., LoadWatch]) -> None:
    reader = Reader("dcgm", {"GPU-a": 0.5})
    reader.age_s = STALE_PERIODS * reader.period_s + 0.5
    watch = watch_of(reader)
    assert watch.load(0) is None and watch.age_s(0) is None and not watch.is_live


def test_nobody_waits_for_one_that_hangs(
    watch_of: Callable[..., LoadWatch], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader("dcgm", {"GPU-a": 0.5})
    watch = watch_of(reader)
    reader.lets_go.clear()
    watch._asked[0].due_s = 0.0
    watch._poller.ask()
    wait_until(lambda: reader.asked == 2, PATIENCE_S, "it is asked, and hangs")
    begun_s = time.monotonic()
    assert watch.load(0) == 0.5
    monkeypatch.setattr(beside, "_CLOSE_S", 0.01)
    watch.close()
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert not reader.is_closed, "its thread still has it"
    assert "dcgm=hangs" in caplog.text


def test_what_readers_hold_is_let_go_of(watch_of: Callable[..., LoadWatch]) -> None:
    reader = Reader("dcgm", {"GPU-a": 0.5})
    watch_of(reader).close()
    assert reader.is_closed


def test_who_must_know_waits_for_a_load_and_not_for_ever(watch_of: Callable[..., LoadWatch]) -> None:
    watch = watch_of(Reader("dcgm", {}))
    assert not watch.wait_live(0.01)
    assert watch_of(Reader("dcgm", {"GPU-a": 0.0})).wait_live(PATIENCE_S), "an idle GPU is known"
    late = Reader("dcgm", {"GPU-a": 0.5})
    late.lets_go.clear()
    watch = LoadWatch([late], ["GPU-a"], poll_s=HOUR_S)
    try:
        threading.Timer(0.1, late.lets_go.set).start()
        assert watch.wait_live(PATIENCE_S), "it comes while somebody waits"
    finally:
        watch.close()
