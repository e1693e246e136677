# SPDX-License-Identifier: Apache-2.0
"""Puts the programs on libcuda files and holds them there: the process behind :class:`GpuTimeProbe`.

Problem: letting go of a uprobe costs the kernel up to 100 ms each, one after the other, inside the exit of
whoever held it. A daemon that held a hundred would take ten seconds to die, and its guardian would wait as long
before it could thaw.

Approach: this process holds them. It serves one request per line (``{"path", "name", "pid"}``), attaches with one link
per program where the kernel can (6.6), else one perf event per probe, and ends, closing in parallel, when the daemon's
end of the socket is closed, however that came about. A file that a tenant may serve by itself gets no probes, and is
not even looked at (served.py).

Answer per request: path and name as asked, device, inode, probes, cheap, failures {symbol: why}, or error, remedy,
is_gone and is_libcuda.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from fairsched.bpf import elf, exports, perf, served, syscall
from fairsched.errors import FairschedError

# Closing waits for the kernel, not for a processor: all at once.
_CLOSERS = 64

Site = tuple[str, bool]
"""(program, is it on the return)."""


class Request(NamedTuple):
    """See :meth:`fairsched.bpf.gpu_time.GpuTimeProbe.request_library`."""

    path: str
    name: str = ""
    pid: int | None = None


class Attacher:
    """Probes by inode of the file they are on."""

    def __init__(self, programs: Mapping[str, int], *, is_multi: bool) -> None:
        self._programs = programs
        self._is_multi = is_multi
        self._fds: list[int] = []
        self._done: dict[tuple[int, int], dict[str, Any]] = {}

    def attach(self, request: Request) -> dict[str, Any]:
        """Attach to a libcuda file unless that inode has its probes already."""
        asked = {"path": request.path, "name": request.name}
        name = request.name or request.path
        try:
            # What was judged is what gets the probes: its owner may put another file in its place meanwhile, or a
            # device, which to open is more than a look.
            fd = os.open(request.path, os.O_PATH | os.O_CLOEXEC)
            try:
                if request.pid is not None:
                    served.refuse(name, fd, request.pid)
                found = served.identity(fd)
                if not stat.S_ISREG(found.mode):
                    raise elf.NotLibcuda(f"{name}: not a regular file")
                key = (found.device, found.inode)
                if key not in self._done:
                    probes = self._attach(f"/proc/self/fd/{fd}", name)
                    self._done[key] = {"device": key[0], "inode": key[1], **probes}
            finally:
                os.close(fd)
            return {**asked, **self._done[key]}
        except (FairschedError, OSError) as error:
            is_gone = isinstance(error, FileNotFoundError | ProcessLookupError)
            is_libcuda = not isinstance(error, elf.NotLibcuda | served.Served)
            remedy = getattr(error, "remedy", "")
            why = {"error": str(error), "remedy": remedy, "is_gone": is_gone, "is_libcuda": is_libcuda}
            return {**asked, **why}

    def _attach(self, path: str, name: str) -> dict[str, Any]:
        by_name = {export.name: export for export in elf.read_exports(path, name)}
        wanted = exports.choose_probes(by_name)
        if not wanted:
            raise elf.NotLibcuda(f"{name}: exports no CUDA driver entry point")
        sites: dict[Site, list[elf.Export]] = {}
        for probe in wanted:
            export = by_name[probe.symbol]
            if probe.entry is not None:
                sites.setdefault((probe.entry, False), []).append(export)
            if probe.on_return is not None:
                sites.setdefault((probe.on_return, True), []).append(export)
        put = self._put_multi if self._is_multi else self._put_single
        failures: dict[str, str] = {}
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda item: put(path, item[0], item[1], failures), sites.items()))
        total = [export for group in sites.values() for export in group]
        good = [export for export in total if export.name not in failures]
        if not good:
            raise FairschedError(
                f"{name}: no entry point could be probed: {next(iter(failures.values()))}",
                remedy="fairsched doctor shows whether uprobes work here",
            )
        return {"probes": len(good), "cheap": sum(bool(e.skip) for e in good), "failures": failures}

    def _put_multi(self, path: str, site: Site, group: list[elf.Export], failures: dict[str, str]) -> None:
        program, is_return = site
        offsets = [export.offset + export.skip for export in group]
        try:
            fd = syscall.link_uprobes(self._programs[program], path, offsets, is_return=is_return)
            self._fds.append(fd)
        except OSError as error:
            failures.update({export.name: str(error.strerror) for export in group})

    def _put_single(self, path: str, site: Site, group: list[elf.Export], failures: dict[str, str]) -> None:
        program, is_return = site
        for export in group:
            offset = export.offset + export.skip
            try:
                fd = perf.attach_uprobe(self._programs[program], path, offset, is_return=is_return)
                self._fds.append(fd)
            except OSError as error:
                failures[export.name] = str(error.strerror)

    def hold(self, fd: int) -> None:
        """Keep another descriptor until the end."""
        self._fds.append(fd)

    def close(self) -> None:
        """Let go of everything."""
        with ThreadPoolExecutor(_CLOSERS) as pool:
            list(pool.map(os.close, self._fds))
        self._fds = []


def serve(channel: socket.socket, handle: Callable[[Request], dict[str, Any]]) -> None:
    """Answer requests until the other end is closed."""
    # For reading alone: one that is written to as well forgets what it has read beyond the first line.
    with channel.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            channel.sendall(json.dumps(handle(Request(**json.loads(line)))).encode() + b"\n")


def main(argv: list[str]) -> int:
    """``attacher FD SETUP``: SETUP is JSON with the descriptors of the programs."""
    # The daemon decides when this ends: not Ctrl-C, which reaches both, nor a service manager's SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    setup = json.loads(argv[1])
    attacher = Attacher(setup["programs"], is_multi=setup["is_multi"])
    with socket.socket(fileno=int(argv[0])) as channel:
        try:
            for program, hooks in exports.RAW_TRACEPOINTS.items():
                for hook in hooks:
                    attacher.hold(syscall.open_raw_tracepoint(hook, setup["programs"][program]))
            channel.sendall(b'{"ready": true}\n')
            serve(channel, attacher.attach)
        except ConnectionError:  # the daemon ended without a word
            return 0
        except OSError as error:
            channel.sendall(json.dumps({"error": f"raw tracepoint: {error.strerror}"}).encode() + b"\n")
        finally:
            attacher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
