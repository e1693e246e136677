# SPDX-License-Identifier: Apache-2.0
"""Arrays of BPF that are read and written through memory."""

from __future__ import annotations

import ctypes
import mmap
from typing import Generic, TypeVar

from fairsched.bpf import abi

_Value = TypeVar("_Value", abi.Ctx, abi.Graphs, abi.Clock, abi.Budget, abi.Limits, ctypes.c_uint64)


class MappedArray(Generic[_Value]):
    """A BPF_F_MMAPABLE array seen through mmap: ``items[i]`` is the live value. It outlives the descriptor."""

    def __init__(self, map_fd: int, value: type[_Value], count: int) -> None:
        length = (ctypes.sizeof(value) * count + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory = mmap.mmap(map_fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.items: ctypes.Array[_Value] = (value * count).from_buffer(self._memory)
