# SPDX-License-Identifier: Apache-2.0
"""Holds are dated by the kernel's count of frozen time, however late it is looked at."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fair.holds import HoldWatch, StateWatch
from benchmarks.fair.recording import HeldTime
from tests.support import wait_until

MS = 1_000_000


class Kernel:
    """The two files of one cgroup, and the clock."""

    def __init__(self, directory: Path, *, counts: bool = True) -> None:
        self.directory, self._counts = directory, counts
        self.now_ns = 0
        self.write("0")
        self.show(0, 0)

    def clock_ns(self) -> int:
        return self.now_ns

    def show(self, frozen: int, frozen_ms: float) -> None:
        (self.directory / "cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")
        if self._counts:
            (self.directory / "cgroup.stat.local").write_text(f"frozen_usec {round(frozen_ms * 1000)}\n")

    def write(self, *values: str) -> None:
        """To cgroup.freeze."""
        for value in values:
            with open(self.directory / "cgroup.freeze", "w") as file:
                file.write(value)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.fixture
def watch(kernel: Kernel) -> Iterator[HoldWatch]:
    watch = HoldWatch({"chat": str(kernel.directory)}, clock_ns=kernel.clock_ns)
    yield watch
    watch.close()


def look(kernel: Kernel, watch: HoldWatch, at_ms: float, frozen: int, frozen_ms: float) -> None:
    kernel.now_ns = round(at_ms * MS)
    kernel.show(frozen, frozen_ms)
    watch.look()


def held_ms(watch: HoldWatch) -> list[tuple[float, float]]:
    return [(hold.start_ns / MS, hold.end_ns / MS) for hold in watch.finish()]


def test_a_hold_begins_when_the_kernel_froze_and_not_when_we_looked(kernel: Kernel, watch: HoldWatch) -> None:
    look(kernel, watch, 100, 1, 7)
    look(kernel, watch, 110, 1, 17)
    look(kernel, watch, 130, 0, 31.5)
    assert held_ms(watch) == [(93, 124.5)]


def test_one_that_came_and_went_between_two_looks_counts_with_its_length(
    kernel: Kernel, watch: HoldWatch
) -> None:
    look(kernel, watch, 100, 0, 4)
    look(kernel, watch, 110, 0, 4)
    assert held_ms(watch) == [(96, 100)]


def test_two_holds_are_two(kernel: Kernel, watch: HoldWatch) -> None:
    look(kernel, watch, 100, 0, 4)
    look(kernel, watch, 200, 1, 9)
    kernel.now_ns = 210 * MS
    kernel.show(1, 19)
    assert held_ms(watch) == [(96, 100), (195, 210)]


def test_a_pause_too_short_to_be_seen_shows_in_the_count(kernel: Kernel, watch: HoldWatch) -> None:
    look(kernel, watch, 100, 1, 10)
    look(kernel, watch, 110, 1, 20)
    look(kernel, watch, 120, 1, 29)
    look(kernel, watch, 130, 1, 39)
    kernel.now_ns = 140 * MS
    kernel.show(0, 45)
    assert held_ms(watch) == [(90, 114.5), (115.5, 136)]


def test_a_look_that_is_late_by_some_microseconds_is_no_pause(kernel: Kernel, watch: HoldWatch) -> None:
    look(kernel, watch, 100, 1, 10)
    look(kernel, watch, 110.2, 1, 20)
    look(kernel, watch, 120, 1, 30)
    assert held_ms(watch) == [(90, 120)]


def test_time_frozen_before_we_watched_is_not_ours(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.show(0, 5000)
    watch = HoldWatch({"chat": str(tmp_path)}, clock_ns=kernel.clock_ns)
    look(kernel, watch, 100, 0, 5000)
    assert held_ms(watch) == []
    watch.close()


def test_an_older_kernel_has_only_the_state(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, counts=False)
    watch = HoldWatch({"chat": str(tmp_path)}, clock_ns=kernel.clock_ns)
    look(kernel, watch, 100, 1, 0)
    look(kernel, watch, 110, 1, 0)
    look(kernel, watch, 120, 0, 0)
    assert held_ms(watch) == [(100, 120)]
    watch.close()


def test_a_grant_too_short_for_the_count_is_known_by_its_writes(kernel: Kernel, watch: HoldWatch) -> None:
    kernel.write("1")
    look(kernel, watch, 100, 1, 10)
    look(kernel, watch, 110, 1, 20)
    kernel.write("0", "1")
    look(kernel, watch, 120, 1, 29.8)
    look(kernel, watch, 130, 1, 39.8)
    kernel.write("0")
    look(kernel, watch, 140, 0, 45)
    assert held_ms(watch) == [(90, pytest.approx(114.9)), (pytest.approx(115.1), pytest.approx(135.2))]


def test_the_write_that_begins_a_hold_ends_none(kernel: Kernel, watch: HoldWatch) -> None:
    kernel.write("1")
    look(kernel, watch, 100, 0, 0)  # asked, and not frozen yet
    look(kernel, watch, 110, 1, 9)
    look(kernel, watch, 120, 1, 19)
    kernel.write("0")
    look(kernel, watch, 130, 0, 20)
    assert held_ms(watch) == [(101, 121)]


def test_who_is_stopped_is_held_from_look_to_look(tmp_path: Path) -> None:
    """A process of ours: the kernel tells its state as it does of a tenant's."""
    now_ns = [0]
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "cgroup.procs").write_text(f"{sleeper.pid}\n")
        watch = StateWatch({"a": str(tmp_path)}, b"T", clock_ns=lambda: now_ns[0])
        for act in (None, signal.SIGSTOP, None, signal.SIGCONT, signal.SIGSTOP):
            if act is not None:
                sleeper.send_signal(act)
                is_stopped = act == signal.SIGSTOP
                wait_until(lambda wanted=is_stopped: (state(sleeper.pid) == "T") is wanted, 5, "its state")
            watch.look()
            now_ns[0] += 10 * MS
        expected = (HeldTime("a", 10 * MS, 30 * MS), HeldTime("a", 40 * MS, 50 * MS))
        assert watch.finish() == expected
    finally:
        sleeper.kill()
        sleeper.wait()
    assert watch.finish() == expected, "it is gone"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
