# SPDX-License-Identifier: Apache-2.0
"""The writer of step logs, for tenants in Python; ``fairsched.simgpu.workload.Worker`` reads them.

The file is made by the reader: magic, capacity, count and is_ready as u64, then a ring of entries {end_ns u64,
tokens double, latency_ns u64}. An entry is written before it is counted, so that a reader that looks at the count
first sees whole entries. Nothing but the standard library is imported: the tenant's Python is the one that has
PyTorch, which need not be fairsched's.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_HEADER = struct.Struct("=QQQQ")
_ENTRY = struct.Struct("=QdQ")
_WORD = struct.Struct("=Q")
_COUNT, _IS_READY = 16, 24
MAGIC = 0x676F6C6D6973


class StepLog:
    """One file. Raises ValueError when it is no step log."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        magic, self._capacity, self._count, _ = _HEADER.unpack_from(self._map)
        if magic != MAGIC or len(self._map) < _HEADER.size + self._capacity * _ENTRY.size:
            raise ValueError(f"{path} is no step log")

    def ready(self) -> None:
        """The program has begun its work."""
        _WORD.pack_into(self._map, _IS_READY, 1)

    def step(self, end_ns: int, tokens: float, latency_ns: int) -> None:
        """One more step is finished."""
        where = _HEADER.size + self._count % self._capacity * _ENTRY.size
        _ENTRY.pack_into(self._map, where, end_ns, tokens, max(0, latency_ns))
        self._count += 1
        _WORD.pack_into(self._map, _COUNT, self._count)
