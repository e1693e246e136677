# SPDX-License-Identifier: Apache-2.0
"""What the exporter makes of GPM's samples: between pages, of GPUs that come and go, of a driver that hangs."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.companion.exporter import gpm as module
from fairsched.companion.exporter.gpm import FAMILY, LOOK_S, Gpm, GpmRows
from tests.support import wait_until


class NvmlError(Exception):
    pass


class Nvml:
    """Two GPUs, each of which has worked for some time; samples are lists."""

    NVMLError = NvmlError
    NVML_SUCCESS = 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_GRAPHICS_UTIL, NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 1, 2, 5

    def __init__(self) -> None:
        self.worked = {"GPU-a": 0.0, "GPU-b": 0.0}
        self.lost: set[str] = set()
        self.metrics_refused = self.is_split = False
        self.tensor_code = 0
        self.buffers: list[int] = []
        self.inits = self.shutdowns = self.asked = 0

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.shutdowns += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.worked)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.worked)[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "GPU-b":
            raise NvmlError("a GPU without MIG")
        return [int(self.is_split), 0]

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        self.asked += 1
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> list[float]:
        buffer: list[float] = []
        self.buffers.append(id(buffer))
        return buffer

    def nvmlGpmSampleFree(self, buffer: list[float]) -> None:
        self.buffers.remove(id(buffer))

    def nvmlGpmSampleGet(self, handle: str, buffer: list[float]) -> None:
        self.asked += 1
        if handle in self.lost:
            raise NvmlError("lost")
        buffer[:] = [self.worked[handle]]

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=99) for _ in range(8)])

    def nvmlGpmMetricsGet(self, wanted: Any) -> None:
        if self.metrics_refused:
            raise NvmlError("no")
        for metric in wanted.metrics[: wanted.numMetrics]:
            metric.value = 100 * (wanted.sample2[0] - wanted.sample1[0])
            metric.nvmlReturn = self.tensor_code if metric.metricId == 5 else 0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    return fake


def test_a_value_is_that_of_the_time_between_two_samples(nvml: Nvml) -> None:
    gpm = Gpm()
    assert gpm.read(0.0) == {}
    nvml.worked.update({"GPU-a": 0.5, "GPU-b": 0.25})
    assert gpm.read(15.0) == {
        "GPU-a": {"graphics": 0.5, "sm": 0.5, "tensor": 0.5},
        "GPU-b": {"graphics": 0.25, "sm": 0.25, "tensor": 0.25},
    }
    nvml.worked["GPU-a"], nvml.tensor_code = 0.75, 3
    assert gpm.read(30.0)["GPU-a"] == {"graphics": 0.25, "sm": 0.25}, "what is refused is not said"
    assert gpm.read(30.0 + 601.0) == {}, "nobody asked for so long that it says nothing of now"
    gpm.close()
    assert (nvml.buffers, nvml.inits, nvml.shutdowns) == ([], 1, 1)


def test_a_lost_gpu_is_left_alone_until_the_next_look(nvml: Nvml) -> None:
    gpm = Gpm()
    gpm.read(0.0)
    nvml.lost = {"GPU-a"}
    assert list(gpm.read(10.0)) == ["GPU-b"]
    assert len(nvml.buffers) == 2, "its buffers are free"
    nvml.lost = set()
    assert list(gpm.read(20.0)) == ["GPU-b"]
    assert list(gpm.read(LOOK_S)) == ["GPU-b"], "found anew, its first sample"
    assert list(gpm.read(LOOK_S + 10.0)) == ["GPU-b", "GPU-a"]


def test_metrics_that_are_refused_once_are_no_reason_to_give_a_gpu_up(nvml: Nvml) -> None:
    gpm = Gpm()
    gpm.read(0.0)
    nvml.metrics_refused = True
    assert gpm.read(10.0) == {}
    nvml.metrics_refused = False
    assert list(gpm.read(20.0)) == ["GPU-a", "GPU-b"]


def test_where_nobody_has_it_nvml_is_not_asked_before_the_next_look(nvml: Nvml) -> None:
    gpm = Gpm()
    nvml.lost = set(nvml.worked)
    assert gpm.read(0.0) == {}
    assert (nvml.buffers, nvml.shutdowns) == ([], 1)
    asked = nvml.asked
    assert gpm.read(LOOK_S - 1.0) == {}
    assert (nvml.asked, nvml.inits) == (asked, 1)
    gpm.read(LOOK_S)
    assert nvml.inits == 2


def test_a_gpu_in_mig_mode_is_not_asked_and_one_without_mig_is(nvml: Nvml) -> None:
    nvml.is_split = True
    gpm = Gpm()
    gpm.read(0.0)
    assert gpm.uuids == ["GPU-b"]


def test_without_nvml_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert Gpm().read(0.0) == {}


class Slow:
    """Stands for Gpm: answers when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.reads = self.closes = 0

    def read(self, now_s: float) -> dict[str, dict[str, float]]:
        self.may.wait(60)
        self.reads += 1
        return {"GPU-a": {"tensor": self.reads / 10}}

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    fake = Slow()
    monkeypatch.setattr(module, "Gpm", lambda: fake)
    return fake


def test_a_page_has_what_was_read_for_it_and_two_of_one_second_share_it(slow: Slow) -> None:
    slow.may.set()
    rows = GpmRows()
    try:
        found = rows.rows()
        wait_until(lambda: found or rows.rows(), 10, "an answer")
        assert rows.rows() == [(FAMILY, ("GPU-a", "tensor"), 0.1)]
        assert slow.reads == 1
    finally:
        rows.close()
    assert slow.closes == 1


def test_a_page_does_not_wait_for_a_driver_that_hangs(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = GpmRows()
    begin_s = time.monotonic()
    assert rows.rows() == []
    assert time.monotonic() - begin_s < 10.0
    slow.may.set()
    wait_until(lambda: rows.rows(), 10, "it came back")
    monkeypatch.setattr(module, "STALE_S", -1.0)
    assert rows.rows() == [], "what is too old is not said"
    rows.close()


def test_no_page_no_sample(slow: Slow) -> None:
    slow.may.set()
    rows = GpmRows()
    rows.close()
    assert slow.reads == 0
