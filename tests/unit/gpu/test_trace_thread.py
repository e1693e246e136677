# SPDX-License-Identifier: Apache-2.0
"""A trace that is read in a thread: nobody waits for it for long, and nothing of it is lost."""

from __future__ import annotations

import threading
import time

import pytest

from fairsched.gpu.trace import Switch, TraceLost, TraceRefused
from fairsched.gpu.trace_thread import TraceThread

LONG_S = 10.0


class Driver:
    """What it tells next; ``gate``: it keeps whoever asks waiting."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.told: list[tuple[list[Switch], bool]] = []
        self.told_ns = 0
        self.asked = threading.Semaphore(0)
        self.is_lost = False
        self.closed = threading.Event()

    def read(self) -> tuple[list[Switch], bool]:
        self.asked.release()
        self.gate.wait(LONG_S)
        if self.is_lost:
            raise TraceLost("it is gone")
        return self.told.pop(0) if self.told else ([], True)

    def close(self) -> None:
        self.closed.set()


ONE, TWO = Switch(1, 11, 1, True), Switch(2, 11, 1, False)


def opened(driver: Driver) -> TraceThread:
    thread = TraceThread("0", lambda: driver)
    assert thread.wait(LONG_S)
    assert thread.is_decided and thread.refused is None
    return thread


def all_of(thread: TraceThread, count: int) -> list[tuple[list[Switch], bool]]:
    """Reads until so many switches have come."""
    found: list[tuple[list[Switch], bool]] = []
    end = time.monotonic() + LONG_S
    while sum(len(switches) for switches, _ in found) < count and time.monotonic() < end:
        found.append(thread.read())
    return found


def test_what_has_come_is_told_once_and_whether_it_was_whole() -> None:
    driver = Driver()
    driver.told = [([ONE], True), ([TWO], False)]
    thread = opened(driver)
    found = all_of(thread, 2)
    assert [one for switches, _ in found for one in switches] == [ONE, TWO]
    assert [is_whole for switches, is_whole in found if switches] == [True, False]
    assert thread.read() == ([], True)
    thread.close()
    assert driver.closed.wait(LONG_S)


def test_nobody_waits_for_a_driver_that_is_busy_and_nothing_is_lost_by_it() -> None:
    driver = Driver()
    driver.told = [([ONE], True)]
    driver.gate.clear()
    thread = opened(driver)
    begin = time.monotonic()
    assert thread.read() == ([], True)
    assert time.monotonic() - begin < 1
    assert driver.asked.acquire(timeout=LONG_S)
    driver.gate.set()
    assert all_of(thread, 1)[-1] == ([ONE], True)
    thread.close()


def test_a_refusal_is_known_and_says_why() -> None:
    def refuse() -> Driver:
        raise TraceRefused("not here")

    thread = TraceThread("0", refuse)
    assert thread.wait(LONG_S)
    assert thread.refused == "not here"
    thread.close()


def test_a_loss_is_told_after_what_came_before_it_and_the_trace_is_closed() -> None:
    driver = Driver()
    driver.told = [([ONE], True)]
    thread = opened(driver)
    assert all_of(thread, 1)[-1] == ([ONE], True)
    driver.is_lost = True
    with pytest.raises(TraceLost, match="it is gone"):
        for _ in range(10_000):
            thread.read()
    assert driver.closed.wait(LONG_S)
    thread.close()
    thread.close()
