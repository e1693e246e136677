# SPDX-License-Identifier: Apache-2.0
"""What tells the load of GPUs is opened as the configuration says, and a default port is not believed by itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairsched.config import Config, from_bytes
from fairsched.errors import HostUnsupported
from fairsched.gpu.dcgm import EMBEDDED
from fairsched.gpu.loads import DeviceLoad, LoadError
from fairsched.gpu.nvml import Gpu
from fairsched.host import dcgm
from fairsched.host.facts import GpuFact

GPUS = (Gpu("GPU-a"), Gpu("GPU-b"))
FACTS = tuple(GpuFact(gpu.uuid, "L4") for gpu in GPUS)
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def config(text: str = "mode: observe") -> Config:
    return from_bytes(text.encode(), "f")


class Reader:
    """Stands for DcgmReader and ExporterPage: GPU-a is known, or nothing is."""

    name, period_s, where = "dcgm", 1.0, "somewhere"
    loads: Mapping[str, DeviceLoad] | None = None

    def __init__(self, *_arguments: Any) -> None: ...

    def read(self) -> Mapping[str, DeviceLoad]:
        if self.loads is None:
            raise LoadError("no host engine")
        return self.loads

    def close(self) -> None: ...


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One with a libdcgm; ``Reader.loads`` is what it knows."""
    monkeypatch.setattr(dcgm.dcgm_abi, "find_library", lambda *_: Path("/lib/libdcgm.so.4"))
    monkeypatch.setattr(dcgm, "DcgmReader", Reader)
    monkeypatch.setattr(dcgm, "_PATIENCE_S", 2.0)
    return monkeypatch


def knows(host: pytest.MonkeyPatch) -> None:
    load = DeviceLoad(0.43, float("inf"), "GR_ENGINE_ACTIVE", 0.3)
    host.setattr(Reader, "loads", {"GPU-a": load})


def listening(tmp_path: Path, *rows: tuple[str, str, int]) -> str:
    """A /proc in whose net/tcp these (local address, state, uid) are."""
    (tmp_path / "net").mkdir()
    lines = [
        f"   {n}: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1 1\n"
        for n, (local, state, uid) in enumerate(rows)
    ]
    (tmp_path / "net/tcp").write_text(HEADER + "".join(lines))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ((), EMBEDDED),
        ((("0100007F:15B3", "0A", 0),), "127.0.0.1:5555"),
        ((("00000000:15B3", "0A", 998),), "127.0.0.1:5555"),
        ((("0100007F:15B3", "0A", 1000),), EMBEDDED),
        ((("0100007F:15B3", "0A", 0), ("0200007F:15B3", "0A", 1001)), EMBEDDED),
        ((("0100007F:15B3", "01", 0),), EMBEDDED),
        ((("0100007F:15B4", "0A", 0),), EMBEDDED),
    ],
)
def test_only_what_the_system_itself_listens_with_is_connected_to_unasked(
    tmp_path: Path, rows: tuple[tuple[str, str, int], ...], first: str
) -> None:
    addresses = dcgm.default_addresses(listening(tmp_path, *rows))
    assert addresses[0] == first and addresses[-1] == EMBEDDED


def test_the_kernels_own_table_is_understood() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        is_systems = os.geteuid() < 1000
        expected = (f"127.0.0.1:{port}", EMBEDDED) if is_systems else (EMBEDDED,)
        assert dcgm.default_addresses(port=port) == expected
    assert dcgm.default_addresses(port=port) == (EMBEDDED,)


@pytest.mark.parametrize(
    ("text", "says"),
    [("gpu: {dcgm: off}", "is off"), ("mode: observe", "libdcgm.so.4 nor libdcgm.so.3 is installed")],
)
def test_where_nobody_can_be_asked_that_is_said(
    monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.setattr(dcgm.dcgm_abi, "find_library", lambda *_: None)
    found = dcgm.obstacle(config(text))
    assert found is not None and says in found
    assert dcgm.obstacle(config("gpu: {dcgm_exporter: 'http://h:9400/metrics'}")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode: observe", ("127.0.0.1:5555", EMBEDDED)),
        ("gpu: {dcgm_exporter: 'http://h:9400/metrics'}", ("127.0.0.1:5555",)),
        ("gpu: {dcgm_exporter: 'http://h:9400/metrics', dcgm_address: embedded}", (EMBEDDED,)),
        ("gpu: {dcgm_address: /run/engine}", ("/run/engine",)),
    ],
)
def test_no_engine_of_our_own_starts_where_an_exporter_has_one(
    host: pytest.MonkeyPatch, text: str, expected: tuple[str, ...]
) -> None:
    host.setattr(dcgm, "default_addresses", lambda: ("127.0.0.1:5555", EMBEDDED))
    assert dcgm._addresses(config(text))() == expected


def test_the_doctor_shows_what_is_known(host: pytest.MonkeyPatch) -> None:
    knows(host)
    assert Reader.loads is not None
    found = Reader.loads["GPU-a"]
    fact = dcgm.gather(config(), FACTS)
    assert fact is not None and fact.is_ok and fact.detail == "somewhere: GPU 0 43%, SMs 30%"
    load = DeviceLoad(0.5, found.at_s, "GR_ENGINE_ACTIVE")
    host.setattr(Reader, "loads", {"GPU-c/1": load, "GPU-c/2": load})
    split = GpuFact("GPU-c", "A100", has_mig=True, instances=(1, 2))
    fact = dcgm.gather(config(), (*FACTS, split))
    assert fact is not None and fact.detail == "somewhere: GPU 2/1 50%; GPU 2/2 50%"
    assert dcgm.gather(config(), (GpuFact("GPU-c", "A100", has_mig=True),)) is None, "it has no instance yet"


def test_the_doctor_says_why_nothing_is(host: pytest.MonkeyPatch) -> None:
    fact = dcgm.gather(config(), FACTS)
    assert fact is not None and not fact.is_ok and "no host engine" in fact.detail
    assert dcgm.gather(config("gpu: {dcgm: off}"), FACTS) is None
    assert dcgm.gather(config(), ()) is None, "without a GPU there is nothing to ask"


@pytest.mark.parametrize("text", ["gpu: {dcgm: required}", "gpu: {source: dcgm}"])
def test_what_is_required_is_waited_for_and_missed(host: pytest.MonkeyPatch, text: str) -> None:
    host.setattr(dcgm, "_PATIENCE_S", 0.1)
    with pytest.raises(HostUnsupported, match=r"gpu\.(dcgm|source).*no host engine") as caught:
        dcgm.open_required(config(text), GPUS, None)
    assert "nvidia-dcgm" in caught.value.remedy
    host.setattr(dcgm, "_PATIENCE_S", 10.0)
    knows(host)
    watch = dcgm.open_required(config(text), GPUS, None)
    assert watch is not None and watch.load(0) == 0.43
    watch.close()
    with pytest.raises(HostUnsupported, match="no driver"):
        dcgm.open_required(config(text), GPUS, "no driver")


def test_what_nobody_requires_is_not_waited_for(host: pytest.MonkeyPatch) -> None:
    assert dcgm.open_required(config(), GPUS, "no driver") is None
