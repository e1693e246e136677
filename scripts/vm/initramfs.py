# SPDX-License-Identifier: Apache-2.0
"""The first files a guest sees: busybox, a script, and the modules without which it cannot reach the host's files."""

from __future__ import annotations

import lzma
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

WANTED = ("virtio_pci", "virtio_rng", "9pnet_virtio", "9p", "overlay")
"""Modules the guest cannot do without; a kernel that has one built in has no file for it."""
BUSYBOX = Path("/bin/busybox")


def module_files(modules: Path) -> list[Path]:
    """The files of WANTED and of what they depend on, in the order they can be loaded in."""
    below: dict[str, tuple[str, list[str]]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, depends = line.partition(":")
        below[_name(path)] = (path, [_name(one) for one in depends.split()])
    order: list[str] = []

    def visit(name: str) -> None:
        path, depends = below[name]
        if path not in order:
            for one in depends:
                visit(one)
            order.append(path)

    for name in WANTED:
        if name in below:
            visit(name)
    return [modules / path for path in order]


def _name(path: str) -> str:
    return Path(path).name.split(".")[0].replace("-", "_")


def plain(module: Path) -> bytes:
    """The module's ELF file, unpacked: busybox's insmod knows no compression."""
    if module.suffix == ".xz":
        return lzma.decompress(module.read_bytes())
    if module.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", module], check=True, stdout=subprocess.PIPE).stdout
    return module.read_bytes()


def entries(modules: Path, init: Path) -> Iterator[tuple[str, int, bytes]]:
    """(path, mode, content) of everything in the archive."""
    for name in ("bin", "proc", "sys", "dev", "host", "over", "new", "modules"):
        yield name, stat.S_IFDIR | 0o755, b""
    yield "bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes()
    yield "bin/sh", stat.S_IFLNK | 0o777, b"busybox"
    yield "init", stat.S_IFREG | 0o755, init.read_bytes()
    order = []
    for module in module_files(modules):
        order.append(f"{_name(module.name)}.ko")
        yield f"modules/{order[-1]}", stat.S_IFREG | 0o644, plain(module)
    yield "modules/order", stat.S_IFREG | 0o644, "".join(f"{one}\n" for one in order).encode()


def archive(files: Iterator[tuple[str, int, bytes]]) -> bytes:
    """A cpio archive in the one form the kernel reads ("newc"): everything in hexadecimal, padded to four."""
    parts: list[bytes] = []
    for inode, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        parts += [header, b"\0" * (-len(header) % 4), content, b"\0" * (-len(content) % 4)]
    return b"".join(parts)


def write(target: Path, modules: Path, init: Path) -> None:
    """Write the archive, or leave the one that is newer than what it is made from."""
    sources = (init, Path(__file__), modules / "modules.dep", BUSYBOX)
    if target.exists() and target.stat().st_mtime > max(one.stat().st_mtime for one in sources):
        return
    unfinished = target.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(archive(entries(modules, init)))
    unfinished.replace(target)
