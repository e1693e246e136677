# SPDX-License-Identifier: Apache-2.0
"""How long each process had the GPU, by the GPU's own trace of context switches, beside whatever the daemon reads.

A stay is the time between two switches: kernels, what the switch takes of it, and the pauses of one that launches more
slowly than the GPU works while nobody else wants it. It is what others could not have.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from fairsched.gpu.trace import GpuTrace, Switch, Trace, TraceLost, TraceRefused

_PERIOD_S = 0.033


class Stays:
    """Reads a trace in a thread of its own. Close it."""

    def __init__(self, trace: Trace, close: Callable[[], None]) -> None:
        self._trace, self._close = trace, close
        self._lock = threading.Lock()
        self._ns = Counter[int]()
        self._on: Switch | None = None
        self._why: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stays", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, gpu_uuid: str) -> Stays | None:
        """None where the driver hands out no trace."""
        try:
            trace = GpuTrace(gpu_uuid)
        except TraceRefused:
            return None
        return cls(trace, trace.close)

    def ns(self, pids: Iterable[int]) -> int | None:
        """Of all of them, up to now; None = switches were missed."""
        self._read(time.monotonic_ns())
        with self._lock:
            return None if self._why else sum(self._ns[pid] for pid in pids)

    def close(self) -> None:
        """Idempotent."""
        self._ended.set()
        self._thread.join()
        self._close()

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._read(None)

    def _read(self, now_ns: int | None) -> None:
        with self._lock:
            if self._why:
                return
            try:
                switches, is_whole = self._trace.read()
            except TraceLost as error:
                self._why = str(error)
                return
            if not is_whole:
                self._why = "the trace has a gap"
            for switch in switches:
                self._leave(switch.t_ns)
                self._on = switch if switch.is_start else None
            if now_ns is not None and self._on is not None:
                self._leave(now_ns)
                self._on = self._on._replace(t_ns=now_ns)

    def _leave(self, at_ns: int) -> None:
        if self._on is not None:
            self._ns[self._on.pid] += max(0, at_ns - self._on.t_ns)
