# SPDX-License-Identifier: Apache-2.0
"""The BPF maps of a running daemon, read from outside through duplicates of its descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from fairsched.bpf import abi, syscall

_NR_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


class _Slot(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint32),)


_OBJ_GET_INFO_BY_FD = 15
_MAP_GET_FD_BY_ID = 14
_MAP_POP = 21
FULL_KEYS = 1 << 20
"""More than any map has room for."""


class _InfoAttr(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_uint32), ("length", ctypes.c_uint32), ("info", ctypes.c_uint64))


class _IdAttr(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32 * 3))


class _ProgInfo(ctypes.Structure):
    """The beginning of struct bpf_prog_info."""

    _fields_ = (
        ("head", ctypes.c_uint8 * 52),
        ("map_count", ctypes.c_uint32),
        ("map_ids", ctypes.c_uint64),
    )


class _MapInfo(ctypes.Structure):
    """The beginning of struct bpf_map_info."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_bytes", ctypes.c_uint32),
        ("value_bytes", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
    )


_SHAPES = {
    # (key, value) sizes tell our maps apart
    "ctx_by_slot": (4, ctypes.sizeof(abi.Ctx)),
    "clock_by_gpu": (4, ctypes.sizeof(abi.Clock)),
    "counts_by_what": (4, 8),
    "gpu_time_by_key": (ctypes.sizeof(abi.UseKey), ctypes.sizeof(abi.Use)),
    "gpu_by_dev": (ctypes.sizeof(abi.DevKey), 4),
    "budget_by_owner": (4, ctypes.sizeof(abi.Budget)),
    "limits_of_all": (4, ctypes.sizeof(abi.Limits)),
}


def _map_shape(pid: int, fd: str) -> tuple[int, int] | None:
    fields = {}
    try:
        text = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
    except OSError:
        return None  # closed since it was listed
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    if "map_id" not in fields:
        return None
    return int(fields["key_size"]), int(fields["value_size"])


class Maps:
    """A context manager. Valid while the daemon keeps its probes."""

    def __init__(self, pid: int) -> None:
        self._fds: dict[str, int] = {}
        pidfd = os.pidfd_open(pid)
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                shape = _map_shape(pid, fd)
                for name, wanted in _SHAPES.items():
                    if shape == wanted:
                        self._fds[name] = _libc.syscall(_NR_PIDFD_GETFD, pidfd, int(fd), 0)
        finally:
            os.close(pidfd)
        assert self._fds.keys() == _SHAPES.keys(), f"the daemon has no {_SHAPES.keys() - self._fds.keys()}"

    def __enter__(self) -> Maps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def _array(self, name: str, value: type[ctypes._CData], count: int) -> list[ctypes._CData]:
        size = ctypes.sizeof(value)
        with mmap.mmap(self._fds[name], size * count, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            return [value.from_buffer_copy(memory, i * size) for i in range(count)]

    def contexts(self) -> list[abi.Ctx]:
        """Those that exist now."""
        every = self._array("ctx_by_slot", abi.Ctx, abi.MAX_CTXS)
        return [item for item in every if item.flags & abi.CtxFlag.LIVE]

    def pids(self) -> set[int]:
        """Processes that have a context."""
        return {context.tgid for context in self.contexts()}

    def busy_contexts(self, gpu: int = 0) -> int:
        """n of the compute clock."""
        clock = self._array("clock_by_gpu", abi.Clock, abi.MAX_SLOTS)[gpu]
        return abi.clock_n(clock.word[abi.COMPUTE])

    def counts(self) -> dict[str, int]:
        values = self._array("counts_by_what", ctypes.c_uint64, len(abi.Count))
        return {what.name.lower(): values[what].value for what in abi.Count}

    def used_room(self) -> list[int]:
        """Entries of each table that somebody has, as the budgets have it, and then those out of the shared room."""
        budgets = self._array("budget_by_owner", abi.Budget, abi.MAX_OWNERS)
        (limits,) = self._array("limits_of_all", abi.Limits, 1)
        return [
            *(sum(column) for column in zip(*(one.used for one in budgets), strict=True)),
            *limits.shared_used,
        ]

    def use_pids(self) -> list[int]:
        """Processes with an entry of GPU time."""
        reader = syscall.BatchReader(self._fds["gpu_time_by_key"], abi.UseKey, abi.Use)
        return [key.tgid for key, _ in reader.read()]

    def device_pids(self) -> list[int]:
        """Processes whose ordinals user space has named."""
        reader = syscall.BatchReader(self._fds["gpu_by_dev"], abi.DevKey, _Slot)
        return [key.tgid for key, _ in reader.read()]


def _info(fd: int, info: ctypes.Structure) -> None:
    syscall.call(_OBJ_GET_INFO_BY_FD, _InfoAttr(fd, ctypes.sizeof(info), ctypes.addressof(info)))


def _program_maps(program_fd: int) -> list[int]:
    ids = (ctypes.c_uint32 * 64)()
    info = _ProgInfo(map_count=len(ids), map_ids=ctypes.addressof(ids))
    _info(program_fd, info)
    return list(ids[: info.map_count])


def open_private(pid: int, name: str) -> tuple[int, _MapInfo]:
    """A map that no process has a descriptor of, through the programs that process ``pid`` holds."""
    pidfd = os.pidfd_open(pid)
    seen: set[int] = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            if os.readlink(entry.path) != "anon_inode:bpf-prog":
                continue
            program = _libc.syscall(_NR_PIDFD_GETFD, pidfd, int(entry.name), 0)
            found = _program_maps(program)
            os.close(program)
            for number in set(found) - seen:
                fd = syscall.call(_MAP_GET_FD_BY_ID, _IdAttr(number))
                info = _MapInfo()
                _info(fd, info)
                if info.name.decode() == name[:15]:
                    return fd, info
                os.close(fd)
            seen.update(found)
    finally:
        os.close(pidfd)
    raise AssertionError(f"no program of process {pid} uses a map {name}")


@contextlib.contextmanager
def filled(pid: int, name: str) -> Iterator[None]:
    """A hash without a free place, as long as this lasts. Its keys are no process's: they begin with bits set."""
    fd, info = open_private(pid, name)
    keys = []
    try:
        for number in range(FULL_KEYS):
            key = (ctypes.c_uint8 * info.key_bytes)(
                *number.to_bytes(4, "little").ljust(info.key_bytes, b"\xff")
            )
            key[3] = 0xFF
            try:
                syscall.update(fd, key, (ctypes.c_uint8 * info.value_bytes)())
            except OSError as error:
                assert error.errno == errno.E2BIG
                break
            keys.append(key)
        assert 0 < len(keys) <= info.max_entries
        yield
    finally:
        for key in keys:
            syscall.delete(fd, key)
        os.close(fd)


def take_free_slots(pid: int) -> list[int]:
    """Every slot that is free for a context. They are taken out: nobody gets one afterwards."""
    fd, _ = open_private(pid, "free_slots")
    found, value = [], ctypes.c_uint32()
    try:
        while True:
            syscall.call(_MAP_POP, syscall._ElementAttr(fd, 0, 0, ctypes.addressof(value), 0))
            found.append(value.value)
    except FileNotFoundError:
        return found
    finally:
        os.close(fd)
