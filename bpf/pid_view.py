# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of pid_view.bpf.c: loads it, puts it on the driver's functions, reads and writes its maps."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Mapping

from fairsched.bpf import abi, child, perf, syscall

_DRAIN_S = 1.0
_LOOK_S = 0.002
ANSWERS = {
    abi.ViewKind.LIST: "on_list",
    abi.ViewKind.INFO: "on_info",
    abi.ViewKind.SAMPLES: "on_samples",
}
"""The program behind on_rm_return that deals with a kind."""

Place = tuple[int, int]
"""(inode number of a PID namespace, number of the process there)."""


class PidViewPrograms:
    """The programs, loaded; :meth:`attach` makes them act. Raises HostUnsupported when they are refused."""

    def __init__(self, defines: Mapping[str, int] | None = None) -> None:
        loaded = child.load("pid_view", ("kprobe",), defines)
        self._fds = loaded.fds
        self._programs = loaded.programs("kprobe")
        self._links: list[int] = []
        for kind, program in ANSWERS.items():
            value = ctypes.c_uint32(self._programs[program])
            syscall.update(self._fds["answer_by_kind"], ctypes.c_uint32(kind), value)
        self._by = _mapped(self._fds["translator_by"], len(abi.ViewKind))
        self._counts = _mapped(self._fds["view_counts"], len(abi.ViewCount))

    def watch_exits(self) -> None:
        """From now on a process that ends is struck out of the book. Raises OSError."""
        self._links.append(syscall.open_raw_tracepoint("sched_process_exit", self._programs["on_exit"]))

    def attach(self, entry: str, translator: str | None) -> None:
        """Act on calls of the kernel function ``entry``; ``translator`` is the one a driver that translates asks.

        The entry comes last: whatever enters after that is seen to the end. Raises OSError.
        """
        if translator is not None:
            self._put("on_ns_pid", translator, is_return=False)
        self._put("on_rm_return", entry, is_return=True)
        self._put("on_rm_enter", entry, is_return=False)

    def _put(self, program: str, symbol: str, *, is_return: bool) -> None:
        self._links.append(perf.attach_kprobe(self._programs[program], symbol, is_return=is_return))

    def translators(self) -> dict[abi.ViewKind, abi.ViewBy]:
        """Whose job each kind of call is, as far as that is known."""
        return {kind: abi.ViewBy(self._by[kind]) for kind in abi.ViewKind}

    def set_translator(self, by: abi.ViewBy) -> None:
        """Decide every kind, before :meth:`attach`."""
        for kind in abi.ViewKind:
            self._by[kind] = by

    def counts(self) -> dict[str, int]:
        """All counters, by lower-case name of ``abi.ViewCount``."""
        return {what.name.lower(): int(self._counts[what]) for what in abi.ViewCount}

    def enter(self, tgid: int, places: Iterable[Place]) -> None:
        """Write a process down. Raises OSError when the book is full."""
        for namespace, number in places:
            by_tgid, by_nr = abi.PidKey(namespace, tgid), abi.PidKey(namespace, number)
            syscall.update(self._fds["nr_by_tgid"], by_tgid, ctypes.c_uint32(number))
            syscall.update(self._fds["tgid_by_nr"], by_nr, ctypes.c_uint32(tgid))

    def strike(self, tgid: int, places: Iterable[Place]) -> None:
        """Take a process out again."""
        for namespace, number in places:
            for name, pid in (("nr_by_tgid", tgid), ("tgid_by_nr", number)):
                with contextlib.suppress(FileNotFoundError):
                    syscall.delete(self._fds[name], abi.PidKey(namespace, pid))

    def _is_asked(self) -> bool:
        """Whether a question with other pids than the caller's is in the driver."""
        return next(syscall.keys(self._fds["asked_by_thread"], ctypes.c_uint64), None) is not None

    def close(self) -> None:
        """Let go, once the questions that are being asked have been put back. Idempotent."""
        if self._links:
            os.close(self._links.pop())
            end = time.monotonic() + _DRAIN_S
            while self._is_asked() and time.monotonic() < end:
                time.sleep(_LOOK_S)
        for fd in (*reversed(self._links), *self._fds.values()):
            os.close(fd)
        self._links, self._fds = [], {}


def _mapped(map_fd: int, count: int) -> ctypes.Array[ctypes.c_uint64]:
    """The values of a BPF_F_MMAPABLE array, live."""
    length = (8 * count + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    memory = mmap.mmap(map_fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    return (ctypes.c_uint64 * count).from_buffer(memory)
