# SPDX-License-Identifier: Apache-2.0
"""Writes files that are there whole or not at all: a new one is written beside the old one and takes its place."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A scratch file that takes the place of ``path``: never half a file, never through somebody's link.

    For people: anybody may read it. Raises OSError.
    """
    with _scratch_for(path) as scratch:
        yield scratch
        # Written as root: the file belongs to whom its directory belongs, as after every `sudo make`.
        owner = path.parent.stat()
        os.chown(scratch, owner.st_uid, owner.st_gid)
        scratch.chmod(0o644)


def replace_file(path: Path, data: bytes, *, is_durable: bool = True, mode: int = 0o600) -> None:
    """``path`` holds ``data`` now, or what it held before. With ``is_durable`` it outlives a power cut.

    Raises OSError.
    """
    with _scratch_for(path) as scratch:
        with open(scratch, "wb") as file:
            file.write(data)
            if is_durable:  # else the name may be on the disk before what it names
                file.flush()
                os.fsync(file.fileno())
        if mode != 0o600:
            scratch.chmod(mode)
    if is_durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """A rename in ``path`` survives a power cut from here on."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _scratch_for(path: Path) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    scratch = Path(name)
    try:
        yield scratch
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def read_stripped(path: str | Path) -> str | None:
    """The file's text without surrounding white space; None where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
