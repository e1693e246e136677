# SPDX-License-Identifier: Apache-2.0
"""Opens and reads a trace of context switches in a thread, so that nobody waits for the driver's locks for long.

A read takes .2 ms, and 200 ms while somebody makes a context, for it takes the locks of all GPUs. The loop waits for it
for a few milliseconds at most; what comes later is told by the next read, and charged late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from fairsched.gpu.trace import Switch, Trace, TraceLost, TraceRefused

_PATIENCE_S = 0.005
_END_S = 1.0


class ClosableTrace(Trace, Protocol):
    def close(self) -> None:
        """Idempotent."""


class TraceThread:
    """A :class:`Trace` once it is open. Close it in the end."""

    def __init__(self, name: str, open_trace: Callable[[], ClosableTrace]) -> None:
        """``open_trace`` raises TraceRefused."""
        self._open = open_trace
        self._lock = threading.Lock()
        self._switches: list[Switch] = []
        self._is_whole = True
        self._read_ns = self.told_ns = 0
        self._lost: str | None = None
        self._is_ending = False
        self._is_wanted, self._is_read, self._is_decided = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.refused: str | None = None
        """Why there is no trace, once :attr:`is_decided`; None: there is one."""
        self._thread = threading.Thread(target=self._run, name=f"trace {name}", daemon=True)
        self._thread.start()

    @property
    def is_decided(self) -> bool:
        """Whether it is known if there is a trace."""
        return self._is_decided.is_set()

    def wait(self, seconds: float) -> bool:
        """For :attr:`is_decided`."""
        return self._is_decided.wait(seconds)

    def read(self) -> tuple[list[Switch], bool]:
        """See :class:`Trace`; what does not come within some milliseconds comes with the next one."""
        self._is_read.clear()
        self._is_wanted.set()
        self._is_read.wait(_PATIENCE_S)
        with self._lock:
            switches, self._switches = self._switches, []
            is_whole, self._is_whole = self._is_whole, True
            self.told_ns = self._read_ns
            if not switches and self._lost is not None:
                raise TraceLost(self._lost)
        return switches, is_whole

    def close(self) -> None:
        """Idempotent. A thread that the driver keeps waiting ends when that lets it."""
        self._is_ending = True
        self._is_wanted.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            trace = self._open()
        except TraceRefused as error:
            self.refused = str(error)
            self._is_decided.set()
            return
        self._is_decided.set()
        try:
            while self._is_wanted.wait() and not self._is_ending:
                self._is_wanted.clear()
                switches, is_whole = trace.read()
                with self._lock:
                    self._switches += switches
                    self._is_whole &= is_whole
                    self._read_ns = trace.told_ns
                self._is_read.set()
        except TraceLost as error:
            with self._lock:
                self._lost = str(error)
        finally:
            trace.close()
            self._is_read.set()
