# SPDX-License-Identifier: Apache-2.0
"""Serves the control socket: how ``fairsched status`` and its siblings talk to the daemon.

Problem: the daemon's loop must tick every 20 ms whatever clients do, and what they ask for decides who is paused.

Approach: one non-blocking unix stream socket and one epoll descriptor that the loop polls together with its own. A
client is a bounded buffer; every call of :meth:`ControlServer.handle_ready` does a bounded amount of work. Slow, silent
and greedy clients lose their connection, never the loop's time. An answer that waits for a disk is sent when it is
there; until then nothing more is read from that client.

Wire: one JSON object per line. Request ``{"v": 1, "request": "status", "args": {}}``, answer ``{"v": 1, "ok": true,
"result": ...}`` or ``{"v": 1, "ok": false, "error": {"message", "remedy", "exit_status"}}``. A connection may carry
several requests, answered in order.

Who may ask: root and members of the configured group, for reading and changing alike: whoever may see all tenants of a
node is its operator. The kernel vouches for the peer (SO_PEERCRED, SO_PEERGROUPS), beside the mode 0660 root:fairsched.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fairsched.base.later import Later
from fairsched.errors import ControlError, FairschedError
from fairsched.protocol.client import KEPT_S, MAX_ANSWER_BYTES, VERSION, encode_line
from fairsched.protocol.listen import Peer, gid_of, listen, lock, peer_of
from fairsched.protocol.status import to_plain

MAX_REQUEST_BYTES = 64 * 1024
MAX_CLIENTS = 32
MAX_REQUESTS_PER_CALL = 8
MAX_CALL_S = 0.005
"""Over all clients: a tick waits for so many handlers at most, and for one when they take that long."""
IDLE_S = 10.0
"""A client that neither finishes a request nor takes a whole answer for so long is dropped; one that waits for a disk
after KEPT_S."""

logger = logging.getLogger(__name__)


class ControlHandler(Protocol):
    """What the daemon can be asked. Answers are dataclasses or plain data (see status.to_plain).

    FairschedError becomes an error answer; any other exception is logged and answered as a fault of
    the daemon, and never reaches its loop. Every method must return within a few milliseconds; one whose
    answer takes longer returns a :class:`Later`.
    """

    def fileno(self) -> int:
        """Readable when :meth:`settle` has something to do."""

    def settle(self) -> None:
        """Answers that were not there yet may be afterwards."""

    def ping(self) -> Any:
        """``{"version": ..., "pid": ...}``, and how it is (protocol/health.py)."""

    def status(self) -> Any:
        """A status.StatusReport."""

    def explain(self, tenant: str) -> Any:
        """Sequence of status.DecisionRecord of the last minute, oldest first."""

    def decisions(self, since_ns: int) -> Any:
        """``{"decisions": [DecisionRecord], "events": [EventRecord], "is_gapless": bool}``: later, oldest first."""

    def processes(self) -> Any:
        """Sequence of process.ProcessStatus."""

    def tell(self, finding: Mapping[str, Any], by: Peer) -> Any:
        """What the companion found (``companion.part.Finding``)."""

    def tenant_list(self) -> Any:
        """``{"settings": [config.Setting of every tenant], "stale": [names], "kept": {name: {key: value}}}``."""

    def tenant_set(self, tenant: str, values: Mapping[str, Any], by: Peer) -> Any:
        """Change, persist, and return the changes as lines (``[str(config.Change)]``)."""

    def tenant_unset(self, tenant: str, keys: Sequence[str], by: Peer) -> Any:
        """Drop overrides (all of the tenant's when `keys` is empty); lines as above."""

    def config_show(self) -> Any:
        """``{"path": str | None, "yaml": config.render(...)}``."""

    def config_file(self) -> Any:
        """``{"yaml": ...}`` of the file alone, without what was set or came of pods."""

    def reload(self, by: Peer) -> Any:
        """Re-read the file; lines as above. A bad file raises ConfigError and changes nothing."""


def _text(args: Mapping[str, Any], key: str) -> str:
    value = args.get(key)
    if not isinstance(value, str) or not value:
        raise ControlError(f"the request lacks the text '{key}'")
    return value


def _number(args: Mapping[str, Any], key: str) -> int:
    value = args.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ControlError(f"the request lacks the number '{key}'")
    return value


def _keys(args: Mapping[str, Any]) -> Sequence[str]:
    keys = args.get("keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ControlError("'keys' must be a list of words")
    return keys


def _values(args: Mapping[str, Any], key: str = "values") -> Mapping[str, Any]:
    values = args.get(key)
    if not isinstance(values, dict):
        raise ControlError(f"'{key}' must be a mapping")
    return values


_Call = Callable[[ControlHandler, Mapping[str, Any], Peer], Any]
REQUESTS: Mapping[str, _Call] = {
    "ping": lambda handler, args, by: handler.ping(),
    "status": lambda handler, args, by: handler.status(),
    "explain": lambda handler, args, by: handler.explain(_text(args, "tenant")),
    "decisions": lambda handler, args, by: handler.decisions(_number(args, "since_ns")),
    "processes": lambda handler, args, by: handler.processes(),
    "tenant_list": lambda handler, args, by: handler.tenant_list(),
    "tenant_set": lambda handler, args, by: handler.tenant_set(_text(args, "tenant"), _values(args), by),
    "tenant_unset": lambda handler, args, by: handler.tenant_unset(_text(args, "tenant"), _keys(args), by),
    "config_show": lambda handler, args, by: handler.config_show(),
    "config_file": lambda handler, args, by: handler.config_file(),
    "reload": lambda handler, args, by: handler.reload(by),
    "tell": lambda handler, args, by: handler.tell(_values(args, "finding"), by),
}


@dataclass
class _Client:
    sock: socket.socket
    peer: Peer
    progress_s: float
    """When it last finished a request or took a whole answer; a byte now and then is no progress."""
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    owed: Later[Any] | None = None
    """The answer that it waits for."""
    is_closing: bool = False
    """Close once the outbox is empty."""


@dataclass
class ServerCounters:
    """What went wrong, for metrics (law 8)."""

    requests_total: int = 0
    refused_total: int = 0
    """Peers that may not ask, or came when all places were taken."""
    dropped_total: int = 0
    """Clients that were too slow, too silent or too greedy."""
    faults_total: int = 0
    """Requests whose handler raised something unexpected."""


class ControlServer:
    """The daemon's end. Single-threaded; poll :meth:`fileno` and call :meth:`handle_ready`."""

    def __init__(
        self,
        path: Path,
        handler: ControlHandler,
        *,
        group: str = "fairsched",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.counters = ServerCounters()
        self._handler = handler
        self._clock = clock
        self._gid = gid_of(group)
        self._clients: dict[int, _Client] = {}
        self._lock_fd = lock(path)
        try:
            self._listener = listen(path, self._gid, MAX_CLIENTS)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._inode = path.stat().st_ino
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(handler.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """One descriptor for everything: readable when :meth:`handle_ready` has work."""
        return self._epoll.fileno()

    def handle_ready(self) -> None:
        """Serve whoever is ready, without waiting. Call it when readable, and every tick or so (it
        also drops idle clients). Raises nothing on account of a client."""
        budget, until_s = MAX_REQUESTS_PER_CALL, self._clock() + MAX_CALL_S
        for fd, _ in self._epoll.poll(0, MAX_CLIENTS + 2):
            if fd == self._listener.fileno():
                self._accept()
            elif fd == self._handler.fileno():
                self._settle()
            elif (client := self._clients.get(fd)) is not None:
                budget -= self._serve(client, budget if self._clock() < until_s else 0)
        self._drop_idle()

    def _settle(self) -> None:
        """Whose answers are there now is served next."""
        try:
            self._handler.settle()
        except Exception:
            self.counters.faults_total += 1
            logger.exception("control socket: settling failed")
        for client in self._clients.values():
            if client.owed is not None and client.owed.is_there:
                client.outbox += self._encoded(client.owed.take)
                client.owed, client.progress_s = None, self._clock()
                self._epoll.modify(client.sock, select.EPOLLOUT)

    def close(self) -> None:
        """Let go of all clients and remove the socket, if it is still ours."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock_fd)

    def _accept(self) -> None:
        for _ in range(MAX_CLIENTS):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # EMFILE and the like: the listener stays readable, so make room or it would spin
                logger.warning("control socket: accept: %s", error)
                if self._clients:
                    self._drop(min(self._clients.values(), key=lambda client: client.progress_s))
                    self.counters.dropped_total += 1
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return
        refusal = None
        if not self._may_ask(peer):
            refusal = ControlError(
                f"uid {peer.uid} may not talk to fairsched", remedy="use sudo, or join the fairsched group"
            )
        elif len(self._clients) >= MAX_CLIENTS:
            refusal = ControlError(f"all {MAX_CLIENTS} places are taken", remedy="try again in a few seconds")
        if refusal is not None:
            self.counters.refused_total += 1
            with contextlib.suppress(OSError):  # a courtesy; it fits in any empty socket buffer
                sock.send(encode_line(_failure(refusal)))
            sock.close()
            return
        self._clients[sock.fileno()] = _Client(sock, peer, self._clock())
        self._epoll.register(sock, select.EPOLLIN)

    def _may_ask(self, peer: Peer) -> bool:
        return peer.uid == 0 or peer.uid == os.geteuid() or (self._gid is not None and self._gid in peer.gids)

    def _serve(self, client: _Client, budget: int) -> int:
        """Write what waits, else read and answer; return how many requests were answered."""
        answered = 0
        if client.owed is not None:  # it has gone: nothing else is looked for
            self._drop(client)
            return answered
        try:
            if not client.outbox:
                self._read(client)
            answered = self._answer(client, budget)
            if client.outbox:
                self._write(client)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(client)
            return answered
        if client.is_closing and not client.outbox:
            self._drop(client)
            return answered
        if client.owed is not None:
            self._epoll.modify(client.sock, 0)
            return answered
        # while an answer waits, nothing more is read from this client
        has_work = b"\n" in client.inbox and not client.outbox
        wanted = select.EPOLLOUT if client.outbox or has_work else select.EPOLLIN
        self._epoll.modify(client.sock, wanted)
        return answered

    def _read(self, client: _Client) -> None:
        if b"\n" in client.inbox:
            return  # requests wait for their turn already
        chunk = client.sock.recv(MAX_REQUEST_BYTES)
        if not chunk:
            raise ConnectionResetError
        client.inbox += chunk

    def _answer(self, client: _Client, budget: int) -> int:
        answered = 0
        while answered < budget and not (client.outbox or client.owed or client.is_closing):
            end = client.inbox.find(b"\n")
            if end > MAX_REQUEST_BYTES or (end < 0 and len(client.inbox) > MAX_REQUEST_BYTES):
                self.counters.dropped_total += 1
                client.outbox += encode_line(
                    _failure(ControlError(f"the request is longer than {MAX_REQUEST_BYTES} bytes"))
                )
                client.is_closing = True
                break
            if end < 0:
                break
            raw = bytes(client.inbox[:end])
            del client.inbox[: end + 1]
            self._reply(client, raw)
            client.progress_s = self._clock()
            answered += 1
        return answered

    def _write(self, client: _Client) -> None:
        sent = client.sock.send(client.outbox[:MAX_REQUEST_BYTES])
        del client.outbox[:sent]
        if not client.outbox:
            client.progress_s = self._clock()

    def _reply(self, client: _Client, raw: bytes) -> None:
        """Answer, or keep in mind what it is owed."""
        self.counters.requests_total += 1

        def answer() -> Any:
            result = self._call(raw, client.peer)
            if not isinstance(result, Later):
                return result
            if result.is_there:
                return result.take()
            client.owed = result
            return None

        line = self._encoded(answer)
        if client.owed is None:
            client.outbox += line

    def _encoded(self, result: Callable[[], Any]) -> bytes:
        """As a line, also what it raises."""
        try:
            answer = encode_line({"v": VERSION, "ok": True, "result": to_plain(result())})
        except FairschedError as error:
            return encode_line(_failure(error))
        except Exception as error:  # a fault in a handler must not stop the scheduling
            self.counters.faults_total += 1
            logger.exception("control socket: request failed")
            fault = ControlError(f"the daemon failed to answer: {error!r}", remedy="see its log")
            return encode_line(_failure(fault))
        if len(answer) > MAX_ANSWER_BYTES:
            return encode_line(_failure(ControlError("the answer is too long", remedy="use metrics instead")))
        return answer

    def _call(self, raw: bytes, peer: Peer) -> Any:
        try:
            request = json.loads(raw)
        except (ValueError, RecursionError):
            raise ControlError("the request is not JSON") from None
        if not isinstance(request, dict) or request.get("v") != VERSION:
            raise ControlError(
                f"this daemon speaks version {VERSION} of the control protocol",
                remedy="use the fairsched command of the same version as the daemon",
            )
        name, args = request.get("request"), request.get("args", {})
        call = REQUESTS.get(name) if isinstance(name, str) else None
        if call is None or not isinstance(args, dict):
            raise ControlError(f"unknown request {str(name)[:40]!r}", remedy=f"known: {', '.join(REQUESTS)}")
        return call(self._handler, args, peer)

    def _drop_idle(self) -> None:
        oldest = self._clock() - IDLE_S
        oldest_owed = oldest + IDLE_S - KEPT_S
        for client in [
            client
            for client in self._clients.values()
            if client.progress_s < (oldest if client.owed is None else oldest_owed)
        ]:
            self.counters.dropped_total += 1
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.sock.fileno(), None)
        client.sock.close()  # closing takes it out of the epoll set


def _failure(error: FairschedError) -> dict[str, Any]:
    detail = {"message": str(error), "remedy": error.remedy, "exit_status": error.exit_status}
    return {"v": VERSION, "ok": False, "error": detail}
