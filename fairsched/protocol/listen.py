# SPDX-License-Identifier: Apache-2.0
"""The daemon's listening socket: the lock that makes one daemon, who may open it, and who is at the other end."""

from __future__ import annotations

import fcntl
import grp
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from fairsched.errors import ControlError

_MAX_PATH_BYTES = 107
"""sun_path of sockaddr_un, less its NUL."""
_SO_PEERGROUPS = 59
"""asm-generic/socket.h, Linux 4.13; not in Python's socket module."""
_MAX_GROUPS_BYTES = 1024
"""256 groups: the longest answer Python's getsockopt takes."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int
    gids: frozenset[int]
    """Primary and supplementary."""


def peer_of(sock: socket.socket) -> Peer:
    """Who is at the other end of a connected unix socket. Raises OSError."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    try:
        # asked of the socket, not of /proc/PID: the peer may have exited and its pid be reused
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS_BYTES)
        groups = struct.unpack(f"{len(raw) // 4}I", raw)
    except OSError:
        groups = ()  # more groups than fit, or a kernel without it: the primary one alone counts
    return Peer(pid, uid, frozenset({gid, *groups}))


def gid_of(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def lock(path: Path) -> int:
    """Hold `path`.lock for as long as the daemon lives; the kernel lets go of it when we die.

    A POSIX lock, not flock(2): a forked child (the guardian) does not inherit it, so it cannot keep
    the next daemon from starting.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ControlError(
            f"{path}: the path of a unix socket has at most {_MAX_PATH_BYTES} bytes",
            remedy="set control.socket to a shorter one",
        )
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ControlError(f"{path}: {error.strerror}", remedy="run as root, or set run_dir") from None
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise ControlError(
            f"another fairsched is running (pid {pid or 'unknown'})", remedy="stop it first"
        ) from None
    os.truncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def listen(path: Path, gid: int | None, backlog: int) -> socket.socket:
    """A listening socket at `path`; what a dead daemon left there is replaced."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ControlError(f"{path} is not a socket", remedy="move that file away, or set control.socket")
        path.unlink()  # stale: the lock is ours, so nobody listens on it
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)  # never open to others, not even before the chown
    try:
        listener.bind(str(path))
        if gid is not None and os.geteuid() == 0:
            os.chown(path, 0, gid)
            os.chmod(path, 0o660)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise ControlError(f"{path}: {error.strerror}", remedy="set control.socket to another path") from None
    finally:
        os.umask(before)
    return listener
