# SPDX-License-Identifier: Apache-2.0
"""The trace of context switches: what is asked of the driver, and what its records come to.

Against a driver that answers: tests/node/simgpu.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fairsched.gpu import trace
from fairsched.gpu.trace import (
    GpuTrace,
    Record,
    Switch,
    TraceLost,
    TraceRefused,
    event_buffer,
    obstacle,
    switches,
)

KERNEL = 0xFFFFFFFF


@pytest.mark.parametrize("version", ["580.159.04", "580.12"])
def test_a_branch_on_which_it_was_run_is_taken_by_itself(version: str) -> None:
    assert obstacle(version, is_asked_for=False) is None


@pytest.mark.parametrize("version", ["550.163.01", "595.45.04"])
def test_a_branch_that_is_only_known_is_taken_when_asked_for(version: str) -> None:
    assert "not been tried" in (obstacle(version, is_asked_for=False) or "")
    assert obstacle(version, is_asked_for=True) is None


@pytest.mark.parametrize("version", ["535.183.01", "610.1", "", None, "open"])
def test_an_unknown_branch_is_never_taken(version: str | None) -> None:
    assert "not known" in (obstacle(version, is_asked_for=True) or "")


def test_what_the_driver_does_not_check_is_right() -> None:
    """Of the driver's header: recordSize at 16, recordCount 20, notificationHandle 40, hSubDevice 52, memory 60, 64."""
    params = event_buffer(7, 8, 9)
    assert len(params) == 72
    assert struct.unpack_from("=II", params, 16) == (32, trace._RECORDS)
    assert struct.unpack_from("=Q", params, 40) == (0,)
    assert struct.unpack_from("=I", params, 52) == (7,)
    assert struct.unpack_from("=II", params, 60) == (8, 9)
    for lacking in ((0, 8, 9), (7, 0, 9), (7, 8, 0)):
        with pytest.raises(ValueError, match="needs its subdevice"):
            event_buffer(*lacking)


def test_a_record_is_as_long_as_the_driver_writes_it() -> None:
    assert trace._RECORD.size == trace._RECORD_BYTES == 32
    assert trace._HEADER.size == 24
    assert trace._RECORDS * trace._RECORD_BYTES <= 1 << 20  # of one piece in the kernel


def test_records_become_switches_in_the_hosts_clock_and_in_order() -> None:
    records = [
        Record(6, 1, 5, 100, 1000),
        Record(7, 2, 5, 100, 2000),
        Record(1, 3, 5, 100, 2100),  # of another kind
        Record(6, 4, KERNEL, KERNEL, 17),  # its time is noise
        Record(7, 5, KERNEL, KERNEL, 0),
        Record(6, 6, 6, 200, 1990),
    ]
    found = list(switches(records, lambda gpu_ns: gpu_ns + 50, 1100))
    assert found == [
        Switch(1100, 100, 5, True),
        Switch(2050, 100, 5, False),
        Switch(2050, 0, KERNEL, True),
        Switch(2050, 0, KERNEL, False),
        Switch(2050, 200, 6, True),
    ]


def test_without_the_drivers_node_it_is_refused_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(TraceRefused, match="nvidiactl"):
        GpuTrace("GPU-1", tmp_path)


def test_what_is_no_driver_refuses(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(TraceRefused, match="Inappropriate ioctl"):
        GpuTrace("GPU-1", tmp_path)


class FakeClock:
    """In place of the module ``time``."""

    now_ns = 10**12

    def monotonic_ns(self) -> int:
        return self.now_ns


CLOCK = FakeClock()


class FakeClient:
    """The ring as the driver fills it; its clock is the host's."""

    def __init__(self, device_dir: Path) -> None:
        self.handle, self.seqno, self.dropped, self.put, self.slow_ns = 1, 0, 0, 0, 1000
        self.header, self.records = bytearray(4096), bytearray(32 * trace._RECORDS)
        self._maps = [self.header, self.records]

    def close(self) -> None:
        pass

    def subdevice(self, instance: int) -> int:
        return 2

    def alloc(self, parent: int, kind: int, params: bytes) -> int:
        return 3

    def memory(self, size: int) -> tuple[int, bytearray]:
        return 4, self._maps.pop(0)

    def write(self, tag: int, pid: int, gpu_ns: int) -> None:
        self.seqno += 1
        fields = (2, 0, 0, tag, 0, self.seqno % 65536, pid, pid, 0, 0, 0, gpu_ns)
        trace._RECORD.pack_into(self.records, self.put * 32, *fields)
        self.put = (self.put + 1) % trace._RECORDS

    def control(self, what: int, command: int, params: bytearray) -> None:
        if command == trace._GPU_ID:
            params[8:17] = struct.pack("=I5s", 5, b"GPU-1")
        elif command == trace._FLUSH:
            struct.pack_into("=IIQQ", self.header, 0, self.get, self.put, 0, self.dropped)
        elif command == trace._TAKEN:
            self.get, self.dropped = struct.unpack_from("=I", params)[0], 0
        elif command == trace._GPU_TIME:
            params[:] = struct.pack("=Q", CLOCK.now_ns)
            CLOCK.now_ns += self.slow_ns

    get = 0


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> tuple[GpuTrace, FakeClient]:
    monkeypatch.setattr(trace, "Client", FakeClient)
    monkeypatch.setattr(trace, "time", CLOCK)
    own = GpuTrace("GPU-1")
    return own, own._client  # type: ignore[return-value]


def test_where_records_are_missing_nobody_is_known_to_have_the_engine(
    ring: tuple[GpuTrace, FakeClient],
) -> None:
    own, client = ring
    t_ns = CLOCK.now_ns
    client.write(6, 100, t_ns)
    assert [switch[1:] for switch in own.read()[0]] == [(100, 100, True)]
    client.write(7, 100, t_ns + 1)
    client.write(6, 200, t_ns + 2)
    client.seqno += 3
    client.write(7, 300, t_ns + 9)
    found, is_whole = own.read()
    assert not is_whole
    assert [switch[1:] for switch in found] == [
        (100, 100, False),
        (200, 200, True),
        (0, 0, False),
        (300, 300, False),
    ]
    client.write(6, 100, t_ns + 10)
    client.dropped = 1  # the ring is full
    found, is_whole = own.read()
    assert not is_whole
    assert [switch[1:] for switch in found] == [(100, 100, True), (0, 0, False)]
    assert own.read() == ([], True)


def test_the_first_record_has_a_time_even_if_it_is_the_drivers_own(ring: tuple[GpuTrace, FakeClient]) -> None:
    own, client = ring
    client.write(6, KERNEL, 0)
    assert own.read()[0][0].t_ns > CLOCK.now_ns - 60_000_000_000


def test_a_ring_that_makes_no_sense_is_lost(ring: tuple[GpuTrace, FakeClient]) -> None:
    own, client = ring
    client.put = trace._RECORDS
    with pytest.raises(TraceLost, match="stands at"):
        own.read()


def test_a_slow_look_at_the_clocks_does_not_move_them(
    ring: tuple[GpuTrace, FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes and destroys contexts without end keeps the driver's locks."""
    own, client = ring
    monkeypatch.setattr(trace, "_CLOCK_NS", -1)
    client.slow_ns = 10_000_000
    own.read()
    t_ns = CLOCK.now_ns
    client.write(6, 100, t_ns)
    assert abs(own.read()[0][0].t_ns - t_ns) < 1_000_000


def test_another_gpu_that_is_gone_keeps_nobody_from_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver(FakeClient):
        def subdevice(self, instance: int) -> int:
            if instance == 0:
                raise OSError(5, "Input/output error")
            return 2

    monkeypatch.setattr(trace, "Client", Driver)
    GpuTrace("GPU-1").close()
