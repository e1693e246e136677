# SPDX-License-Identifier: Apache-2.0
"""The errors that the driver reports are counted for the pages: from the simulated NVML, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairsched.companion.exporter.xids import FAMILY
from fairsched.gpu.health import UNWELL_XIDS
from fairsched.simgpu.host import GpuSpec, SimHost
from tests.support import wait_until
from tests.unit.repo.tree import ROOT

SEEN_S = 20.0
READER = """
import json, sys
from fairsched.companion.exporter.xids import XidRows
rows = XidRows(look_s=0.05)
for line in sys.stdin:
    print(json.dumps([rows._watch.is_deaf, rows.rows()]), flush=True)
rows.close()
print(json.dumps([None, rows.rows()]), flush=True)
"""


class Exporter:
    """Another process, with NVML: its rows when it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.deaf: str | None = None
        """Why it hears nothing."""

    def line(self) -> dict[tuple[str, int], int]:
        assert self.process.stdout is not None
        self.deaf, rows = json.loads(self.process.stdout.readline())
        assert all(family == FAMILY for family, _, _ in rows)
        found = {(uuid, int(xid)): count for _, (uuid, xid), count in rows}
        assert len(found) == len(rows), "no series twice"
        return found

    def rows(self) -> dict[tuple[str, int], int]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    def some(self) -> dict[tuple[str, int], int]:
        """Those that are not 0."""
        return {key: count for key, count in self.rows().items() if count}


@contextmanager
def exporting(host: SimHost, **env: str) -> Iterator[Exporter]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER],
        env={**os.environ, **host.env(), "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Exporter(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost([GpuSpec(), GpuSpec()]) as found:
        yield found


def test_each_error_is_counted_by_gpu_and_number(host: SimHost) -> None:
    first, second = host.uuids()
    with exporting(host) as exporter:
        wait_until(exporter.rows, SEEN_S, "it listens")
        assert exporter.rows() == {(uuid, xid): 0 for uuid in host.uuids() for xid in UNWELL_XIDS}
        for xid, gpu in ((79, 0), (13, 1), (13, 1)):
            host.report_xid(xid, gpu)
        wait_until(lambda: exporter.some() == {(first, 79): 1, (second, 13): 2}, SEEN_S, "all are counted")


def test_a_gpu_that_is_found_later_is_listened_to_and_counts_stay(host: SimHost) -> None:
    first, second = host.uuids()
    host.lose(1)
    with exporting(host) as exporter:
        wait_until(exporter.rows, SEEN_S, "it listens")
        assert {uuid for uuid, _ in exporter.rows()} == {first}
        host.report_xid(48, 0)
        wait_until(lambda: exporter.some() == {(first, 48): 1}, SEEN_S, "it is counted")
        host.find(1)
        wait_until(lambda: {uuid for uuid, _ in exporter.rows()} == {first, second}, SEEN_S, "both are there")
        assert exporter.some() == {(first, 48): 1}
        host.report_xid(48, 0)
        host.report_xid(31, 1)
        wait_until(lambda: exporter.some() == {(first, 48): 2, (second, 31): 1}, SEEN_S, "and all after that")


def test_where_nvml_hands_on_nothing_there_is_no_series(host: SimHost) -> None:
    with exporting(host, FAIRSCHED_SIM_NVML_XID="off") as exporter:
        wait_until(lambda: exporter.rows() or exporter.deaf, SEEN_S, "it has tried")
        host.report_xid(79, 0)
        assert exporter.rows() == {}


def test_it_ends_in_order(host: SimHost) -> None:
    with exporting(host) as exporter:
        wait_until(exporter.rows, SEEN_S, "it listens")
        assert exporter.process.stdin is not None
        exporter.process.stdin.close()
        assert exporter.line() == {}
        assert exporter.process.wait(SEEN_S) == 0
