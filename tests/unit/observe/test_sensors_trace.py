# SPDX-License-Identifier: Apache-2.0
"""When the trace of context switches is the account, and what is when it is not handed out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fairsched.accounting.traced import TracedAccount
from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Gpu
from fairsched.host.choose import OWN_PID_NAMESPACE
from fairsched.model import PolicyParams, Source
from fairsched.observe import lower as lower_module
from fairsched.observe import sensors as sensors_module
from tests.unit.accounting.sampled_loop import S
from tests.unit.observe.test_sensors import Host, config, sensors_of


class Traces:
    """Stands in for those of the driver: gives one of each GPU, or none."""

    def __init__(self, *_: object) -> None:
        self.is_refused = self.is_closed = False
        self.reason: str | None = None

    def begin(self, following: TracedAccount | None, gpus: tuple[Gpu, ...]) -> None:
        self.look(following, gpus, (), 0)

    def look(self, following: TracedAccount | None, gpus: tuple[Gpu, ...], _mps: object, _now: int) -> None:
        for slot in range(len(gpus)) if following is not None else ():
            if self.is_refused:
                following.end(slot)
            elif slot not in following.gpus:
                following.begin(slot, SimpleNamespace(told_ns=0, read=lambda: ([], True)))

    def close(self) -> None:
        self.is_closed = True


ASKED = "mechanisms: {trace: required}"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(monkeypatch)
    found.has_bpf = False
    plain = found._nvml
    monkeypatch.setattr(sensors_module, "Traces", Traces)
    monkeypatch.setattr(lower_module, "is_initial", lambda: True)

    def nvml() -> SimpleNamespace:
        made = plain()
        made.driver_version = "580.95.05"
        return made

    def open_account(nvml: SimpleNamespace, cgroup_of: object, accounting: str) -> SimpleNamespace:
        made = found._open_account(nvml, cgroup_of, accounting)
        made.read = lambda _now_ns: []
        made.tenant_of = None
        made.error_points = lambda _window_s: 12.0
        return made

    monkeypatch.setattr(sensors_module, "Nvml", nvml)
    monkeypatch.setattr(sensors_module, "open_account", open_account)
    return found


def test_where_bpf_is_refused_the_trace_is_taken_before_samples(host: Host) -> None:
    sensors = sensors_of(ASKED)
    assert sensors.source is Source.TRACE
    assert sensors.error_points()["10"] < 12
    assert sensors.trace_told(0) is True
    sensors.close()


def test_nobody_who_has_not_asked_for_it_gets_it(host: Host) -> None:
    sensors = sensors_of()
    assert sensors.source is Source.NVML
    sensors.close()


def test_its_law_is_that_of_an_exact_account_whose_queues_nobody_sees(host: Host) -> None:
    law = sensors_of(ASKED).law(PolicyParams())
    assert (law.window_ns, law.frame_ns, law.chance_ns, law.sees_queues) == (S, 0, 0, False)


@pytest.mark.parametrize("text", ["gpu: {source: nvml}", "mechanisms: {trace: off}"])
def test_who_wants_none_has_samples(host: Host, text: str) -> None:
    sensors = sensors_of(text)
    assert (sensors.source, sensors.traced, sensors.trace_told(0)) == (Source.NVML, None, None)


def test_in_a_pid_namespace_of_its_own_the_numbers_would_be_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_module, "is_initial", lambda: False)
    assert sensors_of().source is Source.NVML
    with pytest.raises(HostUnsupported, match=OWN_PID_NAMESPACE):
        sensors_of("gpu: {source: trace}")


def test_a_trace_that_comes_and_goes_changes_the_law_and_the_daemon_begins_anew(host: Host) -> None:
    sensors = sensors_of(ASKED)
    assert not sensors.is_restarted(config(ASKED), 0)
    sensors.traces.is_refused = True  # type: ignore[attr-defined]
    sensors.read(S)
    assert sensors.source is Source.NVML
    assert sensors.law(PolicyParams()).chance_ns > 0
    assert sensors.is_restarted(config(ASKED), S)
    assert not sensors.is_restarted(config(ASKED), S), "once"
    sensors.traces.is_refused = False  # type: ignore[attr-defined]
    sensors.read(2 * S)
    assert sensors.source is Source.TRACE
    assert sensors.is_restarted(config(ASKED), 2 * S)


def test_the_load_of_a_gpu_is_what_dcgm_tells_and_else_nvml(host: Host) -> None:
    sensors = sensors_of(ASKED)
    assert sensors.traced is not None
    load = sensors.traced._load
    sensors.gpu_watch = SimpleNamespace(use=lambda _slot: SimpleNamespace(busy_ratio=0.5))  # type: ignore[assignment]
    assert load(0) == 0.5
    sensors.loads = SimpleNamespace(load=lambda _slot: 0.25, is_live=True)  # type: ignore[assignment]
    assert load(0) == 0.25
