# SPDX-License-Identifier: Apache-2.0
"""The server is served fuzz, silence and crowds, and goes on answering those who are quick."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest

from fairsched.companion.exporter.http import Answer, ClientLimits, Request, Server, parse_request
from tests.conftest import is_full

PATIENCE_S = 60.0
WaitUntil = Callable[..., None]
QUICK = ClientLimits(connections=8, request_s=0.3, answer_s=0.3, idle_s=0.5, grace_s=0.05)


async def hello(request: Request) -> Answer:
    if request.path == "/broken":
        raise RuntimeError("boom")
    if request.path == "/big":
        return Answer(HTTPStatus.OK, body=b"x" * 8_000_000)
    return Answer(HTTPStatus.OK, {"Content-Type": "text/plain"}, f"hello {request.path}".encode())


@contextlib.contextmanager
def served(limits: ClientLimits | None = None) -> Iterator[Server]:
    server = Server("127.0.0.1", 0, hello, limits=limits)
    try:
        yield server
    finally:
        server.close()


def connect(server: Server) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def talk(server: Server, sent: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    with connect(server) as sock:
        sock.sendall(sent)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            found += chunk
    return found


def get(server: Server, path: str = "/") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_connection_carries_several_requests(wait_until: WaitUntil) -> None:
    with served() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        for path in ("/a", "/b"):
            connection.request("GET", path + "?x=1")
            assert connection.getresponse().read() == f"hello {path}".encode()
        connection.request("HEAD", "/c")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Length"), answer.read()) == (200, "8", b"")
        connection.close()
        wait_until(lambda: server.answered["200"] == 3, PATIENCE_S, "each is counted, once it is taken")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400"),
        (b"get / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", b"400"),
        (b"\r\n\r\n\r\n", b"400"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET /broken HTTP/1.0\r\n\r\n", b"500"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 20000 + b"\r\n\r\n", b"431"),
    ],
)
def test_every_request_has_its_answer_and_is_counted(sent: bytes, status: bytes) -> None:
    with served() as server:
        assert talk(server, sent).startswith(b"HTTP/1.1 " + status)
        assert server.answered[status.decode()] == 1
        assert get(server)[0] == 200


def test_a_request_with_a_body_ends_the_connection() -> None:
    request, may_stay = parse_request(b"GET /m HTTP/1.1\r\nContent-Length: 4\r\nA: 1\r\na: 2\r\n\r\n")
    assert not may_stay, "what follows is no request"
    assert request == Request("GET", "/m", {"content-length": "4", "a": "1, 2"})
    assert parse_request(b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")[1]


def test_whoever_sends_a_byte_now_and_then_is_cut_off(wait_until: WaitUntil) -> None:
    with served(QUICK) as server, connect(server) as sock:
        stop = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                for byte in b"GET / HTTP/1.1\r\nA: " + b"x" * 10000:
                    sock.sendall(bytes([byte]))
                    if stop.wait(0.02):
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        assert read_all(sock) == b""
        stop.set()
        thread.join()
        assert server.refused["too_slow"] == 1


def test_whoever_says_nothing_is_cut_off() -> None:
    with served(QUICK) as server:
        with connect(server) as sock:
            assert read_all(sock) == b""
        with connect(server) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read_all(sock).endswith(b"hello /"), "answered, and let go after a pause"
        assert server.refused["too_slow"] == 2


def test_whoever_does_not_take_the_answer_is_cut_off(wait_until: WaitUntil) -> None:
    with served(QUICK) as server, connect(server) as sock:
        sock.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        wait_until(lambda: server.refused["too_slow"] == 1, PATIENCE_S, "the slow reader is cut off")
        assert get(server)[0] == 200


def test_the_quick_are_served_while_all_places_are_taken_by_the_slow() -> None:
    patient = ClientLimits(connections=8, request_s=PATIENCE_S, idle_s=PATIENCE_S, grace_s=0.05)
    with served(patient) as server, contextlib.ExitStack() as undo:
        for _ in range(3 * patient.connections):
            undo.enter_context(connect(server)).sendall(b"GET / HT")
        for _ in range(5):
            assert get(server) == (200, b"hello /")
        assert server.refused["too_many"] > 2 * patient.connections


def test_a_crowd_of_the_quick_is_served_to_the_last() -> None:
    limits = ClientLimits(connections=4)
    with served(limits) as server, ThreadPoolExecutor(100) as pool:
        found = list(pool.map(lambda number: get(server, f"/{number}"), range(100)))
        assert found == [(200, f"hello /{number}".encode()) for number in range(100)]
        assert not server.refused


def test_no_request_ends_the_server() -> None:
    """Random bytes, and requests with random bytes in them."""
    dice = random.Random(5)
    words = [
        b"GET ",
        b"/metrics",
        b" HTTP/1.1",
        b"\r\n",
        b"\r\n\r\n",
        b"Accept: ",
        b"\0",
        b"\xff",
        b":",
        b"HEAD",
    ]
    count = 10_000 if is_full() else 300
    with served(QUICK) as server:
        for _ in range(count):
            sent = b"".join(
                dice.choice(words) if dice.random() < 0.7 else dice.randbytes(dice.randrange(30))
                for _ in range(dice.randrange(1, 12))
            )
            with connect(server) as sock, contextlib.suppress(OSError):
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
                told = read_all(sock)
                assert told == b"" or told.startswith(b"HTTP/1.1 ")
        assert get(server) == (200, b"hello /")
        assert server.answered["500"] == 0


def test_closing_gives_the_port_back_and_ends_what_goes_on() -> None:
    with served() as server:
        port, sock = server.port, connect(server)
        sock.sendall(b"GET / HT")
        get(server)
        server.close()
        assert read_all(sock) == b""
        sock.close()
    again = Server("127.0.0.1", port, hello)
    again.close()
    again.close()


def test_an_address_that_is_taken_is_an_error() -> None:
    with served() as server, pytest.raises(OSError, match="in use"):
        Server("127.0.0.1", server.port, hello)


def test_an_answer_that_is_being_made_keeps_its_place() -> None:
    """Who waits for us is not slow."""
    release = threading.Event()

    async def slow(request: Request) -> Answer:
        if request.path == "/wait":
            await asyncio.get_running_loop().run_in_executor(None, release.wait, PATIENCE_S)
        return Answer(HTTPStatus.OK, body=b"made")

    server = Server("127.0.0.1", 0, slow, limits=ClientLimits(connections=2, grace_s=0.05))
    try:
        with connect(server) as sock:
            sock.sendall(b"GET /wait HTTP/1.0\r\n\r\n")
            for _ in range(4):
                with connect(server) as other:
                    other.sendall(b"GET /")
                    get(server)
            release.set()
            assert read_all(sock).endswith(b"made")
    finally:
        release.set()
        server.close()
