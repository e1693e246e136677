# SPDX-License-Identifier: Apache-2.0
"""Walks the cgroup tree: finds, makes and removes cgroups, lists and places processes.

A daemon looks at the whole tree about once a second, so a look must be cheap: directory entries
already carry the inode number (the cgroup id), and kernfs keeps a directory's link count at 2 + children,
so leaves are never listed. Where that count and the kernel's own of all descendants are one, no child has children:
thousands of them need not be asked one by one.

Everything here tolerates cgroups and processes that vanish between two steps: they are left out.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from fairsched.base.process import has_ended
from fairsched.cgroup.path import CGROUP_PROCS, CgroupRef, Mount
from fairsched.errors import CgroupGone, KernelRefused

_FILEID_KERNFS = 0xFE
_MANY = 16
"""Children of one cgroup: to ask the kernel for all its descendants costs what three questions about children do."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Handle(ctypes.Structure):
    """struct file_handle with eight bytes."""

    _fields_ = (("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("id", ctypes.c_uint64))


class Node(NamedTuple):
    """One cgroup in one look: its id and, for display, its path."""

    id: int
    path: str


def walk(
    mount: Mount, under: str = "/", most: Callable[[str], int | None] = lambda _path: None
) -> Iterator[Node]:
    """Each cgroup below ``under`` (itself not included), parents before children.

    ``most``: how many of the children of a cgroup, given by its path, are wanted; None = all.
    """
    pending = [(mount.absolute(under), "" if under == "/" else under)]
    while pending:
        absolute, path = pending.pop()
        for name, cgroup_id, has_children in itertools.islice(_children(absolute), most(path)):
            yield Node(cgroup_id, f"{path}/{name}")
            if has_children:
                pending.append((f"{absolute}/{name}", f"{path}/{name}"))


def path_of_id(mount: Mount, cgroup_id: int) -> str | None:
    """Where the cgroup with this id is, without a walk; None when it is gone or the kernel does not say.

    A file handle of a cgroup is its id (Linux 5.5). To open one needs CAP_DAC_READ_SEARCH.
    """
    handle = _Handle(8, _FILEID_KERNFS, cgroup_id)
    root = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = _libc.open_by_handle_at(root, ctypes.byref(handle), os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(root)
    if fd < 0:
        return None
    try:
        return os.readlink(f"/proc/self/fd/{fd}").removeprefix(mount.path.rstrip("/"))
    finally:
        os.close(fd)


def find_ids(mount: Mount, cgroup_ids: Collection[int]) -> dict[int, str]:
    """The paths of the cgroups with these ids; ids that no longer exist are absent."""
    wanted = set(cgroup_ids)
    found: dict[int, str] = {}
    if wanted:
        for node in walk(mount):
            if node.id in wanted:
                found[node.id] = node.path
                if len(found) == len(wanted):
                    break
    return found


def is_at(mount: Mount, path: str, cgroup_id: int) -> bool:
    """Whether this very cgroup is at ``path`` now."""
    return id_at(mount, path) == cgroup_id


def read_pids(ref: CgroupRef) -> list[int]:
    """The processes directly in the cgroup. Raises CgroupGone.

    A threaded cgroup has none of its own: the kernel answers EOPNOTSUPP and its threads are listed
    with the processes of its domain.
    """
    try:
        text = ref.read(CGROUP_PROCS)
    except KernelRefused as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise
    return [int(line) for line in text.split()]


def read_pids_at(mount: Mount, path: str) -> list[int]:
    """The processes directly in the cgroup that is at ``path`` now; [] when there is none."""
    try:
        with open(f"{mount.absolute(path)}/{CGROUP_PROCS}", "rb") as file:
            return [int(line) for line in file.read().split()]
    except OSError:
        return []


def read_pids_recursive(mount: Mount, path: str) -> list[int]:
    """The processes in the cgroup at ``path`` and in all its descendants; [] when it is gone."""
    pids: list[int] = []
    for one in (path, *(node.path for node in walk(mount, path))):
        try:
            with CgroupRef.open(mount, one) as ref:
                pids += read_pids(ref)
        except CgroupGone:
            continue
    return pids


def cgroup_path_of(pid: int | str, mount: Mount, proc: str = "/proc") -> str | None:
    """The path of a process under ``mount``; None when it is gone or lies outside of it.

    Source: the line of the hierarchy in /proc/<pid>/cgroup: ``0::`` of cgroup v2, else by controller or name. In a
    hierarchy of v1 a thread that has ended is in the root, also where it is the first one and others go on: ask those.
    """
    directory = f"{proc}/{pid}"
    if not mount.v1 or not has_ended(directory):
        return _path_in(directory, mount)
    try:
        threads = [f"{directory}/task/{tid}" for tid in os.listdir(f"{directory}/task")]
    except OSError:
        return None
    return next((_path_in(thread, mount) for thread in threads if not has_ended(thread)), None)


def _path_in(directory: str, mount: Mount) -> str | None:
    try:
        # No cgroup has \n in its name, but one may have \r: no end of a line.
        with open(f"{directory}/cgroup", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            for line in lines:
                number, names, path = line.split(":", 2)
                if mount.v1 in names.split(",") if mount.v1 else number == "0":
                    # an emptied and removed cgroup of a zombie is shown with this suffix
                    return mount.relative(path.rstrip("\n").removesuffix(" (deleted)"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None


def cgroup_id_of(pid: int, mount: Mount) -> int | None:
    """The cgroup a process is in; None when it is gone, or that cgroup is."""
    path = cgroup_path_of(pid, mount)
    return None if path is None else id_at(mount, path)


def id_at(mount: Mount, path: str) -> int | None:
    """The id of the cgroup that is at ``path`` now; None when there is none."""
    try:
        return os.stat(mount.absolute(path)).st_ino
    except OSError:
        return None


def innermost_known(cgroup_ids: Iterable[int], is_known: Callable[[int], object]) -> int | None:
    """Of cgroups inside each other, the innermost first: the first one that is known; where none is, the innermost.

    Who goes from one new cgroup to the next is in none that a look at all of them has found, and in its tenant's all
    the time.
    """
    innermost = None
    for cgroup_id in cgroup_ids:
        if is_known(cgroup_id):
            return cgroup_id
        if innermost is None:
            innermost = cgroup_id
    return innermost


def create(mount: Mount, path: str) -> CgroupRef:
    """The cgroup at ``path``, made with its missing ancestors (mode 0755). Raises KernelRefused."""
    absolute = mount.absolute(path)
    try:
        os.makedirs(absolute, mode=0o755, exist_ok=True)
    except OSError as error:
        raise KernelRefused(absolute, error.errno or 0, "cannot make the cgroup") from error
    return CgroupRef.open(mount, path)


def remove(mount: Mount, ref: CgroupRef) -> None:
    """Remove this very cgroup; nothing happens when it is gone or another has taken its path.

    Raises KernelRefused (EBUSY) while it has processes or children.
    """
    absolute = mount.absolute(ref.path)
    try:
        if os.stat(absolute).st_ino == ref.id:
            os.rmdir(absolute)
    except FileNotFoundError:
        return
    except OSError as error:
        raise KernelRefused(absolute, error.errno or 0, "cannot remove the cgroup") from error


def place(ref: CgroupRef, pid: int = 0) -> None:
    """Move a process, all its threads included, into the cgroup; 0 is the calling process.

    A process placed in a frozen cgroup freezes at once. Raises CgroupGone, KernelRefused (ESRCH:
    no such process; EBUSY: the cgroup distributes controllers to children and may own none).
    """
    ref.write(CGROUP_PROCS, str(pid))


def _children(absolute: str) -> Iterator[tuple[str, int, bool]]:
    """(name, cgroup id, whether it has children) of each child directory; nothing if it vanished."""
    try:
        with os.scandir(absolute) as entries:
            is_flat = _is_flat(absolute)
            # One at a time: somebody may have made 100,000.
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if is_flat:
                    yield entry.name, entry.inode(), False
                    continue
                try:
                    links = os.stat(f"{absolute}/{entry.name}").st_nlink
                except OSError:
                    continue
                # 2 = no children; 1 = a file system that does not count (then look)
                yield entry.name, entry.inode(), links != 2
    except OSError:
        return


def _is_flat(absolute: str) -> bool:
    """Whether a cgroup has many children and no grandchildren, as far as the kernel tells. Raises OSError."""
    children = os.stat(absolute).st_nlink - 2
    if children < _MANY:
        return False
    try:
        with open(f"{absolute}/cgroup.stat", "rb") as file:
            return file.read().startswith(b"nr_descendants %d\n" % children)
    except FileNotFoundError:  # none in the root before Linux 4.14, and in no other file system
        return False
