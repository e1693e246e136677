# SPDX-License-Identifier: Apache-2.0
"""Brings the BPF programs into the kernel, in a process of its own.

Problem: what has to be compiled brings a compiler of 130 MB into the process and takes seconds; the daemon should have
none of that.

Approach: the daemon starts this module as a child with one end of a socket. It takes the compiled programs from the
cache (cache.py) or compiles them (compiler.py), loads them (compiled.py), and sends the descriptors of all maps and
programs back. With the GPU time programs it then becomes the attacher (attacher.py) by exec, which frees the compiler;
with a set of program_sets.py it ends. Programs from the cache of which the kernel takes none are compiled anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from fairsched.bpf import abi, ancestor, btf, budgets, cache, exports, syscall, typed_task
from fairsched.bpf.compiled import Compiled, close_all, create_maps, load_programs
from fairsched.bpf.compiler import HERE, cflags, compile_programs, flatten
from fairsched.bpf.handover import attacher_command
from fairsched.bpf.instructions import ATOMICS, EXIT_0, KERNEL_READ
from fairsched.bpf.program_sets import SETS, Kind, ProgramSet
from fairsched.errors import FairschedError, HostUnsupported

SOURCE = "gpu_time.bpf.c"
_Used = TypeVar("_Used")
MAPS = (
    "ctx_by_slot",
    "graphs_by_slot",
    "clock_by_gpu",
    "counts_by_what",
    "gpu_time_by_key",
    "delay_by_key",
    "gpu_by_dev",
    "gpu_by_uuid",
    "edges",
    "budget_by_owner",
    "limits_of_all",
    "owner_by_cgroup",
)
"""Maps user space reads or writes; the programs keep the others alive."""
RUN_BY_DAEMON = ("on_drain_end", "on_ctx_gone")
"""Programs on no hook at all."""


def programs() -> dict[str, Kind]:
    """Of GPU time; those that the kernel takes longest to verify come first."""
    slow = dict.fromkeys([*exports.RAW_TRACEPOINTS, *RUN_BY_DAEMON], Kind.RAW_TRACEPOINT)
    return slow | dict.fromkeys([*exports.programs(), "on_submit_first"], Kind.KPROBE)


def from_compiled(
    source: str,
    names: Iterable[str],
    inputs: Iterable[str],
    defines: Callable[[], list[str]],
    use: Callable[[Compiled], _Used],
) -> _Used:
    """``use`` of the compiled programs ``names`` of ``source``: of those that are kept, else of newly compiled ones.

    ``inputs``: what ``defines``, the compiler's ``NAME=VALUE``, follows from beside this kernel. Raises HostUnsupported
    when newly compiled ones are of no use either, OSError where the kernel takes no program at all.
    """
    key = cache.key_of(flatten(HERE / source), [*cflags(), *inputs])
    kept = cache.read(key)
    if kept is not None:
        with contextlib.suppress(HostUnsupported, OSError):
            return use(kept)
    # Who may not load anything is told so: a compiler that may not create maps says that it cannot compile.
    os.close(syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, EXIT_0))
    compiled = compile_programs(source, names, defines())
    cache.write(key, compiled)
    return use(compiled)


def load(*, multi: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Descriptors of all maps and of all programs of GPU time, by name. Raises HostUnsupported."""
    kinds = programs()
    walks = not ancestor.can_ask(is_tracing=True)  # then a program finds the cgroups around a task by itself
    reads = can_read_kernel()

    def defines() -> list[str]:
        found = btf.cgroup_defines(btf.read_btf()) if walks else {}
        ends = _end_defines() if reads else []
        return [*(f"{name}={value}" for name, value in sorted(found.items())), *ends]

    def use(compiled: Compiled) -> tuple[dict[str, int], dict[str, int]]:
        maps = create_maps(compiled)
        try:
            loaded = load_programs(compiled, maps, kinds, multi=multi)
            syscall.update(maps["long_ways"], ctypes.c_int(0), ctypes.c_int(loaded["on_submit_first"]))
            syscall.update(maps["limits_of_all"], ctypes.c_int(0), budgets.write(abi.Limits(), 1))
            for slot in reversed(range(abi.MAX_CTXS)):
                syscall.push(maps["free_slots"], ctypes.c_uint32(slot))
        except (HostUnsupported, OSError):
            close_all(maps)
            raise
        return maps, loaded

    try:
        _check_atomics()
        return from_compiled(SOURCE, kinds, [f"walks={walks}", f"reads={reads}"], defines, use)
    except OSError as error:
        raise _refused("the GPU time programs", error.strerror or str(error)) from error
    except HostUnsupported as error:
        if error.remedy:
            raise
        raise _refused("the GPU time programs", str(error)) from error


def _check_atomics() -> None:
    """Raise HostUnsupported where the programs would be compiled, for seconds, and then refused. OSError as below."""
    os.close(syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, EXIT_0))
    if not has_atomics():
        raise HostUnsupported(
            "BPF programs of this kernel have no atomic operations", remedy="use a kernel >= 5.12"
        )


def _end_defines() -> list[str]:
    """``NAME=VALUE``: where a program learns whether a process has ended; none where the kernel does not tell."""
    try:
        found = btf.end_defines(btf.read_btf())
    except btf.BtfError:
        return []
    return [f"{name}={value}" for name, value in sorted(found.items())]


def _refused(what: str, why: str) -> HostUnsupported:
    return HostUnsupported(
        f"the kernel or bcc refused {what}: {why[-400:]}",
        remedy="fairsched doctor shows what is missing (kernel >= 5.12, root or CAP_BPF and CAP_PERFMON)",
    )


def load_set(
    wanted: ProgramSet, groups: list[str], defines: dict[str, int], plus: list[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Descriptors of maps and of ``group/program``, and why the other groups were refused. Raises HostUnsupported."""
    abilities = abilities_for(wanted)
    names = dict.fromkeys(name for group in groups for name in wanted.groups[group])
    asked = [f"{name}={value}" for name, value in sorted(defines.items())]
    # What a moment without memory may answer otherwise is not to be kept for that.
    asked += [f"can={name}" for name in abilities]

    def use(compiled: Compiled) -> tuple[dict[str, int], dict[str, str]]:
        maps = create_maps(compiled)
        missing = {*wanted.maps, *plus} - maps.keys()
        if missing:
            close_all(maps)
            raise HostUnsupported(
                f"{wanted.source} has no map {min(missing)}", remedy="report this as a fault of fairsched"
            )
        if wanted.tables:  # until anybody is named they are one
            parts = budgets.write(abi.Limits(), 1, wanted.tables)
            syscall.update(maps["limits_of_all"], ctypes.c_int(0), parts)
        found = {name: maps[name] for name in [*wanted.maps, *plus]}
        loaded, refused = _load_groups(compiled, maps, {group: wanted.groups[group] for group in groups})
        if len(refused) == len(groups):
            close_all(maps)
            raise _refused(wanted.source, "; ".join(refused.values()))
        return found | loaded, refused

    try:
        return from_compiled(
            wanted.source, names, [*names, *asked], lambda: defines_of(wanted, defines, abilities), use
        )  # fmt: skip
    except OSError as error:
        raise _refused(wanted.source, error.strerror or str(error)) from error


def _load_groups(
    compiled: Compiled, maps: dict[str, int], groups: Mapping[str, Mapping[str, Kind]]
) -> tuple[dict[str, int], dict[str, str]]:
    """Descriptors of ``group/program``, and why a group is not among them."""
    found: dict[str, int] = {}
    refused: dict[str, str] = {}
    for group, kinds in groups.items():
        try:
            loaded = load_programs(compiled, maps, kinds)
        except HostUnsupported as error:
            refused[group] = str(error)
        else:
            found |= {f"{group}/{name}": fd for name, fd in loaded.items()}
    return found, refused


def abilities_for(wanted: ProgramSet) -> list[str]:
    """Of ``atomics`` and ``ancestor`` those that this kernel has, as far as the set depends on them."""
    found = []
    if has_atomics():
        found.append("atomics")
    if wanted.reads_cgroups and ancestor.can_ask(is_tracing=wanted.reads_files or wanted.reads_pids):
        found.append("ancestor")
    return found


def defines_of(wanted: ProgramSet, defines: dict[str, int], abilities: Collection[str]) -> list[str]:
    """``NAME=VALUE``: what was asked for, and what this kernel's types and ``abilities`` add."""
    if wanted.reads_files:
        offsets = btf.file_defines(btf.read_btf())
        helper = typed_task.HELPER if typed_task.can_walk(offsets) else 0
        defines = {**offsets, "FS_TYPED_TASK": helper, **defines}
    if wanted.reads_pids:
        defines = btf.pid_defines(btf.read_btf()) | defines
    if wanted.reads_cgroups and "ancestor" not in abilities:
        defines = btf.cgroup_defines(btf.read_btf()) | defines
    if "atomics" not in abilities:
        defines = {"FS_NO_FETCH": 1, **defines}
    return [f"{name}={value}" for name, value in sorted(defines.items())]


def has_atomics() -> bool:
    """Whether BPF programs may fetch while they add and swap (Linux 5.12)."""
    return _is_taken(ATOMICS)


def can_read_kernel() -> bool:
    """Whether BPF programs may read the kernel's memory, which its lockdown forbids."""
    return _is_taken(KERNEL_READ)


def _is_taken(insns: bytes) -> bool:
    try:
        prog_fd = syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, insns)
    except OSError:
        return False
    os.close(prog_fd)
    return True


def send_set(channel: socket.socket, name: str, request: dict[str, Any]) -> int:
    """Load a set of program_sets.py and send its descriptors."""
    try:
        fds, refused = load_set(SETS[name], request["groups"], request["defines"], request["plus"])
    except FairschedError as error:
        with contextlib.suppress(ConnectionError):
            channel.sendall(json.dumps({"error": str(error), "remedy": error.remedy}).encode())
        return error.exit_status
    answer = json.dumps({"names": list(fds), "refused": refused}).encode()
    with contextlib.suppress(ConnectionError):  # who wanted them has ended meanwhile
        socket.send_fds(channel, [answer], list(fds.values()))
    return 0


def main(argv: list[str]) -> int:
    """Child process: ``loader FD [SET REQUEST]``, where FD is a connected unix socket; REQUEST is JSON."""
    if len(argv) > 1:
        with socket.socket(fileno=int(argv[0])) as channel:
            return send_set(channel, argv[1], json.loads(argv[2]))
    with socket.socket(fileno=int(argv[0])) as channel:
        multi = syscall.has_uprobe_multi()
        try:
            maps, loaded = load(multi=multi)
        except FairschedError as error:
            with contextlib.suppress(ConnectionError):
                channel.sendall(json.dumps({"error": str(error), "remedy": error.remedy}).encode())
            return error.exit_status
        # prog array entries live only while somebody holds the array open
        kept = {name: maps[name] for name in (*MAPS, "long_ways")}
        wanted = {**kept, **{name: loaded[name] for name in RUN_BY_DAEMON}}
        names = json.dumps({"names": list(wanted), "is_multi": multi}).encode()
        try:
            socket.send_fds(channel, [names], list(wanted.values()))
        except ConnectionError:  # who wanted them has ended meanwhile
            return 1
        for fd in (channel.fileno(), *loaded.values()):
            os.set_inheritable(fd, True)
        setup = {"programs": loaded, "is_multi": multi}
        os.execv(sys.executable, attacher_command(channel.detach(), setup))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
