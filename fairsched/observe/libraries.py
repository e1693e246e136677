# SPDX-License-Identifier: Apache-2.0
"""Finds the libcuda files that processes use, has probes attached to each, and lets go of those that nobody uses.

Attaching is done by a process of its own (bpf/attacher.py), which can be killed: then :class:`ProbesLost` is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

from fairsched.base.printable import word
from fairsched.bpf.attachments import BUDGET, Attachments, FileId
from fairsched.bpf.gpu_time import GpuTimeProbe, Library
from fairsched.bpf.libcuda import LibraryFile, LibraryWatch, mapped_libraries, see_mapped
from fairsched.cgroup.path import Mount
from fairsched.cgroup.state import is_populated
from fairsched.cgroup.tree import cgroup_path_of
from fairsched.errors import FairschedError
from fairsched.model import NEVER_NS

_PF_EXITING = 0x4
"""In the flags of /proc/PID/stat."""

_KEEP_NS = 60_000_000_000
"""A file of the host's keeps its probes for so long after its last user: a tenant that starts anew finds them there."""
_ANSWER_NS = 30_000_000_000
"""The attacher answers within two seconds; on a busy machine, and before Linux 6.6, later."""
_NO_TENANT = ""
"""Is charged for what a process maps that is no tenant's any more."""

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

    def __init__(
        self, configured: Iterable[Path], probe: GpuTimeProbe | None, mount: Mount | None = None
    ) -> None:
        """``mount``: of the cgroups."""
        self._probe, self._mount = probe, mount
        self._watch = LibraryWatch(str(path) for path in configured)
        self._attachments = Attachments()
        self._homes: dict[FileId, str] = {}
        """The cgroup of whoever was last seen to map a file."""
        self._pids: frozenset[int] = frozenset()
        self._over: frozenset[str] = frozenset()

    def watch(self, pids: Mapping[int, str], now_ns: int) -> None:
        """Take in which processes there are now, and of which tenants."""
        self._watch.watch(pids, now_ns)
        gone, self._pids = self._pids - pids.keys(), frozenset(pids)
        self.forget(gone, now_ns)
        self._homes = {key: home for key, home in self._homes.items() if self._attachments.is_known(key)}

    def forget(self, pids: Set[int], now_ns: int) -> None:
        """Take in that processes are gone, and let go of files of containers that have ended with them."""
        self._attachments.forget(pids, now_ns)
        for item in list(self._attachments.unused()):
            is_over = not self._is_lived_in(self._homes.get(item.key))
            if is_over and (not item.is_lasting or now_ns - item.since_ns > _KEEP_NS):
                self._attachments.drop(item.key)
                self._homes.pop(item.key, None)

    def _is_lived_in(self, cgroup: str | None) -> bool:
        """Whether there are processes in a cgroup: who starts another in a container that lives on finds its probes."""
        return cgroup is not None and self._mount is not None and is_populated(self._mount, cgroup)

    def poll(self, now_ns: int) -> Iterator[int]:
        """Ask for probes on the files found since the call before; yields the processes that map them."""
        for file in self._watch.poll(now_ns):
            self._found(file, now_ns)
            if file.pid is not None:
                yield file.pid
        self._ask(now_ns)
        over = self._attachments.over_budget
        for tenant in over - self._over:
            logger.warning("libraries=refused tenant=%s beyond=%d", word(tenant), BUDGET)
        for tenant in self._over - over:
            logger.info("libraries=refused_no_more tenant=%s", word(tenant))
        self._over = over

    def take_attached(self, now_ns: int) -> None:
        """Take in which files have probes now, and log them. Raises ProbesLost."""
        try:
            answers = self._probe.take_attached() if self._probe is not None else []
        except (FairschedError, OSError) as error:
            raise ProbesLost(str(error)) from error
        for answer in answers:
            is_news = self._attachments.note(answer, now_ns)
            if is_news and isinstance(answer, Library):
                _report(answer)
        if self._attachments.waited_ns(now_ns) > _ANSWER_NS:
            raise ProbesLost(
                f"the process that holds the probes has not answered for {_ANSWER_NS / 1e9:.0f} s"
            )
        self._ask(now_ns)

    @property
    def over_budget(self) -> frozenset[str]:
        """Tenants that have more libcuda files than get probes."""
        return self._over

    @property
    def is_attaching(self) -> bool:
        """Some libcuda that was asked for has no probes yet."""
        return self._attachments.is_attaching

    @property
    def unprobed(self) -> int:
        """How many libcuda files have no probes because attaching failed: calls through them are in no account."""
        return self._attachments.unprobed

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
            self._found(file, now_ns)
            if self._attachments.is_unprobed(file):
                return NEVER_NS
            attached_ns = self._attachments.since_ns(file)
            since_ns = max(since_ns, now_ns if attached_ns is None else attached_ns)
        return since_ns

    def _found(self, file: LibraryFile, now_ns: int) -> None:
        if self._probe is None:
            return
        tenant = None if file.pid is None else self._watch.tenant_of(file.pid) or _NO_TENANT
        self._attachments.found(file, tenant, now_ns)
        key = (file.device, file.inode)
        if file.pid is not None and self._mount is not None and self._attachments.is_known(key):
            home = cgroup_path_of(file.pid, self._mount)
            if home is not None:
                self._homes[key] = home

    def _ask(self, now_ns: int) -> None:
        """Send the next request, unless one is under way. Raises ProbesLost."""
        request = self._attachments.request(now_ns) if self._probe is not None else None
        if request is None or self._probe is None:
            return
        try:
            if request.file is not None:
                self._probe.request_library(request.file.path, request.file.name, request.file.pid)
            elif request.drop is not None:
                self._probe.request_drop(*request.drop)
        except OSError as error:
            raise ProbesLost(f"the process that holds the probes is gone: {error}") from error


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
