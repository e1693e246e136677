# SPDX-License-Identifier: Apache-2.0
"""Examines a file that a tenant calls libcuda, in a child process that has three seconds for it.

Problem: to judge such a file means to open and read it, and its owner has a say in how long that takes: the file system
may not answer, the namespace of the process may have 100,000 mounts. The process that holds the probes of all others
must not wait for that, nor die of it.

Approach: a child of the attacher does all that. It is killed after three seconds, and when the daemon ends. A file that
took so long is refused, and the next one has its turn. elf.py bounds what is read and remembered.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fairsched.bpf import elf, exports, served
from fairsched.bpf.pagecache import FirstPage, find_same
from fairsched.errors import FairschedError

DEADLINE_S = 3.0
"""Of the clock, so that a busy machine is no reason; a libcuda takes some milliseconds."""
MOST_PROBES = 512
"""On one file. libcuda 595 has 230 exports that get one."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class HungUp(Exception):
    """The daemon has ended meanwhile."""


class Examined(NamedTuple):
    """A libcuda."""

    exports: tuple[elf.Export, ...]
    """Those that get a probe."""
    same_as: int | None
    """Which of the known files is the same to a uprobe."""
    is_lasting: bool
    """It is on a mount that does not go with a container."""


def examine(
    fd: int, name: str, pid: int | None, known: Sequence[FirstPage], hangup: int | None = None
) -> Examined:
    """Judge and read the file that is open (O_PATH) as ``fd``.

    ``pid``: who has it mapped; ``known``: of files that have probes; ``hangup``: a descriptor that ends the wait when
    its other end is gone. Raises NotLibcuda, Served, OSError, HungUp.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _child(writer, lambda: _look(fd, name, pid, known), {0, 1, 2, writer, fd})
    os.close(writer)
    try:
        said = _wait(reader, hangup)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _reap(child)
    if said is None:
        raise OSError(errno.ETIMEDOUT, f"could not be read within {DEADLINE_S:.0f} s", name)
    if not said:
        raise OSError(errno.EIO, "the process that read it died", name)
    return _examined(json.loads(said), name)


def _examined(told: dict[str, Any], name: str) -> Examined:
    if "exports" in told:
        found = tuple(elf.Export(*export) for export in told["exports"])
        return Examined(found, told["same_as"], told["is_lasting"])
    if told.get("kind") == "OSError":
        raise OSError(told["errno"], told["error"], name)
    if told.get("kind") == "Served":
        raise served.Served(told["error"], remedy=told["remedy"])
    raise elf.NotLibcuda(told["error"])


def _wait(reader: int, hangup: int | None) -> bytes | None:
    """All that the child says; None: it takes too long, or died."""
    poll, said, deadline_s = select.poll(), b"", time.monotonic() + DEADLINE_S
    poll.register(reader, select.POLLIN)
    if hangup is not None:
        poll.register(hangup, select.POLLRDHUP)
    while (left_s := deadline_s - time.monotonic()) > 0:
        for ready, _ in poll.poll(left_s * 1000):
            if ready != reader:
                raise HungUp
            data = os.read(reader, 1 << 16)
            if not data:
                return said
            said += data
    return None


def _reap(child: int) -> None:
    """One that hangs in a file system ends when that answers; process 1 takes it then."""
    deadline_s = time.monotonic() + DEADLINE_S
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _look(fd: int, name: str, pid: int | None, known: Sequence[FirstPage]) -> dict[str, Any]:
    try:
        if pid is not None:
            served.refuse(name, fd, pid)
        found = elf.read_exports(f"/proc/self/fd/{fd}", name)
        by_name = {export.name: export for export in found}
        wanted = exports.choose_probes(by_name)
        if not wanted:
            raise elf.NotLibcuda(f"{name}: exports no CUDA driver entry point")
        if len(wanted) > MOST_PROBES:
            raise elf.NotLibcuda(
                f"{name}: {len(wanted)} places for probes are more than the {MOST_PROBES} of one file"
            )
        return {
            "exports": [_row(by_name[probe.symbol]) for probe in wanted],
            "same_as": find_same(FirstPage(fd), known) if known else None,
            "is_lasting": served.is_lasting(fd),
        }
    except BlockingIOError:
        return {
            "kind": "NotLibcuda",
            "error": f"{name}: its owner keeps others from opening it (fcntl, F_SETLEASE)",
        }
    except OSError as error:
        return {"kind": "OSError", "errno": error.errno, "error": error.strerror}
    except FairschedError as error:
        return {"kind": type(error).__name__, "error": str(error), "remedy": error.remedy}


def _row(export: elf.Export) -> tuple[str, int, int]:
    return export.name, export.offset, export.skip


def _child(writer: int, look: Callable[[], dict[str, Any]], kept: Iterable[int]) -> None:
    """Never returns. It holds no probe: nobody's would stay because of a child that hangs."""
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        _close_all_but(sorted(kept))
        data = memoryview(json.dumps(look()).encode())
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _close_all_but(kept: Sequence[int]) -> None:
    first = 0
    for fd in kept:
        if first < fd:  # of an empty range CPython closes everything
            os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
