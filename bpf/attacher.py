# SPDX-License-Identifier: Apache-2.0
"""Puts the programs on libcuda files and holds them there: the process behind :class:`GpuTimeProbe`.

Problem: letting go of a uprobe costs the kernel up to 100 ms each, one after the other, inside the exit of
whoever held it. A daemon that held a hundred would take ten seconds to die, and its guardian would wait as long
before it could thaw.

Approach: this process holds them. It serves one request at a time (``{"path", "name", "pid"}``), attaches with one link
per program where the kernel can (6.6), else one perf event per probe, and ends, closing in parallel, when the daemon's
end of the socket is closed, however that came about. Files are judged and read by a child that has three seconds for
each (examine.py). Probes are on what the kernel takes for one file: containers of one image have as many files, and one
libcuda (pagecache.py).

Answer per request: path and name as asked, device, inode, probes, cheap, failures {symbol: why}, is_lasting, or error,
remedy, is_gone and is_libcuda. A file is let go with ``{"drop": [device, inode]}``, which is answered as it is.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairsched.base.wait import wait_readable
from fairsched.bpf import elf, exports, perf, served, syscall
from fairsched.bpf.channel import Channel
from fairsched.bpf.examine import Examined, HungUp, examine
from fairsched.bpf.handover import take_setup
from fairsched.bpf.pagecache import FirstPage, find_same
from fairsched.errors import FairschedError

_MOST_CLOSERS = 512
"""Closing waits for the kernel, not for a processor: all at once."""
_LONGEST_S = 1.0
"""Of a processor, for all probes on a file; 20 ms are usual. The kernel writes each probe into each mapping of it,
and meanwhile no probe is put elsewhere: of 5,000 mappings all take a second, and a process may have 65,530."""
_TOO_LONG = errno.ETIME
_OF_THE_HOST = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EPERM, errno.EACCES)
"""Why no probe could be put, through nothing that whoever made the file can bring about."""

Site = tuple[str, bool]
"""(program, is it on the return)."""
FileId = tuple[int, int]
"""Device and inode, as stat says."""
Examine = Callable[[int, str, int | None, Sequence[FirstPage]], Examined]


class Request(NamedTuple):
    """See :meth:`fairsched.bpf.gpu_time.GpuTimeProbe.request_library`."""

    path: str
    name: str = ""
    pid: int | None = None


@dataclass
class _Probed:
    """What the kernel takes for one file."""

    exports: tuple[elf.Export, ...]
    page: FirstPage | None
    """None where it cannot be told from others."""
    fds: dict[FileId, int]
    """As what it is known: open, with O_PATH."""
    carrier: FileId
    """Of these, the one whose mount the probes keep busy."""
    links: list[int]
    told: dict[str, Any]


class Attacher:
    """Probes by the files they are on."""

    def __init__(self, programs: Mapping[str, int], *, is_multi: bool, look: Examine = examine) -> None:
        self._programs = programs
        self._is_multi = is_multi
        self._look = look
        self._held: list[int] = []
        self._probed: dict[FileId, _Probed] = {}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message of the daemon's."""
        if "drop" in message:
            device, inode = message["drop"]
            self.drop((device, inode))
            return message
        return self.attach(Request(**message))

    def attach(self, request: Request) -> dict[str, Any]:
        """Attach to a libcuda file unless it has its probes already."""
        asked = {"path": request.path, "name": request.name}
        name = request.name or request.path
        try:
            # What was judged is what gets the probes: its owner may put another file in its place meanwhile, or a
            # device, which to open is more than a look.
            fd = os.open(request.path, os.O_PATH | os.O_CLOEXEC)
            try:
                found = served.identity(fd)
                if not stat.S_ISREG(found.mode):
                    raise elf.NotLibcuda(f"{name}: not a regular file")
                key = (found.device, found.inode)
                if key not in self._probed:
                    self._probed[key] = self._attach(fd, key, name, request.pid)
                    fd = -1
            finally:
                if fd >= 0:
                    os.close(fd)
            return {**asked, "device": key[0], "inode": key[1], **self._probed[key].told}
        except (FairschedError, OSError) as error:
            is_gone = isinstance(error, FileNotFoundError | ProcessLookupError)
            is_libcuda = not isinstance(error, elf.NotLibcuda | served.Served)
            remedy = getattr(error, "remedy", "")
            why = {"error": str(error), "remedy": remedy, "is_gone": is_gone, "is_libcuda": is_libcuda}
            return {**asked, **why}

    def _attach(self, fd: int, key: FileId, name: str, pid: int | None) -> _Probed:
        """``fd`` is kept, unless this raises."""
        known = {id(one): one for one in self._probed.values() if one.page is not None}
        groups = list(known.values())
        seen = self._look(fd, name, pid, [one.page for one in groups if one.page is not None])
        if seen.same_as is not None:
            same = groups[seen.same_as]
            same.fds[key] = fd
            same.told["is_lasting"] &= seen.is_lasting
            return same
        links, failures = self._put(fd, seen.exports, math.inf if pid is None else _LONGEST_S)
        if _TOO_LONG in failures.values():
            _close_all(links)
            raise elf.NotLibcuda(f"{name}: probes on it take too long: it is mapped too often")
        places = [export for group in _sites(seen.exports).values() for export in group]
        good = [export for export in places if export.name not in failures]
        if not good:
            raise self._refused(name, pid, next(iter(failures.values())))
        told = {
            "probes": len(good),
            "cheap": sum(bool(export.skip) for export in good),
            "failures": {symbol: os.strerror(code) for symbol, code in failures.items()},
            "is_lasting": seen.is_lasting,
        }
        return _Probed(seen.exports, _first_page(fd), {key: fd}, key, links, told)

    def _refused(self, name: str, pid: int | None, code: int) -> FairschedError:
        why = f"{name}: no entry point could be probed: {os.strerror(code)}"
        if pid is not None and code not in _OF_THE_HOST:
            return elf.NotLibcuda(why)
        return FairschedError(why, remedy="fairsched doctor shows whether uprobes work here")

    def _put(
        self, fd: int, wanted: Sequence[elf.Export], longest_s: float = math.inf
    ) -> tuple[list[int], dict[str, int]]:
        """The links, and which symbols got none: errno, _TOO_LONG once ``longest_s`` of a processor are over."""
        end_s = time.process_time() + longest_s
        put = self._put_multi if self._is_multi else self._put_single
        links: list[int] = []
        failures: dict[str, int] = {}
        path = f"/proc/self/fd/{fd}"

        def put_in_time(item: tuple[Site, list[elf.Export]]) -> None:
            site, group = item
            if time.process_time() < end_s:
                put(path, site, group, links, failures)
            else:
                failures.update({export.name: _TOO_LONG for export in group})

        # An event waits for the kernel, a link for nobody.
        with ThreadPoolExecutor(1 if self._is_multi else 16) as pool:
            list(pool.map(put_in_time, _sites(wanted).items()))
        return links, failures

    def _put_multi(
        self, path: str, site: Site, group: list[elf.Export], links: list[int], failures: dict[str, int]
    ) -> None:
        program, is_return = site
        offsets = [export.offset + export.skip for export in group]
        try:
            links.append(syscall.link_uprobes(self._programs[program], path, offsets, is_return=is_return))
        except OSError as error:
            failures.update({export.name: error.errno or 0 for export in group})

    def _put_single(
        self, path: str, site: Site, group: list[elf.Export], links: list[int], failures: dict[str, int]
    ) -> None:
        program, is_return = site
        for export in group:
            offset = export.offset + export.skip
            try:
                links.append(perf.attach_uprobe(self._programs[program], path, offset, is_return=is_return))
            except OSError as error:
                failures[export.name] = error.errno or 0

    def drop(self, key: FileId) -> None:
        """Let go of a file. Its probes go with its last name. Until then another of its names carries them: they keep
        the mount busy through which they were put."""
        probed = self._probed.pop(key, None)
        if probed is None:
            return
        fd = probed.fds.pop(key)
        if not probed.fds:
            _close_all(probed.links)
            if probed.page is not None:
                probed.page.close()
        elif key == probed.carrier:
            self._carry(probed)
        os.close(fd)

    def _carry(self, probed: _Probed) -> None:
        """Put the probes once more, through another name, before the old ones go: for a moment a launch counts twice.

        A name may have become another file (copied up on its overlay). Where all have, the old probes stay.
        """
        for key, fd in probed.fds.items():
            page = _first_page(fd)
            if page is None or probed.page is None or find_same(page, [probed.page]) is None:
                continue
            links, _ = self._put(fd, probed.exports)
            if links:
                _close_all(probed.links)
                probed.page.close()
                probed.carrier, probed.links, probed.page = key, links, page
                return

    def hold(self, fd: int) -> None:
        """Keep another descriptor until the end."""
        self._held.append(fd)

    def close(self) -> None:
        """Let go of everything."""
        groups = {id(one): one for one in self._probed.values()}.values()
        _close_all([*self._held, *(fd for one in groups for fd in (*one.links, *one.fds.values()))])
        self._held, self._probed = [], {}


def _sites(wanted: Sequence[elf.Export]) -> dict[Site, list[elf.Export]]:
    found: dict[Site, list[elf.Export]] = {}
    for export in wanted:
        probe = exports.choose_probe(export.name)
        if probe is not None and probe.entry is not None:
            found.setdefault((probe.entry, False), []).append(export)
        if probe is not None and probe.on_return is not None:
            found.setdefault((probe.on_return, True), []).append(export)
    return found


def _first_page(fd: int) -> FirstPage | None:
    try:
        return FirstPage(fd)
    except OSError:
        return None


def _close_all(fds: Sequence[int]) -> None:
    with ThreadPoolExecutor(max(1, min(len(fds), _MOST_CLOSERS))) as pool:
        list(pool.map(os.close, fds))


def serve(channel: Channel, handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until the other end is closed, which raises ConnectionError or HungUp."""
    while True:
        wait_readable([channel], None)
        for message in channel.take():
            channel.send(handle(message))


def main(argv: list[str]) -> int:
    """``attacher FD SETUP``: SETUP is a file of memory with the descriptors of the programs (handover.py)."""
    # The daemon decides when this ends: not Ctrl-C, which reaches both, nor a service manager's SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # before Linux 6.6 a descriptor for each probe
    setup = take_setup(int(argv[1]))
    channel = Channel(socket.socket(fileno=int(argv[0])))

    def look(fd: int, name: str, pid: int | None, known: Sequence[FirstPage]) -> Examined:
        return examine(fd, name, pid, known, channel.fileno())

    attacher = Attacher(setup["programs"], is_multi=setup["is_multi"], look=look)
    try:
        for program, hooks in exports.RAW_TRACEPOINTS.items():
            for hook in hooks:
                attacher.hold(syscall.open_raw_tracepoint(hook, setup["programs"][program]))
        channel.send({"ready": True})
        serve(channel, attacher.handle)
    except (ConnectionError, HungUp):  # the daemon ended without a word
        return 0
    except OSError as error:
        channel.send({"error": f"raw tracepoint: {error.strerror}"})
    finally:
        channel.close()
        attacher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
