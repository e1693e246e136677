# SPDX-License-Identifier: Apache-2.0
"""NVML asked beside the loop: what it saw of whom and when."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fairsched.base.process import ProcessId
from fairsched.gpu.sampler import Sample
from fairsched.gpu.samples import SampleWatch
from tests.support import wait_until

MS = 1_000_000
S = 1000 * MS
CLOCK_US = 10**15
"""NVML's clock when ours says 0."""
NEVER_S = 3600.0
ME = os.getpid()
GONE = 2**22 + 1
"""Beyond any pid."""


class Ring:
    """A reader whose samples a test writes; moments are in ms of our clock."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.asked = 0
        self.gate: threading.Event | None = None
        """Keeps whoever asks until it is set."""

    def add(self, pid: int, *moments_ms: int, busy: float = 1.0) -> None:
        self.samples += [Sample(CLOCK_US + ms * 1000, pid, busy) for ms in moments_ms]

    def read(self, after_us: int) -> list[Sample]:
        self.asked += 1
        if self.gate is not None:
            self.gate.wait(5)
        return [sample for sample in self.samples if sample.time_us > after_us]


def watch_of(*rings: Ring, cgroup_of: Callable[[int], int | None] = lambda _pid: 7) -> SampleWatch:
    return SampleWatch(rings, cgroup_of, poll_s=NEVER_S)  # type: ignore[arg-type]


def test_samples_of_several_polls_become_one_entry_with_its_first_and_last_moment() -> None:
    ring = Ring()
    watch = watch_of(ring)
    ring.add(ME, 0)
    watch.poll(0)  # the first sample only starts the clock
    ring.add(ME, 139, 278)
    watch.poll(278 * MS)
    ring.add(ME, 417, busy=0.5)
    watch.poll(500 * MS)
    (one,) = watch.take()
    assert (one.pid, one.slot, one.cgroup_id, one.samples) == (ME, 0, 7, 3)
    assert one.busy_ns == round(2.5 * 139 * MS)
    assert one.period_ns == 139 * MS
    assert (one.first_ns, one.last_ns) == (139 * MS, 417 * MS)
    assert watch.seen_running == {(ME, 0): 417 * MS}
    assert watch.take() == [], "taken once"


def test_a_sample_that_comes_late_is_dated_by_the_promptest_ones() -> None:
    ring = Ring()
    watch = watch_of(ring)
    ring.add(ME, 0)
    watch.poll(0)
    ring.add(ME, 139)
    watch.poll(139 * MS)
    watch.take()
    ring.add(ME, 278)
    watch.poll(900 * MS)
    assert watch.take()[0].last_ns == 278 * MS


def test_who_was_not_seen_for_long_is_not_seen_running() -> None:
    ring = Ring()
    watch = watch_of(ring)
    ring.add(ME, 0, 139)
    watch.poll(139 * MS)
    assert (ME, 0) in watch.seen_running
    watch.poll(6 * S)
    assert watch.seen_running == {}


def test_gpus_are_told_apart_and_the_gone_run_no_more() -> None:
    one, two = Ring(), Ring()
    watch = watch_of(one, two, cgroup_of=lambda pid: 7 if pid == ME else None)
    for ring in (one, two):
        ring.add(ME, 0)
    two.add(GONE, 139)
    two.add(ME, 278)
    watch.poll(300 * MS)
    found = [(sampled.pid, sampled.slot, sampled.owner, sampled.cgroup_id) for sampled in watch.take()]
    assert found == [(GONE, 1, None, None), (ME, 1, ProcessId.of(ME), 7)]
    assert set(watch.seen_running) == {(ME, 1)}


def test_whose_a_process_was_is_known_though_it_has_ended_since(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, cgroups, me = Ring(), {ME: 7}, ProcessId.of(ME)
    watch = watch_of(ring, cgroup_of=cgroups.get)
    ring.add(ME, 0, 139)
    watch.poll(139 * MS)
    cgroups.clear()
    monkeypatch.setattr(ProcessId, "of", lambda _pid: None)
    ring.add(ME, 278)
    watch.poll(278 * MS)
    (one,) = watch.take()
    assert (one.owner, one.cgroup_id, one.samples, one.busy_ns) == (me, 7, 2, 2 * 139 * MS)


def test_another_process_of_the_same_pid_is_counted_anew_and_nothing_of_the_first_is_lost() -> None:
    ring = Ring()
    watch = watch_of(ring)
    ring.add(ME, 0, 139, 278)
    watch.poll(300 * MS)
    (kept,) = watch._found
    assert kept.owner is not None
    kept.owner = ProcessId(ME, kept.owner.start_ticks - 1)
    ring.add(ME, 417)
    watch.poll(500 * MS)
    assert [sampled.samples for sampled in watch.take()] == [2, 1]


def test_a_driver_that_hangs_keeps_nobody_waiting() -> None:
    gate, ring = threading.Event(), Ring()
    ring.gate = gate
    watch = SampleWatch([ring], lambda _pid: 7, poll_s=0.01)  # type: ignore[list-item]
    watch.start()
    try:
        wait_until(lambda: ring.asked > 0, 10, "it is asked")
        assert watch.take() == []
    finally:
        watch.stop()
        gate.set()


def test_it_asks_oftener_until_it_knows_how_often_samples_are_taken() -> None:
    ring = Ring()
    watch = watch_of(ring)
    assert watch._pause_s() == NEVER_S, "nobody uses the GPU"
    for number in range(8):
        ring.add(ME, number * 139)
        watch.poll(number * 139 * MS)
        assert watch._pause_s() == (NEVER_S / 4 if number < 7 else NEVER_S)
    ring = Ring()
    watch = watch_of(ring)
    ring.add(ME, 0)
    watch.poll(0)
    watch.poll(S)
    assert watch._pause_s() == NEVER_S, "nobody does any more"


def test_it_asks_oftener_while_somebody_is_suspected() -> None:
    watch = watch_of(Ring())
    usual_s = watch._pause_s()
    watch.is_urgent = True
    assert (usual_s, watch._pause_s()) == (NEVER_S, NEVER_S / 4)


def test_without_an_accounting_mode_nothing_is_kept_for_it() -> None:
    """Or one that polls for months keeps every pid that ever was sampled."""
    ring = Ring()
    watch = watch_of(ring)
    for turn in range(5):
        ring.add(ME + turn, 139 * turn)
        watch.poll(139 * turn * MS)
    assert len(watch.take()) > 1
    assert not watch._gpus[0].told_ns


def test_odd_answers_are_counted_while_the_thread_adds_one() -> None:
    """The loop asks, for whoever wants the status."""

    class Adding(Counter[str]):
        def items(self) -> Any:
            for item in super().items():
                self["fallen_sum"] += 1
                yield item

    watch = watch_of(Ring(), Ring())
    for gpu in watch._gpus:
        gpu.arrears.odd = Adding(reused_pid=1)
    assert watch.counts() == {"reused_pid": 2}
