# SPDX-License-Identifier: Apache-2.0
"""How a GPU is split into MIG instances, read and changed through NVML (pynvml).

A *profile* has the name nvidia-smi gives it, such as ``3g.20gb``: compute slices and memory. A *layout* is the list
of the profiles a GPU is split into. Each GPU instance is given one compute instance that fills it, which is what
one tenant wants. To switch MIG mode itself on or off may reset the GPU: that is never done here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairsched.errors import FairschedError
from fairsched.gpu.nvml import nvml_text

_SLICE_OF_MEMORY = 8
_MIB_PER_GIB = 1024


class MigError(FairschedError):
    """NVML is absent, or refused."""


@dataclass(frozen=True)
class Profile:
    """A size that instances of one GPU may have."""

    id: int
    name: str
    slices: int
    most: int
    """So many of it fit on an empty GPU."""


@dataclass(frozen=True)
class MigGpu:
    """One GPU, as far as MIG goes."""

    index: int
    uuid: str
    is_enabled: bool
    """MIG mode is on, and no change of it is pending."""
    profiles: tuple[Profile, ...] = ()
    layout: tuple[str, ...] = ()
    """Names of the profiles of its instances, largest first."""
    pids: tuple[int, ...] = ()
    """Processes with a context on it."""


def profile_name(slices: int, memory_mib: int, total_mib: int) -> str:
    """``SLICESg.MEMORYgb`` as nvidia-smi writes it; for drivers that do not name profiles themselves.

    Memory comes in eighths of the GPU's; the name has the next whole GiB of that part.
    """
    total_gib = -(-total_mib // _MIB_PER_GIB)
    eighths = -(-memory_mib * _SLICE_OF_MEMORY // total_mib)
    return f"{slices}g.{round(eighths / _SLICE_OF_MEMORY * total_gib)}gb"


class MigDriver:
    """NVML for as long as the ``with`` block lasts. Every call raises MigError when NVML refuses."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise MigError(f"NVML cannot be used: {error}") from None
        self._nvml: Any = pynvml

    def __enter__(self) -> MigDriver:
        with self._asked("NVML"):
            self._nvml.nvmlInit()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def gpus(self) -> list[MigGpu]:
        """Every GPU that NVML lists."""
        nvml, found = self._nvml, []
        with self._asked("list the GPUs"):
            for index in range(nvml.nvmlDeviceGetCount()):
                found.append(self._gpu(index, nvml.nvmlDeviceGetHandleByIndex(index)))
        return found

    def resplit(self, gpu: MigGpu, layout: Sequence[str]) -> None:
        """Give `gpu` this layout in place of its own.

        What was there is put back when the new one cannot be made; then MigError says so, and whether that worked.
        """
        with self._asked(f"find GPU {gpu.uuid}"):
            handle = self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        try:
            with self._asked(f"split GPU {gpu.index} into {words(layout)}"):
                self._clear(handle, gpu.profiles)
                self._fill(handle, gpu.profiles, layout)
        except MigError as error:
            try:
                with self._asked("put back what was there"):
                    self._clear(handle, gpu.profiles)
                    self._fill(handle, gpu.profiles, gpu.layout)
            except MigError as second:
                raise MigHalfDone(
                    f"{error}; then {second}", remedy="look at it: nvidia-smi mig -lgi"
                ) from None
            raise

    def _gpu(self, index: int, handle: Any) -> MigGpu:
        nvml = self._nvml
        uuid = nvml_text(nvml.nvmlDeviceGetUUID(handle))
        try:
            is_enabled = nvml.nvmlDeviceGetMigMode(handle) == [1, 1]
        except nvml.NVMLError:  # a GPU that has no MIG
            is_enabled = False
        pids = tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if not is_enabled:
            return MigGpu(index, uuid, False, pids=pids)
        profiles = self._profiles(handle)
        counts = [(profile, len(self._instances(handle, profile))) for profile in profiles]
        layout = tuple(profile.name for profile, count in sorted(counts, key=_by_size) for _ in range(count))
        return MigGpu(index, uuid, True, profiles, layout, pids)

    def _profiles(self, handle: Any) -> tuple[Profile, ...]:
        nvml = self._nvml
        found: dict[int, Profile] = {}
        total_mib = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._profile_info(handle, number)
            if info is not None and info.id not in found:
                name = str(getattr(info, "name", "")).removeprefix("MIG ")
                name = name or profile_name(info.sliceCount, info.memorySizeMB, total_mib)
                found[info.id] = Profile(info.id, name, info.sliceCount, info.instanceCount)
        return tuple(found.values())

    def _profile_info(self, handle: Any, number: int) -> Any:
        """None when this GPU has no such profile. Drivers before 470 know the first version of the call only."""
        nvml = self._nvml
        for version in (2, 1):
            try:
                return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)
            except nvml.NVMLError_FunctionNotFound:
                continue
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                return None
        return None

    def _instances(self, handle: Any, profile: Profile) -> list[Any]:
        nvml = self._nvml
        from ctypes import byref, c_uint

        count = c_uint(0)
        array = (nvml.c_nvmlGpuInstance_t * profile.most)()
        try:
            nvml.nvmlDeviceGetGpuInstances(handle, profile.id, array, byref(count))
        except nvml.NVMLError_NotSupported:
            return []
        return list(array)[: count.value]

    def _clear(self, handle: Any, profiles: Sequence[Profile]) -> None:
        nvml = self._nvml
        for profile in profiles:
            for instance in self._instances(handle, profile):
                for part in self._parts(instance):
                    nvml.nvmlComputeInstanceDestroy(part)
                nvml.nvmlGpuInstanceDestroy(instance)

    def _parts(self, instance: Any) -> list[Any]:
        """The compute instances of a GPU instance."""
        nvml, found = self._nvml, []
        from ctypes import byref, c_uint

        for info in self._part_profiles(instance):
            count = c_uint(0)
            array = (nvml.c_nvmlComputeInstance_t * max(info.instanceCount, 1))()
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, byref(count))
            found += list(array)[: count.value]
        return found

    def _part_profiles(self, instance: Any) -> list[Any]:
        nvml = self._nvml
        found: dict[int, Any] = {}
        engines = nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engines, version=1)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
            found.setdefault(info.id, info)
        return list(found.values())

    def _fill(self, handle: Any, profiles: Sequence[Profile], layout: Sequence[str]) -> None:
        nvml = self._nvml
        known = {profile.name: profile for profile in profiles}
        # Largest first: small instances in the wrong place leave no room for a large one.
        for name in sorted(layout, key=lambda name: -known[name].slices):
            instance = nvml.nvmlDeviceCreateGpuInstance(handle, known[name].id)
            whole = [info for info in self._part_profiles(instance) if info.sliceCount == known[name].slices]
            if not whole:
                raise MigError(f"{name} has no compute instance of its own size")
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole[0].id)

    @contextlib.contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise MigError(f"{what}: {error}") from error


class MigHalfDone(MigError):
    """Neither the new layout nor the old one is there."""


def words(layout: Sequence[str]) -> str:
    """For people."""
    if not layout:
        return "nothing"
    return " + ".join(f"{layout.count(name)} x {name}" for name in dict.fromkeys(layout))


def _by_size(pair: tuple[Profile, int]) -> tuple[int, str]:
    return -pair[0].slices, pair[0].name
