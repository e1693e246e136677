# SPDX-License-Identifier: Apache-2.0
"""Tells BPF which GPU each CUDA ordinal of a process means.

A process says so itself when it asks for the UUID of a device. Before that its environment tells; of contexts older
than the probes, the driver or NVML. These are heard of every process now and then: its environment is what it was
started with, and its own to choose; the older cuDeviceGetUuid names the GPU that a MIG instance is of, and an instance
may be younger than the daemon.

There is room for what some thousand processes mean, and a process that maps libcuda need not call it: so each entry is
charged to a tenant. Who wants more than its part has its older processes forgotten, whose contexts stay where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.base.process import ProcessId
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.bpf.rooms import OwnRooms
from fairsched.gpu.nvml import Gpu, read_environ
from fairsched.gpu.visible import NAMES, visible_slots

_CHECKED_PER_CALL = 128

logger = logging.getLogger(__name__)


class Ordinals:
    """The processes whose ordinals BPF was told."""

    def __init__(
        self,
        probe: GpuTimeProbe,
        account: EbpfAccount,
        gpus: tuple[Gpu, ...],
        owner_of: Callable[[int], int] = lambda _pid: abi.STRANGERS,
    ) -> None:
        """``owner_of`` a process: the number of its tenant (observe/owners.py)."""
        self._probe, self._account, self._gpus = probe, account, gpus
        self._owner_of = owner_of
        self.rooms = OwnRooms(abi.Table.ORDINALS, abi.MAX_DEVS)
        self._charged: dict[int, dict[int, dict[int, abi.Room]]] = {}
        """Where the room of each entry is from, by tenant, pid and ordinal; the oldest process comes first."""
        self._owners: dict[int, int] = {}
        """Those tenants, by pid."""
        self._resolved: dict[int, ProcessId] = {}
        """When each of them started, by pid."""
        self._told: dict[int, dict[int, int]] = {}
        """The slots of their ordinals: where one is a MIG instance, none is known, or the driver said otherwise."""
        self._misplaced: dict[int, int] = {}
        """On which slot the driver saw processes at the last check that were taken to be on another."""

    def take_in(self, gpus: tuple[Gpu, ...]) -> None:
        """There are other GPUs: what their ordinals mean may be known now, or be another one."""
        self._gpus = gpus
        for pid in list(self._told):
            owner = self._resolved.get(pid)
            if owner is not None and owner.is_alive():  # else it is forgotten as others that are gone
                del self._resolved[pid]
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
        devices = dict(enumerate(slots[: self._ordinals]))
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
        self._say(pid, devices)

    def _say(self, pid: int, devices: Mapping[int, int]) -> None:
        try:
            for ordinal, slot in devices.items():
                if self._has_room(pid, ordinal):
                    self._probe.set_device(pid, ordinal, slot)
        except OSError as error:  # the map is full: this process's GPU stays a guess, the others' do not
            logger.warning("pid=%d gpu=unknown error=%r", pid, error.strerror)

    def _has_room(self, pid: int, ordinal: int) -> bool:
        """Charge an entry to the tenant of its process, which may have to give up its oldest for it."""
        if pid not in self._owners:
            self._owners[pid] = self._owner_of(pid)
        owner = self._owners[pid]
        mine = self._charged.setdefault(owner, {})
        rooms = mine.setdefault(pid, {})
        while ordinal not in rooms:
            room = self.rooms.take(owner)
            oldest = next(iter(mine))
            if room is not abi.Room.NONE:
                rooms[ordinal] = room
            elif oldest == pid:  # it alone is more than there is room for
                return False
            else:
                self._resolved.pop(oldest, None)  # it is told anew when it calls
                self._unsay(oldest)
        return True

    def _give_back(self, pid: int) -> None:
        owner = self._owners.pop(pid, None)
        if owner is None:
            return
        for room in self._charged[owner].pop(pid).values():
            self.rooms.give(owner, room)
        if not self._charged[owner]:
            del self._charged[owner]

    def _unsay(self, pid: int) -> None:
        self._told.pop(pid, None)
        self._account.single_gpu_processes.discard(pid)
        self._probe.forget_devices({pid}, self._ordinals)
        self._give_back(pid)

    @property
    def _has_mig(self) -> bool:
        return any(gpu.mig is not None for gpu in self._gpus)

    @property
    def _ordinals(self) -> int:
        return min(max(1, len(self._gpus)), abi.MAX_GPUS)

    def check(self, slots_of: Callable[[Set[int]], Mapping[int, Set[int]]], now_ns: int) -> None:
        """Compare where contexts are taken to be with where the driver says their process computes.

        ``slots_of`` tells the latter. Where it is one GPU, a context that is taken to be on another one is on that:
        at once if that was nobody's, else if the next look finds the same, for either may be a second old.
        """
        if len(self._gpus) < 2:
            return
        placed: dict[int, list[tuple[int, abi.Ctx]]] = {}
        for at, live in self._probe.contexts():
            placed.setdefault(live.tgid, []).append((at, live))
        guessed = self._account.guessed_processes()
        before, self._misplaced = self._misplaced, {}
        for pid, slots in slots_of(placed.keys()).items() if placed else ():
            if len(slots) != 1:
                continue
            slot = next(iter(slots))
            if pid in guessed:
                self._say(pid, {abi.ORDINAL_UNSEEN: slot})
                self._account.single_gpu_processes.add(pid)
            wrong = [(at, live) for at, live in placed[pid] if live.gpu != slot]
            if wrong and (before.get(pid) == slot or any(live.gpu == abi.NO_GPU for _, live in wrong)):
                self._correct(pid, wrong, slot, now_ns)
            elif wrong:
                self._misplaced[pid] = slot

    def _correct(self, pid: int, wrong: Sequence[tuple[int, abi.Ctx]], slot: int, now_ns: int) -> None:
        """Tell BPF, and end what is open: an interval belongs to the clock that it was opened on."""
        known = {*range(self._ordinals), abi.ORDINAL_UNSEEN}  # any other is none of CUDA's
        named = {int(live.ordinal): slot for _, live in wrong if live.ordinal in known}
        devices = self._told.get(pid, {}) | named
        if devices == self._told.get(pid):
            return  # it named another GPU itself
        logger.info("pid=%d gpu=%s by=driver", pid, self._gpus[slot].uuid)
        self._probe.forget_devices({pid}, self._ordinals)
        self._tell(pid, devices)
        self._told[pid] = devices
        for at, live in wrong:
            self._probe.end_drain(at, live.generation, 0)
            self._account.end((at, live.generation), now_ns)

    def forget(self, pids: set[int]) -> None:
        """Drop what is known of processes that are gone."""
        for pid in pids:
            self._resolved.pop(pid, None)
            self._told.pop(pid, None)
            self._give_back(pid)
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
