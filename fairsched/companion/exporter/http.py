# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for scrapes that cannot be worn out.

Problem: the library's server has a thread for each connection, no limit to them, and waits for ever. A client that
sends a byte now and then, or takes a byte now and then, costs a thread; a few hundred cost the process.

Approach: one thread with an asyncio loop. A connection is a task with a place, and there are ``ClientLimits``
places. Every phase has an absolute end (handshake, request, answer, pause between requests): a byte now and then is no
progress. When all places are taken, the one that has been in its phase for longest loses it, if that is longer than
``grace_s``; until then newcomers wait in the kernel's queue. So whoever is quick is served, however many are slow.

Requests are GET and HEAD without a body; the path and a few headers are all that is read of one. HTTP/1.1 keeps the
connection, HTTP/1.0 does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

logger = logging.getLogger(__name__)

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.([01])")
_PIECE_BYTES = 65536
_JOIN_S = 5.0
_NO_FD_WAIT_S = 0.1


@dataclass(frozen=True)
class ClientLimits:
    """What a client may take."""

    connections: int = 128
    request_bytes: int = 16384
    handshake_s: float = 5.0
    request_s: float = 5.0
    """From its first byte to its last; of a new connection, from its beginning."""
    answer_s: float = 10.0
    """To take the whole answer, once that is made."""
    idle_s: float = 150.0
    """Between two requests; longer than the usual interval of a Prometheus."""
    grace_s: float = 0.5
    """No connection loses its place before."""


@dataclass(frozen=True)
class Request:
    """The parts of an HTTP request that count."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By lower-case name; of several of one name, joined by commas."""


@dataclass(frozen=True)
class Answer:
    """Status, headers (Content-Length is added) and body."""

    status: HTTPStatus
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Handler = Callable[[Request], Awaitable[Answer]]


class _BadRequest(Exception):
    """Has the status to answer with."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


@dataclass(eq=False)
class _Place:
    """One connection."""

    phase_s: float
    """When its present phase began."""
    task: asyncio.Task[None] | None = None
    is_evicted: bool = False
    is_making: bool = False
    """Its answer is being made: it waits for us, and keeps its place."""


def parse_request(head: bytes) -> tuple[Request, bool]:
    """A request up to and with its empty line, and whether the connection may be kept. Raises _BadRequest."""
    first, *lines = head[:-4].split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise _BadRequest(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise _BadRequest(HTTPStatus.BAD_REQUEST)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    method, target, minor = found.group(1).decode(), found.group(2).decode("latin-1"), found.group(3)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    wish = headers.get("connection", "").lower()
    may_stay = minor == b"1" and "close" not in wish and not has_body
    return Request(method, target.partition("?")[0], headers), may_stay


class Server:
    """Serves from the moment it is made until :meth:`close`. Raises OSError when the address cannot be had.

    ``tls`` is asked for at each connection: certificates may be others by then.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        limits: ClientLimits | None = None,
    ) -> None:
        self.limits = limits or ClientLimits()
        self.answered: Counter[str] = Counter()
        """By HTTP status."""
        self.refused: Counter[str] = Counter()
        """Connections that ended without the answer they wanted: too_many, too_slow, too_long, tls, gone."""
        self._handler, self._tls = handler, tls
        self._listener = _listen(host, port)
        self._places: set[_Place] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="exporter", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """On which it listens."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """End every connection and give the port back. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_JOIN_S)
        self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("exporter: the server ended")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        accepting = self._loop.create_task(self._accept())
        await self._stopping.wait()
        tasks = [place.task for place in self._places if place.task is not None]
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    # ---- places ----

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:  # EMFILE and the like
                logger.warning("exporter: accept: %s", error)
                await asyncio.sleep(_NO_FD_WAIT_S)
                continue
            while len(self._places) >= self.limits.connections and not self._evict():
                await asyncio.sleep(self.limits.grace_s / 20)
            place = _Place(time.monotonic())
            self._places.add(place)
            place.task = self._loop.create_task(self._connection(sock, place))

    def _evict(self) -> bool:
        """Take the place of the slowest; False while all are quick enough."""
        waiting = [place for place in self._places if not place.is_making and not place.is_evicted]
        slowest = min(waiting, key=lambda place: place.phase_s, default=None)
        if slowest is None or time.monotonic() - slowest.phase_s < self.limits.grace_s:
            return False
        self.refused["too_many"] += 1
        slowest.is_evicted = True
        self._places.discard(slowest)
        if slowest.task is not None:
            slowest.task.cancel()
        return True

    async def _connection(self, sock: socket.socket, place: _Place) -> None:
        writer: asyncio.StreamWriter | None = None
        tls = self._tls()
        try:
            reader = asyncio.StreamReader(limit=self.limits.request_bytes, loop=self._loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=tls,
                ssl_handshake_timeout=self.limits.handshake_s if tls else None,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            await self._converse(reader, writer, place)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), self.limits.answer_s)
        except asyncio.CancelledError:
            if not place.is_evicted:
                raise
        except ssl.SSLError:
            self.refused["tls"] += 1
        except asyncio.TimeoutError:  # it does not even take the end
            self.refused["too_slow"] += 1
        except (OSError, EOFError):
            self.refused["gone" if writer is not None or tls is None else "tls"] += 1
        except Exception:
            logger.exception("exporter: a connection failed")
        finally:
            self._places.discard(place)
            if writer is not None:
                # Whoever was to have all of it has it by now. Python before 3.12 cannot abort TLS that has ended.
                with contextlib.suppress(AttributeError):
                    writer.transport.abort()
            else:
                sock.close()

    # ---- requests ----

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: _Place
    ) -> None:
        limits, is_first, stays = self.limits, True, True
        while stays:
            place.phase_s = time.monotonic()
            try:
                first = await asyncio.wait_for(
                    reader.read(1), limits.request_s if is_first else limits.idle_s
                )
                if not first:
                    return
                place.phase_s = time.monotonic()
                rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limits.request_s)
                request, stays = parse_request(first + rest)
            except asyncio.TimeoutError:
                self.refused["too_slow"] += 1
                return
            except asyncio.LimitOverrunError:
                self.refused["too_long"] += 1
                await self._send(writer, place, Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), None)
                return
            except _BadRequest as error:
                await self._send(writer, place, Answer(error.status), None)
                return
            answer = await self._answer(request, place)
            is_sent = await self._send(writer, place, answer, request, stays=stays)
            stays, is_first = stays and is_sent, False

    async def _answer(self, request: Request, place: _Place) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        place.is_making = True
        try:
            return await self._handler(request)
        except Exception:
            logger.exception("exporter: a page could not be made")
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            place.is_making, place.phase_s = False, time.monotonic()

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        place: _Place,
        answer: Answer,
        request: Request | None,
        *,
        stays: bool = False,
    ) -> bool:
        """Whether all of it was taken."""
        status, body = answer.status, answer.body
        headers = dict(answer.headers)
        if status >= HTTPStatus.BAD_REQUEST and not body:
            headers["Content-Type"] = "text/plain; charset=utf-8"
            body = f"{status.value} {status.phrase}\n".encode()
        headers |= {"Content-Length": str(len(body)), "Connection": "keep-alive" if stays else "close"}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        is_wanted = request is None or request.method != "HEAD"
        try:
            await asyncio.wait_for(_send_all(writer, body if is_wanted else b""), self.limits.answer_s)
        except asyncio.TimeoutError:
            self.refused["too_slow"] += 1
            return False
        self.answered[str(status.value)] += 1
        return True


async def _send_all(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Until the kernel has all of it: ``drain`` alone is content with a buffer that is not too full.

    A piece at a time: what a slow client does not take would be a copy of the page for each of them.
    """
    writer.transport.set_write_buffer_limits(0)
    for begin in range(0, len(body), _PIECE_BYTES):
        writer.write(body[begin : begin + _PIECE_BYTES])
        await writer.drain()
    await writer.drain()


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
        listener.setblocking(False)
    except BaseException:
        with contextlib.suppress(OSError):
            listener.close()
        raise
    return listener
