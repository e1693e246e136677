# SPDX-License-Identifier: Apache-2.0
"""HTTPS with one deadline for the whole call.

Problem: the timeouts of the standard library are for each read, so a server that sends a byte of a header now and then
keeps the caller for as long as it likes.

Approach: the standard library's connection, with a reader of its own for answers that gives each read the time that
is left.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast


class TimedConnection(http.client.HTTPSConnection):
    """One request over HTTPS; the certificate may be for another name than the host's.

    `timeout` is for reaching one address of the host; `left_s` is the time left for the call, and raises TimeoutError
    when there is none.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float,
        left_s: Callable[[], float],
        context: ssl.SSLContext,
        server_name: str | None,
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._connect_s = timeout
        self._left_s = left_s
        self._tls = context
        self._server_name = server_name or host
        self.response_class = cast(
            type[http.client.HTTPResponse], functools.partial(_Response, left_s=left_s)
        )

    def connect(self) -> None:
        plain = self._reach()
        try:
            plain.settimeout(min(self._connect_s, self._left_s()))
            self.sock = self._tls.wrap_socket(plain, server_hostname=self._server_name)
            self.sock.settimeout(self._left_s())  # for the request, which is sent next
        except BaseException:
            plain.close()
            raise

    def _reach(self) -> socket.socket:
        """Connected to the first address of the host that answers; the deadline is for all of them together."""
        error: OSError = OSError(f"{self.host} has no address")
        for *_, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            try:
                where = (str(address[0]), self.port)
                return socket.create_connection(where, min(self._connect_s, self._left_s()))
            except OSError as caught:
                error = caught
        raise error


class _Response(http.client.HTTPResponse):
    """HTTPResponse that may not be read longer than `left_s` allows, headers and body together."""

    def __init__(self, sock: socket.socket, *args: Any, left_s: Callable[[], float], **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedReader(sock, left_s))


class _TimedReader(io.RawIOBase):
    """What comes from a socket; each read waits at most as long as there is time left."""

    def __init__(self, sock: socket.socket, left_s: Callable[[], float]) -> None:
        super().__init__()
        self._sock = sock
        self._left_s = left_s
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open when http.client closes it early

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
