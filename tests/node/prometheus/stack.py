# SPDX-License-Identifier: Apache-2.0
"""Prometheus and Alertmanager of the distribution with our files, on loopback; a webhook; a dcgm-exporter's page.

Problem: the alerts wait for minutes, a test has seconds, and what is tested must be what is shipped.

Approach: the files of packaging/prometheus are run with every duration in them divided by one number (:func:`faster`):
scrape and evaluation intervals, ranges, subquery steps and `for` alike, so that each window holds as many samples
as it would. Beside that only addresses are replaced. :meth:`Stack.close` ends both servers by their pid.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support import wait_until
from tests.unit.prometheus.shipped import DIRECTORY, RULE_FILES

FACTOR = 20
"""15 s between scrapes become 750 ms, three minutes become nine seconds."""
ALERTMANAGER_FACTOR = 300
"""It only groups and waits: five minutes become one second."""
START_S = 30.0
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"(?<![\w.\"-])(\d+)(ms|s|m|h)(?![\w\"])")


def faster(text: str, factor: int) -> str:
    """`text` with every duration outside comments and texts for people divided by `factor`; none below 1 ms."""

    def divided(match: re.Match[str]) -> str:
        return f"{max(1, int(match[1]) * _UNIT_MS[match[2]] // factor)}ms"

    lines = text.splitlines(keepends=True)
    is_text = re.compile(r"^\s*(#|summary:)")
    found, is_in_description = [], False
    for line in lines:
        if "description:" in line:
            is_in_description = True
        elif "runbook_url:" in line:
            is_in_description = False
        found.append(line if is_in_description or is_text.match(line) else _DURATION.sub(divided, line))
    return "".join(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Handler(BaseHTTPRequestHandler):
    """Says what `page` says; keeps what is posted."""

    page: Callable[[], str]
    take: Callable[[bytes], None]

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(type(self).page().encode())

    def do_POST(self) -> None:
        type(self).take(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(page: Callable[[], str] = str, take: Callable[[bytes], None] = len) -> Iterator[int]:
    """A small server on loopback; its port."""
    kind = type("Handler", (_Handler,), {"page": staticmethod(page), "take": staticmethod(take)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Stack:
    """Call :meth:`close`, always. `exporter` and `dcgm` are ports on loopback."""

    def __init__(self, directory: Path, exporter: int, dcgm: int) -> None:
        self.alerts: list[dict[str, Any]] = []
        """Every alert that came to the webhook, oldest first, as Alertmanager sends it."""
        self.port, self._alertmanager_port = free_port(), free_port()
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir()
        try:
            webhook = self._stack.enter_context(serving(take=self._take))
            self._write(exporter, dcgm, webhook)
            self._start_servers()
        except BaseException:
            self.close()
            raise

    def _take(self, body: bytes) -> None:
        self.alerts += json.loads(body)["alerts"]

    def _write(self, exporter: int, dcgm: int, webhook: int) -> None:
        for path in RULE_FILES:
            (self._directory / path.name).write_text(faster(path.read_text(encoding="utf-8"), FACTOR))
        ports = {9477: exporter, 9400: dcgm, 9093: self._alertmanager_port, 9094: webhook}
        for name, factor in (("prometheus", FACTOR), ("alertmanager", ALERTMANAGER_FACTOR)):
            text = faster((DIRECTORY / f"{name}.example.yml").read_text(encoding="utf-8"), factor)
            for shipped, ours in ports.items():
                text = text.replace(f"127.0.0.1:{shipped}", f"127.0.0.1:{ours}")
            (self._directory / f"{name}.yml").write_text(text)

    def _start_servers(self) -> None:
        self._start(
            "prometheus-alertmanager",
            "--config.file=alertmanager.yml",
            "--storage.path=alertmanager",
            f"--web.listen-address=127.0.0.1:{self._alertmanager_port}",
            "--cluster.listen-address=",
        )
        self._start(
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=prometheus",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )
        for name, port in (("prometheus", self.port), ("prometheus-alertmanager", self._alertmanager_port)):
            wait_until(lambda name=name, port=port: self._is_ready(name, port), START_S, f"{name} is ready")

    def _start(self, name: str, *options: str) -> None:
        with open(self._directory / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [name, *options], cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _is_ready(self, name: str, port: int) -> bool:
        assert self._processes[name].poll() is None, self.log(name)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def log(self, name: str = "prometheus") -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def ask(self, path: str, **query: str) -> Any:
        """`data` of an answer of Prometheus' HTTP API. Raises AssertionError with its own words when it refuses."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def values(self, expression: str) -> list[float]:
        """Of an instant query; no NaN, which is what a ratio of nothing is."""
        found = [float(one["value"][1]) for one in self.ask("query", query=expression)["result"]]
        return [value for value in found if value == value]

    def has_told(self, alert: str, status: str, since: int = 0, **labels: str) -> dict[str, Any] | None:
        """The last such alert that came after the first `since`."""
        for one in reversed(self.alerts[since:]):
            if one["status"] == status and {"alertname": alert, **labels}.items() <= one["labels"].items():
                return one
        return None

    def close(self) -> None:
        """Ends what was started here, by pid."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._stack.close()
