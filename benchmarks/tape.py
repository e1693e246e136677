# SPDX-License-Identifier: Apache-2.0
"""A tape: everything the eBPF account was given, and what it made of that.

Problem. Hardware is there for minutes. Whoever wants to know afterwards why the account was off, or whether a change
sets it right, needs all that the account saw: edges, contexts, graphs, clocks, holds, in order and bit by bit.

Approach. One *frame* for each call of the account: a head (JSON) with the call, its arguments, what was asked and
answered meanwhile and what it returned; and a blob with edges and with those structs that have changed since the frame
before. All frames are one zlib stream that is flushed a few times a second: a daemon that is killed loses what came
since, and the reader takes a stream that breaks off.

Terms. *table*: one of the arrays that BPF and the account share. *step*: what happened within a call, in order: edges
were read, tables were looked at, BPF was told the end of a drain. *note*: a frame that no account was given.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tape_layout import CLOCK, COUNT, CTX, GRAPHS, TABLES, Layouts
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import EDGE, Edge
from fairsched.errors import FairschedError

MAGIC = b"fairsched tape 1\n"
_FRAME = struct.Struct("<II")
"""Lengths of head and blob."""
_CHANGE = struct.Struct("<BH")
"""Table and index; the struct follows."""
_FLUSH_NS = 250_000_000
_LEVEL = 3
_CHUNK = 1 << 20
_to_json = json.JSONEncoder(separators=(",", ":")).encode


_SIZES = [ctypes.sizeof(kind) for _, kind, _ in TABLES]


class TapeError(FairschedError):
    """A tape cannot be read or made."""


class Frame(NamedTuple):
    """One call of the account, or one note."""

    head: dict[str, Any]
    blob: bytes


# ---- tables ----


class Tables:
    """What the account reads of a probe, in memory of our own; it looks like a probe to the account."""

    def __init__(self) -> None:
        self.arrays: tuple[Any, ...] = tuple((kind * room)() for _, kind, room in TABLES)
        self._seen: list[bytes] = [b""] * len(TABLES)
        """What was taken in last."""
        self._used = 0
        """Slots are given out from 0 upward: how many ever were."""
        self._ctxs: list[abi.Ctx] = list(self.arrays[CTX])
        self._graphs: list[abi.Graphs] = list(self.arrays[GRAPHS])

    def context(self, slot: int) -> abi.Ctx:
        """See :class:`GpuTimeProbe`, here and below."""
        return self._ctxs[slot]

    def contexts(self) -> Iterator[tuple[int, abi.Ctx]]:
        for slot, item in enumerate(self._ctxs):
            if item.flags & abi.CtxFlag.LIVE:
                yield slot, item
            elif not item.generation:
                return

    def graphs(self, slot: int) -> abi.Graphs:
        return self._graphs[slot]

    def clock(self, gpu: int) -> abi.Clock:
        clock: abi.Clock = self.arrays[CLOCK][gpu]
        return clock

    def count(self, what: abi.Count) -> int:
        return int(self.arrays[COUNT][what])

    def copy(self, sources: Sequence[Any], clocks: int = abi.MAX_SLOTS) -> bytes:
        """Take in arrays like ours, as they are now; returns what has changed. ``clocks``: how many are in use."""
        while self._used < abi.MAX_CTXS and sources[CTX][self._used].generation:
            self._used += 1
        changes: list[bytes] = []
        for table, many in enumerate((self._used, self._used, clocks, len(abi.Count))):
            source, size = sources[table], _SIZES[table]
            after, before = ctypes.string_at(source, size * many), self._seen[table]
            if before == after:
                continue
            self._seen[table] = after
            ctypes.memmove(self.arrays[table], after, len(after))
            for index, at in enumerate(range(0, len(after), size)):
                if before[at : at + size] != after[at : at + size]:
                    changes += _CHANGE.pack(table, index), after[at : at + size]
        return b"".join(changes)

    def apply(self, changes: bytes, layouts: Layouts) -> None:
        """What :meth:`copy` returned on some machine."""
        at = 0
        while at < len(changes):
            table, index = _CHANGE.unpack_from(changes, at)
            at += _CHANGE.size
            struct_of_then = layouts.tables[table]
            data = struct_of_then.now(changes[at : at + struct_of_then.size])
            at += struct_of_then.size
            place = layouts.index(table, index)
            if place is not None:
                ctypes.memmove(ctypes.byref(self.arrays[table], place * len(data)), data, len(data))


def pack_edges(edges: Sequence[Edge]) -> bytes:
    """As BPF made them."""
    return b"".join([EDGE.pack(*edge) for edge in edges])


def unpack_edges(data: bytes, layouts: Layouts) -> list[Edge]:
    """What :func:`pack_edges` packed."""
    size, now = layouts.edge.size, layouts.edge.now
    raw = b"".join([now(data[at : at + size]) for at in range(0, len(data), size)])
    return [*map(Edge._make, EDGE.iter_unpack(raw))]


# ---- the file ----


class Writer:
    """Appends frames to a new file."""

    def __init__(self, path: Path) -> None:
        """Where ``path`` exists the file is ``path`` with a number: each start of a daemon has one of its own."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = _create(path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(self._fd, MAGIC)
        self._zlib = zlib.compressobj(_LEVEL)
        self._ready: list[bytes] = []
        self._flushed_ns = time.monotonic_ns()
        self.written = 0

    def write(self, head: dict[str, Any], blob: bytes = b"") -> None:
        """One frame."""
        text = _to_json(head).encode()
        self._ready += _FRAME.pack(len(text), len(blob)), text, blob
        now_ns = time.monotonic_ns()
        if now_ns - self._flushed_ns >= _FLUSH_NS:
            self._flushed_ns = now_ns
            self.flush()

    def flush(self, how: int = zlib.Z_SYNC_FLUSH) -> None:
        """To the kernel: it is there whatever becomes of us."""
        data = self._zlib.compress(b"".join(self._ready)) + self._zlib.flush(how)
        self._ready.clear()
        while data:
            written = os.write(self._fd, data)
            self.written += written
            data = data[written:]

    def close(self) -> None:
        """No frame may follow."""
        self.flush(zlib.Z_FINISH)
        os.close(self._fd)


def _create(path: Path) -> Path:
    names = [path, *(path.with_name(f"{path.stem}-{n}{path.suffix}") for n in range(2, 1000))]
    for name in names:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        return name
    raise TapeError(f"there are too many tapes beside {path}", remedy="remove some")


def frames(path: Path) -> Iterator[Frame]:
    """All frames of a tape, those of one that breaks off included.

    Raises TapeError for another kind of file.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise TapeError(f"{path} is no tape", remedy="make one with python -m benchmarks.record")
        unzip, data = zlib.decompressobj(), b""
        while chunk := file.read(_CHUNK):
            data += unzip.decompress(chunk)
            at = 0
            while at + _FRAME.size <= len(data):
                head, blob = _FRAME.unpack_from(data, at)
                end = at + _FRAME.size + head + blob
                if end > len(data):
                    break
                middle = at + _FRAME.size + head
                yield Frame(json.loads(data[at + _FRAME.size : middle]), data[middle:end])
                at = end
            data = data[at:]
