# SPDX-License-Identifier: Apache-2.0
"""Asks the cluster's API server and its agent without a program for each question.

Problem. A test that waits asks again and again. A kubectl or a Python that is started for each question takes a third
of a second of a processor, and whoever is waited for has two of these together with all those.

Approach. One kept connection for each thread, whose socket was made in the node's network, where the server listens.
Resources have their names by the server's own discovery, as for kubectl.
Errors: ApiError, with what the server says.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fairsched.k8s import kubeconfig
from tests.k8s.places import SLOWER

CLONE_NEWNET = 0x40000000
ANSWERED_S = 60.0 * SLOWER


class ApiError(Exception):
    """The server said no, or nothing."""


@contextlib.contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """This thread, and those that it starts, are in the network of a process; processes that it starts are as well."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str | Path) -> None:
        space = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(space, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {path}")
        finally:
            os.close(space)

    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(f"/proc/{pid}/ns/net")
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


class _Connection(http.client.HTTPSConnection):
    """From the network of a process."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, pid: int) -> None:
        super().__init__(host, port, context=tls, timeout=ANSWERED_S)
        self._tls, self._pid = tls, pid

    def connect(self) -> None:
        with in_network_of(self._pid):
            plain = socket.create_connection((self.host, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)


@dataclass(frozen=True)
class Kind:
    """A resource as discovery has it."""

    top: str
    """Path of its version."""
    version: str
    plural: str
    kind: str
    is_namespaced: bool


class Api:
    """As the administrator, from the network of the process ``pid``. For any thread."""

    def __init__(self, config: Path, pid: int) -> None:
        self._access, self._pid = kubeconfig.access(config), pid
        self._own = threading.local()
        self._kinds: dict[str, Kind] = {}

    def text(self, path: str) -> str:
        """What the server answers to GET. Raises ApiError."""
        for is_last in (False, True):
            try:
                return self._ask(path)
            except (OSError, http.client.HTTPException) as error:
                self._own.connection = None  # the server was started anew, or has let go of what was idle
                if is_last:
                    raise ApiError(f"{path}: {error!r}") from error
        raise AssertionError

    def _ask(self, path: str) -> str:
        connection: _Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            server = self._access.server
            assert server.hostname and server.port
            connection = _Connection(server.hostname, server.port, self._access.tls, self._pid)
            self._own.connection = connection
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status != 200:
            raise ApiError(f"{path}: {response.status} {text[:500]}")
        return text

    def get(self, *what: str) -> dict[str, Any]:
        """As ``kubectl get -o json``: KIND [NAME], -n, -A, -l, --field-selector=. Raises ApiError."""
        words, namespace, query = _parsed(what)
        kind = self._kind(words[0])
        place = f"/namespaces/{namespace}" if kind.is_namespaced and namespace else ""
        name = f"/{words[1]}" if len(words) > 1 else ""
        tail = f"?{urlencode(query)}" if query else ""
        found: dict[str, Any] = json.loads(self.text(f"{kind.top}{place}/{kind.plural}{name}{tail}"))
        for item in (found, *found.get("items", ())) if name else found["items"]:
            item.setdefault("apiVersion", kind.version)
            item.setdefault("kind", kind.kind)
        return found

    def _kind(self, name: str) -> Kind:
        if name not in self._kinds:
            self._discover()
        if name not in self._kinds:
            raise ApiError(f"the server has no {name}")
        return self._kinds[name]

    def _discover(self) -> None:
        self._kinds = {}
        versions = {"v1": "/api/v1"}
        for group in json.loads(self.text("/apis"))["groups"]:
            version = group["preferredVersion"]["groupVersion"]
            versions[version] = f"/apis/{version}"
        for version, top in versions.items():
            for one in json.loads(self.text(top))["resources"]:
                if "/" in one["name"]:
                    continue
                kind = Kind(top, version, one["name"], one["kind"], one["namespaced"])
                group = version.partition("/")[0] if "/" in version else ""
                full = f"{one['name']}.{group}"
                for name in (one["name"], one["kind"].lower(), full, *one.get("shortNames", ())):
                    self._kinds.setdefault(name, kind)


def _parsed(what: tuple[str, ...]) -> tuple[list[str], str | None, dict[str, str]]:
    """Words, the namespace (None: all), and what narrows a list."""
    words: list[str] = []
    namespace: str | None = "default"
    query: dict[str, str] = {}
    rest = iter(what)
    for word in rest:
        if word == "-n":
            namespace = next(rest)
        elif word in ("-A", "--all-namespaces"):
            namespace = None
        elif word == "-l":
            query["labelSelector"] = next(rest)
        elif word.startswith("--field-selector="):
            query["fieldSelector"] = word.partition("=")[2]
        else:
            assert not word.startswith("-"), word
            words.append(word)
    return words, namespace, query
