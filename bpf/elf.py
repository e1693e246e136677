# SPDX-License-Identifier: Apache-2.0
"""Finds where to put a probe in a libcuda file: file offsets of its exports and what their first bytes allow.

Problem: any process may map a file that is called libcuda.so.1, and whoever reads it holds the probes of all others.
Such a file may claim 10^11 symbols, sections that overlap, names without an end.

Approach: the few tables that matter are read, each only after its size was compared with a ceiling far above what
NVIDIA's libraries have, and no byte beyond the end of the file. So a file costs two megabytes and a tenth of a second
at most, whatever it says of itself.

Most exports of libcuda begin with ``cmpl $imm32, x(%rip)`` (10 bytes) and ``je``. A uprobe on the first
instruction makes the kernel single-step it out of line (it is RIP-relative), four to six times dearer than
on the ``je``, which the kernel emulates. Arguments and return address are untouched at +10, so that is where
the probe goes when the bytes are exactly these; else at +0. Layouts: elf(5).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fairsched.errors import FairschedError

STUB_SKIP = 10
_CMPL_RIP = b"\x81\x3d"
_JE_REL8 = 0x74

_MOST_SEGMENTS = 64
_MOST_SECTIONS = 1024
MOST_SYMBOLS = 16_384
"""libcuda 595 has some 1,000."""
_MOST_NAMES_BYTES = 1 << 20
_LONGEST_NAME = 128

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_X86_64 = 62
_LOAD = 1
_DYNSYM = 11
_FUNC = 2


class NotLibcuda(FairschedError):
    """A file that is called libcuda and is none."""


@dataclass(frozen=True)
class Export:
    """One exported function."""

    name: str
    offset: int
    """File offset of its first byte."""
    skip: int
    """Bytes to add to ``offset`` for the cheap place: STUB_SKIP, or 0."""


class _Segment(NamedTuple):
    offset: int
    address: int
    size: int


def stub_skip(head: bytes) -> int:
    """How far into a function that begins with ``head`` the probe may move."""
    if len(head) > STUB_SKIP and head[:2] == _CMPL_RIP and head[STUB_SKIP] == _JE_REL8:
        return STUB_SKIP
    return 0


def read_exports(path: str, name: str | None = None) -> list[Export]:
    """Exported functions of the ELF shared object at ``path``; ``name``: what it is called in errors, if not that.

    Raises NotLibcuda when the file is not a readable x86-64 ELF file, OSError when it cannot be opened.
    """
    # Its owner may have a lease on it, and without O_NONBLOCK whoever opens it waits for that to be broken: 45 s.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _File(fd, name or path).exports()
    finally:
        os.close(fd)


class _File:
    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name
        self._size = os.fstat(fd).st_size

    def exports(self) -> list[Export]:
        header = _HEADER.unpack(self._read(0, _HEADER.size, "header"))
        ident, _, machine, _, _, segments_at, sections_at, _, _, _, segments, _, sections, _ = header
        if not ident.startswith(_ELF64_LITTLE) or machine != _X86_64:
            raise self._not("not an x86-64 shared object")
        loaded = list(self._segments(segments_at, segments))
        symbols, names = self._symbols(sections_at, sections)
        found = []
        for at_name, info, _, section, address, _ in _SYMBOL.iter_unpack(symbols):
            if info & 15 != _FUNC or not section:
                continue
            text = names[at_name : at_name + _LONGEST_NAME].partition(b"\0")
            offset = next(
                (s.offset + address - s.address for s in loaded if 0 <= address - s.address < s.size), None
            )
            if offset is None or not text[1] or not text[0].isascii():
                continue
            # The kernel refuses a probe beyond the end, and with it those that it was asked for along with it.
            if offset + STUB_SKIP + 2 <= self._size:
                head = os.pread(self._fd, STUB_SKIP + 2, offset)
                found.append(Export(text[0].decode(), offset, stub_skip(head)))
        return found

    def _segments(self, at: int, count: int) -> Iterator[_Segment]:
        for kind, _, offset, address, _, size, *_ in self._table(
            _SEGMENT, at, count, _MOST_SEGMENTS, "segments"
        ):
            if kind == _LOAD:
                yield _Segment(offset, address, size)

    def _symbols(self, at: int, count: int) -> tuple[bytes, bytes]:
        """The table of the dynamic symbols, and of their names."""
        sections = list(self._table(_SECTION, at, count, _MOST_SECTIONS, "sections"))
        for _, kind, _, _, offset, size, link, *_ in sections:
            if kind == _DYNSYM and link < len(sections):
                most = MOST_SYMBOLS * _SYMBOL.size
                if size > most:
                    raise self._not(
                        f"{size // _SYMBOL.size} symbols are more than the {MOST_SYMBOLS} that are looked at"
                    )
                _, _, _, _, names_at, names_size, *_ = sections[link]
                if names_size > _MOST_NAMES_BYTES:
                    raise self._not(
                        f"{names_size} bytes of names are more than the {_MOST_NAMES_BYTES} that are looked at"
                    )
                symbols = self._read(offset, size - size % _SYMBOL.size, "symbols")
                return symbols, self._read(names_at, names_size, "names")
        raise self._not("no exported symbols")

    def _table(
        self, row: struct.Struct, at: int, count: int, most: int, what: str
    ) -> Iterator[tuple[int, ...]]:
        if count > most:
            raise self._not(f"{count} {what} are more than the {most} that are looked at")
        return row.iter_unpack(self._read(at, count * row.size, what))

    def _read(self, at: int, size: int, what: str) -> bytes:
        """Small enough, as the caller has seen to."""
        data = os.pread(self._fd, size, at) if at + size <= self._size else b""
        if len(data) < size:
            raise self._not(f"its {what} are beyond its end")
        return data

    def _not(self, why: str) -> NotLibcuda:
        return NotLibcuda(f"{self._name}: not a libcuda: {why}")
