# SPDX-License-Identifier: Apache-2.0
"""GPU time of processes, asked beside the loop."""

from __future__ import annotations

import threading

from fairsched.gpu.sampler import Sample
from fairsched.gpu.used import Sampled, UsedTime
from tests.support import wait_until

WINDOW_US = 139_000
BEGIN_US = 10**15


class Reader:
    """Has what a test put in; with ``gate`` it keeps whoever asks until that is set."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.samples: list[Sample] = []
        self.gate, self.asked = gate, 0

    def read(self, after_us: int) -> list[Sample]:
        self.asked += 1
        if self.gate is not None:
            self.gate.wait()
        return [one for one in self.samples if one.time_us > after_us]

    def add(self, pid: int) -> None:
        self.samples.append(Sample(BEGIN_US + len(self.samples) * WINDOW_US, pid, 1.0))


def test_what_several_answers_say_is_kept_until_it_is_taken() -> None:
    reader, used = Reader(), None
    used = UsedTime([reader], {1: 100, 2: 200}.get)  # type: ignore[list-item]
    for place, pid in enumerate([1, 1, 2, 1], 1):
        reader.add(pid)
        used.poll(place * WINDOW_US * 1000)
    (found,) = used.take(5 * WINDOW_US * 1000)
    period_ns = WINDOW_US * 1000
    assert found == {1: Sampled(2 * period_ns, 100), 2: Sampled(period_ns, 200)}
    assert used.take(6 * WINDOW_US * 1000) == [{}]


def test_whose_a_process_was_is_known_though_it_has_ended_since() -> None:
    reader, cgroups = Reader(), {1: 100}
    used = UsedTime([reader], cgroups.get)  # type: ignore[list-item]
    for place in (1, 2):
        reader.add(1)
        used.poll(place * WINDOW_US * 1000)
    cgroups.clear()
    reader.add(1)
    (found,) = used.take(3 * WINDOW_US * 1000)
    assert found[1] == Sampled(2 * WINDOW_US * 1000, 100)


def test_a_driver_that_hangs_keeps_nobody_waiting() -> None:
    gate = threading.Event()
    reader = Reader(gate)
    used = UsedTime([reader], {1: 100}.get)  # type: ignore[list-item]
    used.start()
    try:
        wait_until(lambda: reader.asked > 0, 10, "it is asked")
        assert used.take(0) == [{}]
    finally:
        gate.set()
        used.close()
