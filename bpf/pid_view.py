# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of pid_view.bpf.c: loads it, puts it on the driver's functions, reads and writes its maps."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterable, Mapping

from fairsched.bpf import abi, budgets, child, perf, syscall
from fairsched.bpf.mapped import MappedArray
from fairsched.bpf.rooms import MapRooms

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
        self._by = MappedArray(self._fds["translator_by"], ctypes.c_uint64, len(abi.ViewKind)).items
        self._counts = MappedArray(self._fds["view_counts"], ctypes.c_uint64, len(abi.ViewCount)).items
        self.rooms = MapRooms(self._fds, budgets.VIEW, "view_counts", abi.ViewCount.OVER_BUDGET)
        self._older = 0

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
        """Write down a process that is older than this, at nobody's charge. Raises OSError when the book is full."""
        for namespace, number in places:
            if self._older >= abi.MAX_VIEW_OLDER:
                raise OSError(errno.E2BIG, "as many are written down as there is room for")
            by_tgid, by_nr = abi.PidKey(namespace, tgid), abi.PidKey(namespace, number)
            with contextlib.suppress(FileExistsError):  # it has called meanwhile
                syscall.update(self._fds["nr_by_tgid"], by_tgid, abi.PidNr(number), syscall.NOEXIST)
                self._older += 1
                syscall.update(self._fds["tgid_by_nr"], by_nr, ctypes.c_uint32(tgid))

    def strike(self, tgid: int, places: Iterable[Place]) -> None:
        """Take it out again. What it is charged for itself goes with its end."""
        for namespace, number in places:
            by_tgid, found = abi.PidKey(namespace, tgid), abi.PidNr()
            with contextlib.suppress(FileNotFoundError):
                syscall.lookup(self._fds["nr_by_tgid"], by_tgid, found)
                if found.room == abi.Room.NONE:
                    syscall.delete(self._fds["nr_by_tgid"], by_tgid)
                    self._older -= 1
                    syscall.delete(self._fds["tgid_by_nr"], abi.PidKey(namespace, number))

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
