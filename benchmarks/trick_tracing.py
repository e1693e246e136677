# SPDX-License-Identifier: Apache-2.0
"""Tricks against being stopped: undoing signals, and ptrace of the worker, also while it is held."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from benchmarks.trick_company import Company

SIGCONT_S = 0.005
INTERRUPT_S = 0.02
_SEIZE, _INTERRUPT, _CONT = 0x4206, 0x4207, 7
_EXIT_KILL = 0x00100000
_EVENT_STOP = 128
_WALL = 0x40000000


def sigcont(company: Company) -> None:
    """Undoes SIGSTOP within milliseconds; a frozen process stays frozen."""
    home = company.home
    company.start_helper(lambda: _undo_stops(home), aside=True)
    company.start_worker()
    company.wait()


def _undo_stops(home: Path) -> None:
    while True:
        for pid in (home / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGCONT)
        time.sleep(SIGCONT_S)


def trace(company: Company) -> None:
    """A traced process that is held can still be made to stop otherwise and to go on."""
    worker = company.start_worker()
    company.start_helper(lambda: Tracer(worker.pid).run(), aside=True)
    company.wait()


class Tracer:
    """Traces every thread of a process, and stops and continues each again and again."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._traced: set[int] = set()
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._ptrace.restype = ctypes.c_long

    def run(self) -> None:
        """Until the process is gone."""
        while Path(f"/proc/{self._pid}").exists():
            self._seize_new()
            for thread in self._traced:
                self._ptrace(_INTERRUPT, thread, None, None)
            time.sleep(INTERRUPT_S)
            self._continue_stopped()

    def _seize_new(self) -> None:
        """If the tracer is killed, so is the worker: a trick leaves nothing behind."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"/proc/{self._pid}/task"):
                thread = int(name)
                if thread not in self._traced and not self._ptrace(_SEIZE, thread, None, _EXIT_KILL):
                    self._traced.add(thread)

    def _continue_stopped(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                thread, status = os.waitpid(-1, os.WNOHANG | _WALL)
                if not thread:
                    return
                if os.WIFSTOPPED(status):
                    self._ptrace(_CONT, thread, None, _signal_to_pass(status))
                else:
                    self._traced.discard(thread)


def _signal_to_pass(status: int) -> int:
    """Stops are our own, or somebody's SIGSTOP, which ends here; everything else goes to the process."""
    if status >> 16 == _EVENT_STOP or os.WSTOPSIG(status) == signal.SIGSTOP:
        return 0
    return os.WSTOPSIG(status)
