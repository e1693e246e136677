# SPDX-License-Identifier: Apache-2.0
"""Finds the ports of other hosts that a process has a connection to, and who waits for connections of other hosts.

A connection counts when it is established, its other end is no loopback address, and nobody listens on its own port in
that network namespace: then somebody else has called here, and the port at the other end is that caller's own. What
cannot be read, or is too much to read, is None: no ports are known then, which is not the same as none.

A server is often two: a front that listens, and a worker with the GPU that talks to it over a socket of Unix. So who
has a listening ancestor in its cgroup serves as well, unless it listens on loopback itself: that is how the kernels of
notebooks, which are nobody's servers, talk to theirs.

Source: proc_pid_net(5) (tcp, tcp6: addresses in the byte order of the host, state 01 established, 0A listening, the
inode in the tenth field), proc_pid_fd(5) (``socket:[INODE]``).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

MOST_BYTES = 8 << 20
"""Of a table of connections."""
MOST_DESCRIPTORS = 8192
MOST_PORTS = 32
_ESTABLISHED, _LISTENING = "01", "0A"
_MAPPED = bytes(10) + b"\xff\xff"


@dataclass(frozen=True)
class _Table:
    """One network namespace, by the inodes of its sockets."""

    remote: dict[int, int]
    """Ports at the other end."""
    outer: frozenset[int]
    """Of those that listen for other hosts."""
    inner: frozenset[int]
    """Of those that listen on loopback alone."""


class Ports:
    """One look: each network namespace is read once. Make another for the next."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._tables: dict[int, _Table | None] = {}
        self._known: dict[int, frozenset[int] | None] = {}
        """Sockets by pid."""

    def of(self, pid: int) -> tuple[int, ...] | None:
        """Sorted, each once, at most 32; None = not known."""
        try:
            table = self._table(pid)
            if table is None or not table.remote:
                return None if table is None else ()
            sockets = self._sockets(pid)
        except OSError:
            return None
        if sockets is None:
            return None
        return tuple(sorted({table.remote[inode] for inode in sockets if inode in table.remote})[:MOST_PORTS])

    def is_serving(self, pid: int, ancestors: Iterable[int] = ()) -> bool | None:
        """``ancestors``: those in its cgroup, the nearest first. None = not known."""
        try:
            for one in (pid, *ancestors):
                table = self._table(one)
                sockets = None if table is None else self._sockets(one)
                if table is None or sockets is None:
                    return None
                if sockets & table.outer:
                    return True
                if sockets & table.inner and one == pid:
                    return False
        except OSError:
            return None
        return False

    def _table(self, pid: int) -> _Table | None:
        """Raises OSError."""
        namespace = os.stat(f"{self._proc}/{pid}/ns/net").st_ino
        if namespace not in self._tables:
            self._tables[namespace] = self._read(pid)
        return self._tables[namespace]

    def _read(self, pid: int) -> _Table | None:
        rows, listening = list[tuple[int, int, int]](), set[int]()
        outer, inner = set[int](), set[int]()
        for name in ("tcp", "tcp6"):
            try:
                with open(f"{self._proc}/{pid}/net/{name}", encoding="ascii") as file:
                    text = file.read(MOST_BYTES)
            except FileNotFoundError:
                continue  # a kernel without IPv6
            if len(text) >= MOST_BYTES:
                return None
            for line in text.splitlines()[1:]:
                fields = line.split()
                local, remote, state = fields[1], fields[2], fields[3]
                own_port = int(local.rpartition(":")[2], 16)
                if state == _LISTENING:
                    listening.add(own_port)
                    (inner if _is_loopback(local.rpartition(":")[0]) else outer).add(int(fields[9]))
                elif state == _ESTABLISHED and not _is_loopback(remote.rpartition(":")[0]):
                    rows.append((int(fields[9]), own_port, int(remote.rpartition(":")[2], 16)))
        remotes = {inode: remote for inode, own, remote in rows if own not in listening}
        return _Table(remotes, frozenset(outer), frozenset(inner))

    def _sockets(self, pid: int) -> frozenset[int] | None:
        """Inodes; None: too many descriptors. Raises OSError."""
        if pid in self._known:
            return self._known[pid]
        directory, found = f"{self._proc}/{pid}/fd", set[int]()
        names = os.listdir(directory)
        if len(names) > MOST_DESCRIPTORS:
            self._known[pid] = None
            return None
        for name in names:
            try:
                link = os.readlink(f"{directory}/{name}")
            except OSError:
                continue  # closed meanwhile
            if link.startswith("socket:["):
                found.add(int(link[8:-1]))
        self._known[pid] = frozenset(found)
        return self._known[pid]


def _is_loopback(address: str) -> bool:
    """Of the hexadecimal words of the kernel, each in the byte order of this host."""
    words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
    packed = b"".join(struct.pack("=I", word) for word in words)
    if len(packed) == 16:
        if packed[:12] != _MAPPED:
            return packed == bytes(15) + b"\x01"
        packed = packed[12:]
    return packed[0] == 127
