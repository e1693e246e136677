# SPDX-License-Identifier: Apache-2.0
"""Reading the truth of simulated GPUs, from any process that can open their state directory.

The engine writes its accounts between two increments of a counter (a seqlock); a reader copies them
and tries again if the counter moved. What has happened since the engine last wrote is added here:
the engine publishes what the GPU is doing and until when at least, so at any moment up to then the
accounts are known exactly. ``as_of_ns`` says for which moment an answer is.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fairsched.errors import FairschedError
from fairsched.simgpu import layout

_REQUEST = struct.Struct("IIIIQ")
_REPLY = struct.Struct("IIQQ")
_TRUTH_BYTES = ctypes.sizeof(layout.Truth)
_RESIDENCY = struct.Struct("QQQ")
_GONE = "MIG-gone"
"""UUID of the context of an instance in whose place another one is now."""
_MIG_FILE = struct.Struct(f"III{5 * layout.MAX_INSTANCES}I")
_Read = TypeVar("_Read")


class SimGpuError(FairschedError):
    """The simulated GPUs are gone, or never were."""


@dataclass(frozen=True)
class ContextTruth:
    """What one context really got. All of it belongs to the moment ``as_of_ns``."""

    gpu: int
    gpu_uuid: str
    id: int
    """1, 2, ... per GPU, in order of creation; never used again."""
    pid: int
    owner: int
    """FAIRSCHED_SIM_OWNER of its process when that called cuInit; 0 = it had none."""
    handle: int
    """The CUcontext in the owner's memory: what a probe on libcuda sees."""
    created_ns: int
    ended_ns: int | None
    exec_ns: int
    """Executing kernels, and nothing else."""
    switch_ns: int
    """Cost of switching to it."""
    copy_ns: int
    """On the copy engine, beside everything else."""
    wait_ns: int
    """Runnable, but neither executing nor being switched to: the true queue delay."""
    kernels: int
    vram_bytes: int
    peak_vram_bytes: int
    as_of_ns: int

    @property
    def is_alive(self) -> bool:
        return self.ended_ns is None


@dataclass(frozen=True)
class GpuTruth:
    """What one GPU did since ``start_ns``; busy + switch + idle is as_of - start, exactly."""

    gpu: int
    uuid: str
    start_ns: int
    as_of_ns: int
    busy_ns: int
    switch_ns: int
    copy_ns: int
    switches: int
    vram_used_bytes: int
    util_pct: int

    @property
    def idle_ns(self) -> int:
        return self.as_of_ns - self.start_ns - self.busy_ns - self.switch_ns


@dataclass(frozen=True)
class Residency:
    """One uninterrupted stay of a context on a GPU; where several run at once, among those that do."""

    context_id: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class NewResidencies:
    """The stays completed since an earlier reading, oldest first."""

    stays: tuple[Residency, ...]
    count: int
    """Stays completed so far, those known before included: ask with it the next time."""
    lost: int
    """So many more there were, overwritten before they were read."""


class _GpuFile:
    """One mapped ``gpuN``."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        header = self.header()
        if header.magic != layout.MAGIC or header.abi != layout.ABI:
            raise SimGpuError(f"{path} is not a simulated GPU of this version")
        self.index = int(header.index)
        """Of the GPU; of an instance, see simshm.h."""
        self.gpu_count = int(header.gpu_count)

    @property
    def uuid(self) -> str:
        """Of what is there now: a MIG instance may be gone, and another in its place."""
        return str(self.header().spec.uuid.decode())

    def header(self) -> layout.Gpu:
        return layout.Gpu.from_buffer_copy(self._map[: layout.SAMPLES_OFFSET])

    def snapshot(self) -> tuple[layout.Gpu, list[layout.Truth], int]:
        """Header and contexts as of one moment, and that moment."""

        def read() -> tuple[layout.Gpu, bytes, int]:
            header = self.header()
            count = min(header.truth_count, layout.MAX_TRUTHS)
            end = layout.TRUTHS_OFFSET + count * _TRUTH_BYTES
            return header, self._map[layout.TRUTHS_OFFSET : end], time.monotonic_ns()

        header, raw, now_ns = self._undisturbed(read)
        truths = [layout.Truth.from_buffer_copy(raw, at) for at in range(0, len(raw), _TRUTH_BYTES)]
        return header, [t for t in truths if t.id], max(min(now_ns, header.limit_ns), header.charged_ns)

    def residencies_since(self, seen: int) -> NewResidencies:
        def read() -> tuple[int, int, bytes]:
            count = int(self.header().residency_count)
            if not 0 <= seen <= count:
                raise ValueError(f"gpu{self.index}: {seen} stays were seen, but there were only {count}")
            first = max(seen, count - layout.MAX_RESIDENCIES)
            return first, count, self._ring_bytes(first, count)

        first, count, raw = self._undisturbed(read)
        stays = tuple(Residency(*fields) for fields in _RESIDENCY.iter_unpack(raw))
        return NewResidencies(stays, count, first - seen)

    def _undisturbed(self, read: Callable[[], _Read]) -> _Read:
        """What `read` finds while the engine writes nothing.

        The counter is read by itself, first and last: a copy of the header holds it too, but was made piece by piece,
        some of them before the counter moved.
        """
        while True:
            before = self._lock_seq()
            found = read()
            if before % 2 == 0 and self._lock_seq() == before:
                return found

    def _lock_seq(self) -> int:
        at = layout.Gpu.lock_seq.offset
        return int.from_bytes(self._map[at : at + layout.Gpu.lock_seq.size], sys.byteorder)

    def _ring_bytes(self, first: int, end: int) -> bytes:
        """Stays number first ... end - 1 of the ring, which may go round once on the way."""
        start, length = first % layout.MAX_RESIDENCIES, end - first
        before_wrap = min(length, layout.MAX_RESIDENCIES - start)
        base = layout.RESIDENCIES_OFFSET
        at = base + start * _RESIDENCY.size
        return (
            self._map[at : at + before_wrap * _RESIDENCY.size]
            + self._map[base : base + (length - before_wrap) * _RESIDENCY.size]
        )

    def close(self) -> None:
        self._map.close()


def _copy_in_progress_ns(header: layout.Gpu, as_of_ns: int) -> int:
    if not header.copy_id:
        return 0
    return max(0, min(as_of_ns, int(header.copy_end_ns)) - int(header.copy_from_ns))


def _phase_so_far_ns(header: layout.Gpu, phase: int, as_of_ns: int) -> int:
    return as_of_ns - int(header.charged_ns) if header.phase == phase else 0


def _dealt_ns(header: layout.Gpu, seat: int, until_ns: int) -> int:
    """Of the time since the set of running contexts changed, what went to the seat: see engine_nature.c."""
    each, rest = divmod(until_ns - int(header.share_from_ns), int(header.share_count))
    return each + (seat <= rest)


def _context_truth(gpu: _GpuFile, header: layout.Gpu, t: layout.Truth, as_of_ns: int) -> ContextTruth:
    exec_ns, switch_ns, copy_ns, wait_ns = t.exec_ns, t.switch_ns, t.copy_ns, t.wait_ns
    if t.seat:
        exec_ns += _dealt_ns(header, t.seat, as_of_ns) - _dealt_ns(header, t.seat, int(header.charged_ns))
    elif t.id == header.current_id:
        switch_ns += _phase_so_far_ns(header, layout.PHASE_SWITCH, as_of_ns)
    if t.id == header.copy_id:
        copy_ns += _copy_in_progress_ns(header, as_of_ns)
    if t.waiting_since_ns:
        wait_ns += max(0, as_of_ns - t.waiting_since_ns)
    return ContextTruth(
        gpu=gpu.index,
        gpu_uuid=header.spec.uuid.decode() if t.created_ns >= header.spec.born_ns else _GONE,
        id=t.id,
        pid=t.pid,
        owner=t.owner,
        handle=t.handle,
        created_ns=t.created_ns,
        ended_ns=t.ended_ns or None,
        exec_ns=exec_ns,
        switch_ns=switch_ns,
        copy_ns=copy_ns,
        wait_ns=wait_ns,
        kernels=t.kernels,
        vram_bytes=t.vram_bytes,
        peak_vram_bytes=t.peak_vram_bytes,
        as_of_ns=as_of_ns,
    )


def _context_truths(
    gpu: _GpuFile, header: layout.Gpu, truths: list[layout.Truth], as_of_ns: int
) -> list[ContextTruth]:
    return [_context_truth(gpu, header, t, as_of_ns) for t in sorted(truths, key=lambda t: int(t.id))]


def _contexts(gpu: _GpuFile) -> list[ContextTruth]:
    header, truths, as_of_ns = gpu.snapshot()
    return _context_truths(gpu, header, truths, as_of_ns)


def _gpu_truth(gpu: _GpuFile, header: layout.Gpu, as_of_ns: int) -> GpuTruth:
    return GpuTruth(
        gpu=gpu.index,
        uuid=header.spec.uuid.decode(),
        start_ns=header.start_ns,
        as_of_ns=as_of_ns,
        busy_ns=header.busy_ns + _phase_so_far_ns(header, layout.PHASE_EXEC, as_of_ns),
        switch_ns=header.switch_ns + _phase_so_far_ns(header, layout.PHASE_SWITCH, as_of_ns),
        copy_ns=header.copy_ns + _copy_in_progress_ns(header, as_of_ns),
        switches=header.switches,
        vram_used_bytes=header.vram_used_bytes,
        util_pct=header.util_pct,
    )


class SimReader:
    """The truth of all GPUs in ``state_dir``."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._lock = threading.Lock()
        first = _GpuFile(state_dir / "gpu0")
        others = [_GpuFile(state_dir / f"gpu{i}") for i in range(1, first.gpu_count)]
        self._gpus = [first, *others]
        self._instances = [
            [_GpuFile(state_dir / f"gpu{gpu.index}.m{slot}") for slot in range(layout.MAX_INSTANCES)]
            for gpu in self._gpus
        ]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(state_dir / "control"))

    def close(self) -> None:
        self._socket.close()
        for gpu in self._devices():
            gpu.close()

    def _devices(self) -> list[_GpuFile]:
        return [*self._gpus, *(one for instances in self._instances for one in instances)]

    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self._gpus]

    def mig_uuids(self, gpu: int) -> list[str]:
        """UUIDs of the MIG instances of a GPU that are there now."""
        try:
            numbers = _MIG_FILE.unpack((self.state_dir / f"mig{gpu}").read_bytes())
        except (FileNotFoundError, struct.error):  # nobody has split it yet
            return []
        parts = numbers[6::5]  # struct mig_instance.part, sim_mig.h
        return [one.uuid for one, part in zip(self._instances[gpu], parts, strict=True) if part]

    def request(self, op: int, argument: int = 0) -> int:
        """One control request; returns the engine's answer."""
        try:
            with self._lock:
                self._socket.send(_REQUEST.pack(op, 0, 0, 0, argument))
                reply = self._socket.recv(_REPLY.size)
            status, _, answer, _ = _REPLY.unpack(reply)
        except (OSError, struct.error) as error:
            raise SimGpuError(f"the engine of {self.state_dir} is gone: {error}") from error
        if status:
            raise SimGpuError(f"the engine refused request {op}: status {status}")
        return int(answer)

    def sync(self) -> None:
        """Have the engine bring its accounts up to now, however late it may be."""
        self.request(layout.RPC_SYNC)

    def truth(self, sync: bool = True) -> list[ContextTruth]:
        """Every context there ever was, dead ones included (the last 4096 per GPU), oldest first.

        Those on MIG instances are among them.
        """
        if sync:
            self.sync()
        found = [_contexts(gpu) for gpu in self._devices()]
        return [truth for contexts in found for truth in contexts]

    def snapshot(self, gpu: int = 0, sync: bool = True) -> tuple[GpuTruth, list[ContextTruth]]:
        """A GPU and its contexts as of one and the same moment."""
        if sync:
            self.sync()
        file = self._gpus[gpu]
        header, truths, as_of_ns = file.snapshot()
        return _gpu_truth(file, header, as_of_ns), _context_truths(file, header, truths, as_of_ns)

    def gpu_truth(self, gpu: int = 0, sync: bool = True) -> GpuTruth:
        return self.snapshot(gpu, sync)[0]

    def gpu_phase(self, gpu: int = 0) -> str:
        """What the GPU does at this moment: idle, switch or exec."""
        self.sync()
        return layout.PHASES[self._gpus[gpu].header().phase]

    def residencies(self, gpu: int = 0) -> list[Residency]:
        """The last 8192 completed stays, oldest first."""
        return list(self.residencies_since(gpu, 0).stays)

    def residencies_since(self, gpu: int, seen: int, sync: bool = True) -> NewResidencies:
        """The stays completed after the first ``seen`` ones, at the cost of the new ones only."""
        if sync:
            self.sync()
        return self._gpus[gpu].residencies_since(seen)
