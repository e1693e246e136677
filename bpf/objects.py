# SPDX-License-Identifier: Apache-2.0
"""bpf(2) about programs and maps that exist already: find them by id, ask what they are, attach them to cgroups.

What is attached to a cgroup outlives who attached it; these calls are how another process finds it again, without
a pin in a file system. Source: include/uapi/linux/bpf.h. All calls raise OSError with the kernel's errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from fairsched.bpf.syscall import call

PROG_ATTACH = 8
PROG_DETACH = 9
PROG_GET_NEXT_ID = 11
PROG_GET_FD_BY_ID = 13
MAP_GET_FD_BY_ID = 14
OBJ_GET_INFO_BY_FD = 15
PROG_QUERY = 16

CGROUP_DEVICE = 6
"""enum bpf_attach_type."""
F_ALLOW_MULTI = 2
F_REPLACE = 4

_MAX_ATTACHED = 64
"""BPF_CGROUP_MAX_PROGS."""
_MAX_MAPS = 64
_INFO_WORDS = 27
"""Of struct bpf_prog_info, up to and with its recursion_misses."""

_u8, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64


class _AttachAttr(ctypes.Structure):
    _fields_ = (
        ("target_fd", _u32),
        ("attach_bpf_fd", _u32),
        ("attach_type", _u32),
        ("attach_flags", _u32),
        ("replace_bpf_fd", _u32),
    )


class _QueryAttr(ctypes.Structure):
    _fields_ = (
        ("target_fd", _u32),
        ("attach_type", _u32),
        ("query_flags", _u32),
        ("attach_flags", _u32),
        ("prog_ids", _u64),
        ("prog_cnt", _u32),
    )


class _IdAttr(ctypes.Structure):
    _fields_ = (("id", _u32), ("next_id", _u32), ("open_flags", _u32))


class _InfoAttr(ctypes.Structure):
    _fields_ = (("bpf_fd", _u32), ("info_len", _u32), ("info", _u64))


class _ProgInfo(ctypes.Structure):
    _fields_ = (
        ("type", _u32),
        ("id", _u32),
        ("tag", _u8 * 8),
        ("jited_prog_len", _u32),
        ("xlated_prog_len", _u32),
        ("jited_prog_insns", _u64),
        ("xlated_prog_insns", _u64),
        ("load_time", _u64),
        ("created_by_uid", _u32),
        ("nr_map_ids", _u32),
        ("map_ids", _u64),
        ("name", ctypes.c_char * 16),
    )


class _MapInfo(ctypes.Structure):
    _fields_ = (
        ("type", _u32),
        ("id", _u32),
        ("key_size", _u32),
        ("value_size", _u32),
        ("max_entries", _u32),
        ("map_flags", _u32),
        ("name", ctypes.c_char * 16),
    )


@dataclass(frozen=True)
class ProgramInfo:
    """What the kernel says of a loaded program."""

    id: int
    type: int
    name: str
    map_ids: tuple[int, ...]


@dataclass(frozen=True)
class MapInfo:
    """What the kernel says of a map."""

    id: int
    name: str
    key_size: int
    value_size: int


def attach(cgroup_fd: int, prog_fd: int, *, replaces: int | None = None) -> None:
    """Attach a device program beside those of others; in place of ``replaces`` (a descriptor) in one step."""
    flags = F_ALLOW_MULTI if replaces is None else F_ALLOW_MULTI | F_REPLACE
    call(PROG_ATTACH, _AttachAttr(cgroup_fd, prog_fd, CGROUP_DEVICE, flags, replaces or 0))


def detach(cgroup_fd: int, prog_fd: int) -> None:
    """Detach this program and no other. FileNotFoundError when it is not attached there."""
    if not _is_attached(cgroup_fd, prog_fd):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    call(PROG_DETACH, _AttachAttr(cgroup_fd, prog_fd, CGROUP_DEVICE))


def _is_attached(cgroup_fd: int, prog_fd: int) -> bool:
    """Where a program was attached without BPF_F_ALLOW_MULTI the kernel detaches that one, whichever it is told to.

    So it is asked to put ours in its own place, which it does only where that is. It refuses, too, if somebody keeps a
    cgroup above for himself; then the list is asked for, which some may not see.
    """
    try:
        attach(cgroup_fd, prog_fd, replaces=prog_fd)
    except FileNotFoundError:
        return False
    except PermissionError:
        try:
            return program_info(prog_fd).id in attached(cgroup_fd)
        except PermissionError:
            return False
    return True


def attached(cgroup_fd: int) -> list[int]:
    """Ids of the device programs attached to this very cgroup, in the order in which they run."""
    room = _MAX_ATTACHED
    while True:
        ids = (_u32 * room)()
        attr = _QueryAttr(cgroup_fd, CGROUP_DEVICE, prog_ids=ctypes.addressof(ids), prog_cnt=room)
        try:
            call(PROG_QUERY, attr)
        except OSError as error:
            if error.errno == errno.ENOSPC and room < attr.prog_cnt:
                room = attr.prog_cnt
                continue
            raise
        return list(ids[: attr.prog_cnt])


def program_ids() -> Iterator[int]:
    """Ids of all loaded programs of this machine. PermissionError without CAP_SYS_ADMIN."""
    attr = _IdAttr()
    while True:
        try:
            call(PROG_GET_NEXT_ID, attr)
        except FileNotFoundError:
            return
        attr.id = attr.next_id
        yield int(attr.id)


def open_program(prog_id: int) -> int:
    """A descriptor the caller closes. FileNotFoundError when the program is gone."""
    return call(PROG_GET_FD_BY_ID, _IdAttr(prog_id))


def open_map(map_id: int) -> int:
    """A descriptor the caller closes. FileNotFoundError when the map is gone."""
    return call(MAP_GET_FD_BY_ID, _IdAttr(map_id))


def program_info(prog_fd: int) -> ProgramInfo:
    """What a loaded program is, and which maps it uses."""
    ids = (_u32 * _MAX_MAPS)()
    info = _ProgInfo(nr_map_ids=_MAX_MAPS, map_ids=ctypes.addressof(ids))
    call(OBJ_GET_INFO_BY_FD, _InfoAttr(prog_fd, ctypes.sizeof(info), ctypes.addressof(info)))
    count = min(info.nr_map_ids, _MAX_MAPS)
    return ProgramInfo(int(info.id), int(info.type), info.name.decode("ascii", "replace"), tuple(ids[:count]))


def skipped_runs(prog_fd: int) -> int | None:
    """How often the kernel left a loaded program out; None where it does not say (before Linux 5.12).

    It does so while another task is preempted in a program, or in a call of bpf(2), on the same processor. Of programs
    on kprobes and tracepoints it counts them since Linux 6.7.
    """
    info = (_u64 * _INFO_WORDS)()
    attr = _InfoAttr(prog_fd, ctypes.sizeof(info), ctypes.addressof(info))
    call(OBJ_GET_INFO_BY_FD, attr)
    return int(info[_INFO_WORDS - 1]) if attr.info_len == ctypes.sizeof(info) else None


def map_info(map_fd: int) -> MapInfo:
    """What a map is."""
    info = _MapInfo()
    call(OBJ_GET_INFO_BY_FD, _InfoAttr(map_fd, ctypes.sizeof(info), ctypes.addressof(info)))
    name = info.name.decode("ascii", "replace")
    return MapInfo(int(info.id), name, int(info.key_size), int(info.value_size))


def close_all(fds: list[int]) -> None:
    """Give descriptors back."""
    for fd in fds:
        os.close(fd)
