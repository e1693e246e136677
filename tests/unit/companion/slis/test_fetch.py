# SPDX-License-Identifier: Apache-2.0
"""Reading pages over real sockets: honest ones, slow ones, and those that mean harm."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairsched.companion.slis import fetch as fetching
from fairsched.companion.slis.fetch import MAX_BYTES, MAX_LINES, fetch
from fairsched.companion.slis.page import PageError

PAGE = b"made_total 5\nmade_more 6\n"
Answer = Callable[[socket.socket], None]


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/plain", *headers]
    if length is None or length >= 0:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(raw: bytes) -> Answer:
    return lambda client: client.sendall(raw)


@dataclass
class Server:
    port: int
    asked: list[bytes] = field(default_factory=list)
    """What each client sent first."""

    def url(self, path: str = "/metrics") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def serving(answer: Answer, family: int = socket.AF_INET) -> Iterator[Server]:
    """Each client is heard and then given the answer."""
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        listener.listen()
        server = Server(listener.getsockname()[1])

        def run() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):
                    client.settimeout(20)
                    server.asked.append(client.recv(65536))
                    answer(client)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


def lines_of(answer: Answer, timeout_s: float = 10.0) -> list[bytes]:
    found: list[bytes] = []
    with serving(answer) as server:
        fetch(server.url(), timeout_s, found.append)
    return found


def refusal(answer: Answer, timeout_s: float = 10.0) -> str:
    with pytest.raises(PageError) as refused:
        lines_of(answer, timeout_s)
    return str(refused.value)


def test_a_page_is_handed_on_line_by_line() -> None:
    assert lines_of(says(http(PAGE))) == [b"made_total 5\n", b"made_more 6\n"]


def test_what_is_asked() -> None:
    with serving(says(http(PAGE))) as server:
        before_ns = time.monotonic_ns()
        head = fetch(server.url("/a/b?c=d"), 10, lambda _: None)
        assert before_ns < head.t_ns < time.monotonic_ns()
        assert head.content_type == "text/plain"
    request = server.asked[0].decode()
    assert request.startswith("GET /a/b?c=d HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}\r\n" in request
    assert "Accept-Encoding: identity\r\n" in request
    assert "Connection: close\r\n" in request
    assert request.count("Host:") == request.count("Accept-Encoding:") == 1


def test_other_ways_to_send_a_page() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nmade_t\r\n7\r\notal 5\n\r\n0\r\n\r\n"
    )
    assert lines_of(says(chunked)) == [b"made_total 5\n"]
    assert lines_of(says(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE)) == PAGE.splitlines(keepends=True)
    assert lines_of(says(b"HTTP/1.1 100 Continue\r\n\r\n" + http(PAGE))) == PAGE.splitlines(keepends=True)
    assert lines_of(says(http(b""))) == []


def test_an_address_of_the_other_kind() -> None:
    try:
        with serving(says(http(PAGE)), socket.AF_INET6) as server:
            fetch(f"http://[::1]:{server.port}/metrics", 10, lambda _: None)
            assert f"Host: [::1]:{server.port}\r\n".encode() in server.asked[0]
    except OSError as error:
        pytest.skip(f"host: no IPv6 ({error.strerror})")


def test_a_redirect_leads_nowhere() -> None:
    """A tenant that answers with one could otherwise have root ask any address of this network for it."""
    with serving(says(http(PAGE))) as elsewhere:
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            said = refusal(says(http(b"", f"Location: {elsewhere.url()}", status=status)))
            assert "redirects are not followed" in said
        assert elsewhere.asked == []


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "204 No Content", "206 Partial"])
def test_other_answers_are_no_page(status: str) -> None:
    assert refusal(says(http(PAGE, status=status))) == f"it answers {status[:3]}"


def test_a_gzip_bomb_is_not_even_looked_at() -> None:
    bomb = gzip.compress(b"made_total 5\n" * 1_000_000)
    assert "compressed" in refusal(says(http(bomb, "Content-Encoding: gzip")))


def flood(head: bytes, piece: bytes) -> Answer:
    """Never ends."""

    def answer(client: socket.socket) -> None:
        client.sendall(head)
        while True:
            client.sendall(piece)

    return answer


ENDLESS_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


def test_an_endless_page_is_cut_off() -> None:
    assert "MiB" in refusal(flood(ENDLESS_HEAD, b"# " + b"x" * 1000 + b"\n"), 60)


def test_a_page_that_promises_a_gigabyte_is_cut_off() -> None:
    assert "MiB" in refusal(flood(http(b"", length=1 << 30), b"# " + b"x" * 1000 + b"\n"), 60)


def test_endless_short_lines_are_cut_off() -> None:
    assert f"{MAX_LINES} lines" in refusal(flood(ENDLESS_HEAD, b"\n" * 8192), 60)


def test_one_endless_line_is_cut_off() -> None:
    assert "line of more than 64 KiB" in refusal(flood(ENDLESS_HEAD, b"x" * 8192), 60)


@pytest.mark.parametrize("piece", [b"X-A: b\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"x" * 8192])
def test_endless_heads_are_cut_off(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(fetching, "MAX_BYTES", 512 * 1024)
    head = b"" if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n"
    assert refusal(flood(head, piece), 60)


def drip(head: bytes, stop: threading.Event) -> Answer:
    """A byte now and then: no single wait is long."""

    def answer(client: socket.socket) -> None:
        client.sendall(head)
        while not stop.wait(0.05):
            client.sendall(b"x")

    return answer


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\n", ENDLESS_HEAD], ids=["status", "headers", "body"]
)
def test_a_byte_at_a_time_does_not_stretch_the_deadline(head: bytes) -> None:
    stop, begin_s = threading.Event(), time.monotonic()
    try:
        assert refusal(drip(head, stop), 0.5) == "no answer within 0.5 s"
        assert time.monotonic() - begin_s < 10
    finally:
        stop.set()


def keep_silent(client: socket.socket) -> None:
    client.recv(1)  # until it is closed


def test_a_server_that_says_nothing_is_given_up() -> None:
    assert refusal(keep_silent, 0.3) == "no answer within 0.3 s"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/9.9 200 OK\r\n\r\n", "not HTTP"),
        (http(PAGE, length=100), "breaks off"),
        (http(b"made_total 12"), "breaks off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nmade", "breaks off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "breaks off|not HTTP"),
    ],
)
def test_what_is_cut_short_or_no_http_is_no_page(raw: bytes, why: str) -> None:
    with pytest.raises(PageError, match=why):
        lines_of(says(raw))


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(PageError, match="refused"):
            fetch(f"http://127.0.0.1:{taken.getsockname()[1]}/", 10, lambda _: None)


def test_a_host_that_cannot_be_a_host() -> None:
    with pytest.raises(PageError):
        fetch(f"http://{'a' * 100}.invalid/", 10, lambda _: None)


def test_what_the_page_says_is_not_repeated() -> None:
    assert "hunter2" not in refusal(says(b"hunter2 hunter2 hunter2\r\n\r\n"))
    assert "hunter2" not in refusal(says(http(b"", "Location: http://hunter2/", status="302 hunter2")))


def test_the_bounds_are_those_of_a_large_page() -> None:
    """A page of vLLM with every histogram has some 2,000 lines and 300 KB; several engines have several times that."""
    assert MAX_BYTES >= 20 * 300_000 and MAX_LINES >= 20 * 2_000


def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    options += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(["openssl", "req", *options.split()], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def run() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    client, _ = listener.accept()
                    client.settimeout(20)
                    with context.wrap_socket(client, server_side=True) as secure:
                        secure.recv(65536)
                        secure.sendall(http(PAGE))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}/metrics"
        monkeypatch.setattr(socket, "getaddrinfo", only_ipv4(socket.getaddrinfo))
        with pytest.raises(PageError, match="TLS failed: CERTIFICATE_VERIFY_FAILED"):
            fetch(url, 10, lambda _: None)
        trusting = ssl.create_default_context(cafile=str(certificate))
        monkeypatch.setattr(fetching, "_tls", lambda: trusting)
        found: list[bytes] = []
        fetch(url, 10, found.append)
        thread.join(20)
    assert found == PAGE.splitlines(keepends=True)


def only_ipv4(real: Callable[..., object]) -> Callable[..., object]:
    return lambda host, port, type: real("127.0.0.1", port, type=type)
