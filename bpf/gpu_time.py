# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of gpu_time.bpf.c: starts the loader, reads and writes the maps.

Arrays are read through mmap, hashes one batch per look, edges through the ring's mapping; nothing here needs bcc.
The probes themselves are held by the attacher process, which ends when this object is closed or its process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairsched.base.wait import is_readable
from fairsched.bpf import abi, budgets, child, syscall
from fairsched.bpf.channel import Channel
from fairsched.bpf.mapped import MappedArray
from fairsched.bpf.ring import RingReader
from fairsched.bpf.rooms import MapRooms
from fairsched.errors import FairschedError, HostUnsupported

_PAGE = mmap.PAGESIZE
_STOP_TIMEOUT_S = 20.0
EDGE = struct.Struct("=QQQQIIIHBB")
"""struct fs_edge, in the order of Edge's fields; a test compares it with abi.Edge."""


class Edge(NamedTuple):
    """One struct fs_edge."""

    t_ns: int
    cgroup_id: int
    arg: int
    seq: int
    slot: int
    generation: int
    tgid: int
    gpu: int
    kind: int
    engine: int


def _edges(records: Iterable[tuple[Any, ...]]) -> list[Edge]:
    """As ``Edge._make`` makes them one by one; here no Python runs for each, and a flood is thousands a second."""
    return [*map(tuple.__new__, itertools.repeat(Edge), records)]


@dataclass(frozen=True)
class Library:
    """A libcuda file and the probes on it."""

    path: str
    device: int = 0
    inode: int = 0
    probes: int = 0
    cheap: int = 0
    """Of these, attached past the single-stepped first instruction."""
    failures: dict[str, str] = field(default_factory=dict)
    """Symbol -> why it could not be probed."""
    error: str | None = None
    """Why there is no probe at all on it."""
    remedy: str = ""
    is_gone: bool = False
    """Why: there is no such file any more."""
    is_libcuda: bool = True
    """False: only its name is a libcuda's."""
    name: str = ""
    """What people call it, where that is not the path."""
    is_lasting: bool = True
    """False: it is on a mount that goes with a container."""


class Dropped(NamedTuple):
    """A file whose probes were let go."""

    device: int
    inode: int


class GpuTimeProbe:
    """The programs, loaded; libraries are added with :meth:`attach_library`.

    ``loader``: one that has been started already. Raises HostUnsupported when bcc is missing or the kernel refuses the
    programs.
    """

    def __init__(self, loader: child.LoaderInStart | None = None) -> None:
        end, self._process = child.start() if loader is None else loader.take()
        try:
            answer, self._fds = child.receive(end, self._process)
            self.is_multi = bool(answer["is_multi"])
            self._channel = Channel(end)
            self._begin()
        except BaseException:
            end.close()
            self._process.kill()
            self._process.wait()
            raise
        self.began_ns = time.monotonic_ns()
        """What was launched before was not seen."""
        self.libraries: list[Library] = []
        self._ctxs = MappedArray(self._fds["ctx_by_slot"], abi.Ctx, abi.MAX_CTXS)
        # Each look at an array of structures makes an object; one for each place is enough.
        self._views: list[abi.Ctx] = list(self._ctxs.items)
        self._graphs = MappedArray(self._fds["graphs_by_slot"], abi.Graphs, abi.MAX_CTXS)
        self._graph_views: list[abi.Graphs] = list(self._graphs.items)
        self._clocks = MappedArray(self._fds["clock_by_gpu"], abi.Clock, abi.MAX_SLOTS)
        self._counts = MappedArray(self._fds["counts_by_what"], ctypes.c_uint64, len(abi.Count))
        self._uses = syscall.BatchReader(self._fds["gpu_time_by_key"], abi.UseKey, abi.Use)
        self._delays = syscall.BatchReader(self._fds["delay_by_key"], abi.DelayKey, abi.Delay)
        self.rooms = MapRooms(self._fds, budgets.GPU_TIME, "counts_by_what", abi.Count.OVER_BUDGET)
        self._edges = RingReader(self._fds["edges"], abi.EDGE_PAGES * _PAGE)

    # ---- probes ----

    @property
    def attacher_pid(self) -> int:
        """Of the process that holds the probes."""
        return self._process.pid

    def channel_fileno(self) -> int:
        """Readable when :meth:`take_attached` has something."""
        return self._channel.fileno()

    def request_library(self, path: str, name: str = "", pid: int | None = None) -> None:
        """Ask for probes on the libcuda at ``path``; :meth:`take_attached` tells what became of it.

        ``name``: what people call it, if not that. ``pid``: the process that chose it; None: the operator did.
        Raises ConnectionError where the attacher is gone or does not read, as when it is asked much at a time.
        """
        self._channel.send({"path": path, "name": name, "pid": pid})

    def request_drop(self, device: int, inode: int) -> None:
        """Ask to let go of a file, as the answer about it named it; otherwise as :meth:`request_library`."""
        self._channel.send({"drop": [device, inode]})

    def take_attached(self) -> list[Library | Dropped]:
        """What was dealt with since the last call. Never waits. Raises FairschedError if the attacher died."""
        return [self._note(answer) for answer in self._take()]

    def attach_library(self, path: str, timeout_s: float = 30.0) -> Library:
        """Ask and wait. Raises FairschedError when no probe could be attached."""
        self.request_library(path)
        library = self._note(self._wait_for_answer(timeout_s))
        assert isinstance(library, Library)
        if library.error is not None:
            raise FairschedError(library.error, remedy=library.remedy)
        return library

    def _begin(self) -> None:
        """Wait until it holds what is on no library."""
        answer = self._wait_for_answer(child.TIMEOUT_S)
        if "error" in answer:
            raise HostUnsupported(
                answer["error"], remedy="the kernel needs raw tracepoints (CONFIG_BPF_EVENTS)"
            )

    def _note(self, answer: dict[str, Any]) -> Library | Dropped:
        if "drop" in answer:
            gone = Dropped(*answer["drop"])
            self.libraries = [one for one in self.libraries if (one.device, one.inode) != gone]
            return gone
        library = Library(**answer)
        known = {(item.device, item.inode) for item in self.libraries}
        if library.error is None and (library.device, library.inode) not in known:
            self.libraries.append(library)
        return library

    def _take(self) -> list[dict[str, Any]]:
        try:
            return self._channel.take()
        except ConnectionError as error:
            raise FairschedError(
                "the process that holds the probes is gone", remedy="see its stderr"
            ) from error

    def _wait_for_answer(self, timeout_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while is_readable(self._channel, deadline_s - time.monotonic()):
            answers = self._take()
            if answers:
                return answers[0]
        raise FairschedError("the process that holds the probes does not answer", remedy="see its stderr")

    # ---- reading ----

    def clock(self, gpu: int) -> abi.Clock:
        """The live clock of a GPU slot (values change under the reader)."""
        return self._clocks.items[gpu]

    def contexts(self) -> Iterator[tuple[int, abi.Ctx]]:
        """(slot, live context) of every context that exists now."""
        for slot, item in enumerate(self._views):
            if item.flags & abi.CtxFlag.LIVE:
                yield slot, item
            elif not item.generation:
                return  # slots are given out from 0 upward: none beyond was ever used

    def context(self, slot: int) -> abi.Ctx:
        """The live context in ``slot``."""
        return self._views[slot]

    def graphs(self, slot: int) -> abi.Graphs:
        """Which graphs the context in ``slot`` launched last (values change under the reader)."""
        return self._graph_views[slot]

    def count(self, what: abi.Count) -> int:
        """How often one thing that should not happen did."""
        return int(self._counts.items[what])

    def counts(self) -> dict[str, int]:
        """All of them, by lower-case name of ``abi.Count``."""
        return {what.name.lower(): self.count(what) for what in abi.Count}

    def uses(self) -> list[tuple[abi.UseKey, abi.Use]]:
        """gpu_time_by_key, in one batch. Closed intervals only: add the open ones of :meth:`contexts`."""
        return self._uses.read()  # type: ignore[return-value]

    def delays(self) -> list[tuple[abi.DelayKey, abi.Delay]]:
        """Queue delay histograms, in one batch."""
        return self._delays.read()  # type: ignore[return-value]

    def forget_delays(self, keys: Iterable[tuple[int, int]]) -> None:
        """Delete queue delay histograms by (cgroup id, GPU slot)."""
        for cgroup_id, gpu in keys:
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self._fds["delay_by_key"], abi.DelayKey(cgroup_id, gpu))

    def map_fds(self) -> list[tuple[str, int]]:
        """Descriptors by name, those of programs among them; for fdinfo."""
        return list(self._fds.items())

    def fileno(self) -> int:
        """Readable when an edge wants attention at once (GPU idle, process new or gone).

        Wait for it edge-triggered: edges that want none make it readable too.
        """
        return self._fds["edges"]

    def read_edges(self, most: int | None = None) -> list[Edge]:
        """Every edge since the last call, or the first ``most`` of them, in order."""
        return _edges(self._edges.read(EDGE, most))

    @property
    def unread_edges(self) -> int:
        """How many :meth:`read_edges` would return."""
        return self._edges.unread(EDGE)

    def peek_edges(self) -> list[Edge]:
        """Edges not peeked at before; :meth:`read_edges` will return them, too."""
        return _edges(self._edges.peek(EDGE))

    def is_idle(self, gpu: int, but: int = 0) -> bool:
        """Whether no context has work open on a GPU slot now, ``but`` for so many. That of a held one stays open until
        its drain ends."""
        return abi.clock_n(self._clocks.items[gpu].word[abi.COMPUTE]) <= but

    @property
    def limits(self) -> abi.Limits:
        """What each tenant may have now, and how long a turn is taken to be; may be written."""
        return self.rooms.limits

    # ---- writing ----

    def set_wake_on_idle(self, gpu: int, but: int | None) -> None:
        """Whether n falling to ``but`` on ``gpu`` makes :meth:`fileno` readable (see :meth:`is_idle`); None = no."""
        self._clocks.items[gpu].wake_on_idle = 0 if but is None else but + 1

    def set_uuids(self, slot_of: Mapping[bytes, int], *, is_all: bool = True) -> None:
        """Tell BPF the slot of every GPU of this node, by 16-byte UUID.

        ``is_all``: work on any other is not accounted. Else others may come, and a process that names one has said
        nothing.
        """
        for uuid, slot in {**slot_of, bytes(16): abi.NO_GPU}.items():
            key = abi.Uuid((ctypes.c_uint8 * 16)(*uuid))
            if any(uuid) or is_all:
                syscall.update(self._fds["gpu_by_uuid"], key, ctypes.c_uint32(slot))
                continue
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self._fds["gpu_by_uuid"], key)

    def set_device(self, tgid: int, ordinal: int, gpu: int) -> None:
        """Tell BPF which GPU the CUDA ordinal of a process is, unless it knows from the process itself."""
        with contextlib.suppress(FileExistsError):
            key = abi.DevKey(tgid, ordinal)
            syscall.update(self._fds["gpu_by_dev"], key, ctypes.c_uint32(gpu), syscall.NOEXIST)

    def forget_processes(self, tgids: set[int], ordinals: int) -> None:
        """Drop what was kept by pid of dead processes."""
        self.forget_devices(tgids, ordinals)
        for key in [key for key, _ in self.uses() if key.tgid in tgids]:
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self._fds["gpu_time_by_key"], key)

    def forget_devices(self, tgids: set[int], ordinals: int) -> None:
        """Drop what :meth:`set_device` has told of processes."""
        for tgid in tgids:
            for ordinal in (*range(ordinals), abi.ORDINAL_UNSEEN):
                with contextlib.suppress(FileNotFoundError):
                    syscall.delete(self._fds["gpu_by_dev"], abi.DevKey(tgid, ordinal))

    def end_drain(self, slot: int, generation: int, v_end_ns: int) -> bool:
        """Close the compute interval of a held context as of V = ``v_end_ns`` (0: now); False = it is gone."""
        args = abi.DrainArgs(slot, generation, v_end_ns, abi.COMPUTE)
        return syscall.run_raw_tracepoint(self._fds["on_drain_end"], args) == 0

    def end_contexts(self, tgids: set[int]) -> None:
        """Drop the contexts of processes that are gone and of whose end no program was told."""
        for slot, context in self.contexts():
            if context.tgid in tgids:
                args = abi.SlotArgs(slot, context.generation)
                syscall.run_raw_tracepoint(self._fds["on_ctx_gone"], args)

    def close(self) -> None:
        """Detach everything and wait until it is detached. Idempotent."""
        self._channel.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}
