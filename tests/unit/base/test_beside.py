# SPDX-License-Identifier: Apache-2.0
"""Asking beside the loop: at once when it is wanted, again after a failure, and a driver that hangs harms nobody."""

from __future__ import annotations

import threading

import pytest

from fairsched.base import beside
from fairsched.base.beside import Poller
from tests.support import wait_until

HOUR_S = 3600.0
PATIENCE_S = 30.0


def test_it_asks_again_after_each_pause_however_long_that_is_now() -> None:
    pauses, asked = iter([0.0, 0.001, 0.0]), list[int]()
    one = Poller("test", lambda: asked.append(1), lambda: next(pauses, HOUR_S), "nothing")
    wait_until(lambda: len(asked) == 3, PATIENCE_S, "three pauses are over")
    assert one.close()
    assert len(asked) == 3, "the fourth lasts"


def test_it_asks_at_once_when_it_is_wanted_and_once_more_when_it_was_wanted_meanwhile() -> None:
    entered, may_go, asked = threading.Event(), threading.Event(), list[int]()

    def poll() -> None:
        entered.set()
        assert may_go.wait(PATIENCE_S)
        asked.append(1)

    one = Poller("test", poll, lambda: HOUR_S, "nothing")
    one.ask()
    assert entered.wait(PATIENCE_S)
    for _ in range(3):
        one.ask()  # what is being asked may be of before
    may_go.set()
    wait_until(lambda: len(asked) == 2, PATIENCE_S, "it asked twice")
    assert one.close()
    assert len(asked) == 2


def test_a_failure_is_told_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    asked = list[int]()

    def poll() -> None:
        asked.append(1)
        raise ValueError("garbage")

    one = Poller("test", poll, lambda: 0.001, "samples")
    wait_until(lambda: len(asked) > 2, PATIENCE_S, "it asks again")
    assert one.close()
    assert "nvml=failed lost='samples'" in caplog.text


def test_a_driver_that_hangs_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside, "_CLOSE_S", 0.01)
    entered, release = threading.Event(), threading.Event()

    def poll() -> None:
        entered.set()
        release.wait(PATIENCE_S)

    one = Poller("test", poll, lambda: HOUR_S, "nothing")
    one.ask()
    try:
        assert entered.wait(PATIENCE_S)
        assert not one.close()
        assert "nvml=hangs" in caplog.text
    finally:
        release.set()
