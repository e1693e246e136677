# SPDX-License-Identifier: Apache-2.0
"""Keeps one file in a directory that one process at a time may act on.

Problem: what a part of the companion has done must be on disk before it is done, whole; and two that act on the same
record, such as the companion that leaves and the one that comes, must not do so at the same time.

Approach: the file is replaced whole, and whoever acts holds one ``flock`` in its directory. The kernel gives the lock
back when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from fairsched.base.files import replace_file


class LockedFile:
    """The file `name` in `directory`, which is made when it is first written to or locked."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.path = directory / name
        self._lock_fd: int | None = None

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever somebody writes; None = there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def write(self, raw: bytes, *, is_durable: bool = True) -> None:
        """Replace the file; with `is_durable` it outlives a power cut. Raises OSError."""
        self._make_directory()
        replace_file(self.path, raw, is_durable=is_durable)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether the lock was free; it is held until the block is left. Raises OSError."""
        is_ours = self.lock()
        try:
            yield is_ours
        finally:
            if is_ours:
                self.unlock()

    def lock(self) -> bool:
        """Take the lock, without waiting; False = somebody else has it. Raises OSError."""
        self._make_directory()
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._lock_fd = descriptor
        return True

    def unlock(self) -> None:
        """Give it back; harmless when it is not held."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
