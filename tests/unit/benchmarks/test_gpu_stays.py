# SPDX-License-Identifier: Apache-2.0
"""Adds up stays from a trace that is made up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.gpu.stays import Stays
from fairsched.gpu.trace import Switch, TraceLost

A, B = 11, 22


class Tape:
    """Answers each read with the next part; a TraceLost is raised."""

    told_ns = 0

    def __init__(self, parts: Sequence[tuple[list[Switch], bool] | TraceLost]) -> None:
        self._parts = list(parts)

    def read(self) -> tuple[list[Switch], bool]:
        part = self._parts.pop(0) if self._parts else ([], True)
        if isinstance(part, TraceLost):
            raise part
        return part


@contextmanager
def stays(*parts: tuple[list[Switch], bool] | TraceLost) -> Iterator[Stays]:
    closed: list[int] = []
    found = Stays(Tape(parts), lambda: closed.append(1))
    try:
        yield found
    finally:
        found.close()
        assert closed == [1]


def stay(pid: int, begin_ns: int, end_ns: int) -> list[Switch]:
    return [Switch(begin_ns, pid, 1, True), Switch(end_ns, pid, 1, False)]


def until_all_is_read(found: Stays, pids: list[int], least_ns: int) -> None:
    end_s = time.monotonic() + 10
    while (found.ns(pids) or 0) < least_ns and time.monotonic() < end_s:
        pass


def test_each_has_the_time_between_its_switches() -> None:
    parts = [(stay(A, 100, 300) + stay(B, 310, 400), True), (stay(A, 410, 500), True)]
    with stays(*parts) as found:
        until_all_is_read(found, [A], 290)
        assert (found.ns([A]), found.ns([B]), found.ns([A, B]), found.ns([7])) == (290, 90, 380, 0)


def test_who_has_the_gpu_now_has_it_up_to_now() -> None:
    begin_ns = time.monotonic_ns()
    with stays(([Switch(begin_ns, A, 1, True)], True)) as found:
        until_all_is_read(found, [A], 1)
        first, second = found.ns([A]), found.ns([A])
        most_ns = time.monotonic_ns() - begin_ns
        assert first is not None and second is not None
        assert 0 < first <= second <= most_ns, "counted once"


def test_a_gap_and_a_loss_leave_nothing_to_tell() -> None:
    for parts in ([(stay(A, 100, 300), False)], [TraceLost("the driver is gone")]):
        with stays(*parts) as found:
            end_s = time.monotonic() + 10
            while found.ns([A]) is not None and time.monotonic() < end_s:
                pass
            assert found.ns([A]) is None
