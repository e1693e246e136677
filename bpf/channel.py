# SPDX-License-Identifier: Apache-2.0
"""Sends and takes JSON lines between the daemon and the attacher, without waiting for the other end.

Problem: where each end sends while its buffer is full, and reads only when it has sent, two processes can wait for each
other for ever.

Approach: no end ever waits. The daemon has one request under way at a time (attachments.py), so that a message always
finds room; one that does not is an error of whoever does not read.
"""

from __future__ import annotations

import json
import socket
from typing import Any

_ROOM_BYTES = 1 << 18
"""Of the largest message, with two paths of 4,096 bytes escaped as JSON and the names of 512 functions, and more."""


class Channel:
    """One end; it owns the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        self._taken = b""

    def fileno(self) -> int:
        """Readable when :meth:`take` has something."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ConnectionError where the other end is gone, or does not read."""
        data = json.dumps(message).encode() + b"\n"
        try:
            is_sent = self._socket.send(data) == len(data)
        except BlockingIOError:
            is_sent = False
        if not is_sent:
            raise ConnectionError("the other end does not read")

    def take(self) -> list[dict[str, Any]]:
        """Messages that have come. Raises ConnectionError where the other end is gone and nothing is left of it."""
        is_open = True
        while is_open:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            self._taken += data
            is_open = bool(data)
        *lines, self._taken = self._taken.split(b"\n")
        if not lines and not is_open:
            raise ConnectionError("the other end is gone")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()
