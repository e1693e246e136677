# SPDX-License-Identifier: Apache-2.0
"""The product's reader of context switches on simulated GPUs: what it is told is what the engine did."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.gpu.trace import Switch
from fairsched.simgpu import GpuSpec, SimHost, Workload
from fairsched.simgpu.mps import MpsServer
from tests.support import let_run, wait_until
from tests.unit.simgpu import traced
from tests.unit.simgpu.conftest import Client

TRACED = Path(traced.__file__)
STEADY = Workload("trainer", kernels=10, kernel_us=300, jitter_ratio=0.3, depth=4)
SWITCH_US = 155
LEAVES_NS, COMES_NS = 30_000, 60_000
"""What a stay of the trace is longer by at its end and at its beginning (facts of an H100)."""
ABOUT_NS = 20_000
"""Of two clocks that are compared by looking at both."""
PATIENCE_S = 30


class Reader:
    """The product's reader in a process that has the driver's stand-in preloaded."""

    def __init__(self, client: Client) -> None:
        self._client, self.pid = client, client.pid
        self.opening = client.says()
        self.seen: list[Switch] = []
        self.wholes: list[bool] = []

    def read(self) -> dict[str, Any]:
        """One read; what it tells is added to ``seen``."""
        self._client.go_on()
        answer = self._client.says()
        if "switches" in answer:
            self.seen += [Switch(*fields) for fields in answer["switches"]]
            self.wholes.append(answer["is_whole"])
        return answer

    def read_for(self, seconds: float) -> None:
        """Ten times a second."""
        for _ in range(round(seconds * 10)):
            let_run(0.1)
            self.read()

    def stays(self) -> list[tuple[int, int, int]]:
        """Pid, start and end of each that is over."""
        found, start = [], None
        for switch in self.seen:
            if not switch.is_start and start is not None and switch.pid:
                found.append((switch.pid, start.t_ns, switch.t_ns))
            start = switch if switch.is_start else None
        return found


MakeReader = Callable[..., Reader]


@pytest.fixture
def make_reader() -> Iterator[MakeReader]:
    """make_reader(host, gpu, NAME=value) -> Reader"""
    with contextlib.ExitStack() as stack:

        def make(host: SimHost, gpu: int = 0, **env: str) -> Reader:
            words = ("reader", str(host.device_dir), host.uuids()[gpu])
            client = Client(host, words, {**host.trace_env(), **env}, TRACED)
            stack.callback(client.close)
            return Reader(client)

        yield make


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost([GpuSpec(switch_us=SWITCH_US)]) as host:
        yield host


def test_each_gpu_has_its_own_trace_whatever_the_driver_counts(make_reader: MakeReader) -> None:
    with SimHost([GpuSpec(), GpuSpec()]) as host:
        pids = [
            {host.spawn(Workload("trainer", kernels=10, kernel_us=300, device=gpu)).pid for _ in range(2)}
            for gpu in range(2)
        ]
        readers = [make_reader(host, gpu) for gpu in range(2)]
        for reader in readers:
            reader.read_for(0.5)
        assert [{switch.pid for switch in reader.seen} - {0} for reader in readers] == pids
        for reader in readers:
            nodes = [os.path.basename(os.readlink(fd)) for fd in Path(f"/proc/{reader.pid}/fd").iterdir()]
            assert len([name for name in nodes if re.fullmatch(r"nvidia\d", name)]) == 1, (
                "of others none is held"
            )


def test_turns_come_in_order_and_none_is_missing(host: SimHost, make_reader: MakeReader) -> None:
    """Also past the 65536th number, which comes after 536 records."""
    pids = {host.spawn(STEADY).pid for _ in range(3)}
    reader = make_reader(host)
    reader.read_for(2)
    assert all(reader.wholes)
    assert len(reader.seen) > 1000
    assert [one.is_start for one in reader.seen[:-1]] == [not one.is_start for one in reader.seen[1:]]
    times = [one.t_ns for one in reader.seen]
    assert times == sorted(times)
    kernel = [one for one in reader.seen if one.pid == 0]
    assert 5 < len(kernel) < len(reader.seen) / 20, "the driver has turns of its own now and then"
    assert {one.pid for one in reader.seen} == {0, *pids}
    assert len({one.channel for one in reader.seen if one.pid}) == len(pids), "one channel has each"


def test_stays_are_the_engines_and_a_switch_longer(host: SimHost, make_reader: MakeReader) -> None:
    pids = {host.spawn(STEADY).pid for _ in range(2)} | {host.spawn(Workload("trainer", kernel_us=70)).pid}
    reader = make_reader(host)
    reader.read_for(2)
    told = reader.stays()
    by_id = {context.id: context.pid for context in host.truth()}
    stays = host.residencies()
    first, last = told[0][1], told[-1][2]
    true = [one for one in stays if one.start_ns > first and one.end_ns < last]
    assert len(true) == len(told) > 500
    assert [by_id[one.context_id] for one in true] == [pid for pid, _, _ in told], (
        "the same, in the same order"
    )
    ends = [end - one.end_ns for (_, _, end), one in zip(told, true, strict=True)]
    starts = [one.start_ns - start for (_, start, _), one in zip(told, true, strict=True)]
    assert abs(statistics.median(ends) - LEAVES_NS) < ABOUT_NS
    assert abs(statistics.median(starts) - COMES_NS) < ABOUT_NS
    for pid in pids:
        own_ns = sum(end - start for who, start, end in told if who == pid)
        true_ns = [one.end_ns - one.start_ns for one in true if by_id[one.context_id] == pid]
        assert own_ns == pytest.approx(sum(true_ns) + len(true_ns) * (LEAVES_NS + COMES_NS), rel=0.01)


def test_who_is_alone_stays_until_another_comes(host: SimHost, make_reader: MakeReader) -> None:
    """However often it has nothing to do: then it is there all the same."""
    reader = make_reader(host)
    first = host.spawn(Workload("decode", kernels=1, kernel_us=500, gap_us=5000))
    reader.read_for(1)
    assert [(one.pid, one.is_start) for one in reader.seen] == [(first.pid, True)]
    assert len(host.residencies()) > 20
    second = host.spawn(STEADY)
    wait_until(lambda: reader.read()["switches"], PATIENCE_S, "the second comes")
    assert [(one.pid, one.is_start) for one in reader.seen[1:3]] == [(first.pid, False), (second.pid, True)]


def test_who_ends_leaves_for_nobody(host: SimHost, make_reader: MakeReader) -> None:
    reader = make_reader(host)
    worker = host.spawn(STEADY)
    wait_until(lambda: reader.read()["switches"], PATIENCE_S, "it comes")
    worker.kill()
    wait_until(lambda: not reader.read()["switches"] and len(reader.seen) > 1, PATIENCE_S, "it goes")
    assert [(one.pid, one.is_start) for one in reader.seen] == [(worker.pid, True), (worker.pid, False)]
    assert all(reader.wholes)


def test_what_ran_before_is_not_told(host: SimHost, make_reader: MakeReader) -> None:
    for _ in range(2):
        host.spawn(STEADY)
    wait_until(lambda: len(host.residencies()) > 500, PATIENCE_S, "they take turns for more than a second")
    reader = make_reader(host)
    wait_until(lambda: reader.read()["switches"], PATIENCE_S, "there is something to tell")
    assert reader.seen[0].t_ns > reader.opening["since_ns"] - 500_000_000
    assert all(reader.wholes)


def test_what_the_hardware_loses_is_told(host: SimHost, make_reader: MakeReader) -> None:
    for _ in range(2):
        host.spawn(STEADY)
    reader = make_reader(host, FAIRSCHED_SIM_TRACE_LOSE="100")
    reader.read_for(2)
    assert 3 <= reader.wholes.count(False) < len(reader.wholes)


def test_a_reader_that_comes_late_is_told_that_something_is_missing(make_reader: MakeReader) -> None:
    """16,384 turns fill the ring; the first of them are kept."""
    with SimHost([GpuSpec(slice_us=30, switch_us=2)]) as host:
        load = Workload("trainer", kernels=20, kernel_us=2000, depth=8)
        first, _ = host.spawn(load), host.spawn(load)
        reader = make_reader(host)
        reader.read()
        seen = host.gpu_truth().switches
        wait_until(lambda: host.gpu_truth().switches > seen + 20_000, PATIENCE_S, "the ring is full")
        first.kill()
        reader.read()
        assert reader.wholes == [True, False]
        assert len(reader.seen) > 32_000
        told = [one.is_start for one in reader.seen if one.channel]  # 0: where something is missing
        assert told[:-1] == [not is_start for is_start in told[1:]]
        host.spawn(load)
        wait_until(lambda: reader.read()["switches"], PATIENCE_S, "there is more to tell")
        assert not reader.wholes[-1], "numbers are missing"
        reader.read()
        assert reader.wholes[-1]


def test_a_node_that_vanishes_is_a_trace_that_is_lost(host: SimHost, make_reader: MakeReader) -> None:
    reader = make_reader(host)
    node = host.device_dir / "nvidiactl"
    node.rename(node.with_suffix(".away"))
    assert "No such device" in reader.read()["lost"]
    assert "refused" in make_reader(host).opening
    node.with_suffix(".away").rename(node)
    assert "refused" not in make_reader(host).opening


def test_gpus_that_end_are_a_trace_that_is_lost(make_reader: MakeReader) -> None:
    with SimHost() as host:
        reader = make_reader(host)
    assert "lost" in reader.read()


def test_a_gpu_in_mig_mode_has_no_trace(make_reader: MakeReader) -> None:
    with SimHost([GpuSpec(mig=(3, 3))]) as host:
        assert "switched off" in make_reader(host).opening["refused"]


def test_clients_of_mps_have_the_name_of_their_server(tmp_path: Path, make_reader: MakeReader) -> None:
    with SimHost([GpuSpec(overlap=2)]) as host, MpsServer(host, tmp_path) as server:
        for _ in range(3):
            host.spawn(STEADY, env=server.client_env())
        reader = make_reader(host)
        reader.read_for(0.5)
        assert server.worker is not None
        assert {one.pid for one in reader.seen} - {0} == {server.worker.pid}
