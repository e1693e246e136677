# SPDX-License-Identifier: Apache-2.0
"""Files that tenants make to hurt others, and a process that maps them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairsched.simgpu.workload import Worker
from tests.node.daemon.site import DECODE, Site
from tests.node.promptness import Took

LIBRARY = "libcuda.so.1"
_MAP = """
import mmap, os, signal, sys
held = []
for name in sorted(os.listdir(sys.argv[1])):
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        held.append(mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
print(flush=True)
signal.pause()
"""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_IDENT = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_CODE = 0x800


def elf(symbols: int, name: bytes = b"cuInit") -> bytes:
    """The beginning of a shared object with one export, that says it has ``symbols``."""
    names = b"\0" + name + b"\0"
    segments_at = _HEADER.size
    sections_at = segments_at + _SEGMENT.size
    names_at = sections_at + 3 * _SECTION.size
    symbols_at = 0x400
    header = _HEADER.pack(_IDENT, 3, 62, 1, 0, segments_at, sections_at, 0, 64, 56, 1, 64, 3, 2)
    segment = _SEGMENT.pack(1, 5, 0, 0, 0, 0x1000, 0x1000, 0x1000)
    sections = (
        bytes(_SECTION.size)
        + _SECTION.pack(0, 11, 2, 0, symbols_at, symbols * _SYMBOL.size, 2, 1, 8, _SYMBOL.size)
        + _SECTION.pack(0, 3, 2, 0, names_at, len(names), 0, 0, 1, 0)
    )
    head = (header + segment + sections + names).ljust(symbols_at, b"\0")
    table = bytes(_SYMBOL.size) + _SYMBOL.pack(1, 0x12, 0, 1, _CODE, 16)
    return (head + table).ljust(_CODE, b"\0") + b"\x55\x48\x89\xe5\xc3".ljust(0x800, b"\x90")


def write_poison(path: Path, symbols: int) -> None:
    """A sparse file that has room for all the symbols it speaks of."""
    path.write_bytes(elf(symbols))
    os.truncate(path, 0x1000 + symbols * _SYMBOL.size)


@contextmanager
def mapping(site: Site, tenant: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ``tenant`` that maps each file of a directory; ready."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", f"import os; os.read(0, 1)\n{_MAP}", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        (site.cgroup(tenant) / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def expect_soon(took: Took, limit_s: float) -> None:
    """But for waits for a processor, which say nothing of the product."""
    assert took.own_s < limit_s, took
    assert took.wall_s < 10 * limit_s, took


def spawn_with_own_libcuda(site: Site, tenant: str, directory: Path) -> Worker:
    """A container whose image has a libcuda of its own."""
    if not directory.exists():
        shutil.copytree(site.library_dir, directory)
    worker = site.host.spawn(
        replace(DECODE, seed=5), site.cgroup(tenant), tenant, env={"LD_LIBRARY_PATH": str(directory)}
    )
    site.workers.setdefault(tenant, []).append(worker)
    return worker
