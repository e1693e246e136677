# SPDX-License-Identifier: Apache-2.0
"""Reads one metrics page of a tenant over HTTP, within bounds that the page cannot move.

Problem. The page belongs to whom we judge. It may be slow, endless, huge, compressed a thousandfold, or send us
elsewhere; and the process that reads it is root's.

Approach. http.client on a socket whose every read is bounded by what is left of one deadline and one number of bytes,
the headers included, so that a byte a second is no way around a timeout. Lines are looked at as they come and
dropped, so a page costs memory only for what is kept. No redirects, no compression, no proxy, no cookies, no user. An
error says what is wrong in our words and never what the page said.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from fairsched.companion.slis.page import PageError

MAX_BYTES = 8 * 1024 * 1024
"""Headers included. A page of vLLM with all its histograms has some hundred kilobytes."""
MAX_LINES = 100_000
MAX_ANY_LINE_BYTES = 64 * 1024

_ACCEPT = "text/plain;version=0.0.4"
"""Not OpenMetrics: where both are named, prometheus_client takes that one, in which it writes vllm:x as vllm_x."""
_OK = 200
_REDIRECTS = range(300, 400)


@dataclass(frozen=True)
class Head:
    """What is known of a page besides its lines."""

    t_ns: int
    """CLOCK_MONOTONIC when it began to answer: about when it looked at its counters."""
    content_type: str


class _Raw(io.RawIOBase):
    """A socket to read from, until the deadline or so many bytes."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._deadline_s = deadline_s
        self._left = MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise PageError(f"it has more than {MAX_BYTES // 1024 // 1024} MiB")
        self._sock.settimeout(_left(self._deadline_s))
        count = self._sock.recv_into(buffer)
        self._left -= count
        return count


class _Wire:
    """What http.client takes for a socket. Closing it leaves the socket to whoever opened it."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._deadline_s = deadline_s

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._deadline_s))
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self._sock, self._deadline_s))

    def close(self) -> None:
        pass


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


@functools.cache
def _tls() -> ssl.SSLContext:
    """The system's certificates; loading them takes tens of milliseconds."""
    return ssl.create_default_context()


def fetch(url: str, timeout_s: float, feed: Callable[[bytes], None]) -> Head:
    """Hand every line of the page to ``feed``. Raises PageError, also what ``feed`` raises.

    Resolving a name is not under the deadline: the resolver has its own.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        sock = _connect(url, deadline_s)
        try:
            return _read(url, _Wire(sock, deadline_s), feed)
        finally:
            sock.close()
    except TimeoutError:
        raise PageError(f"no answer within {timeout_s:g} s") from None
    except ssl.SSLError as error:
        raise PageError(f"TLS failed: {error.reason or type(error).__name__}") from None
    except http.client.IncompleteRead:
        raise PageError("it breaks off") from None
    except http.client.HTTPException as error:
        raise PageError(f"the answer is not HTTP ({type(error).__name__})") from None
    except (OSError, UnicodeError) as error:
        raise PageError(getattr(error, "strerror", None) or type(error).__name__) from None


def _connect(url: str, deadline_s: float) -> socket.socket:
    """The first address of the host that answers."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host = parts.hostname or ""
    addresses = socket.getaddrinfo(host, parts.port or (443 if is_tls else 80), type=socket.SOCK_STREAM)
    error: OSError = OSError("the host has no address")
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.settimeout(_left(deadline_s))
            sock.connect(address)
            sock.settimeout(_left(deadline_s))
            return _tls().wrap_socket(sock, server_hostname=host) if is_tls else sock
        except OSError as failed:
            sock.close()
            error = failed
    raise error


def _read(url: str, wire: _Wire, feed: Callable[[bytes], None]) -> Head:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("page")  # it connects to nothing: the socket is there
    connection.sock = cast(Any, wire)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.netloc, "Accept": _ACCEPT, "Accept-Encoding": "identity", "Connection": "close"}
    connection.request("GET", target, headers=headers)
    with connection.getresponse() as response:
        head = Head(time.monotonic_ns(), response.getheader("Content-Type", ""))
        if response.status in _REDIRECTS:
            raise PageError(
                f"it answers {response.status}: redirects are not followed, name the address itself"
            )
        if response.status != _OK:
            raise PageError(f"it answers {response.status}")
        if response.getheader("Content-Encoding", "identity").strip().lower() != "identity":
            raise PageError("it is compressed, which was not asked for")
        _feed_all(response, feed)
    return head


def _feed_all(response: http.client.HTTPResponse, feed: Callable[[bytes], None]) -> None:
    # Not its own readline: that takes a broken chunk for the end of the page.
    reader, line = io.BufferedReader(cast(Any, response)), b"\n"
    for _ in range(MAX_LINES):
        latest = reader.readline(MAX_ANY_LINE_BYTES)
        if not latest:
            break
        line = latest
        if len(line) >= MAX_ANY_LINE_BYTES:
            raise PageError(f"it has a line of more than {MAX_ANY_LINE_BYTES // 1024} KiB")
        feed(line)
    else:
        raise PageError(f"it has more than {MAX_LINES} lines")
    # http.client does not mind when less comes than was promised; a number cut short is another number.
    if response.length or not line.endswith(b"\n"):
        raise PageError("it breaks off")
