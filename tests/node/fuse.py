# SPDX-License-Identifier: Apache-2.0
"""A FUSE with one file, whose server answers as long as it is told to.

``python -m tests.node.fuse MOUNTPOINT NAME CONTENT SILENT``: ready when it prints a line; from the moment that the file
SILENT exists it reads requests and answers none. Numbers and structures: linux/fuse.h, protocol 7.31.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

_FILE = 2
"""Its node; the directory is 1."""
_IN = struct.Struct("=IIQQIIII")
_OUT = struct.Struct("=IiQ")
_DETACH = 2


class _Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    INTERRUPT = 36
    BATCH_FORGET = 42


_UNANSWERED = (_Op.FORGET, _Op.BATCH_FORGET, _Op.INTERRUPT)


class _Server:
    def __init__(self, device: int, name: bytes, content: bytes, silent: Path) -> None:
        self._device, self._name, self._content, self._silent = device, name, content, silent

    def serve(self) -> None:
        """Until it is unmounted."""
        while True:
            try:
                data = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, opcode, unique, node, *_ = _IN.unpack_from(data)
            if opcode in _UNANSWERED or self._silent.exists():
                continue
            failure, body = self._answer(opcode, node, data[_IN.size :])
            with contextlib.suppress(OSError):  # who asked has ended
                os.write(self._device, _OUT.pack(_OUT.size + len(body), -failure, unique) + body)

    def _answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        match opcode:
            case _Op.INIT:
                return 0, struct.pack(
                    "=IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 8, 8, 1 << 16, 1, 0, 0, 0, *[0] * 7
                )
            case _Op.LOOKUP if body.rstrip(b"\0") == self._name:
                return 0, struct.pack("=QQQQII", _FILE, 0, 0, 0, 0, 0) + self._attributes(_FILE)
            case _Op.LOOKUP:
                return errno.ENOENT, b""
            case _Op.GETATTR:
                return 0, struct.pack("=QII", 0, 0, 0) + self._attributes(node)
            case _Op.OPEN | _Op.OPENDIR:
                return 0, struct.pack("=QIi", 0, 0, 0)
            case _Op.READ:
                _, offset, size = struct.unpack_from("=QQI", body)
                return 0, self._content[offset : offset + size]
            case _Op.STATFS:
                return 0, struct.pack("=5Q10I", *[1] * 5, 4096, 255, 4096, *[0] * 7)
            case _Op.RELEASE | _Op.FLUSH | _Op.RELEASEDIR:
                return 0, b""
        return errno.ENOSYS, b""

    def _attributes(self, node: int) -> bytes:
        is_file = node == _FILE
        mode = stat.S_IFREG | 0o755 if is_file else stat.S_IFDIR | 0o755
        size = len(self._content) if is_file else 0
        return struct.pack("=6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextlib.contextmanager
def mounted(directory: Path, name: str, content: Path, silent: Path) -> Iterator[Path]:
    """The file; its server is a process of its own, and goes with it all."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.node.fuse", str(directory), name, str(content), str(silent)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield directory / name
    finally:
        server.kill()  # who waits for it gets an error
        server.communicate()
        ctypes.CDLL(None).umount2(os.fsencode(directory), _DETACH)


def main(directory: str, name: str, content: str, silent: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"fuse", os.fsencode(directory), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory)
    print("ready", flush=True)
    _Server(device, os.fsencode(name), Path(content).read_bytes(), Path(silent)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
