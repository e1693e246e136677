# SPDX-License-Identifier: Apache-2.0
"""The daemon's loop ticks whatever clients do; who may not ask learns so; a dead daemon's socket is replaced."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.base.wait import is_readable
from fairsched.errors import ControlError
from fairsched.protocol import server as control_server
from fairsched.protocol.client import ControlClient
from fairsched.protocol.listen import Peer, peer_of
from fairsched.protocol.server import IDLE_S, MAX_CLIENTS, MAX_REQUEST_BYTES, ControlServer
from fairsched.protocol.status import StatusReport, decision_from_plain, status_from_plain, to_plain
from tests.unit.protocol.fakes import FakeDaemon, hold, serving, status, thaw


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "fairsched.sock"


@pytest.fixture
def server(path: Path, clock: Clock) -> Iterator[ControlServer]:
    server = ControlServer(path, FakeDaemon(), clock=clock)
    yield server
    server.close()


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(30)
    sock.connect(str(path))
    return sock


def line(request: str = "ping", **args: Any) -> bytes:
    return json.dumps({"v": 1, "request": request, "args": args}).encode() + b"\n"


def turns(server: ControlServer, count: int = 5) -> None:
    """What the daemon's loop does."""
    for _ in range(count):
        server.handle_ready()


def answer(sock: socket.socket) -> Any:
    data = b""
    while not data.endswith(b"\n"):
        chunk = sock.recv(65536)
        if not chunk:
            break
        data += chunk
    return json.loads(data)


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_is_answered(server: ControlServer, path: Path) -> None:
    with connect(path) as sock:
        sock.sendall(line())
        turns(server)
        assert answer(sock) == {"v": 1, "ok": True, "result": FakeDaemon().ping()}


def test_several_requests_on_one_connection_are_answered_in_order(server: ControlServer, path: Path) -> None:
    with connect(path) as sock:
        sock.sendall(line() + line("status") + line("nonsense"))
        turns(server)
        text = b""
        while text.count(b"\n") < 3:
            text += sock.recv(65536)
        assert [json.loads(part)["ok"] for part in text.splitlines()] == [True, True, False]


def test_a_request_may_come_byte_by_byte(server: ControlServer, path: Path) -> None:
    with connect(path) as sock:
        for byte in line():
            sock.sendall(bytes([byte]))
            turns(server, 1)
        turns(server)
        assert answer(sock)["ok"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"hello\n",
        b"\xff\xfe\n",
        b'{"v": 2, "request": "ping"}\n',
        b'{"v": 1, "request": 5}\n',
        b'{"v": 1, "request": "ping", "args": []}\n',
        b'{"v": 1, "request": "explain", "args": {"tenant": 5}}\n',
        b'{"v": 1, "request": "tenant_set", "args": {"tenant": "chat", "values": [1]}}\n',
        b'{"v": 1, "request": "tenant_unset", "args": {"tenant": "chat", "keys": [1]}}\n',
        b"[" * 60_000 + b"\n",
    ],
)
def test_nonsense_gets_an_error_and_the_connection_lives(
    server: ControlServer, path: Path, raw: bytes
) -> None:
    with connect(path) as sock:
        sock.sendall(raw)
        turns(server)
        refusal = answer(sock)
        assert refusal["ok"] is False
        assert refusal["error"]["message"]
        sock.sendall(line())
        turns(server)
        assert answer(sock)["ok"]


def test_a_fault_of_the_handler_is_an_answer_not_the_end_of_the_loop(
    server: ControlServer, path: Path
) -> None:
    with connect(path) as sock:
        sock.sendall(line("explain", tenant="crash"))
        turns(server)
        assert "boom" in answer(sock)["error"]["message"]
    assert server.counters.faults_total == 1


def test_an_endless_request_is_cut_off(server: ControlServer, path: Path) -> None:
    with connect(path) as sock:
        sock.setblocking(False)
        with pytest.raises(OSError, match=r"pipe|reset|temporarily"):
            for _ in range(100):
                sock.send(b"x" * 65536)
                turns(server, 2)
    assert server.counters.dropped_total == 1
    assert not server._clients


def test_a_request_of_the_longest_length_is_taken(server: ControlServer, path: Path) -> None:
    with connect(path) as sock:
        raw = line("explain", tenant="x" * (MAX_REQUEST_BYTES - 100))
        assert len(raw) <= MAX_REQUEST_BYTES
        sock.sendall(raw)
        turns(server)
        assert answer(sock)["ok"]


def test_a_silent_client_is_dropped(server: ControlServer, path: Path, clock: Clock) -> None:
    with connect(path) as sock:
        turns(server)
        clock.now_s += IDLE_S + 0.1
        turns(server)
        assert is_closed(sock)
    assert server.counters.dropped_total == 1


def test_a_byte_now_and_then_keeps_nobody_alive(server: ControlServer, path: Path, clock: Clock) -> None:
    with connect(path) as sock:
        for _ in range(4):
            sock.sendall(b"{")
            turns(server)
            clock.now_s += IDLE_S / 3
        turns(server)
        assert is_closed(sock)


def test_a_client_that_does_not_read_blocks_nobody(server: ControlServer, path: Path, clock: Clock) -> None:
    with connect(path) as deaf, connect(path) as other:
        deaf.sendall(line("explain", tenant="long") * 3)
        turns(server)
        other.sendall(line())
        turns(server)
        assert answer(other)["ok"]
        assert sum(len(client.outbox) for client in server._clients.values()) <= 2_100_000
        clock.now_s += IDLE_S + 1
        turns(server)
        assert not server._clients


def test_a_long_answer_arrives_whole(path: Path) -> None:
    with serving(path):
        assert len(ControlClient(path).request("explain", tenant="long")) == 2_000_000


def test_one_call_answers_a_bounded_number_of_requests(path: Path) -> None:
    daemon = FakeDaemon()
    server = ControlServer(path, daemon)
    with connect(path) as sock:
        sock.sendall(line("status") * 60)
        server.handle_ready()
        server.handle_ready()
        assert 0 < len(daemon.asked) <= control_server.MAX_REQUESTS_PER_CALL
        read = b""
        while read.count(b"\n") < 60:
            assert is_readable(server, 5), "what waits makes the descriptor readable"
            server.handle_ready()
            if is_readable(sock):
                read += sock.recv(1 << 20)
    server.close()


def test_requests_that_take_long_wait_for_the_next_call(
    server: ControlServer, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[int] = []

    def ping(_daemon: FakeDaemon) -> None:
        clock.now_s += control_server.MAX_CALL_S * 0.6
        took.append(1)

    monkeypatch.setattr(FakeDaemon, "ping", ping)
    socks = [connect(path) for _ in range(3)]
    server.handle_ready()  # they are let in
    for sock in socks:
        sock.sendall(line())
    server.handle_ready()
    assert len(took) == 2, "the second began in time"
    assert is_readable(server), "what waits makes the descriptor readable"
    turns(server, 3)
    assert all(answer(sock)["ok"] for sock in socks)
    assert len(took) == 3
    for sock in socks:
        sock.close()


def test_when_all_places_are_taken_the_next_one_is_told(server: ControlServer, path: Path) -> None:
    socks = [connect(path) for _ in range(MAX_CLIENTS)]
    turns(server, MAX_CLIENTS)
    with connect(path) as late:
        turns(server)
        assert "taken" in answer(late)["error"]["message"]
    for sock in socks:
        sock.close()
    turns(server, MAX_CLIENTS)
    assert not server._clients
    with connect(path) as sock:
        sock.sendall(line())
        turns(server)
        assert answer(sock)["ok"]


def test_clients_that_hang_up_leave_nothing_behind(server: ControlServer, path: Path) -> None:
    for raw in (b"", b"{", line(), line("status") * 20):
        sock = connect(path)
        sock.sendall(raw)
        sock.close()
        turns(server, 30)
    assert not server._clients
    assert not is_readable(server)


def test_a_stranger_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "peer_of", lambda sock: Peer(1, 12345, frozenset({100})))
    server = ControlServer(path, FakeDaemon())
    with connect(path) as sock:
        turns(server)
        assert "uid 12345" in answer(sock)["error"]["message"]
        assert is_closed(sock)
    assert server.counters.refused_total == 1
    server.close()


@pytest.mark.parametrize(("gids", "may"), [({5, 77}, True), ({5}, False)])
def test_members_of_the_group_may_ask(
    path: Path, monkeypatch: pytest.MonkeyPatch, gids: set[int], may: bool
) -> None:
    monkeypatch.setattr(control_server, "gid_of", lambda group: 77)
    monkeypatch.setattr(control_server, "peer_of", lambda sock: Peer(1, 12345, frozenset(gids)))
    monkeypatch.setattr(os, "chown", lambda *args: None)
    server = ControlServer(path, FakeDaemon())
    with connect(path) as sock:
        sock.sendall(line())
        turns(server)
        assert answer(sock)["ok"] is may
    server.close()


def test_the_kernel_says_who_the_peer_is() -> None:
    one, two = socket.socketpair(socket.AF_UNIX)
    with one, two:
        peer = peer_of(one)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    assert peer.gids >= {os.getgid(), *os.getgroups()}


def test_without_the_group_only_the_owner_can_open_the_socket(server: ControlServer, path: Path) -> None:
    mode = path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_with_the_group_its_members_can_open_the_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives the socket to a group: sudo make test-unit")
    monkeypatch.setattr(control_server, "gid_of", lambda group: 1)
    server = ControlServer(path, FakeDaemon())
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert path.stat().st_gid == 1
    server.close()


def test_the_socket_of_a_dead_daemon_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(path))
    dead.close()
    with serving(path):
        assert ControlClient(path).request("ping")["pid"] == 7
    assert not path.exists()


OTHER = """
import sys
from pathlib import Path
from fairsched.protocol.server import ControlServer
try:
    ControlServer(Path(sys.argv[1]), None)
except Exception as error:
    print(error)
"""


def test_a_second_daemon_is_refused_and_names_the_first(server: ControlServer, path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(path)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == f"another fairsched is running (pid {os.getpid()})"
    assert path.exists()


def test_a_file_that_is_no_socket_is_never_deleted(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ControlError, match="not a socket"):
        ControlServer(path, FakeDaemon())
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="at most 107"):
        ControlServer(tmp_path / ("x" * 120), FakeDaemon())


def test_nobody_listening_says_how_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="not running") as caught:
        ControlClient(tmp_path / "none.sock").request("ping")
    assert "systemctl start fairsched" in caught.value.remedy
    assert caught.value.exit_status == 1


def raw_server(path: Path, reply: bytes | None) -> threading.Thread:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)

    def loop() -> None:
        with listener, listener.accept()[0] as sock:
            sock.recv(65536)
            if reply is not None:
                sock.sendall(reply)
            else:
                sock.recv(1)  # until the client gives up

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (None, "did not answer"),
        (b"", "broke off"),
        (b"hello\n", "understood"),
        (b'{"ok": false}\n', "understood"),
    ],
)
def test_a_mute_or_broken_daemon_is_a_clear_error(tmp_path: Path, reply: bytes | None, says: str) -> None:
    thread = raw_server(tmp_path / "s", reply)
    with pytest.raises(ControlError, match=says):
        ControlClient(tmp_path / "s", timeout_s=0.2 if reply is None else 30).request("ping")
    thread.join(30)


def test_the_status_of_an_error_travels(path: Path) -> None:
    with serving(path), pytest.raises(ControlError, match="wieght") as caught:
        ControlClient(path).request("reload")
    assert caught.value.exit_status == 2
    assert caught.value.remedy == "did you mean 'weight'?"


def test_documents_survive_the_wire() -> None:
    report = status()
    assert status_from_plain(json.loads(json.dumps(to_plain(report)))) == report
    for record in (hold(), thaw()):
        assert decision_from_plain(json.loads(json.dumps(to_plain(record)))) == record


def test_fields_of_a_newer_daemon_are_ignored_and_another_version_is_refused() -> None:
    plain = to_plain(status())
    plain["new_field"] = 1
    plain["tenants"][0]["new_field"] = 1
    assert isinstance(status_from_plain(plain), StatusReport)
    with pytest.raises(ValueError, match="version"):
        status_from_plain({**plain, "schema_version": 99})
