# SPDX-License-Identifier: Apache-2.0
"""Tells BPF which GPU each CUDA ordinal of a process means.

A process says so itself when it asks for the UUID of a device. Before that its environment tells; of contexts older
than the probes, the driver or NVML.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from itertools import islice

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.base.process import ProcessId
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.gpu.nvml import Gpu, read_environ, visible_slots

_CHECKED_PER_CALL = 128

logger = logging.getLogger(__name__)


class Ordinals:
    """The processes whose ordinals BPF was told."""

    def __init__(self, probe: GpuTimeProbe, account: EbpfAccount, gpus: tuple[Gpu, ...]) -> None:
        self._probe, self._account, self._gpus = probe, account, gpus
        self._resolved: dict[int, ProcessId] = {}
        """When each of them started, by pid."""

    def resolve(self, pid: int) -> None:
        """Tell BPF which GPUs the ordinals of a process mean, unless the process said so itself."""
        owner = ProcessId.of(pid)
        if owner is None or self._resolved.get(pid) == owner:
            return
        if pid in self._resolved:  # the pid of another process by now
            self.forget({pid})
        self._resolved[pid] = owner
        environ = read_environ(pid, ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
        slots = visible_slots(self._gpus, environ)
        devices = dict(enumerate(slots))
        if len(slots) == 1:
            self._account.single_gpu_processes.add(pid)
            devices[abi.ORDINAL_UNSEEN] = slots[0]
        try:
            for ordinal, slot in devices.items():
                self._probe.set_device(pid, ordinal, slot)
        except OSError as error:  # the map is full: this process's GPU stays a guess, the others' do not
            logger.warning("pid=%d gpu=unknown error=%r", pid, error.strerror)

    def name_guessed(self, slots_of: Callable[[Set[int]], Mapping[int, Set[int]]]) -> None:
        """Name the GPU of contexts older than our probes. ``slots_of``: on which GPUs processes compute."""
        if len(self._gpus) < 2:
            return
        guessed = self._account.guessed_processes()
        if not guessed:
            return
        for pid, slots in slots_of(guessed).items():
            if len(slots) == 1:
                self._probe.set_device(pid, abi.ORDINAL_UNSEEN, next(iter(slots)))
                self._account.single_gpu_processes.add(pid)

    def forget(self, pids: set[int]) -> None:
        """Drop what is known of processes that are gone."""
        for pid in pids:
            self._resolved.pop(pid, None)
        self._account.single_gpu_processes -= pids
        self._probe.forget_processes(pids, max(1, len(self._gpus)))

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
