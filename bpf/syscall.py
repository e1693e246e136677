# SPDX-License-Identifier: Apache-2.0
"""The few bpf(2) commands bcc's Python side does not offer, or offers only in newer releases.

Source: the kernel's include/uapi/linux/bpf.h (union bpf_attr). x86-64 and arm64 syscall numbers.
All calls raise OSError with the kernel's errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
from collections.abc import Iterator
from typing import TypeVar

_NR_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 321)
_libc = ctypes.CDLL(None, use_errno=True)
_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

MAP_CREATE = 0
MAP_LOOKUP_ELEM = 1
MAP_UPDATE_ELEM = 2
MAP_DELETE_ELEM = 3
MAP_GET_NEXT_KEY = 4
PROG_LOAD = 5
PROG_TEST_RUN = 10
RAW_TRACEPOINT_OPEN = 17
MAP_LOOKUP_BATCH = 24
LINK_CREATE = 28

ANY = 0
NOEXIST = 1

TRACE_UPROBE_MULTI = 48
_UPROBE_MULTI_RETURN = 1
_UPROBE_MULTI_MAX = 1 << 20

MAP_TYPE_ARRAY = 2
MAP_TYPE_RINGBUF = 27
F_MMAPABLE = 1 << 10
_NAME_BYTES = 15
"""BPF_OBJ_NAME_LEN is 16, with the NUL."""

PROG_TYPE_KPROBE = 2
PROG_TYPE_TRACEPOINT = 5
PROG_TYPE_CGROUP_DEVICE = 15
PROG_TYPE_RAW_TRACEPOINT = 17
PROG_TYPE_LSM = 29
LSM_MAC = 27
"""Attach type of PROG_TYPE_LSM."""
LOG_BYTES = 1 << 20
"""Room for what the verifier says of one program."""

_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64
_Key = TypeVar("_Key", bound="ctypes._CData")


class _BatchAttr(ctypes.Structure):
    _fields_ = (
        ("in_batch", _u64),
        ("out_batch", _u64),
        ("keys", _u64),
        ("values", _u64),
        ("count", _u32),
        ("map_fd", _u32),
        ("elem_flags", _u64),
        ("flags", _u64),
    )


class _TestAttr(ctypes.Structure):
    _fields_ = (
        ("prog_fd", _u32),
        ("retval", _u32),
        ("data_size_in", _u32),
        ("data_size_out", _u32),
        ("data_in", _u64),
        ("data_out", _u64),
        ("repeat", _u32),
        ("duration", _u32),
        ("ctx_size_in", _u32),
        ("ctx_size_out", _u32),
        ("ctx_in", _u64),
        ("ctx_out", _u64),
        ("flags", _u32),
        ("cpu", _u32),
    )


class _MapAttr(ctypes.Structure):
    _fields_ = (
        ("map_type", _u32),
        ("key_size", _u32),
        ("value_size", _u32),
        ("max_entries", _u32),
        ("map_flags", _u32),
        ("inner_map_fd", _u32),
        ("numa_node", _u32),
        ("map_name", ctypes.c_char * 16),
    )


class _ProgAttr(ctypes.Structure):
    _fields_ = (
        ("prog_type", _u32),
        ("insn_cnt", _u32),
        ("insns", _u64),
        ("license", _u64),
        ("log_level", _u32),
        ("log_size", _u32),
        ("log_buf", _u64),
        ("kern_version", _u32),
        ("prog_flags", _u32),
        ("prog_name", ctypes.c_char * 16),
        ("prog_ifindex", _u32),
        ("expected_attach_type", _u32),
        ("prog_btf_fd", _u32),
        ("func_info_rec_size", _u32),
        ("func_info", _u64),
        ("func_info_cnt", _u32),
        ("line_info_rec_size", _u32),
        ("line_info", _u64),
        ("line_info_cnt", _u32),
        ("attach_btf_id", _u32),
    )


class _ElementAttr(ctypes.Structure):
    _fields_ = (("map_fd", _u32), ("pad", _u32), ("key", _u64), ("value", _u64), ("flags", _u64))


class _RawTracepointAttr(ctypes.Structure):
    _fields_ = (("name", _u64), ("prog_fd", _u32))


class _UprobeMultiAttr(ctypes.Structure):
    _fields_ = (
        ("prog_fd", _u32),
        ("target_fd", _u32),
        ("attach_type", _u32),
        ("flags", _u32),
        ("path", _u64),
        ("offsets", _u64),
        ("ref_ctr_offsets", _u64),
        ("cookies", _u64),
        ("cnt", _u32),
        ("multi_flags", _u32),
        ("pid", _u32),
        ("pad", _u32),
    )


def call(command: int, attr: ctypes.Structure) -> int:
    """bpf(2). Raises OSError with the kernel's errno."""
    result = int(_libc.syscall(_NR_BPF, command, ctypes.byref(attr), ctypes.sizeof(attr)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _make(command: int, attr: ctypes.Structure) -> int:
    """What takes memory. Before Linux 5.11 that counts as locked memory of the user, and too much of it is EPERM."""
    try:
        return call(command, attr)
    except PermissionError:
        if not _lift_memory_limit():
            raise
        return call(command, attr)


def _lift_memory_limit() -> bool:
    """RLIMIT_MEMLOCK of this process, for good; False when it was lifted before, or may not be."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK) == _NO_LIMIT:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, _NO_LIMIT)
    except (ValueError, OSError):
        return False
    return True


def create_map(
    map_type: int, key_size: int, value_size: int, max_entries: int, flags: int = 0, *, name: str = ""
) -> int:
    """BPF_MAP_CREATE; returns an fd the caller closes."""
    attr = _MapAttr(map_type, key_size, value_size, max_entries, flags, map_name=name.encode()[:_NAME_BYTES])
    return _make(MAP_CREATE, attr)


def load_program(
    prog_type: int,
    insns: bytes,
    expected_attach_type: int = 0,
    *,
    name: str = "",
    hook: int = 0,
    log: bytearray | None = None,
) -> int:
    """BPF_PROG_LOAD of raw instructions under a GPL licence; returns an fd the caller closes.

    ``hook``: the kernel function it is for, by its number among the kernel's types. ``log``: takes what the verifier
    says.
    """
    code = ctypes.create_string_buffer(insns, len(insns))
    licence = ctypes.create_string_buffer(b"GPL")
    attr = _ProgAttr(
        prog_type=prog_type,
        insn_cnt=len(insns) // 8,
        insns=ctypes.addressof(code),
        license=ctypes.addressof(licence),
        prog_name=name.encode()[:_NAME_BYTES],
        expected_attach_type=expected_attach_type,
        attach_btf_id=hook,
    )
    if log is not None:
        room = (ctypes.c_char * len(log)).from_buffer(log)
        attr.log_level, attr.log_size, attr.log_buf = 1, len(log), ctypes.addressof(room)
    return _make(PROG_LOAD, attr)


def update(map_fd: int, key: ctypes._CData, value: ctypes._CData, flags: int = ANY) -> None:
    """BPF_MAP_UPDATE_ELEM; FileExistsError with NOEXIST when the key is there."""
    attr = _ElementAttr(map_fd, 0, ctypes.addressof(key), ctypes.addressof(value), flags)
    call(MAP_UPDATE_ELEM, attr)


def delete(map_fd: int, key: ctypes._CData) -> None:
    """BPF_MAP_DELETE_ELEM; FileNotFoundError when the key is not there."""
    call(MAP_DELETE_ELEM, _ElementAttr(map_fd, 0, ctypes.addressof(key), 0, 0))


def lookup(map_fd: int, key: ctypes._CData, value: ctypes._CData) -> None:
    """BPF_MAP_LOOKUP_ELEM into ``value``; FileNotFoundError when the key is not there."""
    attr = _ElementAttr(map_fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0)
    call(MAP_LOOKUP_ELEM, attr)


def keys(map_fd: int, key: type[_Key]) -> Iterator[_Key]:
    """Keys of a map one by one (BPF_MAP_GET_NEXT_KEY); one that is deleted meanwhile may start it anew."""
    last: _Key | None = None
    while True:
        found = key()
        attr = _ElementAttr(
            map_fd, 0, 0 if last is None else ctypes.addressof(last), ctypes.addressof(found), 0
        )
        try:
            call(MAP_GET_NEXT_KEY, attr)
        except FileNotFoundError:
            return
        last = found
        yield found


def push(map_fd: int, value: ctypes._CData) -> None:
    """Push onto a stack or queue map."""
    call(MAP_UPDATE_ELEM, _ElementAttr(map_fd, 0, 0, ctypes.addressof(value), 0))


def open_raw_tracepoint(name: str, prog_fd: int) -> int:
    """Attach a raw tracepoint program; it is detached when the returned fd is closed."""
    text = ctypes.create_string_buffer(name.encode())
    return call(RAW_TRACEPOINT_OPEN, _RawTracepointAttr(ctypes.addressof(text), prog_fd))


def attach_lsm(prog_fd: int) -> int:
    """Attach a program to the security hook it was loaded for; detached when the returned fd is closed."""
    return call(RAW_TRACEPOINT_OPEN, _RawTracepointAttr(0, prog_fd))


def has_uprobe_multi() -> bool:
    """Whether one link can carry all probes of a program (kernel >= 6.6). Attaches nothing.

    Asked with more probes than can be: a kernel that knows the link type says so, another that it does not.
    """
    exit_0 = bytes.fromhex("b7000000000000009500000000000000")
    try:
        fd = load_program(PROG_TYPE_KPROBE, exit_0, TRACE_UPROBE_MULTI)
    except OSError:
        return False
    try:
        _link_uprobes(fd, "/", [0], is_return=False, count=_UPROBE_MULTI_MAX + 1)
    except OSError as error:
        return error.errno in (errno.E2BIG, errno.ENOMEM)
    finally:
        os.close(fd)
    return False


def link_uprobes(prog_fd: int, path: str, offsets: list[int], *, is_return: bool) -> int:
    """Attach one program at many file offsets; detached when the returned fd is closed."""
    return _link_uprobes(prog_fd, path, offsets, is_return=is_return, count=len(offsets))


def _link_uprobes(prog_fd: int, path: str, offsets: list[int], *, is_return: bool, count: int) -> int:
    text = ctypes.create_string_buffer(os.fsencode(path))
    array = (_u64 * len(offsets))(*offsets)
    attr = _UprobeMultiAttr(
        prog_fd=prog_fd,
        attach_type=TRACE_UPROBE_MULTI,
        path=ctypes.addressof(text),
        offsets=ctypes.addressof(array),
        cnt=count,
        multi_flags=_UPROBE_MULTI_RETURN if is_return else 0,
    )
    return call(LINK_CREATE, attr)


def run_raw_tracepoint(prog_fd: int, args: ctypes.Structure) -> int:
    """BPF_PROG_TEST_RUN: run a raw tracepoint program once with ``args`` as its context (kernel >= 5.10)."""
    attr = _TestAttr(prog_fd=prog_fd, ctx_in=ctypes.addressof(args), ctx_size_in=ctypes.sizeof(args))
    call(PROG_TEST_RUN, attr)
    return int(attr.retval)


class BatchReader:
    """Reads a whole hash map in a few syscalls into reused buffers (BPF_MAP_LOOKUP_BATCH, kernel >= 5.6)."""

    def __init__(
        self, map_fd: int, key: type[ctypes.Structure], value: type[ctypes.Structure], room: int = 512
    ) -> None:
        self._fd = map_fd
        self._token = (ctypes.c_uint8 * max(8, ctypes.sizeof(key)))()
        self._key, self._value = key, value
        self._room = 0
        self._grow(room)

    def _grow(self, room: int) -> None:
        self._room = room
        self._keys = (self._key * room)()
        self._values = (self._value * room)()

    def read(self) -> list[tuple[ctypes.Structure, ctypes.Structure]]:
        """All (key, value) pairs now. The structures are valid until the next read."""
        pairs: list[tuple[ctypes.Structure, ctypes.Structure]] = []
        token = (ctypes.c_uint8 * max(8, ctypes.sizeof(self._key)))()
        token_in, more = 0, True
        while more:
            attr = _BatchAttr(
                in_batch=token_in,
                out_batch=ctypes.addressof(token),
                keys=ctypes.addressof(self._keys),
                values=ctypes.addressof(self._values),
                count=self._room,
                map_fd=self._fd,
            )
            try:
                call(MAP_LOOKUP_BATCH, attr)
            except OSError as error:
                if error.errno == errno.ENOSPC:  # one bucket holds more than fits: start again with more room
                    self._grow(self._room * 2)
                    return self.read()
                if error.errno != errno.ENOENT:
                    raise
                more = False
            n = attr.count
            if more or token_in:
                pairs += [(self._copy(self._keys[i]), self._copy(self._values[i])) for i in range(n)]
            else:
                pairs += [(self._keys[i], self._values[i]) for i in range(n)]
            token_in = ctypes.addressof(token)
        return pairs

    def read_some(self, *, is_first: bool) -> tuple[list[tuple[ctypes.Structure, ctypes.Structure]], bool]:
        """As many pairs as fit into the buffers, from the first or from where the last call ended; are there more?"""
        attr = _BatchAttr(
            in_batch=0 if is_first else ctypes.addressof(self._token),
            out_batch=ctypes.addressof(self._token),
            keys=ctypes.addressof(self._keys),
            values=ctypes.addressof(self._values),
            count=self._room,
            map_fd=self._fd,
        )
        more = True
        try:
            call(MAP_LOOKUP_BATCH, attr)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._grow(self._room * 2)
                return self.read_some(is_first=is_first)
            if error.errno != errno.ENOENT:
                raise
            more = False
        return [(self._keys[i], self._values[i]) for i in range(attr.count)], more

    @staticmethod
    def _copy(item: ctypes.Structure) -> ctypes.Structure:
        return type(item).from_buffer_copy(item)
