# SPDX-License-Identifier: Apache-2.0
"""Compiles BPF programs with bcc. The only module that imports it.

Problem: bcc brings a compiler of 130 MB into the process, wants kernel headers, and does its work in seconds. It
rewrites map accesses only in the file it is given, and creates the maps while it compiles.

Approach: :func:`flatten` puts our own headers into that one file, with ``#line`` so that errors still name the right
place, and the header stand-in in headers/ replaces the kernel's. What comes out is taken from bcc as plain data
(:mod:`fairsched.bpf.compiled`), and bcc's own maps go.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairsched.bpf import btf
from fairsched.bpf.compiled import Compiled, MapSpec, hook_of, with_maps
from fairsched.errors import HostUnsupported

HERE = Path(__file__).resolve().parent
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


def cflags() -> list[str]:
    """For bcc's compiler: the user-space kernel headers stand in for the kernel's."""
    multiarch = f"/usr/include/{os.uname().machine}-linux-gnu"
    return ["-I/usr/include", f"-I{multiarch}", f"-DPAGE_SIZE={mmap.PAGESIZE}", "-Wno-unused-value"]


def without_autoload(bcc: Any) -> Any:
    """bcc's BPF class, that attaches nothing by itself: it would whatever is named ``lsm__<hook>``, and it demands
    that name of programs of that kind."""
    return type("Bpf", (bcc.BPF,), {"_trace_autoload": lambda self: None})


def compile_module(source: str, defines: Iterable[str] = ()) -> Any:
    """``source``, a file beside this one, as bcc's BPF object, whose maps there are. Takes seconds.

    ``defines``: ``NAME=VALUE``. Raises HostUnsupported.
    """
    flags = [*cflags(), *(f"-D{define}" for define in defines)]
    bcc = import_bcc()
    try:
        return without_autoload(bcc)(text=flatten(HERE / source), cflags=flags)
    except Exception as error:  # bcc raises bare Exception
        raise HostUnsupported(
            f"{source} cannot be compiled: {str(error).strip()[-400:]}",
            remedy="fairsched doctor tries the compiler in bcc",
        ) from error


def compile_programs(source: str, names: Iterable[str], defines: Iterable[str] = ()) -> Compiled:
    """The programs ``names`` of ``source`` and all of its maps, as data; otherwise as :func:`compile_module`."""
    bpf = compile_module(source, defines)
    try:
        maps, index_of = _maps(import_bcc().libbcc.lib, bpf.module)
        programs = {name: with_maps(name, bpf.dump_func(name), index_of) for name in names}
    except Exception as error:
        raise HostUnsupported(f"{source}: bcc did not show what it compiled: {error}") from error
    finally:
        bpf.cleanup()
    return Compiled(maps, programs, _hooks(programs))


def _maps(lib: ctypes.CDLL, module: int) -> tuple[tuple[MapSpec, ...], dict[int, int]]:
    """The maps of a module, and the place of each by the descriptor that bcc has of it."""

    def ask(name: str, result: Any = ctypes.c_int) -> Callable[[int, int], Any]:
        # bcc declares some of these and not others: a function object of our own, with types of our own.
        function = lib[name]
        function.restype, function.argtypes = result, (ctypes.c_void_p, ctypes.c_size_t)
        return function

    name_of, fd_of = ask("bpf_table_name", ctypes.c_char_p), ask("bpf_table_fd_id")
    columns = [
        ask("bpf_table_type_id"),
        ask("bpf_table_key_size_id", ctypes.c_size_t),
        ask("bpf_table_leaf_size_id", ctypes.c_size_t),
        ask("bpf_table_max_entries_id", ctypes.c_size_t),
        ask("bpf_table_flags_id"),
    ]
    numbers = range(lib.bpf_num_tables(ctypes.c_void_p(module)))
    specs = [
        MapSpec(name_of(module, n).decode(), *(column(module, n) for column in columns)) for n in numbers
    ]
    return tuple(specs), {fd_of(module, n): n for n in numbers}


def _hooks(programs: Iterable[str]) -> dict[str, int]:
    hooks = {name: hook for name in programs if (hook := hook_of(name)) is not None}
    if not hooks:
        return {}
    ids = btf.function_ids(btf.read_btf(), hooks.values())
    return {name: ids[hook] for name, hook in hooks.items() if hook in ids}
