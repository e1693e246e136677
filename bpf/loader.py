# SPDX-License-Identifier: Apache-2.0
"""Compiles, loads and attaches the BPF programs; reads their maps. The only module that imports bcc.

Problem: bcc wants kernel headers, one lookup per key and one symbol search per probe; a node has none of the
first and no time for the others.

Approach: the headers are a small stand-in (headers/); arrays are read through mmap and hashes in one batch per
tick; exports are read from the ELF file once and attached by file offset, once per inode, so that every
container that bind-mounts the same libcuda is covered by one set of probes.

bcc rewrites map accesses only in the file it is given, so :func:`flatten` puts our own headers into that one
file, with ``#line`` so that errors still name the right place.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fairsched.bpf import abi, elf, exports, syscall
from fairsched.errors import FairschedError, HostUnsupported

HERE = Path(__file__).resolve().parent
_INCLUDE = re.compile(r'^#include "([^"]+)"')
_RAW_TRACEPOINTS = {"on_exit": "sched_process_exit", "on_exec": "sched_process_exec"}
_PAGE = mmap.PAGESIZE
_Value = TypeVar("_Value", abi.Ctx, abi.Clock, ctypes.c_uint64)
_EDGE = struct.Struct("=QQQQIIIHBB")
"""struct fs_edge, in the order of Edge's fields; a test compares it with abi.Edge."""


class Edge(NamedTuple):
    """One struct fs_edge."""

    t_ns: int
    cgroup_id: int
    handle: int
    seq: int
    slot: int
    generation: int
    tgid: int
    gpu: int
    kind: int
    engine: int


@dataclass
class Library:
    """A libcuda file with our probes on it."""

    path: str
    device: int
    inode: int
    probes: int = 0
    cheap: int = 0
    """Of these, attached past the single-stepped first instruction."""
    failures: dict[str, str] = field(default_factory=dict)
    """Symbol -> why it could not be probed."""
    fds: list[int] = field(default_factory=list, repr=False)


def flatten(path: Path, seen: set[Path] | None = None) -> str:
    """The C text of ``path`` with every ``#include "..."`` replaced by that file, each once."""
    seen = set() if seen is None else seen
    if path in seen:
        return ""
    seen.add(path)
    parts = [f'#line 1 "{path.name}"\n']
    for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
        match = _INCLUDE.match(line)
        if match:
            parts.append(flatten(path.parent / match[1], seen))
            parts.append(f'#line {number + 1} "{path.name}"\n')
        else:
            parts.append(line)
    return "".join(parts)


def _import_bcc() -> Any:
    os.environ["BCC_KERNEL_SOURCE"] = str(HERE / "headers")
    try:
        import bcc
    except ImportError as error:
        raise HostUnsupported(
            f"bcc cannot be imported: {error}",
            remedy="install the distribution's package (Debian, Ubuntu: apt install python3-bpfcc) and use a "
            "virtual environment made with --system-site-packages; PyPI's 'bcc' is something else",
        ) from error
    if not hasattr(bcc, "BPF"):
        raise HostUnsupported(
            "the Python package 'bcc' here is PyPI's lattice library, not the BPF Compiler Collection",
            remedy="pip uninstall bcc, then install the distribution's python3-bpfcc",
        )
    return bcc


def _cflags() -> list[str]:
    multiarch = f"/usr/include/{os.uname().machine}-linux-gnu"
    return ["-I/usr/include", f"-I{multiarch}", f"-DPAGE_SIZE={_PAGE}", "-Wno-unused-value"]


class _MappedArray(Generic[_Value]):
    """A BPF_F_MMAPABLE array seen through mmap: ``items[i]`` is the live value."""

    def __init__(self, map_fd: int, value: type[_Value], count: int) -> None:
        stride = (ctypes.sizeof(value) + 7) // 8 * 8
        if stride != ctypes.sizeof(value):
            raise FairschedError(f"{value.__name__}: values of a mapped array must be multiples of 8 bytes")
        length = (stride * count + _PAGE - 1) // _PAGE * _PAGE
        self._memory = mmap.mmap(map_fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.items: ctypes.Array[_Value] = (value * count).from_buffer(self._memory)


class GpuTimeProbe:
    """gpu_time.bpf.c, loaded; probes are added with :meth:`attach_library`.

    Raises HostUnsupported when bcc is missing or the kernel refuses the programs.
    """

    def __init__(self) -> None:
        bcc = _import_bcc()
        self._lib = bcc.lib
        try:
            self._bpf = bcc.BPF(text=flatten(HERE / "gpu_time.bpf.c"), cflags=_cflags())
            self._fns = {
                name: self._bpf.load_func(name, bcc.BPF.KPROBE)
                for name in [*exports.programs(), "on_submit_first"]
            }
            for name in [*_RAW_TRACEPOINTS, "on_drain_end"]:
                self._fns[name] = self._bpf.load_func(name, bcc.BPF.RAW_TRACEPOINT)
        except Exception as error:  # bcc raises bare Exception
            raise HostUnsupported(
                f"the kernel or bcc refused the GPU time programs: {str(error).strip()[-400:]}",
                remedy="fairsched doctor shows what is missing (kernel >= 5.12, root or CAP_BPF + CAP_PERFMON)",
            ) from error
        self._libraries: dict[tuple[int, int], Library] = {}
        self._edges: list[Edge] = []
        self._map_all()
        self._raw_fds = [self._attach_raw(name, hook) for name, hook in _RAW_TRACEPOINTS.items()]

    def _map_all(self) -> None:
        tables = {name: self._bpf[name] for name in ("ctx_by_slot", "clock_by_gpu", "counts_by_what")}
        self._ctxs = _MappedArray(tables["ctx_by_slot"].map_fd, abi.Ctx, abi.MAX_CTXS)
        self._clocks = _MappedArray(tables["clock_by_gpu"].map_fd, abi.Clock, abi.MAX_GPUS)
        self._counts = _MappedArray(tables["counts_by_what"].map_fd, ctypes.c_uint64, len(abi.Count))
        self._uses = syscall.BatchReader(self._bpf["gpu_time_by_key"].map_fd, abi.UseKey, abi.Use)
        self._delays = syscall.BatchReader(self._bpf["delay_by_key"].map_fd, abi.DelayKey, abi.Delay)
        long_ways = self._bpf["long_ways"]
        long_ways[ctypes.c_int(0)] = ctypes.c_int(self._fns["on_submit_first"].fd)
        free = self._bpf["free_slots"]
        for slot in reversed(range(abi.MAX_CTXS)):
            free.push(ctypes.c_uint32(slot))
        self._bpf["edges"].open_ring_buffer(self._on_edge)

    def _attach_raw(self, name: str, hook: str) -> int:
        fd = int(self._lib.bpf_attach_raw_tracepoint(self._fns[name].fd, hook.encode()))
        if fd < 0:
            raise HostUnsupported(
                f"raw tracepoint {hook}: {os.strerror(-fd)}",
                remedy="the kernel needs CONFIG_BPF_EVENTS and tracepoints",
            )
        return fd

    # ---- probes ----

    @property
    def libraries(self) -> list[Library]:
        """Library files that carry our probes."""
        return list(self._libraries.values())

    def attach_library(self, path: str) -> Library:
        """Put probes on every relevant export of the libcuda at ``path``, once per inode.

        Errors of single symbols are kept in ``Library.failures``. Raises FairschedError when the file is no
        usable library or no probe could be attached at all, OSError when it is gone.
        """
        stat = os.stat(path)
        key = (stat.st_dev, stat.st_ino)
        if key in self._libraries:
            return self._libraries[key]
        library = Library(path, *key)
        by_name = {export.name: export for export in elf.read_exports(path)}
        for probe in exports.choose_probes(by_name):
            self._attach_probe(library, by_name[probe.symbol], probe)
        if not library.probes:
            raise FairschedError(
                f"{path}: no CUDA driver entry point could be probed",
                remedy="fairsched doctor shows whether uprobes work here",
            )
        self._libraries[key] = library
        return library

    def _attach_probe(self, library: Library, export: elf.Export, probe: exports.Probe) -> None:
        offset = export.offset + export.skip
        for program, is_return in ((probe.entry, 0), (probe.on_return, 1)):
            if program is None:
                continue
            fd = self.attach_at(library.path, offset, program, bool(is_return), probe.symbol)
            if fd < 0:
                library.failures[probe.symbol] = os.strerror(-fd) if fd != -1 else "refused by the kernel"
                continue
            library.fds.append(fd)
            library.probes += 1
            library.cheap += bool(export.skip)

    def attach_at(self, path: str, offset: int, program: str, is_return: bool, label: str) -> int:
        """Attach one program at a file offset; returns a perf event fd, or a negative number."""
        event = f"fs_{'r' if is_return else 'p'}_{label}_{offset:x}".encode()
        args: list[Any] = [self._fns[program].fd, int(is_return), event, os.fsencode(path), offset, -1]
        if len(self._lib.bpf_attach_uprobe.argtypes) > len(args):
            args.append(0)  # ref_ctr_offset, in newer bcc
        return int(self._lib.bpf_attach_uprobe(*args))

    def detach_library(self, library: Library) -> None:
        """Take our probes off a library."""
        for fd in library.fds:
            self._lib.bpf_close_perf_event_fd(fd)
        library.fds.clear()
        self._libraries.pop((library.device, library.inode), None)

    # ---- reading ----

    def clock(self, gpu: int) -> abi.Clock:
        """The live clock of a GPU slot (values change under the reader)."""
        return self._clocks.items[gpu]

    def contexts(self) -> Iterator[tuple[int, abi.Ctx]]:
        """(slot, live context) of every context that exists now."""
        for slot in range(abi.MAX_CTXS):
            item = self._ctxs.items[slot]
            if item.flags & abi.CtxFlag.LIVE:
                yield slot, item
            elif not item.generation:
                return  # slots are given out from 0 upward: none beyond was ever used

    def context(self, slot: int) -> abi.Ctx:
        """The live context in ``slot``."""
        return self._ctxs.items[slot]

    def counts(self) -> dict[str, int]:
        """What should not have happened and did, by lower-case name of ``abi.Count``."""
        return {what.name.lower(): int(self._counts.items[what]) for what in abi.Count}

    def uses(self) -> list[tuple[abi.UseKey, abi.Use]]:
        """gpu_time_by_key, in one batch. Closed intervals only: add the open ones of :meth:`contexts`."""
        return self._uses.read()  # type: ignore[return-value]

    def delays(self) -> list[tuple[abi.DelayKey, abi.Delay]]:
        """Queue delay histograms, in one batch."""
        return self._delays.read()  # type: ignore[return-value]

    def fileno(self) -> int:
        """Readable when an edge wants attention at once (GPU idle, process new or gone)."""
        return int(self._bpf["edges"].map_fd)

    def _on_edge(self, _context: Any, data: Any, size: int) -> None:
        self._edges.append(Edge._make(_EDGE.unpack(ctypes.string_at(data, _EDGE.size))))

    def read_edges(self) -> list[Edge]:
        """Every edge since the last call, in order."""
        self._bpf.ring_buffer_consume()
        edges, self._edges = self._edges, []
        return edges

    # ---- writing ----

    def set_wake_on_idle(self, gpu: int, wake: bool) -> None:
        """Whether n falling to 0 on ``gpu`` makes :meth:`fileno` readable."""
        self._clocks.items[gpu].wake_on_idle = int(wake)

    def set_uuid(self, uuid: bytes, gpu: int) -> None:
        """Tell BPF which slot a GPU's 16-byte UUID has."""
        self._bpf["gpu_by_uuid"][abi.Uuid((ctypes.c_uint8 * 16)(*uuid))] = ctypes.c_uint32(gpu)

    def set_device(self, tgid: int, ordinal: int, gpu: int) -> None:
        """Tell BPF which GPU the CUDA ordinal of a process is, unless it knows from the process itself."""
        devices, key = self._bpf["gpu_by_dev"], abi.DevKey(tgid, ordinal)
        if key not in devices:
            devices[key] = ctypes.c_uint32(gpu)

    def forget_process(self, tgid: int, ordinals: int) -> None:
        """Drop what was kept by pid of a dead process."""
        devices, uses = self._bpf["gpu_by_dev"], self._bpf["gpu_time_by_key"]
        for ordinal in range(ordinals):
            with contextlib.suppress(KeyError):
                del devices[abi.DevKey(tgid, ordinal)]
        for use_key, _ in self.uses():
            if use_key.tgid == tgid:
                with contextlib.suppress(KeyError):
                    del uses[use_key]

    def end_drain(self, slot: int, generation: int, v_end_ns: int) -> bool:
        """Close the compute interval of a held context as of V = ``v_end_ns``; False when it is gone."""
        args = abi.DrainArgs(slot, generation, v_end_ns, abi.COMPUTE)
        return syscall.run_raw_tracepoint(self._fns["on_drain_end"].fd, args) == 0

    def close(self) -> None:
        """Detach everything. Idempotent."""
        for library in self.libraries:
            self.detach_library(library)
        for fd in self._raw_fds:
            os.close(fd)
        self._raw_fds = []
        self._bpf.cleanup()
