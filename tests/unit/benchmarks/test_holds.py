# SPDX-License-Identifier: Apache-2.0
"""Holds are dated by the kernel's count of frozen time, however late it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fair.holds import HoldWatch
from benchmarks.fair.recording import HeldTime

MS = 1_000_000


class Kernel:
    """The two files of one cgroup."""

    def __init__(self, directory: Path, *, counts: bool = True) -> None:
        self.directory, self._counts = directory, counts
        self.show(0, 0)

    def show(self, frozen: int, frozen_ms: float) -> None:
        (self.directory / "cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")
        if self._counts:
            (self.directory / "cgroup.stat.local").write_text(f"frozen_usec {round(frozen_ms * 1000)}\n")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.fixture
def watch(kernel: Kernel) -> Iterator[HoldWatch]:
    watch = HoldWatch({"chat": str(kernel.directory)})
    yield watch
    watch.close()


def test_a_hold_begins_when_the_kernel_froze_and_not_when_we_looked(kernel: Kernel, watch: HoldWatch) -> None:
    kernel.show(1, 7)
    watch.look(100 * MS)
    kernel.show(0, 31.5)
    watch.look(130 * MS)
    assert watch.finish(200 * MS) == (HeldTime("chat", 93 * MS, 124_500_000),)


def test_one_that_came_and_went_between_two_looks_counts_with_its_length(
    kernel: Kernel, watch: HoldWatch
) -> None:
    kernel.show(0, 4)
    watch.look(100 * MS)
    assert watch.finish(110 * MS) == (HeldTime("chat", 96 * MS, 100 * MS),)


def test_two_holds_are_two(kernel: Kernel, watch: HoldWatch) -> None:
    kernel.show(0, 4)
    watch.look(100 * MS)
    kernel.show(1, 9)
    watch.look(200 * MS)
    assert watch.finish(210 * MS) == (
        HeldTime("chat", 96 * MS, 100 * MS),
        HeldTime("chat", 195 * MS, 210 * MS),
    )


def test_time_frozen_before_we_watched_is_not_ours(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.show(0, 5000)
    watch = HoldWatch({"chat": str(tmp_path)})
    watch.look(100 * MS)
    assert watch.finish(110 * MS) == ()
    watch.close()


def test_an_older_kernel_has_only_the_state(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, counts=False)
    watch = HoldWatch({"chat": str(tmp_path)})
    kernel.show(1, 0)
    watch.look(100 * MS)
    watch.look(110 * MS)
    kernel.show(0, 0)
    watch.look(120 * MS)
    assert watch.finish(130 * MS) == (HeldTime("chat", 100 * MS, 120 * MS),)
    watch.close()
