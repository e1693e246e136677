# SPDX-License-Identifier: Apache-2.0
"""Keeps a file beside the loop.

Problem. A disk that is busy with what others write takes seconds to keep a file, and no tick may wait for it: who is
held then is held until a deadline, and all are let go.

Approach. A thread writes; while it does the newest text waits, and those before it are left out.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from fairsched.base.files import replace_file

_CLOSE_S = 5.0

logger = logging.getLogger(__name__)


class Saver:
    """One file, whole or as it was before. ``what`` names the thread."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._lock = threading.Lock()
        self._next: str | None = None
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None
        """Why what was saved last is not kept; None: it is, or is about to be."""

    def save(self, text: str) -> None:
        """What the file is to hold."""
        with self._lock:
            self._next = text
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._write_all, name=self._what, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the host has no process left: the next save may find one
                self._fail(str(error))
                return
            self._thread = thread

    def _write_all(self) -> None:
        while True:
            with self._lock:
                text, self._next = self._next, None
                if text is None:
                    self._thread = None
                    return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, text.encode())
                self.trouble = None
            except OSError as error:
                self._fail(str(error))

    def _fail(self, why: str) -> None:
        self.trouble = why
        logger.error("unsaved=%s error=%r", self._path, why)

    def close(self) -> None:
        """Wait for what was saved last, but not for a disk that does not answer."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)
