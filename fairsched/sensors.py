# SPDX-License-Identifier: Apache-2.0
"""Everything that looks at the GPUs: the BPF account, NVML, and the hunt for libcuda files and processes.

The host is chosen for in one place: when the BPF programs cannot be loaded and the configuration does not
require them, there is no account, every tenant is unseen and nobody is ever held (fail open); ``reason`` says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from fairsched.accounting.ebpf import EbpfAccount, Events, Row
from fairsched.bpf.gpu_time import GpuTimeProbe, Library
from fairsched.cgroup.journal import Owner
from fairsched.config import Config
from fairsched.errors import HostUnsupported
from fairsched.gpu import Gpu, Nvml, read_environ, visible_slots
from fairsched.libraries import LibraryWatch
from fairsched.model import Source

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

logger = logging.getLogger(__name__)


def started_ns(pid: int) -> int | None:
    """When a process started, to a clock tick; None when it is gone."""
    owner = Owner.of(pid)
    return None if owner is None else owner.start_ticks * 1_000_000_000 // _TICKS_PER_S


class Sensors:
    """The eyes of the daemon. ``account`` and ``probe`` are None where BPF is off or refused."""

    def __init__(self, config: Config) -> None:
        """Raises HostUnsupported when eBPF is required and refused."""
        self.nvml = Nvml() if config.mechanisms.nvml != "off" else None
        if self.nvml is not None and self.nvml.error and config.mechanisms.nvml == "required":
            raise HostUnsupported(
                f"NVML is required and not usable: {self.nvml.error}",
                remedy="install the NVIDIA driver's libnvidia-ml.so.1, or set mechanisms.nvml: auto",
            )
        self.gpus: tuple[Gpu, ...] = self.nvml.gpus if self.nvml else ()
        self.probe: GpuTimeProbe | None = None
        self.account: EbpfAccount | None = None
        self.reason: str | None = None
        self._libraries = LibraryWatch(str(path) for path in config.gpu.libcuda)
        self._asked: set[tuple[int, int]] = set()
        self._resolved: set[int] = set()
        self._start_ebpf(config)

    @property
    def source(self) -> Source | None:
        """Where GPU time comes from now."""
        return Source.EBPF if self.account is not None else None

    def _start_ebpf(self, config: Config) -> None:
        mode = config.mechanisms.ebpf
        if mode == "off" or config.gpu.source not in ("auto", "ebpf"):
            self.reason = "eBPF is switched off in the configuration"
            return
        try:
            self.probe = GpuTimeProbe()
        except HostUnsupported as error:
            if mode == "required" or config.gpu.source == "ebpf":
                raise
            self.reason = str(error)
            logger.error("source=none error=%r remedy=%r", str(error), error.remedy)
            return
        for slot, gpu in enumerate(self.gpus):
            if gpu.uuid_bytes is not None:
                self.probe.set_uuid(gpu.uuid_bytes, slot)
        self.account = EbpfAccount(
            self.probe,
            gpus=max(1, len(self.gpus)),
            slice_ns=config.gpu.timeslice_us * 1000,
            switch_ns=config.gpu.switch_us * 1000,
            started_ns=started_ns,
        )

    # ---- per tick ----

    def read(self, now_ns: int) -> list[Row]:
        """Account rows since the last call; new and gone processes are dealt with."""
        if self.account is None or self.probe is None:
            return []
        rows = self.account.read(now_ns)
        for pid in self.account.events.new_processes:
            self._resolve(pid)
        gone = set(self.account.events.gone_processes)
        if gone:
            self._resolved -= gone
            self.probe.forget_processes(gone, max(1, len(self.gpus)))
        return rows

    @property
    def events(self) -> Events:
        """What the last read said besides time."""
        return self.account.events if self.account is not None else Events()

    def look_for_libraries(self, pids: Iterable[int] | None, now_ns: int) -> None:
        """Attach to libcuda files not seen before. ``pids``: the processes to watch from now on."""
        if self.probe is None:
            return
        if pids is not None:
            self._libraries.watch(pids, now_ns)
        for sighting in self._libraries.poll(now_ns):
            key = (sighting.device, sighting.inode)
            if key not in self._asked:
                self._asked.add(key)
                self.probe.request_library(sighting.path)
            if sighting.pid is not None:
                self._resolve(sighting.pid)
        for library in self.probe.take_attached():
            self._report(library)

    @staticmethod
    def _report(library: Library) -> None:
        if library.error is not None:
            logger.warning("library=%s probes=0 error=%r", library.path, library.error)
            return
        failed = len(library.failures)
        logger.info(
            "library=%s probes=%d cheap=%d failed=%d", library.path, library.probes, library.cheap, failed
        )

    def _resolve(self, pid: int) -> None:
        """Tell BPF which GPUs the ordinals of a process mean, unless the process said so itself."""
        if pid in self._resolved or self.probe is None:
            return
        self._resolved.add(pid)
        environ = read_environ(pid, ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
        for ordinal, slot in enumerate(visible_slots(self.gpus, environ)):
            self.probe.set_device(pid, ordinal, slot)

    def set_wake_on_idle(self, wake: bool) -> None:
        """Whether a GPU that falls idle wakes the daemon at once."""
        if self.probe is not None:
            for slot in range(max(1, len(self.gpus))):
                self.probe.set_wake_on_idle(slot, wake)

    def close(self) -> None:
        """Detach everything."""
        if self.probe is not None:
            self.probe.close()
        if self.nvml is not None:
            self.nvml.close()
