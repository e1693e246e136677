# SPDX-License-Identifier: Apache-2.0
"""An exporter beside a daemon that only answers, and the file that says who may ask."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt

from fairsched.companion.exporter.part import Exporter
from fairsched.companion.part import Node
from fairsched.config.outward import Metrics
from tests.unit.protocol import fakes

PATIENCE_S = 60.0
HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
"""Of "secret", with the least work that bcrypt allows."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Exported:
    """A daemon that only answers, and its exporter."""

    def __init__(self, tmp_path: Path, web: Path | None = None, **options: Any) -> None:
        self.port, self.daemon, self._path = free_port(), fakes.FakeDaemon(), tmp_path / "s"
        self._metrics = Metrics(listen=f":{self.port}", web_config=web)
        self._options = options

    @contextlib.contextmanager
    def running(self) -> Iterator[Exporter]:
        with fakes.serving(self._path, self.daemon):
            exporter = Exporter(self._metrics, Node(self._path), **self._options)
            with contextlib.closing(exporter):
                yield exporter

    def get(self, path: str = "/metrics", scheme: str = "http", **headers: str) -> tuple[int, Any, bytes]:
        context = ssl._create_unverified_context() if scheme == "https" else None
        wanted = urllib.request.Request(
            f"{scheme}://127.0.0.1:{self.port}{path}",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        try:
            with urllib.request.urlopen(wanted, timeout=PATIENCE_S, context=context) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()


def web_config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "web.yaml"
    path.write_text(text)
    return path


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
