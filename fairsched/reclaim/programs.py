# SPDX-License-Identifier: Apache-2.0
"""Finds the digest of the program that a process runs, for allow-lists: a name proves nothing, the bytes do.

Problem: programs are large, a host has many processes, and a file can lie on a file system that its tenant serves:
then opening it can take for ever. And a process may run an allowed program first, and another one later.

Approach: a thread beside the caller opens ``/proc/PID/exe`` of everybody in each look, which is the file itself
wherever its path leads now. What was hashed once is known by device, inode, size, mtime and ctime; the last cannot be
set by the file's owner. Until a digest is known it is None, which no allow-list matches. A file that hangs keeps its
thread; its process is not asked again, and the next look has another thread, some times.

Bounds: bytes of a file, seconds of reading in a look, threads that hang, digests remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable

MOST_BYTES = 512 << 20
"""Of a program; a larger one has no digest."""
LOOK_S = 1.0
"""Of reading in one look; the rest is read in the next."""
_MOST_KNOWN = 4096
_MOST_HUNG = 16
_MOST_PARTS = 4
_HANGS_S = 30.0
_PIECE = 1 << 20

Owner = tuple[int, int]
"""(pid, start ticks)."""
_File = tuple[int, int, int, int, int]

logger = logging.getLogger(__name__)


class Programs:
    """Call :meth:`digests` with all processes of a look; it does not wait for a disk."""

    def __init__(
        self,
        proc: str = "/proc",
        most_bytes: int = MOST_BYTES,
        look_s: float = LOOK_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._most_bytes, self._look_s, self._now_s = proc, most_bytes, look_s, now_s
        self._of_owner: dict[Owner, tuple[str | None, str]] = {}
        """(digest, where its link led then)."""
        self._of_file: dict[_File, str | None] = {}
        self._parts: dict[_File, tuple[hashlib._Hash, int]] = {}
        """Of files that are read in part: the hash so far, and how many bytes."""
        self._thread: threading.Thread | None = None
        self._began_s = 0.0
        self._at: Owner | None = None
        """Whose program is being opened or read."""
        self._hung: set[Owner] = set()

    def digests(self, wanted: Iterable[tuple[Owner, str | None]]) -> dict[Owner, str | None]:
        """Of each (process, where its link leads), as the last look found it; this look goes on beside."""
        asked = {owner: link for owner, link in wanted if link is not None}
        if self._is_free():
            self._began_s = self._now_s()
            todo = [(owner, link) for owner, link in asked.items() if owner not in self._hung]
            todo.sort(key=lambda one: one[0] in self._of_owner)  # those not known yet come first
            self._thread = threading.Thread(target=self._read, args=(todo,), name="programs", daemon=True)
            self._thread.start()
        last = dict(self._of_owner)
        return {
            owner: last[owner][0] for owner, link in asked.items() if owner in last and last[owner][1] == link
        }

    def join(self, timeout_s: float) -> None:
        """Wait for what is being read, for so long at most."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _is_free(self) -> bool:
        """Whether another thread may start."""
        thread, at = self._thread, self._at
        if thread is None or not thread.is_alive():
            return True
        if self._now_s() - self._began_s < _HANGS_S or at is None or len(self._hung) >= _MOST_HUNG:
            return False
        self._hung.add(at)
        if len(self._hung) == _MOST_HUNG:
            logger.warning("programs=hang cost=%r", "digests of programs are not known any more")
        return True

    def _read(self, todo: list[tuple[Owner, str]]) -> None:
        until_s = self._now_s() + self._look_s
        found = dict[Owner, tuple[str | None, str]]()
        for owner, link in todo:
            self._at = owner
            with contextlib.suppress(OSError):
                digest = self._digest(owner, until_s)
                if digest is not _LATER:
                    found[owner] = (digest, link)
            if threading.current_thread() is not self._thread:
                return  # it hung, and another has taken over
        self._at = None
        self._of_owner = found

    def _digest(self, owner: Owner, until_s: float) -> str | None:
        """Raises OSError: it is gone."""
        fd = os.open(f"{self._proc}/{owner[0]}/exe", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > self._most_bytes:
                return None
            file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if file not in self._of_file:
                digest = _LATER if self._now_s() >= until_s else self._hashed(fd, file, until_s)
                if digest is _LATER:
                    return _LATER
                while len(self._of_file) >= _MOST_KNOWN:
                    del self._of_file[next(iter(self._of_file))]
                self._of_file[file] = digest
            return self._of_file[file]
        finally:
            os.close(fd)

    def _hashed(self, fd: int, file: _File, until_s: float) -> str | None:
        digest, offset = self._parts.pop(file, (hashlib.sha256(), 0))
        while chunk := os.pread(fd, _PIECE, offset):
            digest.update(chunk)
            offset += len(chunk)
            if self._now_s() >= until_s and offset < file[2]:
                if len(self._parts) >= _MOST_PARTS:
                    self._parts.clear()
                self._parts[file] = (digest, offset)
                return _LATER
            if offset > self._most_bytes:
                return None
        return f"sha256:{digest.hexdigest()}"


_LATER = "later"
