# SPDX-License-Identifier: Apache-2.0
"""Reads a BPF ring buffer through its two mappings (kernel >= 5.8), without libbpf.

The consumer page is ours to write, the producer page and the data (mapped twice in a row, so that a record
never wraps) are not. A record is an 8-byte header, length with two flag bits, and the data padded to 8.
Source: the kernel's kernel/bpf/ringbuf.c.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

_BUSY = 1 << 31
_DISCARD = 1 << 30
_HEADER = 8
_POSITION = struct.Struct("=Q")
_LENGTH = struct.Struct("=I")


class RingReader:
    """All records since the last read. One reader per ring."""

    def __init__(self, map_fd: int, data_bytes: int) -> None:
        page = mmap.PAGESIZE
        self._mask = data_bytes - 1
        self._peeked = 0
        self._base = page
        self._consumer = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = mmap.mmap(
            map_fd, page + 2 * data_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )

    def read(self, record: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Unpack every finished record with ``record``; records of another length are passed over."""
        (position,) = _POSITION.unpack_from(self._consumer, 0)
        (end,) = _POSITION.unpack_from(self._producer, 0)
        while position < end:
            following, values = self._record(position, record)
            if following is None:
                break
            if values is not None:
                yield values
            position = following
            _POSITION.pack_into(self._consumer, 0, position)

    def peek(self, record: struct.Struct) -> list[tuple[int, ...]]:
        """Finished records that were neither read nor peeked at; they are still there to be read."""
        (read,) = _POSITION.unpack_from(self._consumer, 0)
        (end,) = _POSITION.unpack_from(self._producer, 0)
        found = []
        self._peeked = max(self._peeked, read)
        while self._peeked < end:
            following, values = self._record(self._peeked, record)
            if following is None:
                break
            if values is not None:
                found.append(values)
            self._peeked = following
        return found

    def _record(self, position: int, record: struct.Struct) -> tuple[int | None, tuple[int, ...] | None]:
        """Where the next one begins, None = this one is being written; and what it says, None = nothing."""
        at = self._base + (position & self._mask)
        (length,) = _LENGTH.unpack_from(self._producer, at)
        if length & _BUSY:
            return None, None
        size = length & ~_DISCARD
        following = position + ((size + _HEADER + 7) & ~7)
        if length & _DISCARD or size != record.size:
            return following, None
        return following, record.unpack_from(self._producer, at + _HEADER)

    def close(self) -> None:
        """Unmap."""
        self._consumer.close()
        self._producer.close()
