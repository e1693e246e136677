# SPDX-License-Identifier: Apache-2.0
"""An answer that is not there yet, and the errand that it waits for.

Problem. What is answered must outlive a power cut, and a disk that is busy takes seconds for that. Whoever asked may
wait so long; the loop, which has everybody else to look after, may not.

Approach. A thread runs one errand at a time and rings; the loop takes the outcome and gives the answer, so that all
that is decided is decided in the loop. What is owed has no lock: only the loop touches it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_CLOSE_S = 5.0


class Later(Generic[T]):
    """An answer that somebody is owed. Looked at and given in one thread."""

    def __init__(self) -> None:
        self.is_there = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._first: Callable[[T], object] | None = None

    def before(self, first: Callable[[T], object]) -> Later[T]:
        """What is done with the answer before it is there; where that fails, so has the answer."""
        self._first = first
        return self

    def give(self, value: T) -> None:
        """This is the answer."""
        try:
            if self._first is not None:
                self._first(value)
        except Exception as error:
            self.fail(error)
            return
        self._value, self.is_there = value, True

    def fail(self, error: Exception) -> None:
        """There will be none, and this is why."""
        self._error, self.is_there = error, True

    def take(self) -> T:
        """The answer, which must be there. Raises what it failed with."""
        assert self.is_there
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Errand(Generic[T]):
    """Runs one thing at a time in a thread. ``what`` names the thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: threading.Thread | None = None
        self._outcome: tuple[T | None, Exception | None] | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._forget_bell = weakref.finalize(self, os.close, self._bell)
        self._forget_bell.atexit = False

    def fileno(self) -> int:
        """Readable when there is an outcome to take."""
        return self._bell

    def start(self, job: Callable[[], T]) -> None:
        """Run it; what was run before must have been taken."""
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._what, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the host has no process left
            self._end(None, OSError(errno.EAGAIN, "no thread could be started for it"))

    def take(self) -> tuple[T | None, Exception | None] | None:
        """What it came to, and what it raised; None: it is not over, or there is none."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        outcome, self._outcome = self._outcome, None
        return outcome

    def _run(self, job: Callable[[], T]) -> None:
        try:
            value = job()
        except Exception as error:
            self._end(None, error)
        else:
            self._end(value, None)

    def _end(self, value: T | None, error: Exception | None) -> None:
        self._outcome = (value, error)
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Wait for what runs, but not for a disk that does not answer: that one keeps the bell."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                return
        self._forget_bell()
