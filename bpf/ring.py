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
            at = self._base + (position & self._mask)
            (length,) = _LENGTH.unpack_from(self._producer, at)
            if length & _BUSY:
                break
            size = length & ~_DISCARD
            if not length & _DISCARD and size == record.size:
                yield record.unpack_from(self._producer, at + _HEADER)
            position += (size + _HEADER + 7) & ~7
            _POSITION.pack_into(self._consumer, 0, position)

    def close(self) -> None:
        """Unmap."""
        self._consumer.close()
        self._producer.close()
