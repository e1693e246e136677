# SPDX-License-Identifier: Apache-2.0
"""A small API server over real HTTPS: nodes, pods, merge patches, evictions with budgets, and the ways to fail.

What it answers is what a kube-apiserver answers (compared with 1.20.2 by test_cluster.py).
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token"
NODE = "node1"


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    names = "subjectAltName=IP:127.0.0.1,DNS:api.lab.test"
    curve = "ec_paramgen_curve:prime256v1"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", curve, "-nodes", "-days", "2"]
    command += ["-subj", "/CN=lab", "-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def pod(
    name: str, *, priority: int = 0, node: str = NODE, namespace: str = "team", **more: Any
) -> dict[str, Any]:
    """A running pod with one GPU and a ReplicaSet."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"00000000-0000-4000-8000-{sum(map(ord, name)) * 7919:012d}",
        "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z"),
        "ownerReferences": [{"kind": more.pop("owner", "ReplicaSet"), "name": "rs", "controller": True}],
        **more.pop("metadata", {}),
    }
    container = {"name": "main", "resources": {"limits": more.pop("limits", {"nvidia.com/gpu": "1"})}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "priority": priority, "containers": [container], **more.pop("spec", {})},
        "status": {"phase": "Running", **more.pop("status", {})},
    }


class ApiServer:
    """`with ApiServer(directory) as api`; what it holds may be changed at any time."""

    def __init__(self, directory: Path, eviction_version: str | None = "v1") -> None:
        self.directory = directory
        self.eviction_version = eviction_version
        self.nodes: dict[str, dict[str, Any]] = {NODE: {"metadata": {"name": NODE}, "spec": {}}}
        self.pods: dict[str, dict[str, Any]] = {}
        self.budgeted: set[str] = set()
        """Names of pods whose disruption budget allows no eviction."""
        self.lingering: set[str] = set()
        """Names of pods that stay after they were evicted."""
        self.faults: list[tuple[str, str, Callable[[BaseHTTPRequestHandler], None]]] = []
        """(method, part of the path, what to do): each is used once."""
        self.calls: list[tuple[str, str, Any]] = []
        """(method, path, body)"""
        self.tokens = {TOKEN}
        self.page = 1000
        self._versions = itertools.count(1)
        self.certificate, key = make_certificate(directory)
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def add(self, *pods: dict[str, Any]) -> None:
        for one in pods:
            self.pods[one["metadata"]["name"]] = one

    def fail(
        self, method: str, part: str, what: Callable[[BaseHTTPRequestHandler], None], times: int = 1
    ) -> None:
        self.faults += [(method, part, what)] * times

    def made(self, method: str, part: str = "") -> list[Any]:
        """The bodies of the calls so far."""
        return [body for verb, path, body in self.calls if verb == method and part in path]

    def kubeconfig(self, **user: Any) -> Path:
        """A kubeconfig for this server."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {
                        "server": f"https://127.0.0.1:{self.port}",
                        "certificate-authority-data": authority,
                    },
                }
            ],
            "users": [{"name": "me", "user": user or {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "lab", "user": "me"}}],
            "current-context": "c",
        }
        path = self.directory / "kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def version(self) -> str:
        return str(next(self._versions))


def refuse(
    status: int, reason: str = "", message: str = "", *, headers: Mapping[str, str] | None = None
) -> Callable[[BaseHTTPRequestHandler], None]:
    """A fault: this answer, in the form of a Status object."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert isinstance(handler, _Handler)
        handler.say(status, {"kind": "Status", "code": status, "reason": reason, "message": message}, headers)

    return answer


def say_nothing(handler: BaseHTTPRequestHandler) -> None:
    """A fault: the connection stays open and silent until the server ends."""
    assert isinstance(handler, _Handler)
    handler.api.closing.wait(30)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A fault: a byte now and then, for ever."""
    assert isinstance(handler, _Handler)
    handler.send_response(200)
    handler.end_headers()
    while not handler.api.closing.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def drip_headers(handler: BaseHTTPRequestHandler) -> None:
    """A fault: a byte of a header now and then, for ten seconds; each comes before a read would give up."""
    assert isinstance(handler, _Handler)
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(200):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        if handler.api.closing.wait(0.05):
            return


def babble(handler: BaseHTTPRequestHandler) -> None:
    """A fault: not JSON."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"<html>welcome to the hotel's network</html>")


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """A fault: the connection breaks in the middle of the answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def say(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def refuse(self, status: int, reason: str, message: str, **details: Any) -> None:
        body = {"kind": "Status", "code": status, "reason": reason, "message": message, "details": details}
        self.say(status, body)

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PATCH = do_GET

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.calls.append((self.command, self.path, body))
        for index, (method, part, what) in enumerate(self.api.faults):
            if method == self.command and part in self.path:
                del self.api.faults[index]
                with contextlib.suppress(OSError):
                    what(self)
                return
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.api.tokens:
            return self.refuse(401, "Unauthorized", "Unauthorized")
        url = urlsplit(self.path)
        self._route(url.path.strip("/").split("/"), parse_qs(url.query), body)
        return None

    def _route(self, path: list[str], query: Mapping[str, list[str]], body: Any) -> None:
        verb = self.command
        if verb == "GET" and path == ["api", "v1"]:
            return self._resources()
        if path[:3] == ["api", "v1", "nodes"] and len(path) == 4:
            return self._node(path[3], verb, body)
        if verb == "GET" and path == ["api", "v1", "pods"]:
            return self._list(query)
        if path[:3] == ["api", "v1", "namespaces"] and path[4] == "pods":
            return self._pod(path, verb, body)
        return self.refuse(404, "NotFound", "the server could not find the requested resource")

    def _resources(self) -> None:
        resources = [{"name": "pods", "namespaced": True, "kind": "Pod"}]
        version = self.api.eviction_version
        if version is not None:
            resources.append(
                {"name": "pods/eviction", "group": "policy", "version": version, "kind": "Eviction"}
            )
        self.say(200, {"kind": "APIResourceList", "resources": resources})

    def _node(self, name: str, verb: str, body: Any) -> None:
        node = self.api.nodes.get(name)
        if node is None:
            return self.refuse(404, "NotFound", f'nodes "{name}" not found')
        if verb == "PATCH":
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            asked = body.get("metadata", {}).pop("resourceVersion", None)
            if asked is not None and asked != node["metadata"].get("resourceVersion"):
                return self.refuse(409, "Conflict", "the object has been modified")
            merge(node, body)
            node["metadata"]["resourceVersion"] = self.api.version()
        return self.say(200, node)

    def _list(self, query: Mapping[str, list[str]]) -> None:
        node = query["fieldSelector"][0].removeprefix("spec.nodeName=")
        pods = [one for one in self.api.pods.values() if one["spec"]["nodeName"] == node]
        start = int(query.get("continue", ["0"])[0])
        page = min(self.api.page, int(query["limit"][0]))
        more = {"continue": str(start + page)} if start + page < len(pods) else {}
        self.say(200, {"kind": "PodList", "metadata": more, "items": pods[start : start + page]})

    def _pod(self, path: list[str], verb: str, body: Any) -> None:
        one = self.api.pods.get(path[5])
        if one is None or one["metadata"]["namespace"] != path[3]:
            return self.refuse(404, "NotFound", f'pods "{path[5]}" not found')
        if verb == "GET":
            return self.say(200, one)
        if body["apiVersion"] != f"policy/{self.api.eviction_version}" or body["kind"] != "Eviction":
            return self.refuse(400, "BadRequest", "the object provided is unrecognized")
        if body["deleteOptions"]["preconditions"]["uid"] != one["metadata"]["uid"]:
            return self.refuse(409, "Conflict", "Precondition failed: UID in precondition")
        if path[5] in self.api.budgeted:
            causes = [
                {"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods"}
            ]
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            return self.refuse(429, "TooManyRequests", text, causes=causes)
        if body["deleteOptions"].get("dryRun") != ["All"]:
            if path[5] in self.api.lingering:
                one["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
            else:
                del self.api.pods[path[5]]
        return self.say(201, {"kind": "Status", "status": "Success"})


def merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
