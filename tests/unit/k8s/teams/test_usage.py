# SPDX-License-Identifier: Apache-2.0
"""What teams have got, from an HTTP server that answers as Prometheus does, and as others do."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from fairsched.errors import ConfigError
from fairsched.k8s.teams import usage
from fairsched.k8s.teams.queues import Queue
from fairsched.k8s.teams.usage import STALE_S, Prometheus, Reader, Unknown, read, team_of

TEAMS = {
    "ml": {"gpus": Queue("research", 1)},
    "web": {"a": Queue("serving", 3), "b": Queue("serving", 3)},
    "mixed": {"train": Queue("research", 1), "serve": Queue("serving", 3)},
}
NOW_S = 1_700_000_000.0


class Fake:
    """What is answered next."""

    body = b"{}"
    status = 200
    asked: list[str]
    headers: list[Mapping[str, str]]


@pytest.fixture
def fake() -> Iterator[tuple[Fake, str]]:
    said = Fake()
    said.asked, said.headers = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            said.asked.append(parse_qs(self.rfile.read(length).decode())["query"][0])
            said.headers.append(dict(self.headers))
            self.send_response(said.status)
            if said.status == 302:
                self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield said, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def vector(**values: str) -> bytes:
    result = [{"metric": {"tenant": name}, "value": [NOW_S, value]} for name, value in values.items()]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def test_series_are_read_by_their_tenant(fake: tuple[Fake, str]) -> None:
    said, url = fake
    said.body = vector(ml="1.5", web="NaN", more="+Inf", other="0")
    assert Prometheus(url).query("up") == {"ml": 1.5, "other": 0.0}
    assert said.asked == ["up"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"{}"),
        (302, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"status": "error", "error": "no", "data": {}}'),
        (200, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'),
        (
            200,
            b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": []}]}}',
        ),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": [7]}}'),
    ],
)
def test_other_answers_are_no_answer(fake: tuple[Fake, str], status: int, body: bytes) -> None:
    said, url = fake
    said.status, said.body = status, body
    with pytest.raises(Unknown, match="Prometheus at"):
        Prometheus(url).query("up")


def test_an_answer_without_an_end_is_cut_off(fake: tuple[Fake, str], monkeypatch: pytest.MonkeyPatch) -> None:
    said, url = fake
    said.body = vector(**{f"t{index}": "1" for index in range(1000)})
    monkeypatch.setattr(usage, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(Unknown, match="longer than"):
        Prometheus(url).query("up")


def test_nobody_there_is_told() -> None:
    with pytest.raises(Unknown, match="refused"):
        Prometheus("http://127.0.0.1:1").query("up")


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://x", "http://", "/etc/passwd", "file:///etc/passwd"]
)
def test_what_is_no_address_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Prometheus(url)
    assert caught.value.remedy


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        Prometheus("http://x:1", token_file=tmp_path / "token")


def answers(**values: Any) -> Any:
    def ask(expression: str) -> Mapping[str, float]:
        kind = next(key for key in ("timestamp", "increase", "entitlement") if key in expression)
        found: Mapping[str, float] = values.get(kind, {})
        return found

    return ask


def test_what_tenants_got_is_their_teams() -> None:
    ask = answers(
        timestamp={"": NOW_S},
        increase={
            "ml": 1.0, "ml/llama-0": 2.0, "web/x": 4.0, "mixed/queue.serving": 8.0, "mixed/queue.research": 16.0,
            "mixed/somebody": 32.0, "mixed": 64.0, "stranger": 128.0, "": 256.0, "ml/minus": -5.0,
        },
        entitlement={"mixed/queue.research": 3.0, "stranger": 1.0},
    )  # fmt: skip
    found = read(ask, TEAMS, 600, wall=lambda: NOW_S)
    assert found.seconds == {"research": 19.0, "serving": 12.0}
    assert found.wanting == {"research"}


@pytest.mark.parametrize("newest", [{}, {"": NOW_S - STALE_S - 1}])
def test_samples_that_are_old_are_no_samples(newest: Mapping[str, float]) -> None:
    with pytest.raises(Unknown, match="sample"):
        read(answers(timestamp=newest, increase={"ml": 1.0}), TEAMS, 600, wall=lambda: NOW_S)


def test_whose_a_tenant_is() -> None:
    assert team_of("ml/anything/below", TEAMS) == "research"
    assert team_of("mixed/queue.serving", TEAMS) == "serving"
    assert team_of("mixed/serving", TEAMS) is None and team_of("unknown", TEAMS) is None


def test_a_prometheus_that_hangs_keeps_nobody_waiting_and_the_last_answer_holds_for_a_while() -> None:
    gate, clock = threading.Event(), Clock()
    gate.set()

    def ask(expression: str) -> Mapping[str, float]:
        assert gate.wait(20)
        return {"": time.time()} if "timestamp" in expression else {"ml": 3.0}

    reader = Reader(ask, 600, patience_s=0.05, clock=clock)
    while True:
        with contextlib.suppress(Unknown):
            assert reader(TEAMS).seconds == {"research": 3.0}
            break
    gate.clear()
    assert reader(TEAMS).seconds == {"research": 3.0}
    clock.now_s += STALE_S + 1
    with pytest.raises(Unknown, match="takes long"):
        reader(TEAMS)
    gate.set()


def test_what_is_in_the_way_is_told_by_the_reader_too() -> None:
    def broken(expression: str) -> Mapping[str, float]:
        raise KeyError("odd")

    with pytest.raises(Unknown, match="odd"):
        Reader(broken, 600, patience_s=20)(TEAMS)
    with pytest.raises(Unknown, match="no sample"):
        Reader(lambda _: {}, 600, patience_s=20)(TEAMS)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
