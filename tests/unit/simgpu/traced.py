# SPDX-License-Identifier: Apache-2.0
"""Programs that are started as the daemon is where it may read the trace: ``python traced.py NAME ...``, JSON lines.

reader DEVICE_DIR UUID    the product's reader; one line for each line of its standard input
calls DEVICE_DIR          right and wrong calls, and the status of each
fault DEVICE_DIR NAME     a call that would fault in the driver
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

from fairsched.gpu.trace import GpuTrace, TraceLost, TraceRefused

ALLOC, CONTROL, MAP = 0xC030462B, 0xC020462A, 0xC038464E
CLIENT, DEVICE, SUBDEVICE, MEMORY, BUFFER = 0x41, 0x80, 0x2080, 0x90CE, 0x90CD
BIND, ENABLE, TAKEN, FLUSH = 0x20801238, 0x90CD0101, 0x90CD0102, 0x90CD0104
GPU_TIME = 0x20800403
READ_ONLY = 1 << 22
PAGE = 4096
UNKNOWN = 0x77


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Manager:
    """One open nvidiactl, and calls on it that nobody checks."""

    def __init__(self, device_dir: Path) -> None:
        self.device_dir = device_dir
        self.fd = self.open()
        self.root = 0
        self.root = self.alloc(0, 0, CLIENT, b"")[1]

    def open(self) -> int:
        return os.open(self.device_dir / "nvidiactl", os.O_RDWR | os.O_CLOEXEC)

    def alloc(self, parent: int, handle: int, kind: int, params: bytes) -> tuple[int, int]:
        """Status and handle."""
        own = ctypes.create_string_buffer(params, max(1, len(params)))
        address = ctypes.addressof(own) if params else 0
        head = (self.root, parent, handle, kind)
        answer = bytearray(struct.pack("=IIIIQQIIII", *head, address, 0, len(params), 0, 0xFF, 0))
        fcntl.ioctl(self.fd, ALLOC, answer)
        return struct.unpack_from("=I", answer, 40)[0], struct.unpack_from("=I", answer, 8)[0]

    def control(self, what: int, command: int, params: bytearray) -> int:
        own = (ctypes.c_char * len(params)).from_buffer(params) if params else None
        address = ctypes.addressof(own) if own is not None else 0
        answer = bytearray(struct.pack("=IIIIQII", self.root, what, command, 0, address, len(params), 0xFF))
        fcntl.ioctl(self.fd, CONTROL, answer)
        return int(struct.unpack_from("=I", answer, 28)[0])

    def map(self, handle: int, fd: int, size: int = PAGE, flags: int = 1) -> int:
        call = (self.root, self.root, handle, 0, 0, size, 0, 0xFF, flags, fd)
        answer = bytearray(struct.pack("=IIIIQQQIIi4x", *call))
        fcntl.ioctl(self.fd, MAP, answer)
        return int(struct.unpack_from("=I", answer, 40)[0])

    def device(self, number: int = 0) -> int:
        return self.alloc(self.root, 0, DEVICE, struct.pack("=I52x", number))[1]

    def subdevice(self) -> int:
        return self.alloc(self.device(), 0, SUBDEVICE, struct.pack("=I", 0))[1]

    def memory(self, attributes: int = READ_ONLY, size: int = PAGE) -> int:
        params = bytearray(128)
        struct.pack_into("=IQ", params, 28, attributes, 0)
        struct.pack_into("=Q", params, 64, size)
        return self.alloc(self.root, 0, MEMORY, bytes(params))[1]

    def buffer(
        self, subdevice: int, header: int, records: int, *, size: int = 32, notify: int = 0
    ) -> tuple[int, int]:
        head = (0, 0, size, 64, 0, 0, 0, notify)
        params = struct.pack("=QQIIQIIQIIIIII", *head, 0, subdevice, 0, header, records, 0)
        return self.alloc(self.root, 0, BUFFER, params)


def refused_map(fd: int, **how: int) -> str:
    """What mmap says."""
    try:
        mmap.mmap(fd, PAGE, mmap.MAP_SHARED, **how).close()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "mapped"


def calls(device_dir: Path) -> dict[str, Any]:
    """Statuses, by what was wrong."""
    one, other = Manager(device_dir), Manager(device_dir)
    subdevice, header, records = one.subdevice(), one.memory(), one.memory()
    status, buffer = one.buffer(subdevice, header, records)
    bind = bytearray(struct.pack("=IIIIB3xI", buffer, 32, 1, 0, 1, 0))
    said: dict[str, Any] = {"right": [status, one.control(subdevice, BIND, bind)]}
    said["right"] += [one.control(buffer, ENABLE, bytearray(struct.pack("=B3xI", 1, 0)))]
    said["right"] += [one.control(buffer, FLUSH, bytearray())]
    said["right"] += [one.control(buffer, TAKEN, bytearray(8))]
    said["bound twice"] = one.control(subdevice, BIND, bind)
    said["unknown object"] = [
        one.control(UNKNOWN, FLUSH, bytearray()),
        one.buffer(UNKNOWN, header, records)[0],
    ]
    said["unknown object"] += [one.map(UNKNOWN, one.open())]
    mine, one.root = one.root, other.root
    said["client of another file"] = [
        one.alloc(one.root, 0, DEVICE, bytes(56))[0],
        one.control(one.root, GPU_TIME, bytearray(8)),
        one.map(header, one.open()),
    ]
    one.root = mine
    said["size"] = [
        one.control(subdevice, GPU_TIME, bytearray(4)),
        one.control(buffer, FLUSH, bytearray(4)),
        one.alloc(one.root, 0, MEMORY, bytes(120))[0],
        one.alloc(one.root, 0, BUFFER, bytes(64))[0],
    ]
    said["unknown command"] = [one.control(subdevice, 0x20800001, bytearray(8))]
    said["unknown command"] += [one.control(subdevice, FLUSH, bytearray())]
    said["unknown class"] = one.alloc(one.root, 0, 0xB0CC, bytes(8))[0]
    said["parent"] = one.alloc(subdevice, 0, MEMORY, bytes(128))[0]
    said["handle that is taken"] = one.alloc(one.root, header, MEMORY, bytes(128))[0]
    said["no such GPU"] = one.alloc(one.root, 0, DEVICE, struct.pack("=I52x", 9))[0]
    writable = one.memory(attributes=0)
    said["memory that may be written"] = [
        one.buffer(subdevice, *pair)[0] for pair in ((writable, records), (header, writable))
    ]
    said["memory too small"] = one.buffer(subdevice, header, one.memory(size=63 * 32))[0]
    said["get beyond the end"] = one.control(buffer, TAKEN, bytearray(struct.pack("=II", 64, 0)))
    said["unknown flag"] = one.control(buffer, ENABLE, bytearray(struct.pack("=B3xI", 1, 8)))
    fd = one.open()
    said["no map yet"] = refused_map(fd, prot=mmap.PROT_READ)
    said["map to write"] = [one.map(header, fd, flags=0)]
    said["mapped"] = one.map(header, fd)
    said["mapped twice"] = one.map(records, fd)
    said["map to write"] += [refused_map(fd, prot=mmap.PROT_READ | mmap.PROT_WRITE)]
    said["map not from 0"] = refused_map(fd, prot=mmap.PROT_READ, offset=PAGE)
    with mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as seen:
        said["header"] = list(struct.unpack_from("=IIQQ", seen))
    said["unknown ioctl"] = _errno_of(one.fd, 0xC0104629)
    said["another file"] = _errno_of(os.open(device_dir / "nvidia0", os.O_RDWR), CONTROL)
    os.close(one.fd)
    one.fd = one.open()  # as a rule the same number
    said["client of a closed file"] = one.control(subdevice, GPU_TIME, bytearray(8))
    return said


def _errno_of(fd: int, request: int) -> str:
    try:
        fcntl.ioctl(fd, request, bytearray(64))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "answered"


def fault(device_dir: Path, name: str) -> None:
    """One of the three things that the driver does not check."""
    one = Manager(device_dir)
    subdevice, header, records = one.subdevice(), one.memory(), one.memory()
    if name == "subdevice":
        one.buffer(0, header, records)
    elif name == "record":
        one.buffer(subdevice, header, records, size=24)
    else:
        one.buffer(subdevice, header, records, notify=one.fd)


def reader(device_dir: Path, uuid: str) -> None:
    """The product's; a line for each line that comes."""
    try:
        trace = GpuTrace(uuid, device_dir)
    except TraceRefused as error:
        say({"refused": str(error)})
        return
    say({"since_ns": time.monotonic_ns()})
    for _ in sys.stdin:
        try:
            switches, is_whole = trace.read()
            say({"switches": switches, "is_whole": is_whole, "now_ns": time.monotonic_ns()})
        except TraceLost as error:
            say({"lost": str(error)})


if __name__ == "__main__":
    _, what, where, *rest = sys.argv
    if what == "calls":
        say(calls(Path(where)))
    elif what == "fault":
        fault(Path(where), *rest)
    else:
        reader(Path(where), *rest)
