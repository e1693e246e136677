# SPDX-License-Identifier: Apache-2.0
"""NVML's accounting mode of the stand-in, asked with pynvml: as the driver has it, with what it cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.simgpu import SimHost, Workload
from tests.support import wait_until
from tests.unit.simgpu.mixes import SLICE_NS, SWITCH_NS

ROOT = Path(__file__).resolve().parents[3]
TRAINER = Workload("trainer", kernels=10, kernel_us=500, depth=40)
NOT_FOUND, NOT_SUPPORTED, FUNCTION_NOT_FOUND = 6, 3, 13

ASK = """
import json, sys, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
def ask(name, *arguments):
    try:
        found = getattr(n, name)(d, *arguments)
    except n.NVMLError as error:
        return {"error": error.value}
    fields = getattr(found, "_fields_", None)
    return found if fields is None else {f[0]: getattr(found, f[0]) for f in fields if f[0] != "reserved"}
for line in sys.stdin:
    print(json.dumps(ask(*json.loads(line))), flush=True)
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the driver's accounting mode takes root: run the tests as root"
)


class Asker:
    """pynvml in a process of its own: libnvidia-ml is found at its start."""

    def __init__(self, host: SimHost, program: str = ASK, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **host.env(), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, name: str, *arguments: int) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(["nvmlDevice" + name, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def ask(host: SimHost) -> Iterator[Asker]:
    asker = Asker(host)
    yield asker
    asker.close()


def test_it_is_off_until_somebody_switches_it_on_and_counts_nobody_from_before(
    host: SimHost, ask: Asker
) -> None:
    before = host.spawn(TRAINER)
    wait_until(lambda: len(host.truth()) == 1, 30, "it has a context")
    assert ask("GetAccountingMode") == 0
    assert ask("GetAccountingPids") == ask("GetAccountingStats", before.pid) == {"error": NOT_SUPPORTED}
    assert ask("SetAccountingMode", 1) is None
    assert (ask("GetAccountingMode"), ask("GetAccountingPids")) == (1, [])
    after = host.spawn(TRAINER)
    wait_until(lambda: ask("GetAccountingPids") == [after.pid], 30, "the one that came later is listed")
    assert ask("GetAccountingStats", before.pid) == {"error": NOT_FOUND}


def test_sums_grow_once_a_second_and_a_mean_is_told_in_whole_percents(host: SimHost, ask: Asker) -> None:
    ask("SetAccountingMode", 1)
    workers = [host.spawn(TRAINER), host.spawn(TRAINER)]

    def stats() -> list[dict[str, int]]:
        return [ask("GetAccountingStats_v2", worker.pid) for worker in workers]

    wait_until(lambda: all(one.get("sampleCount", 0) >= 7 for one in stats()), 60, "both are in the account")
    before = stats()
    wait_until(
        lambda: stats()[0]["sampleCount"] >= before[0]["sampleCount"] + 21, 60, "three callbacks later"
    )
    after = stats()
    for one in after:
        assert (one["isRunning"], one["time"]) == (1, 0)
        assert one["gpuUtilization"] == one["sumGpuUtil"] // one["sampleCount"] // 100
    # Each sample names one of the two, and both together keep the GPU busy but for switches.
    grown = [
        (b["sumGpuUtil"] - a["sumGpuUtil"]) / (b["sampleCount"] - a["sampleCount"])
        for a, b in zip(before, after, strict=True)
    ]
    assert sum(grown) == pytest.approx(10_000 * SLICE_NS / (SLICE_NS + SWITCH_NS), abs=600)
    assert ask("GetAccountingStats", workers[0].pid)["gpuUtilization"] in range(101)


def test_who_ends_is_kept_with_its_time_until_it_is_cleared_away(host: SimHost, ask: Asker) -> None:
    ask("SetAccountingMode", 1)
    worker = host.spawn(Workload("decode", kernels=4, kernel_us=100, seconds=0.2))
    assert worker.process.wait(30) == 0
    wait_until(lambda: ask("GetAccountingStats", worker.pid).get("isRunning") == 0, 30, "it has ended")
    ended = ask("GetAccountingStats", worker.pid)
    assert 150 <= ended["time"] <= 5_000
    (truth,) = host.truth()
    assert ended["time"] == (truth.ended_ns - truth.created_ns) // 1_000_000
    assert ask("ClearAccountingPids") is None
    assert ask("GetAccountingPids") == []


def test_an_older_driver_has_no_sums(host: SimHost) -> None:
    ask = Asker(host, FAIRSCHED_SIM_NVML_ACCOUNTING="v1")
    try:
        ask("SetAccountingMode", 1)
        assert ask("GetAccountingStats_v2", 1) == {"error": FUNCTION_NOT_FOUND}
        assert ask("GetAccountingStats", 1) == {"error": NOT_FOUND}
        assert ask("GetAccountingBufferSize") == 1024
    finally:
        ask.close()


READ = """
import json, sys
from fairsched.gpu.accounting_mode import AccountingMode
from fairsched.gpu.nvml import Nvml
from fairsched.gpu.sampler import open_readers
(reader,) = open_readers(Nvml())
mode = AccountingMode(reader, is_wanted=True)
for line in sys.stdin:
    mode.look()
    running = mode.running()
    booked = mode.booked(running)
    found = None if booked is None else {pid: list(one) for pid, one in booked.items()}
    print(json.dumps([mode.is_on, mode.is_blind, running, found, mode.unseen, mode.unseen_ms]), flush=True)
"""


@pytest.mark.parametrize("version", ["", "v1"])
def test_the_daemon_reads_it_through_pynvml(host: SimHost, version: str) -> None:
    reading = Asker(host, READ, FAIRSCHED_SIM_NVML_ACCOUNTING=version, PYTHONPATH=str(ROOT))
    try:
        assert reading("") == [True, False, [], {}, 0, 0], "nobody is there, and it was switched on"
        worker = host.spawn(
            replace(TRAINER, kernel_us=50_000)
        )  # 20 s are queued, should it wait for a processor
        wait_until(lambda: reading("")[2] == [worker.pid], 30, "it runs")
        if not version:
            wait_until(lambda: reading("")[3][str(worker.pid)][1] >= 14, 60, "two callbacks came")
            start_us, samples, sum_ratio = reading("")[3][str(worker.pid)]
            assert start_us > 10**15 and 0.7 * samples < sum_ratio <= samples
        brief = host.spawn(Workload("decode", kernels=4, kernel_us=100, seconds=0.1))
        assert brief.process.wait(30) == 0
        wait_until(lambda: reading("")[4] == 1, 30, "one came and went unseen")
        (truth,) = host.truth_of(brief)
        assert reading("")[5] == (truth.ended_ns - truth.created_ns) // 1_000_000
        if version:
            assert reading("")[3] == {}, "this driver has no sums"
    finally:
        reading.close()
