# SPDX-License-Identifier: Apache-2.0
"""What the daemon says about its own cost is what the kernel says."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from fairsched.base.buckets import COUNT, bucket_of
from fairsched.daemon.cost import MapFacts, OwnCost, read_process, read_processes
from fairsched.protocol.own import BpfMap, Histogram

MS = 1_000_000
S = 1_000_000_000


def test_ticks_are_counted_by_how_long_they_took() -> None:
    cost = OwnCost(0)
    for took_ns in (0, 1, 2 * MS, 2 * MS + 1, 5 * MS, 2**50):
        cost.note_tick(took_ns)
    ticks = cost.ticks()
    assert (ticks.total, ticks.first) == (6, 0)
    assert ticks.sum_s == pytest.approx((9 * MS + 2 + 2**50) / 1e9)
    assert ticks.counts[bucket_of(2 * MS)] == 2
    assert (ticks.counts[bucket_of(5 * MS)], ticks.counts[COUNT - 1], ticks.counts[0]) == (1, 1, 2)


def test_a_histogram_without_counts_is_empty_and_is_no_error() -> None:
    assert Histogram.of([0, 0], 0) == Histogram()
    assert Histogram().cumulative([3, 4, 5]) == [0, 0, 0]


def test_the_cpu_ratio_is_that_of_ten_seconds() -> None:
    cost = OwnCost(0)
    cost.refresh(9 * S)
    assert cost.cpu_ratio is None
    before_ns = time.process_time_ns()
    while time.process_time_ns() - before_ns < 20 * MS:
        pass
    cost.refresh(10 * S)
    assert cost.cpu_ratio is not None
    assert 0.002 <= cost.cpu_ratio < 1
    first = cost.cpu_ratio
    cost.refresh(19 * S)
    assert cost.cpu_ratio == first
    cost.refresh(20 * S)
    assert cost.cpu_ratio < first, "only what came after the first ten seconds"


def test_a_process_costs_what_the_kernel_says() -> None:
    cost = read_process("daemon", os.getpid())
    assert cost is not None
    assert cost.cpu_s == pytest.approx(time.process_time(), abs=0.5)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert cost.resident_bytes == pytest.approx(pages * resource.getpagesize(), rel=0.2)


def test_a_process_that_is_not_there_costs_nothing_and_is_not_named() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    found = read_processes({"daemon": os.getpid(), "guardian": None, "attacher": gone.pid})
    assert [one.role for one in found] == ["daemon"]


def test_maps_are_told_from_programs_and_asked_once(tmp_path: Path) -> None:
    (tmp_path / "5").write_text("pos:\t0\nmap_type:\t1\nmax_entries:\t4096\nmemlock:\t8192\n")
    (tmp_path / "6").write_text("prog_type:\t17\nmemlock:\t4096\n")
    (tmp_path / "7").write_text("map_type:\t27\nmax_entries:\t1048576\n")
    facts, fds = MapFacts(str(tmp_path)), [("delay_by_key", 5), ("on_exit", 6), ("edges", 7), ("gone", 8)]
    wanted = (BpfMap("delay_by_key", 4096, 12, 8192), BpfMap("edges", 1048576))
    assert facts.read(fds, {"delay_by_key": 12}) == wanted
    for file in tmp_path.iterdir():
        file.unlink()
    assert facts.read(fds, {"delay_by_key": 12}) == wanted
