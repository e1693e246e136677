# SPDX-License-Identifier: Apache-2.0
"""Tells whether two open files are one to the kernel's uprobes, whatever stat says of them.

Problem: a uprobe is on the inode whose pages are mapped. On an overlay that is the inode of a layer below, which stat,
/proc/PID/maps (from Linux 6.7) and every other name of the file hide: containers of one image have as many files, by
device and inode, as there are containers, and one file to a uprobe. With probes on each of them a launch counts once
for every container.

Approach: a page of the page cache belongs to one inode. The first page of a file is mapped, and the number of its frame
is read from /proc/self/pagemap: two mappings of one frame at one time are of one inode. Nothing that a tenant can write
is asked. It works on every kernel with CONFIG_PROC_PAGE_MONITOR, needs CAP_SYS_ADMIN, and is wrong only on DAX, where
files that share their blocks (reflinks) share frames.

Terms: a *frame* is a page of memory by its number.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_ENTRY = struct.Struct("=Q")
_PRESENT = 1 << 63
_OF_FILE = 1 << 61
_FRAME = (1 << 55) - 1
_TRIES = 3
"""A page may be moved between two looks."""


class FirstPage:
    """The first page of a file, mapped; it stays that of the inode that was there when it was made."""

    def __init__(self, fd: int) -> None:
        """Raises OSError. ``fd``: may be an O_PATH one."""
        opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.size_bytes = os.fstat(opened).st_size
            # Shared: a private mapping of a page with probes in it is a copy.
            address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, opened, 0)
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), "cannot map it")
            self._address: int | None = address
        finally:
            os.close(opened)

    def frame(self) -> int | None:
        """None: it is not to be had, or not to be known."""
        if self._address is None or not _touch(self._address):
            return None
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            entry = os.pread(file.fileno(), _ENTRY.size, self._address // mmap.PAGESIZE * _ENTRY.size)
        (bits,) = _ENTRY.unpack(entry)
        return bits & _FRAME or None if bits & _PRESENT and bits & _OF_FILE else None

    def close(self) -> None:
        """Idempotent."""
        if self._address is not None:
            _libc.munmap(self._address, mmap.PAGESIZE)
            self._address = None


def _touch(address: int) -> bool:
    """Have the kernel read a byte: of a file that was cut short it says so, where whoever reads by itself dies."""
    reader, writer = os.pipe()
    try:
        return bool(_libc.write(writer, address, 1) == 1)
    finally:
        os.close(reader)
        os.close(writer)


def find_same(page: FirstPage, others: Sequence[FirstPage]) -> int | None:
    """Which of ``others`` is of the same inode as ``page``; None: none is, as far as can be known."""
    alike = [place for place, one in enumerate(others) if one.size_bytes == page.size_bytes]
    for _ in range(_TRIES):
        frame = page.frame()
        if frame is None:
            return None
        for place in alike:
            if others[place].frame() == frame:
                return place
        if page.frame() == frame:
            return None
    return None
