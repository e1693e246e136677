# SPDX-License-Identifier: Apache-2.0
"""Finds the libcuda files that processes use, and has probes attached to each.

Attaching is done by a process of its own (bpf/attacher.py), which can be killed: then :class:`ProbesLost` is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairsched.base.printable import word
from fairsched.bpf.attachments import Attachments
from fairsched.bpf.gpu_time import GpuTimeProbe, Library
from fairsched.bpf.libcuda import LibraryFile, LibraryWatch, mapped_libraries, see_mapped
from fairsched.errors import FairschedError
from fairsched.model import NEVER_NS

_PF_EXITING = 0x4
"""In the flags of /proc/PID/stat."""

logger = logging.getLogger(__name__)


def is_ending(pid: int) -> bool:
    """Whether a process is gone or going: killed, it lets go of its probes one by one, for seconds."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            flags = int(file.read().rpartition(b") ")[2].split()[6])
    except OSError:
        return True
    return bool(flags & _PF_EXITING)


class ProbesLost(FairschedError):
    """The process that holds the probes is gone, and the probes with it."""


class Libraries:
    """The libcuda files that were found, and which of them have probes. ``probe``: None where there are none."""

    def __init__(self, configured: Iterable[Path], probe: GpuTimeProbe | None) -> None:
        self._probe = probe
        self._watch = LibraryWatch(str(path) for path in configured)
        self._attachments = Attachments()

    def watch(self, pids: Iterable[int], now_ns: int) -> None:
        """Take in which processes there are now."""
        self._watch.watch(pids, now_ns)

    def poll(self, now_ns: int) -> Iterator[int]:
        """Ask for probes on the files found since the call before; yields the processes that map them."""
        for file in self._watch.poll(now_ns):
            self._ask_for(file, now_ns)
            if file.pid is not None:
                yield file.pid

    def take_attached(self, now_ns: int) -> None:
        """Take in which files have probes now, and log them. Raises ProbesLost."""
        try:
            attached = self._probe.take_attached() if self._probe is not None else []
        except (FairschedError, OSError) as error:
            raise ProbesLost(str(error)) from error
        for library in attached:
            if self._attachments.note(library, now_ns):
                _report(library)

    @property
    def is_attaching(self) -> bool:
        """Some libcuda that was asked for has no probes yet."""
        return self._attachments.is_attaching

    @property
    def unprobed(self) -> int:
        """How many libcuda files have no probes because attaching failed: calls through them are in no account."""
        return self._attachments.unprobed

    @property
    def is_partial(self) -> bool:
        """On some libcuda no probe could be attached, through no doing of whoever maps it."""
        return self._attachments.is_partial

    def watched_since_ns(self, pid: int, now_ns: int) -> int | None:
        """Since when every libcuda that a process maps has probes; now, while one has none; 0 = it maps none;
        NEVER_NS: an attempt to attach to one has failed.

        None: it is gone, or its mapping is. One that was not known is asked for: a process may load it long after it
        was first read. Raises ProbesLost.
        """
        mapped = mapped_libraries(pid)
        if mapped is None or self._probe is None:
            return None
        since_ns = 0
        for file in (see_mapped(item, pid) for item in mapped):
            if file is None:
                return None
            self._ask_for(file, now_ns)
            if self._attachments.is_unprobed(file):
                return NEVER_NS
            attached_ns = self._attachments.since_ns(file)
            since_ns = max(since_ns, now_ns if attached_ns is None else attached_ns)
        return since_ns

    def _ask_for(self, file: LibraryFile, now_ns: int) -> None:
        if self._probe is None or not self._attachments.wants(file, now_ns):
            return
        try:
            self._probe.request_library(file.path, file.name, file.pid)
        except OSError as error:
            raise ProbesLost(f"the process that holds the probes is gone: {error.strerror}") from error


def _report(library: Library) -> None:
    name = word(library.name or library.path)
    if library.error is not None:
        logger.warning("library=%s probes=0 error=%r", name, library.error)
        return
    failed = len(library.failures)
    logger.info(
        "library=%s probes=%d cheap=%d failed=%d",
        name,
        library.probes,
        library.cheap,
        failed,
    )
