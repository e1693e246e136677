# SPDX-License-Identifier: Apache-2.0
"""When the load that DCGM tells is asked for, and that the source says whether it is told."""

from __future__ import annotations

import pytest

from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import ONLY_MIG
from fairsched.model import Source
from fairsched.observe import sensors as sensors_module
from tests.unit.observe.test_sensors import Host, sensors_of


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


class Loads:
    """LoadWatch; ``ratio`` is the load of every GPU."""

    ratio: float | None = None
    is_closed = False

    @property
    def is_live(self) -> bool:
        return self.ratio is not None

    def load(self, _slot: int) -> float | None:
        return self.ratio

    def close(self) -> None:
        self.is_closed = True


def test_samples_are_scaled_where_dcgm_answers_and_the_source_says_whether_it_does(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.has_bpf, loads = False, Loads()
    monkeypatch.setattr(sensors_module.host_dcgm, "obstacle", lambda _config: None)
    monkeypatch.setattr(sensors_module.host_dcgm, "open_watch", lambda *_: loads)
    sensors = sensors_of()
    assert sensors.sampled is not None and ("scaled",) in host.told
    assert sensors.source is Source.NVML, "nobody has answered yet"
    loads.ratio = 0.5
    assert sensors.source is Source.DCGM
    loads.ratio = None
    assert sensors.source is Source.NVML
    sensors.close()
    assert loads.is_closed


@pytest.mark.parametrize("dcgm", [None, "gpu.dcgm is off"])
def test_where_there_are_only_mig_instances_dcgm_is_the_account_or_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, dcgm: str | None
) -> None:
    host.has_bpf, host.obstacle = False, ONLY_MIG
    monkeypatch.setattr(sensors_module.host_dcgm, "obstacle", lambda _config: dcgm)
    monkeypatch.setattr(sensors_module.host_dcgm, "open_watch", lambda *_: Loads())
    if dcgm is None:
        sensors_of()
        assert ("scaled",) in host.told
    else:
        with pytest.raises(HostUnsupported, match=ONLY_MIG):
            sensors_of()


def test_beside_ebpf_dcgm_is_not_asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors_module.host_dcgm, "obstacle", lambda _config: None)
    sensors = sensors_of()
    assert (sensors.source, sensors.loads) == (Source.EBPF, None)


def test_a_required_dcgm_that_does_not_answer_stops_the_start(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors_module.host_dcgm.dcgm_abi, "find_library", lambda *_: None)
    with pytest.raises(HostUnsupported, match=r"gpu\.dcgm is required.*libdcgm"):
        sensors_of("gpu: {dcgm: required}")
