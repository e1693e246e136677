# SPDX-License-Identifier: Apache-2.0
"""Lists the GPUs of this node as NVML names them, and which of them a process's CUDA ordinals mean.

A GPU is its UUID; its slot is its place in our tables, fixed while the daemon lives. Without NVML the GPUs
cannot be named: each ordinal then stands for an unknown GPU, and with several of them nothing is enforced.
"""

from __future__ import annotations

import contextlib
import uuid as uuid_module
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

UNKNOWN = "GPU-unknown"
_LOST = (15, 16)
"""NVML_ERROR_GPU_IS_LOST (it fell off the bus or is otherwise inaccessible), NVML_ERROR_RESET_REQUIRED."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``uuid`` is its identity, ``index`` and ``name`` are for display."""

    uuid: str
    index: int | None = None
    name: str | None = None
    memory_total_bytes: int | None = None

    @property
    def uuid_bytes(self) -> bytes | None:
        """The 16 bytes cuDeviceGetUuid reports; None for an unknown GPU."""
        try:
            return uuid_module.UUID(self.uuid.removeprefix("GPU-")).bytes
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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Nvml:
    """NVML through pynvml. Absent NVML is a fact, not an error: ``error`` says why, ``gpus`` is empty."""

    def __init__(self) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.error: str | None = None
        self._handles: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # pynvml raises its own family and OSError
            self.error = str(error) or type(error).__name__
            return
        self._nvml = pynvml
        try:
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
            ]
            self.gpus = tuple(self._describe(index, handle) for index, handle in enumerate(self._handles))
        except pynvml.NVMLError as error:
            self.error = str(error)

    def _describe(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        total = None
        with contextlib.suppress(nvml.NVMLError):
            total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        name = _text(nvml.nvmlDeviceGetName(handle))
        return Gpu(_text(nvml.nvmlDeviceGetUUID(handle)), index, name, total)

    def load(self, slot: int) -> float | None:
        """Part of its last sampling period in which a GPU worked; None where NVML does not say."""
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(self._handles[slot]).gpu) / 100
        except self._nvml.NVMLError:
            return None

    def use(self, slot: int) -> GpuUse:
        """Memory, utilisation and temperature of one GPU; what NVML refuses to say is None."""
        if slot >= len(self._handles):
            return GpuUse()
        nvml, handle, lost = self._nvml, self._handles[slot], False
        said: list[float | None] = []
        for ask in (
            lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
            lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        ):
            value = None
            try:
                value = ask()
            except nvml.NVMLError as error:
                lost = lost or error.value in _LOST
            said.append(value)
        memory, busy, celsius = said
        return GpuUse(None if memory is None else int(memory), busy, celsius, not lost)

    def listed(self) -> dict[tuple[int, int], int | None]:
        """VRAM in bytes by (process, slot) of every compute process; None = NVML does not say how much."""
        return {
            (pid, slot): size for slot, said in self.listed_by_slot().items() for pid, size in said.items()
        }

    def listed_by_slot(self) -> dict[int, dict[int, int | None]]:
        """The same by slot and process. A GPU that gave no answer is left out; one that nobody uses is not."""
        found: dict[int, dict[int, int | None]] = {}
        for slot, handle in enumerate(self._handles):
            with contextlib.suppress(self._nvml.NVMLError):
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                found[slot] = {process.pid: process.usedGpuMemory for process in processes}
        return found

    def close(self) -> None:
        """Let go of the driver."""
        if self._handles:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._handles = []


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


def visible_slots(gpus: Sequence[Gpu], environ: dict[str, str]) -> list[int]:
    """Slots in the order of a process's CUDA ordinals (pure).

    NVIDIA_VISIBLE_DEVICES is what the container runtime let in, CUDA_VISIBLE_DEVICES what CUDA shows of that.
    As in CUDA, the list ends at the first entry that names no GPU.
    """
    slots = list(range(len(gpus)))
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        text = environ.get(name)
        if text is None or text.strip() == "all":
            continue
        chosen = []
        for word in text.split(","):
            slot = _slot_named(word.strip(), gpus, slots)
            if slot is None:
                break
            chosen.append(slot)
        slots = chosen
    return slots


def _slot_named(word: str, gpus: Sequence[Gpu], slots: Sequence[int]) -> int | None:
    if word.isdigit():
        return slots[int(word)] if int(word) < len(slots) else None
    if not word.startswith("GPU-"):
        return None
    matching = [slot for slot in slots if gpus[slot].uuid.startswith(word)]
    return matching[0] if len(matching) == 1 else None
