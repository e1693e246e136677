# SPDX-License-Identifier: Apache-2.0
"""BPF programs as a compiler leaves them: maps to be made, and instructions that name them by number.

Problem: bcc needs seconds to compile, and creates the maps while it does. What comes out depends on the source, the
flags, the compiler and the kernel's types alone, so it need not be made again at every start.

Approach: :mod:`fairsched.bpf.compiler` turns what bcc made into this form, :mod:`fairsched.bpf.cache` keeps it, and
here it is loaded with bpf(2), whether it was compiled a moment ago or last week. One way for both, so that each start
tries it.

Terms. A *map load* is the instruction of two words that holds a map's descriptor (BPF_LD_IMM64 with
BPF_PSEUDO_MAP_FD); here it holds the number of the map in ``maps``.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.bpf import syscall
from fairsched.bpf.program_sets import Kind
from fairsched.errors import HostUnsupported

_PROG_TYPES = {
    Kind.KPROBE: syscall.PROG_TYPE_KPROBE,
    Kind.TRACEPOINT: syscall.PROG_TYPE_TRACEPOINT,
    Kind.RAW_TRACEPOINT: syscall.PROG_TYPE_RAW_TRACEPOINT,
    Kind.LSM: syscall.PROG_TYPE_LSM,
    Kind.CGROUP_DEVICE: syscall.PROG_TYPE_CGROUP_DEVICE,
}
_INSTRUCTION = struct.Struct("=BBhi")
_LOAD_IMM64, _PSEUDO_MAP_FD = 0x18, 1
_LSM_PREFIX = "lsm__"
_MOST_LOADERS = 4


class MapSpec(NamedTuple):
    """What BPF_MAP_CREATE is asked for; sizes in bytes."""

    name: str
    map_type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


@dataclass(frozen=True)
class Compiled:
    """Maps, and programs by name."""

    maps: tuple[MapSpec, ...]
    programs: Mapping[str, bytes]
    """Instructions; each map load holds an index of ``maps``."""
    hooks: Mapping[str, int] = field(default_factory=dict)
    """Of programs for a security hook: the number of the hook among the kernel's types."""

    def to_bytes(self) -> bytes:
        """For :meth:`from_bytes`."""
        programs = {name: insns.hex() for name, insns in self.programs.items()}
        return json.dumps({"maps": self.maps, "programs": programs, "hooks": dict(self.hooks)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Compiled:
        """Raises ValueError when these are not the bytes of one."""
        try:
            plain = json.loads(data)
            maps = tuple(MapSpec(*row) for row in plain["maps"])
            programs = {name: bytes.fromhex(text) for name, text in plain["programs"].items()}
            made = cls(maps, programs, {name: int(number) for name, number in plain["hooks"].items()})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not compiled programs: {error!r}") from error
        for name, insns in programs.items():
            with_maps(name, insns, range(len(maps)))
        return made


def hook_of(program: str) -> str | None:
    """The kernel function that stands for a security hook, of a program called ``lsm__<hook>``; None: of others."""
    return f"bpf_lsm_{program.removeprefix(_LSM_PREFIX)}" if program.startswith(_LSM_PREFIX) else None


def with_maps(name: str, insns: bytes, numbers: Mapping[int, int] | range | list[int]) -> bytes:
    """``insns`` with the number in each map load replaced by ``numbers[it]``. Raises ValueError for one without."""
    if len(insns) % _INSTRUCTION.size:
        raise ValueError(f"{name}: not whole instructions")
    patched = bytearray(insns)
    at = 0
    while at < len(insns):
        code, registers, offset, number = _INSTRUCTION.unpack_from(insns, at)
        if code == _LOAD_IMM64:
            if registers >> 4 == _PSEUDO_MAP_FD:
                try:
                    if number < 0:
                        raise IndexError(number)
                    number = numbers[number]
                except (KeyError, IndexError):
                    raise ValueError(f"{name}: a map that there is not") from None
                _INSTRUCTION.pack_into(patched, at, code, registers, offset, number)
            at += _INSTRUCTION.size
        at += _INSTRUCTION.size
    return bytes(patched)


def create_maps(compiled: Compiled) -> dict[str, int]:
    """Descriptors by name; the caller closes them. Raises OSError."""
    made: dict[str, int] = {}
    try:
        for spec in compiled.maps:
            made[spec.name] = syscall.create_map(*spec[1:], name=spec.name)
    except OSError:
        close_all(made)
        raise
    return made


def load_programs(
    compiled: Compiled, maps: Mapping[str, int], kinds: Mapping[str, Kind], *, multi: bool = False
) -> dict[str, int]:
    """Descriptors of the programs in ``kinds``, all or none; the caller closes them.

    ``maps``: of :func:`create_maps`. ``multi``: probes of kind KPROBE are for uprobe multi links. Several are verified
    at a time, in the order of ``kinds``: name the slowest first. Raises HostUnsupported with what the kernel said.
    """
    numbers = [maps[spec.name] for spec in compiled.maps]

    def load(name: str) -> int:
        kind = kinds[name]
        if name not in compiled.programs:
            raise HostUnsupported(f"{name} is not among the compiled programs")
        attach_type = syscall.TRACE_UPROBE_MULTI if multi and kind is Kind.KPROBE else 0
        hook = compiled.hooks.get(name, 0)
        if kind is Kind.LSM:
            if not hook:
                raise HostUnsupported(f"this kernel has no {hook_of(name)}")
            attach_type = syscall.LSM_MAC
        insns = with_maps(name, compiled.programs[name], numbers)
        return _load(name, lambda log: syscall.load_program(
            _PROG_TYPES[kind], insns, attach_type, name=name, hook=hook, log=log
        ))  # fmt: skip

    loaded: dict[str, int] = {}
    failure: Exception | None = None
    with ThreadPoolExecutor(min(_MOST_LOADERS, os.cpu_count() or 1)) as pool:
        waiting = {name: pool.submit(load, name) for name in kinds}
        for name, future in waiting.items():
            try:
                loaded[name] = future.result()
            except Exception as error:
                failure = failure or error
    if failure is not None:
        close_all(loaded)
        raise failure
    return loaded


def _load(name: str, load: Callable[[bytearray | None], int]) -> int:
    """Once without the verifier's log, which makes it slower; where it is refused again with it, for stderr."""
    try:
        return load(None)
    except OSError as error:
        log = bytearray(syscall.LOG_BYTES)
        try:
            return load(log)
        except OSError:
            said = bytes(log).partition(b"\0")[0].decode(errors="replace")
            print(f"bpf: {name} is refused: {error.strerror}\n{said}", file=sys.stderr, flush=True)
        lines = [line for line in said.splitlines() if line and not line.startswith("processed")]
        why = f" ({lines[-1][:200]})" if lines else ""
        raise HostUnsupported(f"the kernel refused {name}: {error.strerror}{why}") from error


def close_all(fds: Mapping[str, int]) -> None:
    """Close these descriptors."""
    for fd in fds.values():
        os.close(fd)
