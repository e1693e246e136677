# SPDX-License-Identifier: Apache-2.0
"""Which server a process is connected to, with real sockets of real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.observe import mps_sockets
from fairsched.observe.mps_sockets import connections

SERVE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
kept = []
while True:
    kept.append(listener.accept())
    print(flush=True)
"""
JOIN = """
import socket, sys
ends = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for end, path in zip(ends, sys.argv[1:]):
    end.connect(path)
print(flush=True)
sys.stdin.read()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(code, argument, ..., before=()) -> a process that has said that it is ready."""
    with contextlib.ExitStack() as stack:

        def begin(code: str, *arguments: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
            command = [*before, sys.executable, "-c", code, *map(str, arguments)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == "\n"
            return process

        yield begin


def accepted(server: subprocess.Popen[str], count: int = 1) -> None:
    assert server.stdout is not None
    assert [server.stdout.readline() for _ in range(count)] == ["\n"] * count


def test_each_client_is_found_at_its_server_whatever_the_path(start: Start, tmp_path: Path) -> None:
    first, second = (start(SERVE, tmp_path / name) for name in ("one", "two"))
    a, b, both = (
        start(JOIN, *(tmp_path / name for name in names)) for names in (["one"], ["two"], ["one", "two"])
    )
    accepted(first, 2)
    accepted(second, 2)
    servers, clients = (first.pid, second.pid), (a.pid, b.pid, both.pid, os.getpid(), 1 << 22)
    found = connections(clients, servers)
    assert found is not None and found.pop(both.pid) in servers
    assert found == {a.pid: first.pid, b.pid: second.pid}
    assert connections(clients, [first.pid]) == {a.pid: first.pid, both.pid: first.pid}
    assert connections(clients, []) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace takes root")
def test_a_client_in_a_network_namespace_of_its_own_is_found(start: Start, tmp_path: Path) -> None:
    server = start(SERVE, tmp_path / "one")
    other = start(SERVE, tmp_path / "two", before=("unshare", "-n"))
    client = start(JOIN, tmp_path / "one", before=("unshare", "-n"))
    stranger = start(JOIN, tmp_path / "two", before=("unshare", "-n"))
    accepted(server)
    accepted(other)
    assert connections([client.pid, stranger.pid], [server.pid]) == {client.pid: server.pid}


def test_no_more_descriptors_are_looked_at_than_an_honest_client_has(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(SERVE, tmp_path / "one")
    client = start(JOIN, tmp_path / "one")
    accepted(server)
    monkeypatch.setattr(mps_sockets, "MOST_DESCRIPTORS", 3)  # its standard streams
    assert connections([client.pid], [server.pid]) == {}


def test_where_the_kernel_does_not_tell_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Iterator[tuple[int, int]]:
        raise OSError("no unix_diag")
        yield

    monkeypatch.setattr(mps_sockets, "_peers", refuse)
    assert connections([1], [2]) is None


def test_an_error_of_the_kernels_and_an_odd_message_are_no_answer() -> None:
    assert list(mps_sockets._peer(b"")) == []
    assert list(mps_sockets._peer(bytes(16) + b"\x00\x00\x02")) == []
    assert list(mps_sockets._peer(bytes(16) + b"\x08\x00\x09\x00" + bytes(4))) == []
