# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU is well: does NVML answer for it, and what errors does the driver report of it (Xid)?

Problem. Work must not be sent to a GPU that is broken. It may have fallen off its bus, need a reset, or have reported
an error of its hardware; a report is one moment, and afterwards NVML may answer as if nothing had been.

Approach. :func:`probe` asks NVML about one GPU. :class:`XidWatch` waits for reports, all GPUs at once, counts them by
number, and keeps the last of each GPU that counts as unwell. :class:`Illness` is the law (pure): a GPU is unwell while
NVML does not answer for it, and after a report until it was away in between (that is what a reset looks like) or
nothing was reported for a while. Which reports count is configuration: most are a program's own fault.

Terms. *Xid*: the driver's number of an error. Source: NVIDIA's catalogue of Xid errors, and NVML's events.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairsched.gpu.nvml import Gpu, Nvml, nvml_text

UNWELL_XIDS = (46, 48, 61, 62, 64, 74, 79, 95, 119, 120, 140, 143)
"""What NVIDIA's catalogue ascribes to the GPU, its memory, its links or its firmware, and what wants a reset: the GPU
stopped (46), double bit error (48), its microcontroller halted (61, 62), row remapping failed (64), NVLink (74), fell
off the bus (79), uncontained memory error (95), its GSP (119, 120), memory error left (140), initialisation (143)."""
QUIET_S = 600.0
"""After so long without another report a GPU that answers counts as well: who would reset it has had the time."""
_XID_EVENT = 8
"""nvmlEventTypeXidCriticalError"""
_WAIT_MS = 500
"""So often the watch looks whether it is to end."""
_AGAIN_S = 5.0
"""After an error that is not a time-out."""

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Nobody wants to know."""


def probe(nvml: Nvml, slot: int) -> str | None:
    """Why the GPU in a slot is unwell as far as NVML answers; None: it is well. Asks the driver."""
    handle = nvml.handle(slot)
    if handle is None:
        return "it is gone"
    import pynvml

    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION):
            return f"NVML: {error}"
    return None


def minor_of(nvml: Nvml, slot: int) -> int | None:
    """N of /dev/nvidiaN, of an instance that of its GPU; None where NVML does not say."""
    import pynvml

    gpu = nvml.gpus[slot]
    with contextlib.suppress(pynvml.NVMLError):
        uuid = gpu.uuid if gpu.mig is None else gpu.mig.parent_uuid
        return int(pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    return None


def numa_node(nvml: Nvml, slot: int, sys: Path = Path("/sys")) -> int | None:
    """The node of memory that a GPU is near to; None where nobody says."""
    import pynvml

    gpu = nvml.gpus[slot]
    try:
        uuid = gpu.uuid if gpu.mig is None else gpu.mig.parent_uuid
        bus = nvml_text(pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).busId)
        # NVML writes a domain of eight digits, the kernel one of four.
        node = int((sys / "bus/pci/devices" / bus.lower()[-12:] / "numa_node").read_text())
    except (pynvml.NVMLError, OSError, ValueError):
        return None
    return node if node >= 0 else None


def whole_uuid(gpu: Gpu) -> str:
    """Of the GPU that a report is about."""
    return gpu.uuid if gpu.mig is None else gpu.mig.parent_uuid


@dataclass(frozen=True)
class Report:
    """The last one about a GPU."""

    xid: int
    at_s: float


class Illness:
    """Whether one GPU is unwell (pure; times are seconds of a clock that goes forward)."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._report: Report | None = None
        self._was_away = False
        """Since the last report NVML did not answer for it at least once."""

    def take(self, trouble: str | None, report: Report | None, now_s: float) -> str | None:
        """Why it is unwell; None: it is well. ``trouble``: what :func:`probe` said now; ``report``: the last one."""
        if report is not None and (self._report is None or report.at_s > self._report.at_s):
            self._report = report
            self._was_away = False
        if trouble is not None:
            self._was_away = True
            return trouble
        if self._report is None:
            return None
        if self._was_away or now_s - self._report.at_s >= self._quiet_s:
            return None
        return f"the driver has reported Xid {self._report.xid}"


def whole_uuids(nvml: Nvml) -> frozenset[str]:
    """The GPUs that there may be reports about."""
    return frozenset(whole_uuid(gpu) for gpu in nvml.gpus if not gpu.is_gone)


def register(pynvml: Any, events: Any, uuids: Iterable[str]) -> tuple[Mapping[int, str], str]:
    """Have reports come to a set of events: the UUIDs of the GPUs that have any, by the address of NVML's handle, and
    why another has none."""
    found, why = {}, "there is no GPU"
    for uuid in uuids:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, events)
            found[_address(handle)] = uuid
        except pynvml.NVMLError as error:
            why = str(error)
    return found, why


def reports_obstacle(pynvml: Any, uuids: Iterable[str]) -> str | None:
    """Why the driver reports errors of no GPU here; None: it does. NVML is initialised."""
    try:
        events = pynvml.nvmlEventSetCreate()
    except pynvml.NVMLError as error:
        return str(error)
    try:
        found, why = register(pynvml, events, uuids)
        return None if found else why
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class XidWatch:
    """Waits for the driver's reports in a thread of its own, and follows the GPUs that come. What was reported stays
    known when it begins to wait anew. Close it in the end."""

    def __init__(
        self,
        unwell: Collection[int],
        clock: Callable[[], float],
        changed: Callable[[], None] = _nothing,
        open_nvml: Callable[[], Nvml] = Nvml,
    ) -> None:
        """``clock``: seconds, of the reports. ``changed`` is called for each that counts."""
        self._unwell, self._clock, self._changed = frozenset(unwell), clock, changed
        self._open = open_nvml
        self.nvml: Nvml | None = None
        """As it was opened last."""
        self._reports: dict[str, Report] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._asked: frozenset[str] = frozenset()
        """GPUs whose reports it is to wait for ..."""
        self._watched: Mapping[int, str] = {}
        """... and those of them that have any, by the address of NVML's handle."""
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self.is_deaf: str | None = None
        """Why there are no reports; None: there are."""

    def last(self, uuid: str) -> Report | None:
        """The last report that counts, about a whole GPU."""
        return self._reports.get(uuid)

    def watched(self) -> frozenset[str]:
        """The GPUs whose reports come here."""
        return frozenset(self._watched.values())

    def counts(self) -> dict[tuple[str, int], int]:
        """How often each Xid was reported, by UUID of the GPU and number."""
        return dict(self._counts)

    def reopen(self) -> bool:
        """Open NVML, anew if it was open. False: the driver keeps the thread, and NVML is as it was."""
        if not self.close():
            return False
        self.nvml = self._open()
        return True

    def follow(self) -> None:
        """Look which GPUs there are, and begin to wait anew if the reports of one are not waited for. Asks NVML."""
        if self.nvml is None or self.nvml.error is not None:
            return
        self.nvml.refresh()
        there = whole_uuids(self.nvml)
        if there - self._asked and self._end():
            self._asked, self.is_deaf = there, None
            self._over.clear()
            self._thread = threading.Thread(target=self._run, args=(self.nvml,), name="xids", daemon=True)
            self._thread.start()

    def close(self) -> bool:
        """End it and let go of NVML; False: the driver keeps the thread, and would keep whoever closed NVML."""
        if not self._end():
            return False
        if self.nvml is not None:
            self.nvml.close()
        return True

    def _end(self) -> bool:
        if self._thread is not None:
            self._over.set()
            self._thread.join(4 * _WAIT_MS / 1000)
            if self._thread.is_alive():
                return False
            self._thread, self._asked, self._watched = None, frozenset(), {}
        return True

    def _run(self, nvml: Nvml) -> None:
        import pynvml

        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._be_deaf(str(error))
            return
        try:
            self._watched, why = register(pynvml, events, {whole_uuid(gpu) for gpu in nvml.gpus})
            if not self._watched:
                self._be_deaf(why)
                return
            while not self._over.is_set():
                self._wait(pynvml, events)
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _wait(self, pynvml: Any, events: Any) -> None:
        try:
            data = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._over.wait(_AGAIN_S)
            return
        xid = int(data.eventData)
        uuid = self._uuid(pynvml, data.device)
        logger.warning("xid=%d gpu=%s unwell=%s", xid, uuid, xid in self._unwell)
        if uuid is None:
            return
        self._counts[uuid, xid] = self._counts.get((uuid, xid), 0) + 1
        if xid in self._unwell:
            self._reports[uuid] = Report(xid, self._clock())
            self._changed()

    def _uuid(self, pynvml: Any, handle: Any) -> str | None:
        """A GPU that has fallen off its bus has a report and may not say its name any more."""
        known = self._watched.get(_address(handle))
        if known is not None:
            return known
        try:
            return nvml_text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            return None

    def _be_deaf(self, why: str) -> None:
        self.is_deaf = why
        logger.warning("xid=unwatched reason=%r", why)
