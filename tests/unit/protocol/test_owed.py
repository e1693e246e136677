# SPDX-License-Identifier: Apache-2.0
"""An answer that waits for a disk keeps whoever asked waiting, and nobody else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.base.later import Errand
from fairsched.base.wait import is_readable
from fairsched.errors import ConfigError, ControlError
from fairsched.protocol.client import KEPT_S, ControlClient
from fairsched.protocol.server import IDLE_S, ControlServer
from tests.unit.protocol.fakes import FakeDaemon
from tests.unit.protocol.test_control_socket import Clock, answer, connect, is_closed, line, turns

PATIENCE_S = 30.0
CHANGE = line("tenant_set", tenant="chat", values={"weight": 9})


class Slow:
    """A server on a disk that has kept nothing until it is told to."""

    def __init__(self, path: Path) -> None:
        self.clock, self.daemon, self.path = Clock(), FakeDaemon(), path
        self.daemon.disk = self.disk = Errand("disk")
        self.server = ControlServer(path, self.daemon, clock=self.clock)
        self._may = threading.Event()
        self.disk.start(self._wait)

    def _wait(self) -> None:
        self._may.wait(PATIENCE_S)

    def keep(self) -> None:
        self._may.set()
        while not self.daemon.owed[-1][0].is_there:
            assert is_readable(self.server, PATIENCE_S)
            self.server.handle_ready()
        turns(self.server)

    def ask(self, raw: bytes) -> socket.socket:
        sock = connect(self.path)
        sock.sendall(raw)
        turns(self.server)
        return sock


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    found = Slow(tmp_path / "sock")
    yield found
    found._may.set()
    found.server.close()
    found.disk.close()


def test_who_waits_for_a_disk_is_answered_when_it_has_it_and_others_at_once(slow: Slow) -> None:
    with slow.ask(CHANGE) as waiting, slow.ask(line()) as other:
        assert answer(other)["ok"]
        assert not is_readable(waiting) and not is_readable(slow.server), "and the loop sleeps meanwhile"
        slow.keep()
        assert answer(waiting)["result"] == ["tenants.chat.weight 4 -> 9"]


def test_what_was_asked_after_it_on_the_same_connection_comes_after_it(slow: Slow) -> None:
    with slow.ask(CHANGE + line()) as sock:
        sock.sendall(line())
        turns(slow.server)
        assert not is_readable(sock)
        slow.keep()
        text = b""
        while text.count(b"\n") < 3:
            turns(slow.server)
            text += sock.recv(65536)
        assert [isinstance(json.loads(one)["result"], list) for one in text.splitlines()] == [
            True,
            False,
            False,
        ]


@pytest.mark.parametrize("more", [b"", line()])
def test_who_hangs_up_meanwhile_leaves_nothing_behind(slow: Slow, more: bytes) -> None:
    slow.ask(CHANGE + more).close()
    turns(slow.server)
    assert not slow.server._clients and not is_readable(slow.server)
    slow.keep()
    assert slow.daemon.owed[0][0].take() == ["tenants.chat.weight 4 -> 9"], "what it asked for is done"


def test_it_is_not_dropped_for_its_silence_but_a_disk_is_not_waited_for_without_end(slow: Slow) -> None:
    with slow.ask(CHANGE) as sock:
        slow.clock.now_s += IDLE_S + 1
        turns(slow.server)
        assert slow.server._clients
        slow.clock.now_s += KEPT_S
        turns(slow.server)
        assert is_closed(sock) and slow.server.counters.dropped_total == 1


def test_what_it_failed_with_is_the_answer(slow: Slow) -> None:
    with slow.ask(CHANGE) as sock:
        slow.daemon.owed[0][0].before(lambda _lines: 1 / 0)
        slow.keep()
        assert "division" in answer(sock)["error"]["message"]
    assert slow.server.counters.faults_total == 1
    with slow.ask(line("tenant_set", tenant="nobody", values={"weight": 9})) as sock:
        assert "no tenant" in answer(sock)["error"]["message"], "and what needs no disk is said at once"


def test_a_handler_that_cannot_settle_does_not_end_the_loop(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        slow.disk.take()
        raise ConfigError("no")

    monkeypatch.setattr(slow.daemon, "settle", fail)
    slow._may.set()
    assert is_readable(slow.server, PATIENCE_S)
    turns(slow.server)
    assert slow.server.counters.faults_total == 1
    with slow.ask(line()) as sock:
        assert answer(sock)["ok"]


def test_a_client_says_that_it_does_not_know_whether_it_was_changed(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairsched.protocol.client.KEPT_S", 0.05)
    with pytest.raises(ControlError, match=r"did not answer within 0\.05 s") as caught:
        ControlClient(slow.path, timeout_s=0.01).request("tenant_set", tenant="chat", values={"weight": 9})
    assert "fairsched tenant list" in caught.value.remedy
    with pytest.raises(ControlError, match=r"did not answer within 0\.01 s") as caught:
        ControlClient(slow.path, timeout_s=0.01).request("status")
    assert "tenant list" not in caught.value.remedy
