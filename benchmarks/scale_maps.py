# SPDX-License-Identifier: Apache-2.0
"""Writes what programs would have caused into the maps of a running daemon, as its BPF programs write it.

Problem: the calls of a thousand programs do not fit two cores; what their probes leave in the maps does.

Approach: the daemon's descriptors of its maps are borrowed (pidfd_getfd; told apart by type and sizes). Contexts and
clocks are arrays that can be mapped, and are written as busy.h and clock.h write them. Hashes are updated by the
system call. Nobody but a BPF program can write the ring of edges: so one does, a program of twenty instructions that
puts the record it is given into the ring, run once per edge (BPF_PROG_TEST_RUN). The daemon reads all of it in the way
it always does, and its own program for the end of drains works on it.

Accepted race: that program and this module may change one clock word in the same microsecond. The clock is the
daemon's second opinion; :meth:`Injector.count_busy` puts n right once a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rig import BenchError
from fairsched.base.buckets import bucket_of
from fairsched.bpf import abi, syscall

MOST_BUSY = 250
"""Per GPU: as in all figures so far. A clock word counts to 4,095."""
_PIDFD_GETFD = 438
_HASH = 1
_NO_WAKEUP, _FORCE_WAKEUP = 1, 2
_RINGBUF_OUTPUT = 130
_R1, _R2, _R3, _R4, _R6, _R10 = 1, 2, 3, 4, 6, 10

Shape = tuple[int, int, int, int]
"""Type, key size, value size, entries."""


def _array(value: type[ctypes._SimpleCData[Any] | ctypes.Structure], count: int) -> Shape:
    return (syscall.MAP_TYPE_ARRAY, 4, ctypes.sizeof(value), count)


SHAPES: dict[str, Shape] = {
    "contexts": _array(abi.Ctx, abi.MAX_CTXS),
    "clocks": _array(abi.Clock, abi.MAX_SLOTS),
    "counts": _array(ctypes.c_uint64, len(abi.Count)),
    "uses": (_HASH, ctypes.sizeof(abi.UseKey), ctypes.sizeof(abi.Use), 16384),
    "delays": (_HASH, ctypes.sizeof(abi.DelayKey), ctypes.sizeof(abi.Delay), 4096),
    "edges": (syscall.MAP_TYPE_RINGBUF, 0, 0, abi.EDGE_PAGES * mmap.PAGESIZE),
}


def shape_of(fdinfo: str) -> Shape:
    """From the text of /proc/PID/fdinfo/FD of a map."""
    facts = dict(line.split(":", 1) for line in fdinfo.splitlines() if ":" in line)
    return tuple(int(facts[key]) for key in ("map_type", "key_size", "value_size", "max_entries"))  # type: ignore[return-value]


def borrow_maps(pid: int) -> dict[str, int]:
    """Descriptors of our own for the maps of a daemon, by name of SHAPES. Raises BenchError."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = {shape: name for name, shape in SHAPES.items()}
    found: dict[str, int] = {}
    pidfd = os.pidfd_open(pid)
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}") != "anon_inode:bpf-map":
                    continue
                with open(f"/proc/{pid}/fdinfo/{number}") as file:
                    name = names.get(shape_of(file.read()))
                if name is not None and name not in found:
                    fd = libc.syscall(_PIDFD_GETFD, pidfd, int(number), 0)
                    if fd >= 0:
                        found[name] = fd
    finally:
        os.close(pidfd)
    if missing := SHAPES.keys() - found.keys():
        for fd in found.values():
            os.close(fd)
        raise BenchError(f"process {pid} has no map of the shape of {', '.join(sorted(missing))}")
    return found


def edge_writer(ring_fd: int) -> bytes:
    """The program: six words of its arguments into the ring, flagged with the seventh; r0 is what the ring said."""

    def insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
        return struct.pack("<BBhi", code, dst | src << 4, offset, imm)

    load, store, move, set_to, add = 0x79, 0x7B, 0xBF, 0xB7, 0x07
    words = ctypes.sizeof(abi.Edge) // 8
    code = [insn(move, _R6, _R1)]
    for word in range(words):
        code.append(insn(load, _R2, _R6, 8 * word))
        code.append(insn(store, _R10, _R2, 8 * (word - words)))
    code.append(insn(load, _R4, _R6, 8 * words))
    code.append(insn(0x18, _R1, 1, 0, ring_fd) + insn(0))
    code += [insn(move, _R2, _R10), insn(add, _R2, imm=-8 * words), insn(set_to, _R3, imm=8 * words)]
    code += [insn(0x85, imm=_RINGBUF_OUTPUT), insn(0x95)]
    return b"".join(code)


class _Record(ctypes.Structure):
    _fields_ = (("edge", abi.Edge), ("flags", ctypes.c_uint64))


@dataclass(frozen=True)
class Program:
    """A process and the one context it has."""

    pid: int
    cgroup_id: int
    gpu: int
    freeze_fd: int
    """Its cgroup.freeze, open for reading."""


class Injector:
    """The :class:`scale_world.Listener` that tells a daemon. Program ``i`` has slot ``i``."""

    def __init__(self, daemon_pid: int, programs: Sequence[Program]) -> None:
        if len(programs) > abi.MAX_CTXS:
            raise BenchError(f"{len(programs)} contexts, but the map holds {abi.MAX_CTXS}")
        self._programs = programs
        self._undo = contextlib.ExitStack()
        try:
            self._open(daemon_pid)
        except BaseException:
            self._undo.close()
            raise
        self.edges = 0

    def _open(self, daemon_pid: int) -> None:
        self._fds = borrow_maps(daemon_pid)
        for fd in self._fds.values():
            self._undo.callback(os.close, fd)
        self._writer = syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, edge_writer(self._fds["edges"]))
        self._undo.callback(os.close, self._writer)
        self._contexts = self._map("contexts", abi.Ctx, abi.MAX_CTXS)
        self._clocks = self._map("clocks", abi.Clock, abi.MAX_SLOTS)
        self._counts = self._map("counts", ctypes.c_uint64, len(abi.Count))
        self._uses = [abi.Use() for _ in self._programs]
        self._delays = [abi.Delay() for _ in self._programs]
        self._record = _Record()

    def _map(self, name: str, item: Any, count: int) -> Any:
        page = mmap.PAGESIZE
        length = (ctypes.sizeof(item) * count + page - 1) // page * page
        memory = mmap.mmap(self._fds[name], length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return (item * count).from_buffer(memory)

    def __enter__(self) -> Injector:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    # ---- what a listener is told ----

    def create(self, key: int, t_ns: int) -> None:
        """The process starts and has its context: cuInit, cuCtxCreate."""
        program, live = self._programs[key], self._contexts[key]
        ctypes.memset(
            ctypes.byref(live, abi.Ctx.submitted.offset), 0, ctypes.sizeof(live) - abi.Ctx.submitted.offset
        )
        live.handle, live.cgroup_id, live.tgid = 0xC0DE0000 + key, program.cgroup_id, program.pid
        live.generation += 1
        live.gpu, live.ordinal, live.flags = program.gpu, 0, abi.CtxFlag.LIVE
        self._emit(abi.EdgeKind.PROC_NEW, key, t_ns, wake=True)
        self._emit(abi.EdgeKind.CTX_NEW, key, t_ns, live.handle)

    def is_frozen(self, key: int) -> bool:
        """Whether the cgroup of the process is frozen, by whomever."""
        return os.pread(self._programs[key].freeze_fd, 1, 0) == b"1"

    def submitted(self, key: int, t_ns: int, launches: int) -> None:
        """As submit_to and open_busy do."""
        live = self._contexts[key]
        live.last_call_ns = t_ns
        live.submitted += launches
        busy, clock = live.busy[abi.COMPUTE], self._clocks[live.gpu]
        if busy.streams:
            return
        busy.streams, busy.open_ns = 1, t_ns
        busy.v_open_ns, was_busy = self._step_clock(clock, 1, t_ns)
        if not was_busy:
            clock.busy_open_ns[abi.COMPUTE] = t_ns
        self._emit(abi.EdgeKind.OPEN, key, t_ns, live.handle, live.submitted - launches + 1)

    def completed(self, key: int, t_ns: int) -> None:
        """As complete and close_busy do: the call that waited returns."""
        live = self._contexts[key]
        busy, clock = live.busy[abi.COMPUTE], self._clocks[live.gpu]
        live.completed = live.proven = live.submitted
        live.last_call_ns = t_ns
        live.synced += 1
        waited_ns = live.waited_ns = max(0, t_ns - busy.open_ns)
        if not busy.streams:  # the daemon has told BPF before that the drain is over
            self._emit(abi.EdgeKind.PROGRESS, key, t_ns, waited_ns, live.completed)
            return
        busy.streams = 0
        v_ns, n = self._step_clock(clock, -1, t_ns)
        service_ns = abi.clock_since(v_ns, busy.v_open_ns)
        busy.gpu_time_ns += service_ns
        busy.wall_ns += waited_ns
        busy.bursts += 1
        self._charge(key, live, service_ns, max(0, waited_ns - service_ns))
        self._emit(abi.EdgeKind.CLOSE, key, t_ns, waited_ns, live.completed)
        if n == 1:
            clock.busy_ns[abi.COMPUTE] += max(0, t_ns - clock.busy_open_ns[abi.COMPUTE])
            if clock.wake_on_idle:
                self._emit(abi.EdgeKind.GPU_IDLE, key, t_ns, wake=True)

    def count_busy(self, now_ns: int) -> None:
        """Set n of each clock to the contexts whose interval is open, where it is not."""
        open_on: dict[int, int] = {}
        for key, program in enumerate(self._programs):
            is_open = bool(self._contexts[key].busy[abi.COMPUTE].streams)
            open_on[program.gpu] = open_on.get(program.gpu, 0) + is_open
        for gpu, n in open_on.items():
            clock = self._clocks[gpu]
            missing = n - abi.clock_n(clock.word[abi.COMPUTE])
            if missing:
                self._step_clock(clock, missing, now_ns)

    # ---- mechanism ----

    @staticmethod
    def _step_clock(clock: abi.Clock, delta: int, t_ns: int) -> tuple[int, int]:
        """V at that moment, and n before."""
        word = clock.word[abi.COMPUTE]
        n, v_ns = abi.clock_n(word), abi.clock_v(word, t_ns)
        after = max(0, n + delta)
        part = t_ns // after if after else 0
        clock.word[abi.COMPUTE] = after << abi.CLOCK_SHIFT | (v_ns - part) & abi.CLOCK_MASK
        return v_ns, n

    def _charge(self, key: int, live: abi.Ctx, service_ns: int, wait_ns: int) -> None:
        use, delay = self._uses[key], self._delays[key]
        use.gpu_time_ns += service_ns
        use.wait_ns += wait_ns
        use.bursts += 1
        use.launches = live.submitted
        syscall.update(self._fds["uses"], abi.UseKey(live.cgroup_id, live.tgid, live.gpu), use)
        delay.bucket[bucket_of(wait_ns)] += 1
        delay.sum_ns += wait_ns
        syscall.update(self._fds["delays"], abi.DelayKey(live.cgroup_id, live.gpu), delay)

    def _emit(
        self, kind: abi.EdgeKind, key: int, t_ns: int, arg: int = 0, seq: int = 0, *, wake: bool = False
    ) -> None:
        live, edge = self._contexts[key], self._record.edge
        edge.t_ns, edge.cgroup_id, edge.arg, edge.seq = t_ns, live.cgroup_id, arg, seq
        edge.slot, edge.generation, edge.tgid = key, live.generation, live.tgid
        edge.gpu, edge.kind, edge.engine = live.gpu, int(kind), abi.COMPUTE
        self._record.flags = _FORCE_WAKEUP if wake else _NO_WAKEUP
        self.edges += 1
        if syscall.run_raw_tracepoint(self._writer, self._record):
            self._counts[abi.Count.EDGE_DROPPED] += 1
