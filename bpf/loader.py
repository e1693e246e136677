# SPDX-License-Identifier: Apache-2.0
"""Compiles and loads the BPF programs with bcc. The only module that imports bcc, in a process of its own.

Problem: bcc brings a compiler of 130 MB into the process, wants kernel headers, and does its work in seconds;
the daemon should have none of that.

Approach: the daemon starts this module as a child with one end of a socket. It compiles (against the header
stand-in in headers/), loads, and sends the descriptors of all maps and programs back. With the GPU time programs it
then becomes the attacher (attacher.py) by exec, which frees the compiler; with a set of program_sets.py it ends.

bcc rewrites map accesses only in the file it is given, so :func:`flatten` puts our own headers into that one
file, with ``#line`` so that errors still name the right place.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import mmap
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

from fairsched.bpf import abi, ancestor, btf, exports, syscall, typed_task
from fairsched.bpf.instructions import ATOMICS
from fairsched.bpf.program_sets import SETS, Kind, ProgramSet
from fairsched.errors import FairschedError, HostUnsupported

HERE = Path(__file__).resolve().parent
SOURCE = "gpu_time.bpf.c"
RAW_TRACEPOINTS = {"on_exit": "sched_process_exit", "on_exec": "sched_process_exec"}
MAPS = (
    "ctx_by_slot",
    "clock_by_gpu",
    "counts_by_what",
    "gpu_time_by_key",
    "delay_by_key",
    "gpu_by_dev",
    "gpu_by_uuid",
    "edges",
)
"""Maps user space reads or writes; the programs keep the others alive."""
_INCLUDE = re.compile(r'^#include "([^"]+)"')


def flatten(path: Path, seen: set[Path] | None = None) -> str:
    """The C text of ``path`` with every ``#include "..."`` replaced by that file, each once."""
    seen = set() if seen is None else seen
    if path in seen:
        return ""
    seen.add(path)
    parts = [f'#line 1 "{path.name}"\n']
    for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
        match = _INCLUDE.match(line)
        if match:
            parts.append(flatten(path.parent / match[1], seen))
            parts.append(f'#line {number + 1} "{path.name}"\n')
        else:
            parts.append(line)
    return "".join(parts)


def import_bcc() -> Any:
    """The bcc module. Raises HostUnsupported, with what to install, when it is missing or another bcc."""
    os.environ["BCC_KERNEL_SOURCE"] = str(HERE / "headers")
    try:
        import bcc
    except ImportError as error:
        raise HostUnsupported(
            f"bcc cannot be imported: {error}",
            remedy="install the distribution's package (Debian, Ubuntu: apt install python3-bpfcc) and use a "
            "virtual environment made with --system-site-packages; PyPI's 'bcc' is something else",
        ) from error
    if not hasattr(bcc, "BPF"):
        raise HostUnsupported(
            "the Python package 'bcc' here is PyPI's lattice library, not the BPF Compiler Collection",
            remedy="pip uninstall bcc, then install the distribution's python3-bpfcc",
        )
    return bcc


def can_name_attach_type() -> bool:
    """Whether this bcc can load a program for a multi link; 0.18 (Ubuntu 22.04) cannot."""
    return "attach_type" in inspect.signature(import_bcc().BPF.load_func).parameters


def cflags() -> list[str]:
    """For bcc's compiler: the user-space kernel headers stand in for the kernel's."""
    multiarch = f"/usr/include/{os.uname().machine}-linux-gnu"
    return ["-I/usr/include", f"-I{multiarch}", f"-DPAGE_SIZE={mmap.PAGESIZE}", "-Wno-unused-value"]


def load(*, multi: bool) -> tuple[Any, dict[str, int]]:
    """bcc's BPF object and the descriptors of all programs by name. Raises HostUnsupported."""
    bcc = import_bcc()
    attach_type = {"attach_type": syscall.TRACE_UPROBE_MULTI} if multi else {}
    try:
        bpf = bcc.BPF(text=flatten(HERE / SOURCE), cflags=cflags())
        uprobes = [*exports.programs(), "on_submit_first"]
        programs = {name: bpf.load_func(name, bcc.BPF.KPROBE, **attach_type).fd for name in uprobes}
        for name in [*RAW_TRACEPOINTS, "on_drain_end"]:
            programs[name] = bpf.load_func(name, bcc.BPF.RAW_TRACEPOINT).fd
    except Exception as error:  # bcc raises bare Exception
        raise HostUnsupported(
            f"the kernel or bcc refused the GPU time programs: {str(error).strip()[-400:]}",
            remedy="fairsched doctor shows what is missing (kernel >= 5.12, root or CAP_BPF and CAP_PERFMON)",
        ) from error
    bpf["long_ways"][ctypes.c_int(0)] = ctypes.c_int(programs["on_submit_first"])
    for slot in reversed(range(abi.MAX_CTXS)):
        syscall.push(bpf["free_slots"].map_fd, ctypes.c_uint32(slot))
    return bpf, programs


def without_autoload(bcc: Any) -> Any:
    """bcc's BPF class, that attaches nothing by itself: it would whatever is named ``lsm__<hook>``, and it demands
    that name of programs of that kind."""
    return type("Bpf", (bcc.BPF,), {"_trace_autoload": lambda self: None})


def load_set(
    wanted: ProgramSet, groups: list[str], defines: dict[str, int], plus: list[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Descriptors of maps and of ``group/program``, and why the other groups were refused. Raises HostUnsupported."""
    bcc = import_bcc()
    if wanted.reads_files:
        offsets = btf.file_defines(btf.read_btf())
        helper = typed_task.HELPER if typed_task.can_walk(offsets) else 0
        defines = {**offsets, "FS_TYPED_TASK": helper, **defines}
    if wanted.reads_pids:
        defines = btf.pid_defines(btf.read_btf()) | defines
    if wanted.reads_cgroups and not ancestor.can_ask(is_tracing=wanted.reads_files):
        defines = btf.cgroup_defines(btf.read_btf()) | defines
    if not has_atomics():
        defines = {"FS_NO_FETCH": 1, **defines}
    flags = [*cflags(), *(f"-D{name}={value}" for name, value in sorted(defines.items()))]
    try:
        bpf = without_autoload(bcc)(text=flatten(HERE / wanted.source), cflags=flags)
    except Exception as error:  # bcc raises bare Exception
        raise HostUnsupported(
            f"{wanted.source} cannot be compiled: {str(error).strip()[-400:]}",
            remedy="fairsched doctor tries the compiler in bcc",
        ) from error
    kinds = {
        Kind.KPROBE: bcc.BPF.KPROBE,
        Kind.TRACEPOINT: bcc.BPF.TRACEPOINT,
        Kind.RAW_TRACEPOINT: bcc.BPF.RAW_TRACEPOINT,
        Kind.LSM: getattr(bcc.BPF, "LSM", None),
        Kind.CGROUP_DEVICE: bcc.BPF.CGROUP_DEVICE,
    }
    fds = {name: int(bpf[name].map_fd) for name in [*wanted.maps, *plus]}
    refused: dict[str, str] = {}
    for group in groups:
        loaded: dict[str, int] = {}
        try:
            for name, kind in wanted.groups[group].items():
                if kinds[kind] is None:
                    raise HostUnsupported(f"this bcc cannot load {kind.value} programs")
                loaded[f"{group}/{name}"] = int(bpf.load_func(name, kinds[kind]).fd)
        except Exception as error:
            refused[group] = str(error).strip()[-400:]
        else:
            fds |= loaded
    if len(refused) == len(groups):
        raise HostUnsupported(
            f"the kernel or bcc refused {wanted.source}: {'; '.join(refused.values())}",
            remedy="fairsched doctor shows what is missing",
        )
    keep_alive.append(bpf)
    return fds, refused


keep_alive: list[Any] = []
"""bcc closes the descriptors of a BPF object that nobody refers to."""


def has_atomics() -> bool:
    """Whether BPF programs may fetch while they add and swap (Linux 5.12)."""
    try:
        prog_fd = syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, ATOMICS)
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
        try:
            multi = syscall.has_uprobe_multi() and can_name_attach_type()
            bpf, programs = load(multi=multi)
        except FairschedError as error:
            with contextlib.suppress(ConnectionError):
                channel.sendall(json.dumps({"error": str(error), "remedy": error.remedy}).encode())
            return error.exit_status
        maps = {name: int(bpf[name].map_fd) for name in MAPS}
        # prog array entries live only while somebody holds the array open
        keep = {"long_ways": int(bpf["long_ways"].map_fd)}
        wanted = {**maps, **keep, "on_drain_end": programs["on_drain_end"]}
        names = json.dumps({"names": list(wanted), "is_multi": multi}).encode()
        try:
            socket.send_fds(channel, [names], list(wanted.values()))
        except ConnectionError:  # who wanted them has ended meanwhile
            return 1
        for fd in (channel.fileno(), *programs.values()):
            os.set_inheritable(fd, True)
        command = [sys.executable, "-m", "fairsched.bpf.attacher", str(channel.detach())]
        os.execv(sys.executable, [*command, json.dumps({"programs": programs, "is_multi": multi})])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
