# SPDX-License-Identifier: Apache-2.0
"""Serves MCP over HTTP to this host alone: loopback, a bearer token, and only hosts and origins that are loopback.

Problem: every user of a host reaches its loopback, and so does a browser that was sent there by a page (DNS rebinding).

Approach: the token is in a file that nobody else can read, never on a command line or in the environment. It is asked
for before anything else of a request is looked at. The SDK checks Host and Origin, and limits bodies and sessions.

Only protocol versions with a handshake are served here: the versions without one (2026-07-28) have no sessions, and a
plan is bound to its session. A client is told so, and falls back.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import stat
import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairsched.errors import FairschedError

PATH = "/mcp"
MAX_BODY_BYTES = 1 << 20
MAX_SESSIONS = 32
IDLE_S = 900.0
SHORTEST = 32
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_TOKEN = re.compile(rb"[\x21-\x7e]+")


class TokenError(FairschedError):
    """The token file is missing, or others can read it; exit status 2."""

    exit_status = 2


def read_token(path: Path) -> bytes:
    """The token. Raises TokenError."""
    make = f"( umask 077; head -c 32 /dev/urandom | base64 > {path} )"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}", remedy=f"make it: {make}") from None
    with open(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise TokenError(f"{path}: it is no file", remedy=f"make one: {make}")
        if found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
            raise TokenError(f"{path}: others can read or change it", remedy=f"chmod 600 {path}, and own it")
        token = file.read(4097).strip()
    if len(token) < SHORTEST or len(token) > 4096 or not _TOKEN.fullmatch(token):
        what = f"a token is {SHORTEST} to 4096 printable characters without blanks"
        raise TokenError(f"{path}: {what}", remedy=f"make one: {make}")
    return token


class Gate:
    """Lets a request in that has the token, to an application that is asked in a version with sessions."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app, self._expected = app, b"Bearer " + token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        given = [value for key, value in scope["headers"] if key == b"authorization"]
        if len(given) != 1 or not secrets.compare_digest(given[0], self._expected):
            refusal = Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        version = Headers(scope=scope).get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _other_version()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def make_app(server: Server[str], token: bytes) -> ASGIApp:
    """The application, behind its gate."""
    return Gate(
        server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            max_request_body_size=MAX_BODY_BYTES,
            session_idle_timeout=IDLE_S,
            max_sessions=MAX_SESSIONS,
            transport_security=TransportSecuritySettings(
                allowed_hosts=[*_HOSTS, *(f"{host}:*" for host in _HOSTS)],
                allowed_origins=[f"http://{host}{port}" for host in _HOSTS for port in ("", ":*")],
            ),
        ),
        token,
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ``host``: 127.0.0.1 or ::1, no other. Raises FairschedError."""
    if host not in ("127.0.0.1", "::1"):
        raise FairschedError(
            f"{host} is not loopback", remedy="use 127.0.0.1 or ::1, and ssh -L from elsewhere"
        )
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(32)
    except OSError as error:
        sock.close()
        raise FairschedError(f"{host} port {port}: {error.strerror}", remedy="choose another port") from None
    return sock


def serve_http(server: Server[str], token: bytes, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT."""
    with listen(host, port) as sock:
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{sock.getsockname()[1]}{PATH}", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            make_app(server, token),
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=64,
            timeout_graceful_shutdown=5,
        )
        anyio.run(uvicorn.Server(config).serve, [sock])


def _other_version() -> Response:
    error = {
        "code": UNSUPPORTED_PROTOCOL_VERSION,
        "message": "this protocol version has no sessions, which plans are bound to",
        "data": {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ""},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return Response(body, status_code=400, media_type="application/json")
