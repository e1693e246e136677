# SPDX-License-Identifier: Apache-2.0
"""Lists the GPUs of this node as NVML names them.

A GPU is its UUID; its slot is its place in our tables, fixed while the daemon lives. Without NVML the GPUs
cannot be named: each ordinal then stands for an unknown GPU, and with several of them nothing is enforced.

**MIG.** Every compute instance is a GPU of its own; the GPU that it is a part of is none while it is in MIG mode. A GPU
may be split anew at any time: :meth:`Nvml.refresh` looks again. What is new gets the next free slot, what is gone keeps
its own and is marked, so that nothing that was counted for one is ever another's. One that comes back with its UUID has
its slot again. An error is no news: what NVML does not tell of is taken to be as it was.
"""

from __future__ import annotations

import contextlib
import re
import uuid as uuid_module
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

UNKNOWN = "GPU-unknown"
ONLY_MIG = "NVML has no samples of GPUs in MIG mode"
"""And what DCGM tells of processes comes from the same calls; of instances it tells the load."""
MAX_SLOTS = 64
"""As abi.h has it: GPUs and MIG instances that are told apart while the daemon lives."""
_PROFILE = re.compile(r"MIG (\S+)$")
Clients = Mapping[int, Mapping[int, int | None]]
"""VRAM in bytes by slot and process."""
_LOST = (15, 16)
"""NVML_ERROR_GPU_IS_LOST (it fell off the bus or is otherwise inaccessible), NVML_ERROR_RESET_REQUIRED."""


@dataclass(frozen=True)
class Mig:
    """Which part of which GPU a MIG instance is."""

    parent_uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str | None = None
    """As nvidia-smi names it: 3g.20gb."""

    @property
    def old_name(self) -> str:
        """As drivers before 470 name it."""
        return f"MIG-{self.parent_uuid}/{self.gpu_instance}/{self.compute_instance}"


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance. ``uuid`` is its identity, ``index`` and ``name`` are for display."""

    uuid: str
    index: int | None = None
    """NVML's; of an instance, that of its GPU."""
    name: str | None = None
    memory_total_bytes: int | None = None
    mig: Mig | None = None
    """None: a whole GPU."""
    is_gone: bool = False
    """It was there: the instance was destroyed, or its GPU is in MIG mode now."""

    @property
    def load_name(self) -> str:
        """What its load goes by: DCGM counts that of whole GPUs and of GPU instances, not of compute instances."""
        return self.uuid if self.mig is None else f"{self.mig.parent_uuid}/{self.mig.gpu_instance}"

    @property
    def uuid_bytes(self) -> bytes | None:
        """The 16 bytes cuDeviceGetUuid reports; None for an unknown GPU, and for an instance of an old driver."""
        try:
            return uuid_module.UUID(self.uuid.removeprefix("GPU-").removeprefix("MIG-")).bytes
        except ValueError:
            return None


@dataclass(frozen=True)
class GpuUse:
    """What NVML says of a GPU now; None = it does not say."""

    memory_used_bytes: int | None = None
    busy_ratio: float | None = None
    temperature_celsius: float | None = None
    is_up: bool | None = None
    """False: the driver has lost it."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    """In force now, which may be below what the board can."""
    pcie_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """By direction, to_gpu and from_gpu; without those that it does not say."""


def nvml_text(value: str | bytes) -> str:
    """What NVML says: bytes in older bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Nvml:
    """NVML through pynvml. Absent NVML is a fact, not an error: ``error`` says why, ``gpus`` is empty."""

    def __init__(self) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.error: str | None = None
        self.driver_version: str | None = None
        self._splits: dict[int, bool] = {}
        """By index: whether a GPU is in MIG mode, with instances or without."""
        self.left_out = 0
        """GPUs and instances that there was no slot left for: their work is not accounted."""
        self._handles: list[Any] = []
        self._count = 0
        """Of whole GPUs, when NVML was initialised, whatever has become of them since."""
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # pynvml raises its own family and OSError
            self.error = str(error) or type(error).__name__
            return
        self._nvml = pynvml
        try:
            self._count = int(pynvml.nvmlDeviceGetCount())
            self.driver_version = nvml_text(pynvml.nvmlSystemGetDriverVersion())
            found = list(self._find(strict=True))
        except pynvml.NVMLError as error:
            self.error = str(error)
            return
        self._take_in(found)

    def refresh(self) -> bool:
        """Look again which GPUs and instances there are; True: ``gpus`` is another tuple now. Asks the driver."""
        before = self.gpus
        self._take_in(list(self._find(strict=False)))
        return self.gpus is not before

    @property
    def has_mig(self) -> bool:
        """Some GPU is in MIG mode, with instances or without."""
        return any(tuple(self._splits.values()))

    @property
    def obstacle(self) -> str | None:
        """Why NVML cannot have samples of any GPU's processes; None: it can."""
        if self.error:
            return f"NVML does not work ({self.error})"
        has_whole = any(gpu.mig is None and not gpu.is_gone for gpu in self.gpus)
        return ONLY_MIG if self.has_mig and not has_whole else None

    def handle(self, slot: int) -> Any:
        """NVML's, of the GPU in a slot; None: it is gone."""
        return self._handles[slot] if slot < len(self._handles) else None

    def _find(self, *, strict: bool) -> Iterator[tuple[Gpu, Any]]:
        """Every GPU, or instead of one in MIG mode its instances. ``strict``: NVMLError is raised, unless it says that
        the GPU is lost, which hides no other; else what was known of a GPU that it is about stands."""
        nvml = self._nvml
        for index in range(self._count):
            try:
                found = list(self._find_at(index))
            except nvml.NVMLError as error:
                if strict and error.value not in _LOST:
                    raise
                found = [
                    (gpu, self._handles[slot])
                    for slot, gpu in enumerate(self.gpus)
                    if gpu.index == index and not gpu.is_gone
                ]
            yield from found

    def _find_at(self, index: int) -> Iterator[tuple[Gpu, Any]]:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._splits[index] = self._is_split(index, handle)
        if not self._splits[index]:
            yield self._describe(index, handle), handle
            return
        parent = nvml_text(nvml.nvmlDeviceGetUUID(handle))
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                yield self._describe(index, instance, parent), instance
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    raise

    def _is_split(self, index: int, handle: Any) -> bool:
        try:
            current, _pending = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise
            return self._splits.get(index, False)  # False: a GPU or a driver without MIG
        return bool(current)

    def _take_in(self, found: list[tuple[Gpu, Any]]) -> None:
        """Replaces ``gpus`` where something has changed: others read it from other threads."""
        gpus, handles = list(self.gpus), list(self._handles)
        slots = {gpu.uuid: slot for slot, gpu in enumerate(gpus)}
        there = {gpu.uuid for gpu, _ in found}
        self.left_out = 0
        for gpu, handle in found:
            slot = slots.get(gpu.uuid)
            if slot is not None:
                gpus[slot], handles[slot] = gpu, handle
            elif len(gpus) < MAX_SLOTS:
                gpus.append(gpu)
                handles.append(handle)
            else:
                self.left_out += 1
        for slot, gpu in enumerate(gpus):
            if gpu.uuid not in there:
                gpus[slot], handles[slot] = replace(gpu, is_gone=True), None
        self._handles = handles
        if tuple(gpus) != self.gpus:
            self.gpus = tuple(gpus)

    def _describe(self, index: int, handle: Any, parent_uuid: str | None = None) -> Gpu:
        """``parent_uuid``: of the GPU that an instance is of."""
        nvml = self._nvml
        total = mig = None
        with contextlib.suppress(nvml.NVMLError):
            total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        name = nvml_text(nvml.nvmlDeviceGetName(handle))
        if parent_uuid is not None:
            profile = _PROFILE.search(name)
            mig = Mig(
                parent_uuid,
                int(nvml.nvmlDeviceGetGpuInstanceId(handle)),
                int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
                profile[1] if profile else None,
            )
        return Gpu(nvml_text(nvml.nvmlDeviceGetUUID(handle)), index, name, total, mig)

    def load(self, slot: int) -> float | None:
        """Part of its last sampling period in which a GPU worked; None where NVML does not say."""
        handle = self.handle(slot)
        try:
            return None if handle is None else int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._nvml.NVMLError:
            return None

    def use(self, slot: int) -> GpuUse:
        """Memory, utilisation, temperature and power of one GPU; what NVML refuses to say is None."""
        handle = self.handle(slot)
        if handle is None:
            return GpuUse()
        nvml, lost = self._nvml, False
        said: list[float | None] = []
        for ask in (
            lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
            lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000,
            lambda: int(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000,
        ):
            value = None
            try:
                value = ask()
            except nvml.NVMLError as error:
                lost = lost or error.value in _LOST
            said.append(value)
        memory, busy, celsius, watts, limit_watts = said
        used = None if memory is None else int(memory)
        return GpuUse(used, busy, celsius, not lost, watts, limit_watts)

    def pcie(self, slot: int) -> dict[str, float]:
        """Bytes per second to and from one GPU; NVML looks on for 20 ms each. What it refuses to say is left out."""
        handle, nvml = self.handle(slot), self._nvml
        said: dict[str, float] = {}
        if handle is not None:
            for direction, counter in (
                ("to_gpu", nvml.NVML_PCIE_UTIL_RX_BYTES),
                ("from_gpu", nvml.NVML_PCIE_UTIL_TX_BYTES),
            ):
                with contextlib.suppress(nvml.NVMLError):
                    said[direction] = 1000.0 * nvml.nvmlDeviceGetPcieThroughput(handle, counter)
        return said

    def listed(self, clients: Clients | None = None) -> dict[tuple[int, int], int | None]:
        """VRAM in bytes by (process, slot) of every compute process; None = NVML does not say how much."""
        return {
            (pid, slot): size
            for slot, said in self.listed_by_slot(clients).items()
            for pid, size in said.items()
        }

    def listed_by_slot(self, clients: Clients | None = None) -> dict[int, dict[int, int | None]]:
        """The same by slot and process. A GPU that gave no answer is left out; one that nobody uses is not.

        ``clients``: an answer of :meth:`mps_clients`; None: they are asked for, too.
        """
        clients = self.mps_clients() if clients is None else clients
        found: dict[int, dict[int, int | None]] = {}
        for slot, handle in enumerate(self._handles):
            if handle is None:
                found[slot] = {}
                continue
            with contextlib.suppress(self._nvml.NVMLError):
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                said = {process.pid: process.usedGpuMemory for process in processes}
                found[slot] = {**said, **clients.get(slot, {})}
        return found

    def mps_clients(self) -> Clients:
        """VRAM by process of those that run in the context of an MPS server; without GPUs that have none."""
        handles = [(slot, handle) for slot, handle in enumerate(self._handles) if handle is not None]
        return {slot: said for slot, handle in handles if (said := self._mps_clients(handle))}

    def _mps_clients(self, handle: Any) -> dict[int, int | None]:
        """VRAM by process; drivers that do not tell have none."""
        try:
            processes = self._nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return {}
        return {process.pid: process.usedGpuMemory for process in processes}

    def close(self) -> None:
        """Let go of the driver."""
        if self._count:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._handles, self._count = [], 0


def gpu_label(gpus: Sequence[Gpu], slot: int) -> str:
    """UUID of a slot; a slot NVML has not named gets a name that says so."""
    return gpus[slot].uuid if slot < len(gpus) else f"{UNKNOWN}-{slot}"


def read_environ(pid: int, names: Sequence[str], proc: str = "/proc") -> dict[str, str]:
    """Some variables of a process's initial environment; empty when it is gone or not ours to read."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    found = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        if (text := name.decode(errors="replace")) in names:
            found[text] = value.decode(errors="replace")
    return found
