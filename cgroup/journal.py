# SPDX-License-Identifier: Apache-2.0
"""Keeps the journal of holds, which makes it safe to freeze somebody else's processes.

A frozen cgroup outlives its writer. So before a cgroup is frozen a small file says that we are about
to do it, and the file goes away only after the thaw was verified. Whoever comes later (the guardian,
``fairsched release``, the next daemon) thaws what the journal names and nothing else.

One file per hold, ``<cgroup id>.<since_ns>``, JSON. The time in the name makes it unique: somebody
who ends an old hold can never delete the file of a newer hold of the same cgroup. Files appear by
rename(2), so a reader sees a whole file or none. There is no fsync: the file must survive the death
of a process, for which the page cache is enough; after a crash of the kernel nothing is frozen.

An entry says which brake made the hold. One that does not hold the cgroup itself also names the processes or groups
that it is about to stop, and is written again before each further one: who is in that state but not on the list was
stopped by somebody else. What the freezer of cgroup v2 writes has neither, as before there were others.

A file that cannot be understood is never permission to thaw anything, and never keeps the others
from being thawed.
"""

from __future__ import annotations

import enum
import errno
import json
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairsched.base.process import ProcessId
from fairsched.cgroup.share_file import Written
from fairsched.errors import KernelRefused

DEFAULT_DIRECTORY = "/run/fairsched/holds"
VERSION = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"

_MAX_BYTES = 8 * 2**20
"""A path may have 4096 bytes, and JSON takes six characters for one that is no UTF-8; a process takes up to 20."""
_READ_SIZE = 65536
_TMP_SUFFIX = ".tmp"


class BrakeName(str, enum.Enum):
    """The mechanisms that hold cgroups."""

    FREEZER = "freezer"
    """cgroup.freeze of cgroup v2."""
    FREEZER_V1 = "freezer_v1"
    """freezer.state of cgroup v1."""
    SIGSTOP = "sigstop"
    """SIGSTOP to each process."""
    CGPU = "cgpu"
    """No hold: percentages in files of a vendor's module."""


class Group(NamedTuple):
    """A cgroup v1 freezer group of ours."""

    id: int
    """Inode number, which decides: v1 lets groups be renamed."""
    path: str


@dataclass(frozen=True)
class Entry:
    """One hold. Times are nanoseconds of CLOCK_MONOTONIC, meaningful within one boot only."""

    cgroup_id: int
    path: str
    """For display and as the first place to look; the id decides."""
    tenant: str
    reason: str
    since_ns: int
    deadline_ns: int
    daemon: ProcessId
    boot_id: str
    version: int = VERSION
    brake: BrakeName = BrakeName.FREEZER
    stopped: tuple[ProcessId, ...] = ()
    """The processes that SIGSTOP was or is about to be sent to by us."""
    groups: tuple[Group, ...] = ()
    """Our groups below ``v1_mount`` that were or are about to be frozen."""
    v1_mount: str = ""
    """Where the v1 freezer hierarchy is mounted."""
    files: tuple[Written, ...] = ()
    """What was or is about to be written."""

    @property
    def name(self) -> str:
        return f"{self.cgroup_id}.{self.since_ns}"

    def to_plain(self) -> dict[str, Any]:
        """As it stands in the file."""
        plain = {**vars(self), "daemon": vars(self.daemon)}
        del plain["brake"], plain["stopped"], plain["groups"], plain["v1_mount"], plain["files"]
        if self.brake is not BrakeName.FREEZER:
            plain["brake"] = self.brake.value
        if self.brake is BrakeName.SIGSTOP:
            plain["stopped"] = [(process.pid, process.start_ticks) for process in self.stopped]
        if self.brake is BrakeName.FREEZER_V1:
            plain |= {"groups": self.groups, "v1_mount": self.v1_mount}
        if self.brake is BrakeName.CGPU:
            plain["files"] = self.files
        return plain


@dataclass(frozen=True)
class Corrupt:
    """A file in the journal that does not say what a hold says."""

    name: str
    why: str

    @property
    def cgroup_id(self) -> int | None:
        """What the name claims. A hint for a person, not permission to thaw."""
        head = self.name.partition(".")[0]
        return int(head) if head.isascii() and head.isdigit() else None


class Journal:
    """The directory, held open. Reading needs no daemon; only one process may write (enforced elsewhere)."""

    def __init__(self, directory: str = DEFAULT_DIRECTORY) -> None:
        """Open the directory, making it (mode 0700) when it is missing. Raises KernelRefused."""
        self.directory = directory
        self._fd = self._open()

    def _open(self) -> int:
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            return os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise KernelRefused(
                self.directory, error.errno or 0, "cannot open the journal of holds", remedy="run as root"
            ) from error

    def reopen(self) -> None:
        """Make the directory again after somebody deleted it. Raises KernelRefused."""
        fd, self._fd = self._fd, self._open()
        os.close(fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def is_deleted(self) -> bool:
        """Whether somebody removed the directory under us; that it is empty then means nothing."""
        return os.fstat(self._fd).st_nlink == 0

    def write(self, entry: Entry) -> None:
        """Put a hold on record. When this returns, a reader sees it. Raises KernelRefused."""
        data = json.dumps(entry.to_plain(), separators=(",", ":")).encode()
        try:
            try:
                self._put(entry.name, data)
            except FileNotFoundError:  # only a deleted directory answers this
                self.reopen()
                self._put(entry.name, data)
        except OSError as error:
            self.remove(entry.name + _TMP_SUFFIX)
            raise KernelRefused(
                f"{self.directory}/{entry.name}",
                error.errno or 0,
                "cannot write the journal, so nothing is held",
                remedy=f"make {self.directory} writable",
            ) from error

    def _put(self, name: str, data: bytes) -> None:
        tmp = name + _TMP_SUFFIX
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        try:
            written = os.write(fd, data)
        finally:
            os.close(fd)
        if written != len(data):
            raise OSError(errno.ENOSPC, "short write")  # what a full file system answers next
        os.rename(tmp, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Take a hold off the record; harmless when somebody else did it already."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise KernelRefused(f"{self.directory}/{name}", error.errno or 0, "cannot remove") from error

    def has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd)
        except OSError:
            return False
        return True

    def names(self) -> list[str]:
        """The files in the journal, oldest hold of a cgroup first; half-written ones are not shown."""
        names = [name for name in os.listdir(self._fd) if not name.endswith(_TMP_SUFFIX)]
        return sorted(names, key=lambda name: (len(name), name))

    def load(self, name: str) -> Entry | Corrupt | None:
        """One file; None when it has gone."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Corrupt(name, os.strerror(error.errno or 0))
        try:
            data = _read(fd)
        except OSError as error:
            return Corrupt(name, os.strerror(error.errno or 0))
        finally:
            os.close(fd)
        return _parse(name, data)

    def entries(self) -> list[Entry | Corrupt]:
        """Everything on record."""
        loaded = (self.load(name) for name in self.names())
        return [entry for entry in loaded if entry is not None]


def _read(fd: int) -> bytes:
    data = bytearray()
    while len(data) < _MAX_BYTES and (chunk := os.read(fd, _READ_SIZE)):
        data += chunk
    return bytes(data)


def read_boot_id(path: str = BOOT_ID) -> str:
    """What tells this boot from every other."""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _parse(name: str, data: bytes) -> Entry | Corrupt:
    try:
        fields = json.loads(data)
        owner = fields.pop("daemon")
        fields["brake"] = BrakeName(fields.get("brake", BrakeName.FREEZER))
        fields["stopped"] = tuple(ProcessId(*process) for process in fields.get("stopped", ()))
        fields["groups"] = tuple(Group(*group) for group in fields.get("groups", ()))
        fields["files"] = tuple(Written(*file) for file in fields.get("files", ()))
        entry = Entry(**fields, daemon=ProcessId(**owner))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Corrupt(name, f"not a hold: {error}")
    numbers = (entry.cgroup_id, entry.since_ns, entry.deadline_ns, entry.version)
    texts = [text for file in entry.files for text in file] + [entry.tenant, entry.reason, entry.boot_id]
    paths = (
        [entry.path, entry.v1_mount] + [one.path for one in entry.groups] + [one.path for one in entry.files]
    )
    processes = (entry.daemon, *entry.stopped)
    ids = [number for process in processes for number in (process.pid, process.start_ticks)]
    ids += [group.id for group in entry.groups]
    if not all(type(number) is int for number in (*numbers, *ids)):
        return Corrupt(name, "a number is not a number")
    if not all(isinstance(text, str) for text in (*paths, *texts)):
        return Corrupt(name, "a text is not a text")
    if any(".." in path.split("/") for path in paths):
        return Corrupt(name, "a path climbs out of its tree")
    if entry.version != VERSION:
        return Corrupt(name, f"version {entry.version}, this fairsched writes {VERSION}")
    if entry.name != name:
        return Corrupt(name, f"the file says it is {entry.name}")
    return entry
