# SPDX-License-Identifier: Apache-2.0
"""Reads how much of a GPU's time its SMs and tensor cores worked, for the exporter's pages.

Problem. NVML's utilisation tells in what part of the time any kernel ran, and nothing of what it used. Hopper and later
have GPM (GPU performance monitoring), which tells that of the time between two samples that somebody has to keep. A
call into the driver may take long, or not return at all once a GPU has fallen off its bus.

Approach. A thread of the exporter's takes a sample of each GPU when a page is made, and compares it with the one of the
page before: no page, no sample. The page waits for it for FRESH_S; what comes later is on the next one, unless it is
older than STALE_S by then. A GPU that has no GPM, is in MIG mode, or refuses, as that of a virtual machine may, is not
asked again for LOOK_S, and where there is no other one NVML is let go of for so long, too: it costs nothing.

Terms. part: what of a GPU worked; graphics is its engine for graphics and compute.

Source: nvml.h (nvmlGpmQueryDeviceSupport, nvmlGpmSampleGet, nvmlGpmMetricsGet: samples at least 100 ms apart, values in
percent).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.base.beside import Poller

FAMILY = "fairsched_gpu_active_ratio"
FRESH_S = 0.25
STALE_S = 5.0
LOOK_S = 300.0
_APART_S = 0.5
"""Two pages of the same second, one in each format, share what was found."""
_OLDEST_S = 600.0
"""A page's values are of no longer than that."""

Active = dict[str, float]
"""Ratio by part."""


@dataclass
class _Samples:
    """Of one GPU: two buffers of the driver's, filled in turn."""

    handle: Any
    before: Any
    after: Any
    taken_s: float | None = None
    """When ``before`` was; None: it holds nothing."""


@dataclass
class Gpm:
    """GPM of the whole GPUs of this host, through pynvml. Not for several threads.

    What NVML refuses is absent, never an error.
    """

    _nvml: Any = None
    """None: it is not initialised."""
    _samples: dict[str, _Samples] = field(default_factory=dict)
    """By UUID."""
    _look_s: float = 0.0
    """When to look again which GPUs have GPM."""

    @property
    def uuids(self) -> list[str]:
        """The GPUs that are asked."""
        return list(self._samples)

    def read(self, now_s: float) -> dict[str, Active]:
        """What each GPU did since the call before, by UUID; without those of which nothing is known."""
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._look()
        found = {}
        for uuid, samples in list(self._samples.items()):
            try:
                self._nvml.nvmlGpmSampleGet(samples.handle, samples.after)
            except self._nvml.NVMLError:
                self._forget(uuid)
                continue
            active = self._compare(samples, now_s)
            if active:
                found[uuid] = active
        if not self._samples:
            self.close()
        return found

    def close(self) -> None:
        """Free the buffers and let go of NVML."""
        for uuid in list(self._samples):
            self._forget(uuid)
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._nvml = None

    def _compare(self, samples: _Samples, now_s: float) -> Active:
        """What lies between the sample just taken and the one before, which may be overwritten then."""
        taken_s, samples.taken_s = samples.taken_s, now_s
        samples.before, samples.after = samples.after, samples.before
        if taken_s is None or now_s - taken_s > _OLDEST_S:
            return {}
        try:
            return self._metrics(samples.after, samples.before)
        except self._nvml.NVMLError:
            return {}

    def _metrics(self, earlier: Any, later: Any) -> Active:
        """Raises NVMLError."""
        nvml = self._nvml
        asked = {
            "graphics": nvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
            "sm": nvml.NVML_GPM_METRIC_SM_UTIL,
            "tensor": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        }
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(asked)
        wanted.sample1, wanted.sample2 = earlier, later
        for place, metric in enumerate(asked.values()):
            wanted.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(wanted)
        return {
            part: float(wanted.metrics[place].value) / 100
            for place, part in enumerate(asked)
            if wanted.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
        }

    def _look(self) -> None:
        """Find the GPUs that have GPM and are not known yet."""
        if self._nvml is None:
            try:
                import pynvml

                pynvml.nvmlInit()
            except (
                Exception
            ):  # pynvml raises its own family and OSError; without NVML there is nothing to tell
                return
            self._nvml = pynvml
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):
                    self._take_in(nvml.nvmlDeviceGetHandleByIndex(index))

    def _take_in(self, handle: Any) -> None:
        """Raises NVMLError."""
        nvml = self._nvml
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if uuid in self._samples or self._is_split(handle):
            return
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return
        first = nvml.nvmlGpmSampleAlloc()
        try:
            self._samples[uuid] = _Samples(handle, first, nvml.nvmlGpmSampleAlloc())
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(first)
            raise

    def _is_split(self, handle: Any) -> bool:
        """In MIG mode its instances are the GPUs, and NVML has no such samples of a compute instance."""
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError:
            return False  # a GPU or a driver without MIG

    def _forget(self, uuid: str) -> None:
        samples = self._samples.pop(uuid)
        for buffer in (samples.before, samples.after):
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(buffer)


@dataclass(frozen=True)
class _Answer:
    begun_s: float
    done_s: float
    active: Mapping[str, Active] = field(default_factory=dict)
    """By UUID."""


class GpmRows:
    """The rows of a page, from a thread of its own that asks the driver."""

    def __init__(self) -> None:
        self._gpm = Gpm()
        self._changed = threading.Condition()
        self._answer = _Answer(-LOOK_S, -LOOK_S)
        self._poller = Poller(
            "gpm", self._poll, lambda: threading.TIMEOUT_MAX, "activity of SMs and tensor cores"
        )

    def rows(self) -> list[tuple[str, tuple[str, ...], float]]:
        """What the GPUs did since the page before; empty where nothing is known, at the first page for one."""
        now_s = time.monotonic()
        if now_s - self._answer.begun_s >= _APART_S:
            self._poller.ask()
            with self._changed:
                self._changed.wait_for(lambda: self._answer.begun_s >= now_s, FRESH_S)
        answer = self._answer
        if time.monotonic() - answer.done_s > STALE_S:
            return []
        return [
            (FAMILY, (uuid, part), ratio)
            for uuid, active in answer.active.items()
            for part, ratio in active.items()
        ]

    def close(self) -> None:
        """End the thread; NVML is let go of unless it hangs."""
        if self._poller.close():
            self._gpm.close()

    def _poll(self) -> None:
        begun_s = time.monotonic()
        active = self._gpm.read(begun_s)
        with self._changed:
            self._answer = _Answer(begun_s, time.monotonic(), active)
            self._changed.notify_all()
