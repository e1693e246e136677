# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU is well: the law by itself, and NVML that loses GPUs and reports errors (the simulated one)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fairsched.gpu.health import Illness, Report
from fairsched.simgpu.host import GpuSpec, SimHost
from tests.support import wait_until
from tests.unit.repo.tree import ROOT

SEEN_S = 20.0


def test_a_gpu_is_unwell_while_nvml_does_not_answer_for_it() -> None:
    ill = Illness(quiet_s=100)
    assert ill.take(None, None, 0) is None
    assert ill.take("GPU is lost", None, 1) == "GPU is lost"
    assert ill.take(None, None, 2) is None


def test_a_report_lasts_until_nothing_was_reported_for_a_while() -> None:
    ill, first, second = Illness(quiet_s=100), Report(48, 10), Report(79, 60)
    assert ill.take(None, first, 10) == "the driver has reported Xid 48"
    assert ill.take(None, second, 61) == "the driver has reported Xid 79"
    assert ill.take(None, second, 159) is not None
    assert ill.take(None, second, 160) is None
    assert ill.take(None, second, 10_000) is None


def test_a_gpu_that_was_away_after_its_report_was_reset() -> None:
    ill, report = Illness(quiet_s=1000), Report(48, 10)
    assert ill.take("lost", None, 9) == "lost"
    assert ill.take(None, report, 11) is not None, "away before the report is no reset"
    assert ill.take("lost", report, 12) == "lost"
    assert ill.take(None, report, 13) is None
    assert ill.take(None, Report(48, 14), 15) is not None, "another report is another illness"


READER = """
import json, sys, time
from fairsched.gpu.health import XidWatch, minor_of, probe
from tests.support import wait_until
watch = XidWatch((48,), time.monotonic)
assert watch.reopen()
watch.follow()
nvml = watch.nvml
wait_until(lambda: watch.is_deaf or watch.watched(), 20, "it watches")
minors = [minor_of(nvml, slot) for slot in range(len(nvml.gpus))]
first = {"deaf": watch.is_deaf, "minors": minors, "gpus": [gpu.uuid for gpu in nvml.gpus]}
print(json.dumps(first), flush=True)
for line in sys.stdin:
    nvml.refresh()
    uuids = [gpu.uuid for gpu in nvml.gpus]
    print(json.dumps({
        "troubles": [probe(nvml, slot) for slot in range(len(uuids))],
        "xids": [getattr(watch.last(uuid), "xid", None) for uuid in uuids], "gpus": uuids,
        "counts": sorted([*key, count] for key, count in watch.counts().items()),
    }), flush=True)
print(json.dumps(watch.close()), flush=True)
"""


class Reader:
    """Another process, with NVML: what it says when it is asked."""

    def __init__(self, host: SimHost) -> None:
        env = {**os.environ, **host.env(), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = self.line()

    def line(self) -> dict[str, list[object]]:
        assert self.process.stdout is not None
        found: dict[str, list[object]] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self) -> dict[str, list[object]]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost([GpuSpec(), GpuSpec()]) as found:
        yield found


@pytest.fixture
def reader(host: SimHost) -> Iterator[Reader]:
    found = Reader(host)
    yield found
    found.close()


def test_a_lost_gpu_is_lost_alone_and_found_again(host: SimHost, reader: Reader) -> None:
    assert reader.first["minors"] == [0, 1]
    assert reader.ask()["troubles"] == [None, None]
    host.lose(1)
    found = reader.ask()
    assert found["troubles"] == [None, "NVML: GPU is lost"] and found["gpus"] == host.uuids()
    host.find(1)
    assert reader.ask()["troubles"] == [None, None]


def test_a_gpu_that_is_lost_from_the_start_hides_no_other_and_is_found_later(host: SimHost) -> None:
    host.lose(0)
    found = Reader(host)
    try:
        assert found.first["gpus"] == found.ask()["gpus"] == [host.uuids()[1]]
        host.find(0)
        assert set(found.ask()["gpus"]) == set(host.uuids())
    finally:
        found.close()


def test_a_report_that_counts_is_kept_and_another_is_not(host: SimHost, reader: Reader) -> None:
    host.report_xid(13, gpu=0)
    host.report_xid(48, gpu=1)
    wait_until(lambda: reader.ask()["xids"] == [None, 48], SEEN_S, "the report is seen")
    assert reader.ask()["counts"] == sorted([[host.uuids()[0], 13, 1], [host.uuids()[1], 48, 1]])
    assert reader.first["deaf"] is None
    assert reader.process.stdin is not None
    reader.process.stdin.close()
    assert reader.line() is True, "it can be closed"


def test_a_report_of_a_gpu_that_does_not_say_its_name_any_more_is_known(
    host: SimHost, reader: Reader
) -> None:
    """As that of one which has fallen off its bus."""
    host.lose(1)
    host.report_xid(79, gpu=1)
    host.report_xid(79, gpu=1)
    wait_until(lambda: reader.ask()["counts"] == [[host.uuids()[1], 79, 2]], SEEN_S, "both are counted")


@pytest.mark.parametrize(("wish", "why"), [("on", None), ("off", "Not Supported")])
def test_a_driver_that_reports_no_errors_says_so(host: SimHost, wish: str, why: str | None) -> None:
    code = (
        "import pynvml\nfrom fairsched.gpu.health import reports_obstacle\npynvml.nvmlInit()\n"
        f"print(reports_obstacle(pynvml, {host.uuids()}))"
    )
    env = {**os.environ, **host.env(), "PYTHONPATH": str(ROOT), "FAIRSCHED_SIM_NVML_XID": wish}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(why), done.stderr
