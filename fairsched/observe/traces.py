# SPDX-License-Identifier: Apache-2.0
"""Opens the trace of context switches of each GPU, gives it to the account, and tries again where it was lost.

Whole GPUs only: a MIG instance's trace has to be asked for otherwise. Where there is none the account of eBPF replays
turns, and the one without eBPF takes samples.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from fairsched.config import Config
from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Gpu, Nvml
from fairsched.gpu.trace import GpuTrace, Trace
from fairsched.gpu.trace_thread import TraceThread
from fairsched.host.trace import is_required, obstacle

_AGAIN_NS = 60_000_000_000
_PATIENCE_S = 10.0
"""For the driver's answer, where that is required."""

logger = logging.getLogger(__name__)


class Following(Protocol):
    """What reads traces for an account."""

    @property
    def gpus(self) -> set[int]:
        """Whose trace is read (slots)."""

    def begin(self, gpu: int, trace: Trace) -> None:
        """From now on this tells whose turn it is there."""

    def end(self, gpu: int) -> None:
        """No more is told there. Harmless where nothing was."""


class Traces:
    """Of all GPUs of this node. Close it in the end."""

    def __init__(self, config: Config, nvml: Nvml | None) -> None:
        """Raises HostUnsupported where traces are required and one of a GPU cannot be had."""
        self._device_dir: Path = config.gpu.device_dir
        self._threads: dict[int, TraceThread] = {}
        self._begun: set[int] = set()
        """Of those, the ones that the account was given."""
        self._again_ns, self._opened_ns = 0, 0
        self._following: Following | None = None
        self.reason = obstacle(config, None if nvml is None else nvml.driver_version)
        """Why not every GPU has one, as far as it is known."""
        self._is_off = self.reason is not None
        self._is_required = is_required(config)
        """To start; what is lost later is tried again."""
        if self._is_required:
            self._prove(() if nvml is None else nvml.gpus)

    def _prove(self, gpus: Sequence[Gpu]) -> None:
        """Not left to the first tick: what fails there is logged, and the daemon goes on."""
        if not self._is_off:
            self._begin(dict(enumerate(gpus)))
        for one in self._threads.values():
            if not one.wait(_PATIENCE_S):
                self.reason = "the driver does not answer"
            elif one.refused is not None:
                self.reason = one.refused
        if self.reason is not None:
            self.close()
            self._refuse(self.reason)

    def begin(self, following: Following | None, gpus: Sequence[Gpu]) -> None:
        """At the start. Raises HostUnsupported where one is required and there is no account to give it to."""
        if following is not None:
            self.look(following, gpus, [], time.monotonic_ns())
        elif self._is_required:
            self.close()
            self._refuse("gpu.source names an account that does not use it")

    def look(self, following: Following, gpus: Sequence[Gpu], on_mps: Collection[str], now_ns: int) -> None:
        """Give those to the account that it does not have, and take back those of GPUs that are gone or in ``on_mps``
        (UUIDs; clients of one server have one turn together). Waits for nothing."""
        if self._is_off:
            return
        wanted = {slot: gpu for slot, gpu in enumerate(gpus) if not gpu.is_gone and gpu.uuid not in on_mps}
        for slot in [slot for slot in self._threads if slot not in wanted]:
            following.end(slot)
            self._end(slot)
        for slot in self._begun - following.gpus:
            self._end(slot)
            if following is self._following:  # it was lost, and may be again; else the account is a new one
                self._again_ns = max(self._again_ns, self._opened_ns + _AGAIN_NS)
        self._following = following
        if now_ns >= self._again_ns:
            self._begin(wanted)
        for slot in [
            slot for slot, one in self._threads.items() if one.is_decided and slot not in self._begun
        ]:
            self._take(slot, wanted[slot], following, now_ns)

    def close(self) -> None:
        """Idempotent."""
        for slot in list(self._threads):
            self._end(slot)

    def _begin(self, wanted: dict[int, Gpu]) -> None:
        for slot, gpu in wanted.items():
            if slot in self._threads:
                continue
            if gpu.mig is not None:
                self.reason = "MIG instances have none"
                continue
            uuid, number = gpu.uuid, gpu.index or 0
            self._threads[slot] = TraceThread(
                str(number),
                lambda uuid=uuid, number=number: GpuTrace(uuid, self._device_dir, number),  # type: ignore[misc]
            )

    def _take(self, slot: int, gpu: Gpu, following: Following, now_ns: int) -> None:
        """It is known whether there is one."""
        one = self._threads[slot]
        if one.refused is None:
            self._begun.add(slot)
            self._opened_ns = now_ns
            following.begin(slot, one)
            if self._begun == self._threads.keys():
                self.reason = None
            logger.info("trace=followed gpu=%s", gpu.uuid)
            return
        self.reason = f"GPU {gpu.index}: {one.refused}"
        self._again_ns = now_ns + _AGAIN_NS
        self._end(slot)
        logger.info("trace=refused gpu=%s reason=%r", gpu.uuid, one.refused)

    def _end(self, slot: int) -> None:
        self._begun.discard(slot)
        self._threads.pop(slot).close()

    def _refuse(self, reason: str) -> None:
        raise HostUnsupported(
            f"the trace of context switches is required and cannot be had: {reason}",
            remedy="set mechanisms.trace (and gpu.source) to auto: the account then does without",
        )
