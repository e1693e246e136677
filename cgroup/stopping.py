# SPDX-License-Identifier: Apache-2.0
"""Tells whether a process is stopped, and signals it without ever reaching another one.

A signal to a pid may reach somebody else by the time it is sent. So a pidfd is opened first, and only then is it
checked that the pid is the process that is meant (its start time); the signal goes through the descriptor.

Terms, as in /proc/<pid>/status: T is stopped by a signal, t by a debugger. A process is *stopping* when SIGSTOP is
on its way or one of its threads is stopped, and *at rest* when none of its threads can run code of its own: each is
stopped, waits in the kernel where no signal interrupts it (D), or has ended. Source: proc_pid_status(5).
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Iterator

from fairsched.base.process import ProcessId
from fairsched.errors import KernelRefused

_STATE = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
_TRACER = re.compile(rb"^TracerPid:\s+([1-9]\d*)", re.MULTILINE)
_PENDING = re.compile(rb"^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)", re.MULTILINE)
_SIGSTOP_BIT = 1 << (signal.SIGSTOP - 1)
_AT_REST = frozenset((b"T", b"t", b"D", b"Z", b"X", b"x"))


def is_stopping(process: ProcessId) -> bool:
    """False also of one that has ended."""
    return any(_is_stopping(thread) for thread in _threads(process)) and process.is_alive()


def is_at_rest(process: ProcessId) -> bool:
    """True also of one that has ended."""
    return all(_state(thread) in _AT_REST for thread in _threads(process)) or not process.is_alive()


def is_others(process: ProcessId) -> bool:
    """It is stopping already, or a debugger holds one of its threads, to whom a signal would go first."""
    return any(_is_stopping(thread) or _is_traced(thread) for thread in _threads(process))


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Whether it was there to be signalled. Raises KernelRefused."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        raise _refused(process, number, error) from error
    try:
        if not process.is_alive():  # only now is the pid pinned
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    except OSError as error:
        raise _refused(process, number, error) from error
    finally:
        os.close(pidfd)
    return True


def let_go(processes: Iterable[ProcessId]) -> int:
    """SIGCONT to each, verified; how many of them stood still. Raises KernelRefused after all were tried."""
    stood, refusal = 0, None
    for process in processes:
        was_stopping = is_stopping(process)
        try:
            if not send(process, signal.SIGCONT):
                continue
        except KernelRefused as error:
            refusal = error
            continue
        stood += was_stopping
        if _is_stopping(next(_threads(process), b"")):  # all wake together
            what = "still stopped after SIGCONT"
            refusal = KernelRefused(f"/proc/{process.pid}", errno.EAGAIN, what, remedy="fairsched release")
    if refusal is not None:
        raise refusal
    return stood


def _threads(process: ProcessId) -> Iterator[bytes]:
    """The status of each of its threads, the first one first."""
    directory = f"/proc/{process.pid}/task"
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            with open(f"{directory}/{name}/status", "rb") as file:
                yield file.read()
        except OSError:  # that thread has ended
            continue


def _state(thread: bytes) -> bytes:
    found = _STATE.search(thread)
    return b"" if found is None else found[1]


def _is_stopping(thread: bytes) -> bool:
    return _state(thread) == b"T" or any(int(mask, 16) & _SIGSTOP_BIT for mask in _PENDING.findall(thread))


def _is_traced(thread: bytes) -> bool:
    return _TRACER.search(thread) is not None


def _refused(process: ProcessId, number: signal.Signals, error: OSError) -> KernelRefused:
    return KernelRefused(
        f"/proc/{process.pid}", error.errno or 0, f"cannot send {number.name}", remedy="grant CAP_KILL"
    )
