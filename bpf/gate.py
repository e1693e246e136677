# SPDX-License-Identifier: Apache-2.0
"""The device gate's program and maps, by descriptor: loaded anew, or found again where an earlier daemon left it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from fairsched.base.wait import is_readable
from fairsched.bpf import abi, child, compiler, objects, syscall
from fairsched.bpf.program_sets import DEVICE_GATE
from fairsched.errors import HostUnsupported

PROGRAM = "gate_nvidia"
_SET = "device_gate"

_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64
_Int = TypeVar("_Int", ctypes.c_uint32, ctypes.c_uint64)
_Value = TypeVar("_Value", ctypes.c_uint32, abi.Gate)


def owner_of(run_dir: str | os.PathLike[str]) -> int:
    """Which fairsched of this machine a gate belongs to: the one with this run directory."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(run_dir))).digest()
    return int.from_bytes(digest[:8], "little")


def build_of_source() -> bytes:
    """What gate_head.build says of a program made of this installation's source."""
    text = compiler.flatten(compiler.HERE / DEVICE_GATE.source)
    return hashlib.sha256(text.encode()).digest()[:16]


class GateProgram:
    """The program and its maps. Closing gives the descriptors back; what is attached stays attached."""

    def __init__(self, fds: Mapping[str, int]) -> None:
        """Takes the descriptors over."""
        self._fds = dict(fds)
        self.id = objects.program_info(self.fd).id

    @property
    def fd(self) -> int:
        """Of the program."""
        return self._fds[PROGRAM]

    def close(self) -> None:
        """Idempotent."""
        objects.close_all([*self._fds.values()])
        self._fds = {}

    def head(self) -> abi.GateHead:
        """A copy."""
        value = abi.GateHead()
        syscall.lookup(self._fds["gate_head"], _u32(0), value)
        return value

    def sign(self, owner: int) -> None:
        """Say whose it is; before it is attached, so that what is attached always says."""
        build = (ctypes.c_uint8 * 16)(*build_of_source())
        head = abi.GateHead(magic=abi.GATE_MAGIC, owner=owner, build=build)
        syscall.update(self._fds["gate_head"], _u32(0), head)

    def set_rule(self, cgroup_id: int, gpus: Collection[int], *, is_all: bool = False) -> None:
        """What a cgroup may open, in one step. Raises OSError (E2BIG: the map is full)."""
        words = (_u64 * abi.GATE_WORDS)()
        for minor in gpus:
            words[minor // 64] |= 1 << minor % 64
        with contextlib.suppress(FileExistsError):
            syscall.update(self._fds["denied_by_gate"], _u64(cgroup_id), _u64(0), syscall.NOEXIST)
        value = abi.Gate(words, abi.GateFlag.ALL if is_all else 0)
        syscall.update(self._fds["gate_by_cgroup"], _u64(cgroup_id), value)

    def drop_rule(self, cgroup_id: int) -> None:
        """The cgroup has no rule of its own any more. Nothing happens when it had none."""
        for name in ("gate_by_cgroup", "denied_by_gate"):
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self._fds[name], _u64(cgroup_id))

    def rules(self) -> dict[int, tuple[frozenset[int], bool]]:
        """(GPU minors, all) by cgroup id."""
        found = {}
        for key, value in self._entries("gate_by_cgroup", _u64, abi.Gate):
            gpus = (
                minor for minor in range(64 * abi.GATE_WORDS) if value.gpus[minor // 64] >> minor % 64 & 1
            )
            found[key.value] = (frozenset(gpus), bool(value.flags & abi.GateFlag.ALL))
        return found

    def denied(self, cgroup_id: int) -> int:
        """Opens refused by the rule of this cgroup."""
        value = _u64()
        with contextlib.suppress(FileNotFoundError):
            syscall.lookup(self._fds["denied_by_gate"], _u64(cgroup_id), value)
        return int(value.value)

    def set_devices(self, nodes: Mapping[int, abi.Node], caps: Mapping[int, int]) -> None:
        """Which majors are NVIDIA's, and whose GPU a capability device is."""
        self._replace("node_by_major", {major: int(node) for major, node in nodes.items()})
        self._replace("gpu_by_cap", caps)

    def _replace(self, name: str, wanted: Mapping[int, int]) -> None:
        there = {key.value: value.value for key, value in self._entries(name, _u32, _u32)}
        for key, value in wanted.items():
            if there.get(key) != value:
                syscall.update(self._fds[name], _u32(key), _u32(value))
        for key in there.keys() - wanted.keys():
            syscall.delete(self._fds[name], _u32(key))

    def _entries(self, name: str, key: type[_Int], value: type[_Value]) -> Iterator[tuple[_Int, _Value]]:
        for one in list(syscall.keys(self._fds[name], key)):
            found = value()
            with contextlib.suppress(FileNotFoundError):
                syscall.lookup(self._fds[name], one, found)
                yield one, found


class GateLoad:
    """A load in progress, in a child process: ask :meth:`poll` now and then."""

    def __init__(self) -> None:
        self._channel, self._process = child.start_set(_SET, ["gate"])
        self._deadline_s = time.monotonic() + child.TIMEOUT_S

    def poll(self, timeout_s: float = 0.0) -> GateProgram | None:
        """The program once it is there. Raises HostUnsupported when it cannot be had."""
        is_over = time.monotonic() >= self._deadline_s
        if not is_over and not is_readable(self._channel, timeout_s):
            return None
        try:
            if is_over:
                raise HostUnsupported(
                    f"the device gate is not compiled after {child.TIMEOUT_S:.0f} s",
                    remedy="it needs seconds of a processor; fairsched doctor tries the compiler alone",
                )
            _, fds = child.receive(self._channel, self._process)
        finally:
            self.close()
        return GateProgram({name.removeprefix("gate/"): fd for name, fd in fds.items()})

    def close(self) -> None:
        """Give up; idempotent."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


def find_programs(owner: int | None = None) -> list[GateProgram]:
    """Every gate of ``owner`` (None: of any) that is loaded now, attached or not; the caller closes them.

    Raises PermissionError without CAP_SYS_ADMIN.
    """
    found = []
    for prog_id in objects.program_ids():
        with contextlib.suppress(FileNotFoundError):
            program = _open_if_gate(prog_id)
            if program is None:
                continue
            head = program.head()
            if head.magic == abi.GATE_MAGIC and owner in (None, head.owner):
                found.append(program)
            else:
                program.close()
    return found


def _open_if_gate(prog_id: int) -> GateProgram | None:
    fds = {PROGRAM: objects.open_program(prog_id)}
    try:
        info = objects.program_info(fds[PROGRAM])
        if info.type == syscall.PROG_TYPE_CGROUP_DEVICE and info.name == PROGRAM:
            for map_id in info.map_ids:
                fd = objects.open_map(map_id)
                name = objects.map_info(fd).name
                if name in DEVICE_GATE.maps and name not in fds:
                    fds[name] = fd
                else:
                    os.close(fd)
            if len(fds) == len(DEVICE_GATE.maps) + 1:
                mine, fds = fds, {}
                return GateProgram(mine)
        return None
    finally:
        objects.close_all([*fds.values()])
