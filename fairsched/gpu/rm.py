# SPDX-License-Identifier: Apache-2.0
"""A client of NVIDIA's resource manager: objects, controls, and memory to read, through ioctls on its nodes.

Problem. The trace of context switches is in no library. The driver's own interface has it, and that interface checks
little: a wrong size or handle can be a fault in the kernel.

Approach. Three calls (allocate, control, map) with their structures as the open driver's headers have them, the same in
every branch from 545 to 595, and no others. What is refused is :class:`Refused`, with the driver's status; what the
kernel says is OSError. All objects of a client end when its descriptor is closed, with the process at the latest.

Source: open-gpu-kernel-modules 595.45 (nvos.h, escape.c).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import struct
from pathlib import Path

_ALLOC, _CONTROL, _MAP = 0xC030462B, 0xC020462A, 0xC038464E
_CLIENT, _DEVICE, _SUBDEVICE, _DEVICELESS = 0x41, 0x80, 0x2080, 0x90CE
_CACHED, _USER_READS_ONLY, _MAP_READ_ONLY = 1 << 29, 1 << 22, 1
_FIRST_HANDLE = 0x5F000001


class Refused(Exception):
    """The resource manager said no."""


class Client:
    """Of one process. Close it in the end. Raises OSError for its node."""

    def __init__(self, device_dir: Path) -> None:
        self._device_dir = device_dir
        self._undo = contextlib.ExitStack()
        self._handles = itertools.count(_FIRST_HANDLE)
        try:
            self._fd = self._open("nvidiactl")
            self.handle = self._alloc(0, 0, 0, _CLIENT, b"")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Maps first: what a map shows whose client is gone nobody says. Idempotent."""
        self._undo.close()

    def alloc(self, parent: int, kind: int, params: bytes) -> int:
        """A new object; its handle."""
        return self._alloc(self.handle, parent, next(self._handles), kind, params)

    def subdevice(self, instance: int) -> int:
        """Of a GPU as the resource manager counts them."""
        with contextlib.suppress(FileNotFoundError):  # that number is the node's, as a rule: it wakes the GPU
            self._open(f"nvidia{instance}")
        device = self.alloc(self.handle, _DEVICE, struct.pack("=I52x", instance))
        return self.alloc(device, _SUBDEVICE, struct.pack("=I", 0))

    def control(self, what: int, command: int, params: bytearray) -> None:
        """Ask an object something; the answer is in ``params``."""
        own = (ctypes.c_char * len(params)).from_buffer(params) if params else None
        address = 0 if own is None else ctypes.addressof(own)
        call = struct.pack("=IIIIQII", self.handle, what, command, 0, address, len(params), 0)
        _check(f"control {command:#x}", self._ioctl(_CONTROL, call), 28)

    def memory(self, size: int) -> tuple[int, mmap.mmap]:
        """Memory of the host that the driver writes and this process reads: its handle, and where it is seen."""
        params = bytearray(128)
        struct.pack_into("=II", params, 24, _CACHED, _USER_READS_ONLY)
        struct.pack_into("=Q", params, 64, size)
        handle = self.alloc(self.handle, _DEVICELESS, bytes(params))
        fd = self._open("nvidiactl")  # each map needs one of its own
        call = struct.pack(
            "=IIIIQQQIIi4x", self.handle, self.handle, handle, 0, 0, size, 0, 0, _MAP_READ_ONLY, fd
        )
        _check("map", self._ioctl(_MAP, call), 40)
        seen = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._undo.callback(seen.close)
        return handle, seen

    def _alloc(self, root: int, parent: int, handle: int, kind: int, params: bytes) -> int:
        own = ctypes.create_string_buffer(params, len(params)) if params else None
        address = 0 if own is None else ctypes.addressof(own)
        call = struct.pack("=IIIIQQIIII", root, parent, handle, kind, address, 0, len(params), 0, 0, 0)
        answer = self._ioctl(_ALLOC, call)
        _check(f"an object of class {kind:#x}", answer, 40)
        return int(struct.unpack_from("=I", answer, 8)[0])

    def _open(self, name: str) -> int:
        fd = os.open(self._device_dir / name, os.O_RDWR | os.O_CLOEXEC)
        self._undo.callback(os.close, fd)
        return fd

    def _ioctl(self, request: int, call: bytes) -> bytearray:
        answer = bytearray(call)
        while True:
            try:
                fcntl.ioctl(self._fd, request, answer)
                return answer
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN):
                    raise


def _check(what: str, answer: bytearray, at: int) -> None:
    status = struct.unpack_from("=I", answer, at)[0]
    if status:
        raise Refused(f"the driver refused {what} (status {status:#x})")
