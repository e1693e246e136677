# SPDX-License-Identifier: Apache-2.0
"""Finds which MPS server a client is connected to, wherever that one's pipe directory is.

A client of MPS connects to its server by a UNIX domain socket (NVIDIA's MPS guide, "Client-Server Connection"). /proc
tells which sockets a process has, and the kernel the other end of each in our network namespace (sock_diag(7)). An
accepted socket is in the namespace of who connected, so that of a client elsewhere is not among these; nor may the
daemon enter other namespaces. But /proc/PID/net/unix lists the sockets there: who shares a namespace with an accepted
socket of a server counts as its client. No path is looked at: names prove nothing.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Collection, Iterator

MOST_DESCRIPTORS = 4096
"""Of one process. An MPS server has 60 clients at most."""
_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _ALL_STATES, _SHOW_PEER = 20, 0x301, 0xFFFFFFFF, 4
_DONE, _ERROR, _PEER = 3, 2, 2
_HEADER, _REQUEST, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), struct.Struct("=HH")
_UNIX_DIAG_BYTES, _INODE_AT = 16, 4
_BUFFER_BYTES = 65536
_MOST_BYTES = 1 << 20
"""Of a list of sockets: some ten thousand."""


def connections(clients: Collection[int], servers: Collection[int]) -> dict[int, int] | None:
    """The server of each client (pid), without those of which none is seen; None: sockets tell nothing."""
    try:
        ends = dict(_peers())
    except OSError:  # a kernel without unix_diag
        return None
    accepted = {one: server for server in servers for one in _sockets(server)}
    server_of = {ends[one]: server for one, server in accepted.items() if one in ends}
    found: dict[int, int] = {}
    own = _namespace("self")
    for client in clients if accepted else ():
        table = server_of if _namespace(client) == own else accepted
        inodes = _sockets(client) if table is server_of else _sockets_beside(client)
        met = next((table[one] for one in inodes if one in table), None)
        if met is not None:
            found[client] = met
    return found


def _namespace(pid: int | str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None  # it has ended


def _sockets_beside(pid: int) -> Iterator[int]:
    """Inodes of the UNIX sockets in the network namespace of a process."""
    try:
        with open(f"/proc/{pid}/net/unix", "rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return
    for row in text[: text.rfind(b"\n")].splitlines()[1:]:
        yield int(row.split(None, 7)[6])


def _sockets(pid: int) -> Iterator[int]:
    """Inodes."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in itertools.islice(names, MOST_DESCRIPTORS):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if link.startswith("socket:["):
            yield int(link[8:-1])


def _peers() -> Iterator[tuple[int, int]]:
    """(inode, inode of the other end) of UNIX sockets. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:  # NETLINK_SOCK_DIAG
        ask = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW_PEER, 0, 0)
        size = _HEADER.size + len(ask)
        diag.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask)
        while True:
            data = diag.recv(_BUFFER_BYTES)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return
                if kind == _ERROR or length < _HEADER.size:
                    raise OSError("sock_diag refuses")
                yield from _peer(data[at + _HEADER.size : at + length])
                at += (length + 3) & ~3


def _peer(message: bytes) -> Iterator[tuple[int, int]]:
    at = _UNIX_DIAG_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _PEER:
            yield (
                struct.unpack_from("=I", message, _INODE_AT)[0],
                struct.unpack_from("=I", message, at + 4)[0],
            )
        at += max(4, (length + 3) & ~3)
