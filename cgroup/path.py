# SPDX-License-Identifier: Apache-2.0
"""Finds where cgroups are mounted, and names one cgroup so that it is not mistaken for another.

A path is not an identity: between two looks a cgroup can be removed and another made under the
same name. A :class:`CgroupRef` therefore keeps the directory open (O_PATH) and reaches every kernel
file through that descriptor (openat), and its ``id`` is the inode number of the directory, which on
cgroup v2 is the value ``bpf_get_current_cgroup_id()`` returns. Paths are for display.

Paths are written as in /proc/<pid>/cgroup: ``/gpu.slice/chat``, with ``/`` for the root.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from fairsched.errors import CgroupGone, HostUnsupported, KernelRefused

MOUNTINFO = "/proc/self/mountinfo"
CGROUP_PROCS = "cgroup.procs"
SYSTEMD = "name=systemd"
"""The v1 hierarchy in which systemd and the runtimes place processes where they use no cgroup v2."""

_INIT = "/proc/1/cgroup"
_READ_SIZE = 65536
_NO_CONTROLLERS = frozenset(("rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode"))
"""Options of a v1 mount that are not controllers."""


@dataclass(frozen=True)
class Mount:
    """One cgroup mount. ``root`` is the part of the hierarchy it shows, ``/`` unless it is a bind mount."""

    path: str
    root: str = "/"
    is_hybrid: bool = False
    """v1 controllers are mounted as well, so most controllers are missing from cgroup v2."""
    v1: str = ""
    """The controller or name of a v1 hierarchy, as in /proc/<pid>/cgroup; empty: cgroup v2."""

    def absolute(self, path: str) -> str:
        """The file system path of a cgroup, for display and for opening it once."""
        parts = _components(path)
        return "/".join([self.path.rstrip("/"), *parts]) if parts else self.path

    def relative(self, hierarchy_path: str) -> str | None:
        """A path of /proc/<pid>/cgroup as seen under this mount; None when it lies outside of it."""
        if hierarchy_path.startswith("/.."):
            return None  # outside of the cgroup namespace of the reader
        if self.root == "/":
            return hierarchy_path
        if hierarchy_path == self.root:
            return "/"
        return hierarchy_path[len(self.root) :] if hierarchy_path.startswith(self.root + "/") else None


def find_mount(mountinfo: str = MOUNTINFO, init: str = _INIT) -> Mount:
    """The cgroup2 mount of this host, wherever it is (unified, hybrid or elsewhere).

    Source: proc_pid_mountinfo(5). Of several the one that shows the whole hierarchy wins, then the
    first mounted. Where cgroup v2 is not mounted, or not in use, systemd's own hierarchy of v1 tells processes
    apart all the same. Raises HostUnsupported with a remedy when there is none of these.
    """
    mounts = list(_read_mounts(mountinfo))
    found = [(path, root) for kind, _, path, root in mounts if kind == "cgroup2"]
    # name=systemd and friends carry no controller; they exist on no unified host either
    has_v1 = any(kind == "cgroup" for kind, _, _, _ in mounts)
    systemd = find_v1_mount(SYSTEMD, mountinfo)
    if systemd is not None and (not found or _is_only_in_v1(init)):
        return systemd
    if not found:
        raise HostUnsupported(
            "no cgroup v2 hierarchy is mounted on this host, nor systemd's of v1",
            remedy="mount one (mount -t cgroup2 none /sys/fs/cgroup/unified) or boot with "
            "systemd.unified_cgroup_hierarchy=1",
        )
    path, root = min(found, key=lambda mount: mount[1] != "/")
    return Mount(path=path, root=root, is_hybrid=has_v1)


def find_v1_mount(name: str, mountinfo: str = MOUNTINFO) -> Mount | None:
    """The mount of a v1 hierarchy by its controller or ``name=...``; None where there is none.

    None, too, where several controllers share it: to make groups there would be to schedule more than the freezer.
    """
    mounts = list(_read_mounts(mountinfo))
    own = [(path, root) for kind, options, path, root in mounts if kind == "cgroup" and name in options]
    if not own or any(name in options and len(options) > 1 for kind, options, _, _ in mounts):
        return None
    path, root = min(own, key=lambda mount: mount[1] != "/")
    return Mount(path=path, root=root, is_hybrid=True, v1=name)


def find_v1_roots(mountinfo: str = MOUNTINFO) -> list[Mount]:
    """The v1 hierarchies that are mounted from their root on, each once; empty where there is cgroup v2 alone."""
    found = {
        names: Mount(path, is_hybrid=True, v1=",".join(sorted(names)))
        for kind, names, path, root in _read_mounts(mountinfo)
        if kind == "cgroup" and root == "/"
    }
    return list(found.values())


def _is_only_in_v1(init: str) -> bool:
    """systemd has placed itself in its v1 hierarchy and not in cgroup v2, and so it does with everybody."""
    try:
        with open(init, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            paths = {names: path.rstrip("\n") for _, names, path in (line.split(":", 2) for line in lines)}
    except OSError:
        return False
    return paths.get("") == "/" and paths.get(SYSTEMD, "/") != "/"


def _read_mounts(mountinfo: str) -> Iterator[tuple[str, frozenset[str], str, str]]:
    """Of each cgroup mount: cgroup or cgroup2, the controllers and name, mount point and root."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            before, separator, after = line.partition(" - ")
            fields, kind = before.split(" "), after.split()
            if separator and len(fields) >= 5 and kind and kind[0] in ("cgroup", "cgroup2"):
                options = frozenset(kind[2].split(",") if len(kind) > 2 else ()) - _NO_CONTROLLERS
                names = frozenset(one for one in options if not one.startswith("release_agent="))
                yield kind[0], names, _unescape(fields[4]), _unescape(fields[3])


class CgroupRef:
    """One cgroup, held by descriptor: it cannot be redirected, only vanish.

    Use it as a context manager or call :meth:`close`; an open reference does not keep the cgroup
    from being removed. Every method raises CgroupGone once the cgroup is removed and KernelRefused
    for any other refusal of the kernel.
    """

    __slots__ = ("_fd", "id", "path")

    def __init__(self, fd: int, path: str) -> None:
        """Take over ``fd``, an open directory. Most callers want :meth:`open`."""
        self._fd = fd
        self.path = path
        self.id: int = os.fstat(fd).st_ino

    @classmethod
    def open(cls, mount: Mount, path: str) -> CgroupRef:
        """Open the cgroup at ``path`` (as in /proc/<pid>/cgroup) now; later renames do not matter."""
        absolute = mount.absolute(path)
        try:
            fd = os.open(absolute, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                raise CgroupGone(path) from error
            raise KernelRefused(absolute, error.errno or 0, "cannot open the cgroup") from error
        return cls(fd, "/" + "/".join(_components(path)))

    def fileno(self) -> int:
        return self._fd

    def copy(self) -> CgroupRef:
        """A reference of its own, for another thread: this one may be closed, and its number be another's."""
        try:
            return CgroupRef(os.dup(self._fd), self.path)
        except OSError as error:
            raise self.explain(error, ".", "cannot copy the descriptor") from error

    def close(self) -> None:
        """Give the descriptor back; harmless when called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> CgroupRef:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        # __init__ may have failed before _fd was set, and at exit os may be gone already
        if getattr(self, "_fd", -1) >= 0 and os is not None:
            self.close()

    def __repr__(self) -> str:
        return f"CgroupRef({self.path!r}, id={self.id})"

    def open_file(self, name: str, flags: int) -> int:
        """A descriptor of a kernel file of this cgroup; the caller closes it."""
        try:
            return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as error:
            raise self.explain(error, name, "cannot open") from error

    def read(self, name: str) -> str:
        """The whole text of a kernel file."""
        fd = self.open_file(name, os.O_RDONLY)
        try:
            chunks = []
            while chunk := os.read(fd, _READ_SIZE):
                chunks.append(chunk)
        except OSError as error:
            raise self.explain(error, name, "cannot read") from error
        finally:
            os.close(fd)
        return b"".join(chunks).decode()

    def write(self, name: str, value: str) -> None:
        """Write a kernel file in one write(2)."""
        fd = self.open_file(name, os.O_WRONLY)
        try:
            os.write(fd, value.encode())
        except OSError as error:
            raise self.explain(error, name, f"cannot write {value!r}") from error
        finally:
            os.close(fd)

    def is_alive(self) -> bool:
        """Whether the cgroup still exists (not whether it has processes)."""
        try:
            os.stat(CGROUP_PROCS, dir_fd=self._fd)
        except OSError:
            return False
        return True

    def explain(self, error: OSError, name: str, what: str) -> CgroupGone | KernelRefused:
        """The error to raise for an OSError on file ``name``: gone, or refused.

        A removed cgroup answers ENODEV on open files and ENOENT on new opens; ENOENT alone may also
        be a file this kernel does not have (cgroup.freeze came with Linux 5.2; the root has none).
        """
        code = error.errno or 0
        if code == errno.ENODEV or (code == errno.ENOENT and not self.is_alive()):
            return CgroupGone(self.path)
        return KernelRefused(f"{self.path}/{name}".replace("//", "/"), code, what)


def _components(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != "."]
    if ".." in parts:
        raise ValueError(f"{path}: a cgroup path may not contain '..'")
    return parts


def _unescape(field: str) -> str:
    """mountinfo writes blank, tab, newline and backslash as three octal digits."""
    for octal in ("040", "011", "012"):
        field = field.replace("\\" + octal, chr(int(octal, 8)))
    return field.replace("\\134", "\\")
