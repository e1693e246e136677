# SPDX-License-Identifier: Apache-2.0
"""Which account the daemon takes: what doctor says for the same host, and never a silent one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fairsched import sensors as sensors_module
from fairsched.config import Config, from_bytes
from fairsched.errors import HostUnsupported
from fairsched.gpu import Gpu
from fairsched.host import NVML_LIMIT, choose_source
from fairsched.model import Source
from fairsched.sensors import Sensors

REFUSED = "the BPF loader was killed by SIGABRT before it had an answer"


class Host:
    """What works on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_bpf = self.has_nvml = True
        self.tried: list[str] = []
        monkeypatch.setattr(sensors_module, "GpuTimeProbe", self._probe)
        monkeypatch.setattr(sensors_module, "Nvml", self._nvml)
        monkeypatch.setattr(sensors_module, "open_account", self._open_account)
        monkeypatch.setattr(sensors_module, "find_mount", lambda: None)

    def _probe(self) -> SimpleNamespace:
        self.tried.append("ebpf")
        if not self.has_bpf:
            raise HostUnsupported(REFUSED, remedy="use a newer bcc")
        return SimpleNamespace(set_uuids=lambda _named: None, close=lambda: None)

    def _nvml(self) -> SimpleNamespace:
        gpus = (Gpu("GPU-a"),) if self.has_nvml else ()
        return SimpleNamespace(gpus=gpus, error=None if self.has_nvml else "no driver", close=lambda: None)

    def _open_account(self, _mount: object, count: int) -> SimpleNamespace:
        self.tried.append(f"nvml of {count}")
        return SimpleNamespace(read=lambda now_ns: [f"rows at {now_ns}"])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def config(text: str = "mode: observe") -> Config:
    return from_bytes(text.encode(), "f")


def test_the_best_account_is_taken_and_needs_no_excuse(host: Host) -> None:
    sensors = Sensors(config())
    assert (sensors.source, sensors.reason, host.tried) == (Source.EBPF, None, ["ebpf"])


def test_where_bpf_is_refused_the_samples_are_taken_and_both_are_said(host: Host) -> None:
    host.has_bpf = False
    sensors = Sensors(config())
    assert sensors.source is Source.NVML
    assert host.tried == ["ebpf", "nvml of 1"]
    assert sensors.reason is not None
    assert REFUSED in sensors.reason
    assert NVML_LIMIT in sensors.reason
    assert sensors.read(7) == ["rows at 7"]


def test_with_samples_nobody_is_told_of_holds_and_nothing_breaks(host: Host) -> None:
    host.has_bpf = False
    sensors = Sensors(config())
    assert sensors.account is None
    sensors.hold([1], 0)
    sensors.thaw([1], 0)
    sensors.set_wake_on_idle(True)
    sensors.look_for_libraries([1], 0)
    sensors.close()


def test_where_nothing_works_the_daemon_refuses_and_says_why(host: Host) -> None:
    host.has_bpf = host.has_nvml = False
    with pytest.raises(HostUnsupported, match=f"{REFUSED}.*no driver") as caught:
        Sensors(config())
    assert "doctor" in caught.value.remedy


@pytest.mark.parametrize("text", ["mechanisms: {ebpf: required}", "gpu: {source: ebpf}"])
def test_what_is_asked_for_by_name_has_no_fallback(host: Host, text: str) -> None:
    host.has_bpf = False
    with pytest.raises(HostUnsupported, match="SIGABRT"):
        Sensors(config(text))


@pytest.mark.parametrize("text", ["mechanisms: {ebpf: off}", "gpu: {source: nvml}"])
def test_what_is_switched_off_is_not_tried(host: Host, text: str) -> None:
    sensors = Sensors(config(text))
    assert (sensors.source, host.tried) == (Source.NVML, ["nvml of 1"])


@pytest.mark.parametrize("has_bpf", [True, False])
@pytest.mark.parametrize("has_nvml", [True, False])
@pytest.mark.parametrize("wanted", ["auto", "nvml", "dcgm"])
def test_the_daemon_takes_what_doctor_names(host: Host, has_bpf: bool, has_nvml: bool, wanted: str) -> None:
    host.has_bpf, host.has_nvml = has_bpf, has_nvml
    named, _ = choose_source(wanted, None if has_bpf else REFUSED, None if has_nvml else "no driver")
    try:
        taken = Sensors(config(f"gpu: {{source: {wanted}}}")).source
    except HostUnsupported:
        taken = None
    assert taken is named
