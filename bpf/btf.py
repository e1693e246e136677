# SPDX-License-Identifier: Apache-2.0
"""Finds where the members of kernel structures are, from the kernel's own type information.

Only what is asked for is decoded: structures by name, members also inside anonymous structures and unions. Format:
Documentation/bpf/btf.rst. A kernel has some 130,000 types: half a second in Python, spent in the loader's process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fairsched.errors import HostUnsupported

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_MAGIC = 0xEB9F
_STRUCT, _UNION, _FUNC = 4, 5, 12
_HEADER = struct.Struct("=HBBIIIII")
_TYPE = struct.Struct("=III")
_MEMBER = struct.Struct("=III")
_EXTRA = {1: 4, 3: 12, 14: 4, 17: 4}
"""Bytes after a type that do not depend on its number of items: int, array, var, decl_tag."""
_PER_ITEM = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes per item: struct, union, enum, func_proto, datasec, enum64."""
_NO_MORE = frozenset({2, 7, 8, 9, 10, 11, 12, 16, 18})
"""pointer, forward, typedef, volatile, const, restrict, func, float, type_tag."""


class BtfError(HostUnsupported):
    """The kernel's type information is missing or of a kind not known here."""


def read_btf(path: Path = VMLINUX) -> bytes:
    """The raw type information. Raises BtfError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BtfError(
            f"{path}: {error.strerror}",
            remedy="use a kernel with CONFIG_DEBUG_INFO_BTF: the place of a file's inode is read from it",
        ) from error


class Btf:
    """Offsets of members, by structure name; of another ``kind`` only :attr:`numbers`."""

    def __init__(self, data: bytes, wanted: Iterable[str], kind: int = _STRUCT) -> None:
        try:
            magic, _, _, header, types, types_len, strings, strings_len = _HEADER.unpack_from(data)
        except struct.error as error:
            raise BtfError("the kernel's type information is cut short") from error
        if magic != _MAGIC:
            raise BtfError("the kernel's type information has another byte order or format")
        self._types = data[header + types : header + types + types_len]
        self._strings = data[header + strings : header + strings + strings_len]
        self._at: list[int] = [0]
        names = {self._strings.find(b"\0" + name.encode() + b"\0") + 1: name for name in wanted}
        self.numbers: dict[str, list[int]] = {}
        """Of the types of each wanted name; a kernel may have several."""
        try:
            self._walk(names, kind)
        except struct.error as error:
            raise BtfError("the kernel's type information is cut short") from error

    def _walk(self, names: dict[int, str], wanted: int) -> None:
        at, end, unpack = 0, len(self._types), _TYPE.unpack_from
        types, starts = self._types, self._at
        while at < end:
            starts.append(at)
            name, info, _ = unpack(types, at)
            kind = info >> 24 & 0x1F
            if kind == wanted and name in names:
                self.numbers.setdefault(names[name], []).append(len(starts) - 1)
            if kind in _PER_ITEM:
                at += 12 + (info & 0xFFFF) * _PER_ITEM[kind]
            elif kind in _EXTRA:
                at += 12 + _EXTRA[kind]
            elif kind in _NO_MORE:
                at += 12
            else:
                raise BtfError(f"the kernel's type information has a kind of type ({kind}) not known here")

    def offset(self, structure: str, member: str) -> int | None:
        """In bytes; None when there is no such structure or member. Bit fields have no offset."""
        for number in self.numbers.get(structure, ()):
            for name, bits in self._members(self._at[number], 0):
                if name == member:
                    return bits // 8
        return None

    def size(self, structure: str) -> int | None:
        """In bytes; None when there is no such structure."""
        for number in self.numbers.get(structure, ()):
            return int(_TYPE.unpack_from(self._types, self._at[number])[2])
        return None

    def _members(self, at: int, base: int) -> Iterator[tuple[str, int]]:
        _, info, _ = _TYPE.unpack_from(self._types, at)
        for i in range(info & 0xFFFF):
            name, kind, bits = _MEMBER.unpack_from(self._types, at + 12 + i * 12)
            if info >> 31:
                bits &= 0xFFFFFF
            if name:
                yield self._strings[name : self._strings.index(b"\0", name)].decode(), base + bits
                continue
            inner = self._at[kind]
            if _TYPE.unpack_from(self._types, inner)[1] >> 24 & 0x1F in (_STRUCT, _UNION):
                yield from self._members(inner, base + bits)


_LIVE_OFFSETS = {
    "FS_TASK_SIGNAL": ("task_struct", "signal"),
    "FS_SIGNAL_LIVE": ("signal_struct", "live"),
}
_OFFSETS = {
    "FS_TASK_FILES": ("task_struct", "files"),
    "FS_FILES_FDT": ("files_struct", "fdt"),
    "FS_FDT_MAX": ("fdtable", "max_fds"),
    "FS_FDT_FD": ("fdtable", "fd"),
    "FS_FILE_INODE": ("file", "f_inode"),
    "FS_INODE_RDEV": ("inode", "i_rdev"),
    "FS_INODE_INO": ("inode", "i_ino"),
    "FS_INODE_SB": ("inode", "i_sb"),
    "FS_SB_DEV": ("super_block", "s_dev"),
    **_LIVE_OFFSETS,
}
_CGROUP_OFFSETS = {
    "FS_TASK_CGROUPS": ("task_struct", "cgroups"),
    "FS_CSET_CGROUP": ("css_set", "dfl_cgrp"),
    "FS_CGROUP_LEVEL": ("cgroup", "level"),
    "FS_CGROUP_IDS": ("cgroup", "ancestor_ids"),
}
_REFERENCES = {"f_count": 1, "f_ref": 0}
"""Member of struct file that counts references -> its value when there is one left (f_ref: since Linux 6.13)."""


def file_defines(data: bytes) -> dict[str, int]:
    """``-D`` constants that lead from a task and a descriptor to a file, its device and its last reference.

    And to the number of threads that the task's process still has.
    """
    btf = Btf(data, {structure for structure, _ in _OFFSETS.values()})
    found = {name: btf.offset(*place) for name, place in _OFFSETS.items()}
    for member, last in _REFERENCES.items():
        offset = btf.offset("file", member)
        if offset is not None:
            found |= {"FS_FILE_REFS": offset, "FS_FILE_LAST_REF": last}
    missing = [".".join(place) for name, place in _OFFSETS.items() if found[name] is None]
    if missing or "FS_FILE_REFS" not in found:
        raise BtfError(f"not found in the kernel's types: {', '.join(missing) or 'file.f_count'}")
    return {name: offset for name, offset in found.items() if offset is not None}


def end_defines(data: bytes) -> dict[str, int]:
    """``-D`` constants that lead from a task to whether it ends, and to the threads that its process still has."""
    return _defines(data, {"FS_TASK_FLAGS": ("task_struct", "flags"), **_LIVE_OFFSETS})


_PID_OFFSETS = {
    "FS_TASK_THREAD_PID": ("task_struct", "thread_pid"),
    "FS_TASK_LEADER": ("task_struct", "group_leader"),
    **_LIVE_OFFSETS,
    "FS_PID_LEVEL": ("pid", "level"),
    "FS_PID_NUMBERS": ("pid", "numbers"),
    "FS_UPID_NR": ("upid", "nr"),
    "FS_UPID_NS": ("upid", "ns"),
    "FS_PIDNS_NS": ("pid_namespace", "ns"),
    "FS_NS_INUM": ("ns_common", "inum"),
}


def pid_defines(data: bytes) -> dict[str, int]:
    """``-D`` constants that lead from a task to its process' number in each PID namespace, and that one's inode."""
    btf = Btf(data, {structure for structure, _ in _PID_OFFSETS.values()})
    found = {name: btf.offset(*place) for name, place in _PID_OFFSETS.items()}
    found["FS_UPID_SIZE"] = btf.size("upid")
    missing = [name for name, offset in found.items() if offset is None]
    if missing:
        raise BtfError(f"not found in the kernel's types: {', '.join(missing)}")
    return {name: offset for name, offset in found.items() if offset is not None}


def cgroup_defines(data: bytes) -> dict[str, int]:
    """``-D`` constants that lead from a task to the ids of its cgroup and of those around it (Linux before 6.1)."""
    return _defines(data, _CGROUP_OFFSETS)


def _defines(data: bytes, places: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    btf = Btf(data, {structure for structure, _ in places.values()})
    found = {name: btf.offset(*place) for name, place in places.items()}
    missing = [".".join(place) for name, place in places.items() if found[name] is None]
    if missing:
        raise BtfError(f"not found in the kernel's types: {', '.join(missing)}")
    return {name: offset for name, offset in found.items() if offset is not None}


def function_ids(data: bytes, wanted: Iterable[str]) -> dict[str, int]:
    """The numbers of kernel functions among its types; one that there is not is absent."""
    btf = Btf(data, wanted, kind=_FUNC)
    return {name: numbers[0] for name, numbers in btf.numbers.items()}
