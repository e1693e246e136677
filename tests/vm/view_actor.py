# SPDX-License-Identifier: Apache-2.0
"""A process that makes calls to fake_driver.c for test_pid_view_calls.py: commands and answers are JSON lines.

Also the model of what the driver must be shown and the caller must find afterwards (pure).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CLONE_NEWPID = 0x20000000
CONTROL, ALLOC, XFER = 0x2A, 0x2B, 211
LIST, INFO, SAMPLES = 0x2080018D, 0x2080018E, 0x20802096
LIST_SIZE, INFO_SIZE = 3812, 14408
SAMPLES_SIZES = {55888: (6, 128), 50704: (6, 116), 34000: (4, 116)}
"""Size of the parameters -> engines, bytes of a record."""
NO_PID, NOBODY = 0xFFFFFFFF, 0x7FFFFFFF
MAX_PROCS = 1000


def u32(data: bytes | bytearray, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def put_u32(data: bytearray, at: int, value: int) -> None:
    struct.pack_into("<I", data, at, value)


@dataclass
class Book:
    """What one namespace sees: numbers in it by number in the initial one."""

    nr_of: Mapping[int, int]
    tgid_of: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.tgid_of = {nr: tgid for tgid, nr in self.nr_of.items()}


def shown(cmd: int, size: int, asked: bytes, book: Book) -> bytes:
    """What the driver must see of the caller's parameters when the job is ours."""
    if (cmd, size) != (INFO, INFO_SIZE) or u32(asked, 0) > 200:
        return asked
    out = bytearray(asked)
    for i in range(u32(asked, 0)):
        pid = u32(asked, 8 + 72 * i)
        put_u32(out, 8 + 72 * i, book.tgid_of.get(pid, NOBODY if pid else 0))
    return bytes(out)


def found(cmd: int, size: int, asked: bytes, left: bytes, book: Book, *, is_ok: bool) -> bytes:
    """What the caller must find when the job is ours."""
    out = bytearray(left)
    if (cmd, size) == (INFO, INFO_SIZE) and u32(asked, 0) <= 200:
        for i in range(u32(asked, 0)):
            put_u32(out, 8 + 72 * i, u32(asked, 8 + 72 * i))
    if not is_ok:
        return bytes(out)
    if (cmd, size) == (LIST, LIST_SIZE) and u32(left, 8) <= 950:
        pids = [u32(left, 12 + 4 * i) for i in range(u32(left, 8))]
        kept = [book.nr_of[pid] for pid in pids if pid in book.nr_of]
        put_u32(out, 8, len(kept))
        for i, pid in enumerate(kept + [0] * (len(pids) - len(kept))):
            put_u32(out, 12 + 4 * i, pid)
    if cmd == SAMPLES and size in SAMPLES_SIZES:
        for at in samples_at(size):
            pid = u32(left, at)
            if pid not in (0, NO_PID):
                put_u32(out, at, book.nr_of.get(pid, NO_PID))
    return bytes(out)


def samples_at(size: int) -> list[int]:
    """Where the pids are in the parameters of a samples call."""
    engines, record = SAMPLES_SIZES[size]
    return [16 + s * (8 + engines * record) + 8 + e * record + 8 for s in range(72) for e in range(engines)]


class Setup(ctypes.Structure):
    _fields_ = (
        ("translates", ctypes.c_uint32 * 3),
        ("procs", ctypes.c_uint32),
        ("pid", ctypes.c_uint32 * MAX_PROCS),
        ("nspid", ctypes.c_uint32 * MAX_PROCS),
        ("memory", ctypes.c_uint64 * MAX_PROCS),
        ("status", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("meddle", ctypes.c_uint32),
    )


class Caller:
    """Makes the calls."""

    def __init__(self, library: str) -> None:
        self._driver = ctypes.CDLL(library)
        self._ioctl = self._driver.nvidia_unlocked_ioctl
        self._ioctl.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
        self._ioctl.restype = ctypes.c_long
        self._setup = Setup.in_dll(self._driver, "setup")
        self._params = ctypes.create_string_buffer(65536)
        self._nvos54 = ctypes.create_string_buffer(32)
        self._xfer = ctypes.create_string_buffer(16)

    def who(self) -> list[int]:
        """Its numbers in the initial namespace, whose /proc this is, and in its own."""
        return [int(os.readlink("/proc/self")), os.getpid()]

    def alloc(self) -> int:
        return int(self._ioctl(None, 0xC0200000 | 0x4600 | ALLOC, ctypes.addressof(self._nvos54)))

    def thread(self) -> None:
        """A thread comes, makes a call, and goes."""
        thread = threading.Thread(target=self.alloc)
        thread.start()
        thread.join()

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            if isinstance(value, list):
                array = getattr(self._setup, name)
                array[: len(value)] = value
            else:
                setattr(self._setup, name, value)

    def raw(
        self, cmd: int, size: int, params: int, *, xfer: bool = False, address: int = 0
    ) -> tuple[int, int]:
        """(return value, status) of a control with parameters at ``params``."""
        self._nvos54.raw = struct.pack("<IIIIQII", 1, 2, cmd, 0, params, size, 0x77)
        at = address or ctypes.addressof(self._nvos54)
        nr, length = CONTROL, 32
        if xfer:
            self._xfer.raw = struct.pack("<IIQ", CONTROL, 32, at)
            nr, length, at = XFER, 16, ctypes.addressof(self._xfer)
        rc = int(self._ioctl(None, 0xC0000000 | length << 16 | 0x4600 | nr, at))
        return rc, u32(self._nvos54.raw, 28)

    def control(self, cmd: int, asked: bytes, *, xfer: bool = False) -> tuple[int, bytes, bytes, bytes]:
        """(status, what the driver saw, what it left, what is there now)."""
        ctypes.memmove(self._params, asked, len(asked))
        rc, status = self.raw(cmd, len(asked), ctypes.addressof(self._params), xfer=xfer)
        assert rc == 0 or self._setup.error
        return status, self._copy("seen"), self._copy("left"), ctypes.string_at(self._params, len(asked))

    def _copy(self, name: str) -> bytes:
        size = ctypes.c_uint32.in_dll(self._driver, f"{name}_size").value
        return ctypes.string_at(ctypes.addressof(ctypes.c_uint8.in_dll(self._driver, name)), size)

    def call(self, cmd: int, asked: str, xfer: bool = False) -> list[Any]:
        status, *rest = self.control(cmd, bytes.fromhex(asked), xfer=xfer)
        return [status, *(one.hex() for one in rest)]

    def garbage(self, seed: int, steps: int, nr_of: list[list[int]], by_us: bool) -> list[str]:
        """Random calls, each against the model; what was wrong, at most ten."""
        rng, book, wrong = random.Random(seed), Book(dict(map(tuple, nr_of))), []  # type: ignore[arg-type]
        known = [*book.nr_of, *book.tgid_of, 0, NO_PID, NOBODY, 1]
        for step in range(steps):
            cmd, asked = random_call(rng, known)
            if rng.random() < 0.05:
                control = rng.choice((0, random_pointer(rng)))
                self.raw(cmd, len(asked), random_pointer(rng), xfer=rng.random() < 0.2, address=control)
                continue
            error, status = (rng.choice((0, 0, 0, 14)), rng.choice((0, 0, 0, 0x57)))
            self.set(error=error, status=status, count=rng.choice((0, 0, 0, rng.getrandbits(10), NO_PID)))
            status, seen, left, now = self.control(cmd, asked, xfer=rng.random() < 0.2)
            wanted = asked
            if not error:
                if seen != (shown(cmd, len(asked), asked, book) if by_us else asked):
                    wrong.append(
                        f"step {step}: {cmd:#x} size {len(asked)}: the driver was shown something else"
                    )
                is_ok = status == 0
                wanted = found(cmd, len(asked), asked, left, book, is_ok=is_ok) if by_us else left
            if now != wanted:
                at = next(i for i in range(len(now)) if now[i] != wanted[i])
                wrong.append(
                    f"step {step}: {cmd:#x} size {len(asked)} error {error} status {status}: byte {at}: "
                    f"{now[at : at + 8].hex()} and not {wanted[at : at + 8].hex()}"
                )
            if len(wrong) >= 10:
                break
        self.set(error=0, status=0, count=0)
        return wrong


def random_call(rng: random.Random, known: list[int]) -> tuple[int, bytes]:
    """A command and parameters, more often right than chance would have it; the contents go by the size."""
    cmd = rng.choice((LIST, LIST, INFO, INFO, INFO, SAMPLES, rng.getrandbits(32)))
    sizes = (LIST_SIZE, INFO_SIZE, *SAMPLES_SIZES)
    right = {LIST: (LIST_SIZE,), INFO: (INFO_SIZE,), SAMPLES: tuple(SAMPLES_SIZES)}.get(cmd, sizes)
    size = rng.choice(right) if rng.random() < 0.9 else rng.choice((*sizes, rng.randrange(32, 20000)))
    asked = bytearray(rng.randbytes(min(size, 64)) + bytes(max(0, size - 64)))
    if size == LIST_SIZE and rng.random() < 0.5:
        put_u32(asked, 8, rng.randrange(951))
        for i in range(20):
            put_u32(asked, 12 + 4 * i, rng.choice(known))
    if size == INFO_SIZE or (cmd == INFO and size > 1000):  # a wrong size as likely to be taken for right
        put_u32(asked, 0, rng.choice((1, 2, 7, 200, 201, rng.getrandbits(32), rng.randrange(200))))
        for i in range(min(u32(asked, 0), 200, (size - 12) // 72)):
            put_u32(asked, 8 + 72 * i, rng.choice(known))
    if size in SAMPLES_SIZES:
        put_u32(asked, 4, rng.choice((size - 16, size - 16, size - 16, 0, rng.getrandbits(32))))
    return cmd, bytes(asked)


def random_pointer(rng: random.Random) -> int:
    """An address that is not memory, or not the caller's."""
    return rng.choice((0, 8, rng.getrandbits(47), rng.getrandbits(64), 0xFFFFFFFF81000000))


def serve(library: str, address: str) -> None:
    """Answer the test until it hangs up."""
    caller = Caller(library)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(f"\0{address}")
        with channel.makefile("rw") as lines:
            print(json.dumps(caller.who()), file=lines, flush=True)
            for line in lines:
                name, args, kwargs = json.loads(line)
                if name == "fork":
                    kwargs |= {"library": library, "address": address}
                command = fork if name == "fork" else getattr(caller, name)
                print(json.dumps(command(*args, **kwargs)), file=lines, flush=True)


def fork(*, library: str, address: str, in_namespace: bool = False) -> int:
    """A child that connects to the test, in a PID namespace of its own if asked for."""
    middle = os.fork()
    if middle:
        return middle
    if in_namespace and ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID):
        os._exit(1)
    if in_namespace and (child := os.fork()):
        os.waitpid(child, 0)
        os._exit(0)
    status = 1
    try:
        serve(library, address)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
