# SPDX-License-Identifier: Apache-2.0
"""Programs compiled once and lent to one test after another: under emulation a compilation takes 10 to 20 s.

Problem: nearly every test loads programs, most of them the same, and nothing else here takes as long.

Approach: in place of child.load, for the whole session. A set is loaded with all its groups the first time, and who
asks for some gets those. What was given back is lent again, its maps as they were right after loading; what is still in
use is not, so whoever loads a set twice gets two: the second has what was asked for and no more, as the verifier takes
its time, too. What a borrower attached goes with the borrower's descriptors.

Terms. copy: one load of a set.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from fairsched.bpf import child, objects, syscall
from fairsched.bpf.program_sets import SETS
from fairsched.errors import HostUnsupported

HASHES = (1, 5, 9, 10)
"""BPF_MAP_TYPE_HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH."""
CANNOT_ATTACH_ANEW = ("5.10",)
"""Series whose kernels attach a program to a security hook once and never again (5.13 and later do).

There a copy that has been on a security hook is let go instead of lent again. Left attached, as it once was here, it
enters each call a second time into the maps of whoever borrows it next for another hook."""
TIMEOUT_S = 500.0

Request = tuple[str, tuple[tuple[str, int], ...], tuple[str, ...]]
"""Set, defines, further maps."""

_load, _attach_lsm = child.load, syscall.attach_lsm


class Map:
    """A map of a copy, and what it held right after loading."""

    def __init__(self, map_id: int) -> None:
        self.fd = objects.open_map(map_id)
        info = objects._MapInfo()
        attr = objects._InfoAttr(self.fd, ctypes.sizeof(info), ctypes.addressof(info))
        syscall.call(objects.OBJ_GET_INFO_BY_FD, attr)
        self.type, self.entries = int(info.type), int(info.max_entries)
        self.key, self.value = ctypes.c_uint8 * info.key_size, ctypes.c_uint8 * info.value_size
        self.first = [bytes(value) for _, value in self._array()]

    def _array(self) -> Iterator[tuple[ctypes.c_uint32, ctypes.Array[ctypes.c_uint8]]]:
        """Index and value of an array. Those of a processor each are scratch: who uses one fills it first."""
        if self.type != syscall.MAP_TYPE_ARRAY:
            return
        for index in range(self.entries):
            key, value = ctypes.c_uint32(index), self.value()
            syscall.lookup(self.fd, key, value)
            yield key, value

    def restore(self) -> None:
        """What a borrower wrote is gone. Arrays of programs are the borrower's to fill."""
        for (key, value), first in zip(self._array(), self.first, strict=True):
            if bytes(value) != first:
                syscall.update(self.fd, key, self.value.from_buffer_copy(first))
        for key in list(syscall.keys(self.fd, self.key)) if self.type in HASHES else []:
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self.fd, key)


class Copy:
    """One load of a set with some of its groups."""

    def __init__(
        self, name: str, groups: Iterable[str], defines: Mapping[str, int] | None, plus: Iterable[str]
    ) -> None:
        self.groups = {*groups}
        self.loaded = _load(name, self.groups, defines, plus=plus)
        programs = [objects.program_info(fd) for one, fd in self.loaded.fds.items() if "/" in one]
        self.programs = {program.id for program in programs}
        self.maps = [Map(map_id) for map_id in {map_id for program in programs for map_id in program.map_ids}]
        self._witness = -1
        """A descriptor that the borrower has until it gives everything back."""

    def is_lent(self) -> bool:
        first = next(iter(self.loaded.fds.values()))
        with contextlib.suppress(OSError):
            return map_id_of(self._witness) == map_id_of(first)
        return False

    def close(self) -> None:
        """The kernel forgets it, unless somebody has borrowed it."""
        for fd in (*self.loaded.fds.values(), *(one.fd for one in self.maps)):
            os.close(fd)

    def lend(self, groups: Iterable[str]) -> child.Loaded:
        """Those groups, with descriptors of their own. Raises HostUnsupported when none of them was taken."""
        wanted = tuple(groups)
        refused = {group: why for group, why in self.loaded.refused.items() if group in wanted}
        if len(refused) == len(wanted):
            raise HostUnsupported(f"the kernel or bcc refused it: {'; '.join(refused.values())}")
        for one in self.maps:
            one.restore()
        fds = {
            one: os.dup(fd)
            for one, fd in self.loaded.fds.items()
            if "/" not in one or one.partition("/")[0] in wanted
        }
        self._witness = next(iter(fds.values()))
        return child.Loaded(fds, refused)


def map_id_of(fd: int) -> str:
    """Of an open map; an empty text for anything else that is open. Raises OSError when nothing is."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith("map_id:")), "")


class Lender:
    """What has been loaded so far."""

    def __init__(self, *, can_attach_anew: bool) -> None:
        self.copies: dict[Request, list[Copy]] = {}
        self._can_attach_anew = can_attach_anew
        self._attached: set[int] = set()
        """Programs that have been on a security hook, where they cannot be put on one again."""
        self._pid = os.getpid()

    def load(
        self,
        name: str,
        groups: Iterable[str],
        defines: Mapping[str, int] | None = None,
        *,
        plus: Iterable[str] = (),
    ) -> child.Loaded:
        """As :func:`child.load`."""
        wanted, more = tuple(groups), tuple(plus)
        if not self._can_attach_anew and os.getpid() != self._pid:
            return _load(name, wanted, defines, plus=more)  # a child's programs are to end with it
        request = (name, tuple(sorted((defines or {}).items())), more)
        copies = self.copies.setdefault(request, [])
        is_first = not copies
        for worn in [one for one in copies if one.programs & self._attached and not one.is_lent()]:
            copies.remove(worn)
            worn.close()
        copy = next((one for one in copies if one.groups >= {*wanted} and not one.is_lent()), None)
        if copy is None:
            copy = Copy(name, SETS[name].groups if is_first else wanted, defines, more)
            copies.append(copy)
        return copy.lend(wanted)

    def attach_lsm(self, prog_fd: int) -> int:
        """As :func:`syscall.attach_lsm`."""
        self._attached.add(objects.program_info(prog_fd).id)
        return _attach_lsm(prog_fd)


def begin(patch: pytest.MonkeyPatch, series: str) -> Lender:
    """Until ``patch`` is undone whoever loads programs is lent them."""
    lender = Lender(can_attach_anew=series not in CANNOT_ATTACH_ANEW)
    patch.setattr(child, "load", lender.load)
    if series in CANNOT_ATTACH_ANEW:
        patch.setattr(syscall, "attach_lsm", lender.attach_lsm)
    patch.setattr(child, "TIMEOUT_S", TIMEOUT_S)  # a busy machine, and emulated
    return lender
