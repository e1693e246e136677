# SPDX-License-Identifier: Apache-2.0
"""Finds by trying what BPF can do on this host: raw system calls, and one small compilation with bcc.

Problem: versions say little. Distributions backport, lockdown and containers forbid, and the LLVM that bcc is linked
with decides which instructions it can produce; one that is too old aborts the process it works in.

Approach: create each map and load a few hand-assembled instructions of each kind; run the atomics once and look at
the result. bcc compiles probe.bpf.c in a child process, so that an abort is an answer. Nothing stays behind.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairsched.base.package import with_package
from fairsched.bpf import perf, syscall
from fairsched.bpf.child import NEWER_BCC, exit_words
from fairsched.bpf.instructions import ATOMICS, ATOMICS_RESULT, EXIT_0
from fairsched.errors import FairschedError

_COMPILE_TIMEOUT_S = 60
_OF_COMPILED = ("uprobe program", "atomics")
"""What the program of :func:`compiler` cannot be loaded without."""
_JIT = "/proc/sys/net/core/bpf_jit_enable"
_LLVM = re.compile(r"/libLLVM[-.](?:so\.)?(\d+)")
_PRIVILEGE = (
    "run as root, or with CAP_BPF and CAP_PERFMON; in a container, allow bpf(2) and perf_event_open(2)"
)


@dataclass(frozen=True)
class Fact:
    """One thing BPF was asked to do."""

    name: str
    is_ok: bool
    detail: str = ""
    remedy: str = ""
    is_needed: bool = True
    """Without it there is no eBPF account; else it only costs more."""


def probe() -> list[Fact]:
    """Every fact. Takes a second, for the compiler."""
    facts = [
        _try(
            "uprobe program",
            lambda: _load(syscall.PROG_TYPE_KPROBE, EXIT_0),
            "a kernel with CONFIG_UPROBE_EVENTS",
        ),
        _try("tracepoint", _open_raw_tracepoint, "a kernel with CONFIG_BPF_EVENTS"),
        _try("ring buffer", _make_ring, "Linux 5.8 or later"),
        _try("mapped array", _map_array, "Linux 5.5 or later"),
        _try("batch reads", _read_batch, "Linux 5.6 or later"),
        _try("test run", lambda: _run(EXIT_0, 0), "Linux 5.10 or later"),
        _try("atomics", lambda: _run(ATOMICS, ATOMICS_RESULT), "Linux 5.12 or later"),
        _try(
            "uprobe events", lambda: f"perf type {perf.uprobe_type()}", "a kernel with CONFIG_UPROBE_EVENTS"
        ),
        _uprobe_multi(),
        _jit(),
    ]
    # Where nothing is allowed, or atomics are unknown, what the compiler makes is refused for that: said once.
    is_tried = all(fact.is_ok for fact in facts if fact.name in _OF_COMPILED)
    return [*facts, compiler()] if is_tried else facts


def _try(name: str, act: Callable[[], str | None], needs: str) -> Fact:
    try:
        return Fact(name, True, act() or "")
    except OSError as error:
        refused = error.errno in (errno.EPERM, errno.EACCES)
        remedy = _PRIVILEGE if refused else f"use {needs}"
        return Fact(name, False, error.strerror or str(error), remedy)


def _load(prog_type: int, insns: bytes) -> None:
    os.close(syscall.load_program(prog_type, insns))


def _open_raw_tracepoint() -> None:
    prog_fd = syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, EXIT_0)
    try:
        os.close(syscall.open_raw_tracepoint("sched_process_exit", prog_fd))
    finally:
        os.close(prog_fd)


def _make_ring() -> None:
    os.close(syscall.create_map(syscall.MAP_TYPE_RINGBUF, 0, 0, mmap.PAGESIZE))


def _map_array() -> None:
    fd = syscall.create_map(syscall.MAP_TYPE_ARRAY, 4, 8, 1, syscall.F_MMAPABLE)
    try:
        mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()
    finally:
        os.close(fd)


class _Key(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint64),)


def _read_batch() -> None:
    hash_type = 1
    fd = syscall.create_map(hash_type, ctypes.sizeof(_Key), ctypes.sizeof(_Key), 8)
    try:
        syscall.BatchReader(fd, _Key, _Key).read()
    finally:
        os.close(fd)


def _run(insns: bytes, expected: int) -> None:
    prog_fd = syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, insns)
    try:
        result = syscall.run_raw_tracepoint(prog_fd, _Key())
    finally:
        os.close(prog_fd)
    if result != expected:
        raise OSError(errno.EIO, f"returned {result} instead of {expected}")


def _uprobe_multi() -> Fact:
    has_multi = syscall.has_uprobe_multi()
    detail = "one for all probes of a program" if has_multi else "not in this kernel: attaching takes longer"
    return Fact("uprobe links", True, detail, is_needed=False)


def _jit() -> Fact:
    try:
        with open(_JIT) as file:
            is_on = file.read().strip() != "0"
    except OSError:
        return Fact("jit", True, "not known", is_needed=False)
    if is_on:
        return Fact("jit", True, "on", is_needed=False)
    return Fact("jit", False, "off: probes cost several times more", f"echo 1 > {_JIT}", is_needed=False)


# ---- bcc's compiler, in a child ----


def compiler() -> Fact:
    """Whether the bcc of this host can compile and load what we need; survives its abort."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "fairsched.bpf.probe"],
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
            cwd="/",
            env=with_package(os.environ),
        )
    except subprocess.TimeoutExpired:
        return Fact("compiler", False, f"not done after {_COMPILE_TIMEOUT_S} s", "try again on a calmer host")
    return judge_compiler(child.returncode, child.stdout, child.stderr)


def judge_compiler(status: int, out: str, err: str) -> Fact:
    """The fact behind the child's exit status and output (pure)."""
    said: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            said.update(json.loads(line))
    llvm = said.get("llvm")
    which = f"bcc {said['bcc']}, LLVM {llvm or 'of unknown version'}" if "bcc" in said else "bcc"
    if status == 0:
        return Fact("compiler", True, which)
    if "error" in said:
        return Fact("compiler", False, f"{which}: {said['error']}", said["remedy"] or NEWER_BCC)
    lines = [line for line in err.splitlines() if line.strip()]
    last = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return Fact("compiler", False, f"{which} {exit_words(status)}; {last[:200]}".rstrip("; "), NEWER_BCC)


def llvm_version(maps: str) -> str | None:
    """Major version of the LLVM mapped by a process, from its /proc/PID/maps; None = linked statically."""
    found = _LLVM.search(maps)
    return found[1] if found else None


def main() -> int:
    """Child process: say which bcc this is, then compile and load probe.bpf.c."""
    from fairsched.bpf import compiler

    try:
        bcc = compiler.import_bcc()
        with open("/proc/self/maps") as maps:
            print(json.dumps({"bcc": bcc.__version__, "llvm": llvm_version(maps.read())}), flush=True)
        bpf = bcc.BPF(text=compiler.flatten(compiler.HERE / "probe.bpf.c"), cflags=compiler.cflags())
        bpf.load_func("on_probe", bcc.BPF.RAW_TRACEPOINT)
    except FairschedError as error:
        print(json.dumps({"error": str(error), "remedy": error.remedy}))
        return error.exit_status
    except Exception as error:  # bcc raises bare Exception
        print(json.dumps({"error": str(error).strip()[-400:], "remedy": ""}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
