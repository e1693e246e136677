# SPDX-License-Identifier: Apache-2.0
"""Tells BPF which GPU each CUDA ordinal of a process means.

A process says so itself when it asks for the UUID of a device. Before that its environment tells; of contexts older
than the probes, the driver or NVML. Of a process on a MIG instance NVML's lists tell, too: its environment is what it
was started with, the older cuDeviceGetUuid names the whole GPU, and the instance may be younger than the daemon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from itertools import islice

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.base.process import ProcessId
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.gpu.nvml import Gpu, read_environ
from fairsched.gpu.visible import NAMES, visible_slots

_CHECKED_PER_CALL = 128

logger = logging.getLogger(__name__)


class Ordinals:
    """The processes whose ordinals BPF was told."""

    def __init__(self, probe: GpuTimeProbe, account: EbpfAccount, gpus: tuple[Gpu, ...]) -> None:
        self._probe, self._account, self._gpus = probe, account, gpus
        self._resolved: dict[int, ProcessId] = {}
        """When each of them started, by pid."""
        self._told: dict[int, dict[int, int]] = {}
        """The slots of their ordinals, where one of them is a MIG instance or none is known."""

    def take_in(self, gpus: tuple[Gpu, ...]) -> None:
        """There are other GPUs: what their ordinals mean may be known now, or be another one."""
        self._gpus = gpus
        for pid in list(self._told):
            owner = self._resolved.pop(pid, None)
            if owner is not None and owner.is_alive():
                self._unsay(pid)
                self.resolve(pid)

    def resolve(self, pid: int) -> None:
        """Tell BPF which GPUs the ordinals of a process mean, unless the process said so itself."""
        owner = ProcessId.of(pid)
        if owner is None or self._resolved.get(pid) == owner:
            return
        if pid in self._resolved:  # the pid of another process by now
            self.forget({pid})
        self._resolved[pid] = owner
        slots = visible_slots(self._gpus, read_environ(pid, NAMES))
        devices = dict(enumerate(slots[: abi.MAX_GPUS]))
        if len(slots) == 1:
            devices[abi.ORDINAL_UNSEEN] = slots[0]
        if not slots and self._has_mig:  # a guess would be somebody else's instance
            devices[0] = abi.NO_GPU
        self._tell(pid, devices)

    def _tell(self, pid: int, devices: dict[int, int]) -> None:
        if abi.ORDINAL_UNSEEN in devices:
            self._account.single_gpu_processes.add(pid)
        if self._has_mig or not devices:
            self._told[pid] = devices
        try:
            for ordinal, slot in devices.items():
                self._probe.set_device(pid, ordinal, slot)
        except OSError as error:  # the map is full: this process's GPU stays a guess, the others' do not
            logger.warning("pid=%d gpu=unknown error=%r", pid, error.strerror)

    def _unsay(self, pid: int) -> None:
        self._told.pop(pid, None)
        self._account.single_gpu_processes.discard(pid)
        self._probe.forget_devices({pid}, self._ordinals)

    @property
    def _has_mig(self) -> bool:
        return any(gpu.mig is not None for gpu in self._gpus)

    @property
    def _ordinals(self) -> int:
        return min(max(1, len(self._gpus)), abi.MAX_GPUS)

    def name_guessed(self, slots_of: Callable[[Set[int]], Mapping[int, Set[int]]]) -> None:
        """Name the GPU of contexts older than our probes, and of those on MIG instances, where the driver knows better
        than the environment. ``slots_of``: on which GPUs processes compute."""
        if len(self._gpus) < 2:
            return
        guessed = self._account.guessed_processes()
        asked = guessed | self._told.keys()
        if not asked:
            return
        for pid, slots in slots_of(asked).items():
            if len(slots) != 1:
                continue
            slot = next(iter(slots))
            first = self._told.get(pid, {}).get(0)
            if pid in self._told and (self._gpus[slot].mig is not None or first == abi.NO_GPU):
                if first != slot:
                    self._unsay(pid)
                    self._tell(pid, {0: slot, abi.ORDINAL_UNSEEN: slot})
            elif pid in guessed:
                self._probe.set_device(pid, abi.ORDINAL_UNSEEN, slot)
                self._account.single_gpu_processes.add(pid)

    def forget(self, pids: set[int]) -> None:
        """Drop what is known of processes that are gone."""
        for pid in pids:
            self._resolved.pop(pid, None)
            self._told.pop(pid, None)
        self._account.single_gpu_processes -= pids
        self._probe.forget_processes(pids, self._ordinals)

    def forget_the_gone(self) -> None:
        """Find processes that are gone: one that opened CUDA but made no context ends without an edge.

        A few are looked at per call.
        """
        gone = set()
        for pid in list(islice(self._resolved, _CHECKED_PER_CALL)):
            owner = self._resolved.pop(pid)
            if owner.is_alive():
                self._resolved[pid] = owner  # behind the others
            else:
                gone.add(pid)
        if gone:
            self.forget(gone)
