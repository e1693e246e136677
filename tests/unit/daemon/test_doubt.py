# SPDX-License-Identifier: Apache-2.0
"""What the watchdog is shown, and what is done when it finds the account wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fairsched.accounting.context import ProcessUse
from fairsched.daemon.doubt import AccountWatch
from fairsched.gpu.nvml import Gpu
from fairsched.model import Confidence, Hold
from fairsched.observe.sensors import Sensors
from fairsched.policy.lag import Gate

MS = 1_000_000
TICK_NS = 20 * MS


class Eyes:
    """Sensors of two GPUs; the second is the one that is told of."""

    def __init__(self) -> None:
        self.gpus = (Gpu("GPU-a"), Gpu("GPU-b"))
        self.account: object | None = SimpleNamespace()
        self.is_wanted = False
        self.load: float | None = 0.3
        self.is_silent = True
        self.holds: dict[str, Hold] = {}
        self.doubted: list[int] = []
        self._ticks = 0

    def watch_loads(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted

    def take_loads(self, slot: int) -> tuple[float, ...]:
        self._ticks += slot
        is_told = slot == 1 and self._ticks % 12 == 0
        return (self.load,) if is_told and self.load is not None else ()

    def is_idle(self, slot: int) -> bool:
        return slot == 0

    def silent_contexts(self, slot: int, _now_ns: int) -> list[tuple[int, int]]:
        return [(slot, 1)] if self.is_silent else []

    def doubt(self, slot: int, _now_ns: int) -> int:
        self.doubted.append(slot)
        return 1


@pytest.fixture
def eyes() -> Eyes:
    return Eyes()


def ticks(
    eyes: Eyes, watch: AccountWatch, begin_ns: int, seconds: float, gate: Gate | None
) -> list[frozenset[str]]:
    """Each with a full claim on both GPUs; held for ``gate``, or nobody is."""
    rows = [ProcessUse(1, 2, slot, TICK_NS, True, 0, Confidence.HIGH, 0) for slot in (0, 1)]
    eyes.holds.clear()
    if gate is not None:
        eyes.holds["batch"] = Hold("batch", 0, 1, is_ours=True)
    gates = {"batch": gate} if gate is not None else {}
    return [
        watch.poll(begin_ns + tick * TICK_NS, TICK_NS, rows, gates)
        for tick in range(round(seconds * 1e9 / TICK_NS))
    ]


def test_the_gpu_that_somebody_is_held_for_is_let_go_and_the_account_learns_anew(
    eyes: Eyes, caplog: pytest.LogCaptureFixture
) -> None:
    watch = AccountWatch(cast(Sensors, eyes), eyes.holds)
    found = ticks(eyes, watch, 0, 3.5, Gate("GPU-b"))
    assert set(found) == {frozenset(), frozenset({"GPU-b"})}, (
        "GPU-a has nothing open, and nobody is held for it"
    )
    assert eyes.doubted == [1]
    assert "gpu=GPU-b account=contradicted claimed=1.00 load=0.30 claims_ended=1" in caplog.text
    assert watch.doubts[1].times == 1
    later_ns = 3_500 * MS + 2_000 * MS
    assert ticks(eyes, watch, later_ns, 0.1, None)[-1] == frozenset()


def test_where_everybody_is_heard_of_the_account_is_believed(eyes: Eyes) -> None:
    watch = AccountWatch(cast(Sensors, eyes), eyes.holds)
    eyes.is_silent = False
    assert set(ticks(eyes, watch, 0, 10, Gate("GPU-b"))) == {frozenset()}


def test_a_quota_is_no_hold_for_others(eyes: Eyes) -> None:
    watch = AccountWatch(cast(Sensors, eyes), eyes.holds)
    assert set(ticks(eyes, watch, 0, 10, Gate("GPU-b", is_quota=True))) == {frozenset()}


def test_the_load_is_asked_for_while_somebody_is_held_and_a_little_longer(eyes: Eyes) -> None:
    watch = AccountWatch(cast(Sensors, eyes), eyes.holds)
    ticks(eyes, watch, 0, 0.1, None)
    assert not eyes.is_wanted and watch.doubts == {}
    ticks(eyes, watch, 100 * MS, 1, Gate("GPU-b"))
    assert eyes.is_wanted
    ticks(eyes, watch, 1_100 * MS, 5.2, None)
    assert eyes.is_wanted
    assert watch.doubts[1].window_ns > 0
    ticks(eyes, watch, 6_300 * MS, 2, None)
    assert not eyes.is_wanted
    assert watch.doubts[1].window_ns == 0, "half a window is not gone on with a minute later"


def test_without_an_account_there_is_nothing_to_contradict(eyes: Eyes) -> None:
    watch = AccountWatch(cast(Sensors, eyes), eyes.holds)
    eyes.account = None
    assert set(ticks(eyes, watch, 0, 10, Gate("GPU-b"))) == {frozenset()}
    assert eyes.doubted == []


def test_an_account_that_is_lost_ends_the_questions_about_loads(eyes: Eyes) -> None:
    watch = AccountWatch(cast(Sensors, eyes), eyes.holds)
    ticks(eyes, watch, 0, 1, Gate("GPU-b"))
    assert eyes.is_wanted
    eyes.account = None
    ticks(eyes, watch, 1_000 * MS, 0.1, Gate("GPU-b"))
    assert not eyes.is_wanted
