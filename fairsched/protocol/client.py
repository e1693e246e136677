# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon over its control socket, for the command line (see server.py for the wire and the rules).

A module of its own, so that ``fairsched status`` does not import the server.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairsched.errors import ControlError

VERSION = 1
"""Of the wire protocol."""
DEFAULT_SOCKET = Path("/run/fairsched/fairsched.sock")
TIMEOUT_S = 5.0
"""For a whole answer."""
KEPT_S = 30.0
"""For one that comes when a disk has kept it: two fsyncs, after the two of the change before, of four seconds each."""
KEPT = ("tenant_set", "tenant_unset")
"""The requests that have such an answer."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024


def encode_line(document: Mapping[str, Any]) -> bytes:
    """One message of the wire."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


class ControlClient:
    """The command line's end."""

    def __init__(self, path: Path = DEFAULT_SOCKET, *, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self.timeout_s = timeout_s

    def request(self, name: str, **args: Any) -> Any:
        """Ask and return the plain result.

        Raises ControlError (exit status 1) when the daemon is not there, is mute or refuses; the
        status the daemon gave is kept (2 for a bad configuration).
        """
        timeout_s = max(self.timeout_s, KEPT_S) if name in KEPT else self.timeout_s
        deadline_s = time.monotonic() + timeout_s
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(timeout_s)
            try:
                self._connect(sock)
                with contextlib.suppress(BrokenPipeError):  # refused at once: the reason can be read
                    sock.sendall(encode_line({"v": VERSION, "request": name, "args": args}))
                raw = self._receive(sock, deadline_s)
            except TimeoutError:
                changed = "; `fairsched tenant list` shows whether it was changed" if name in KEPT else ""
                raise ControlError(
                    f"the fairsched daemon did not answer within {timeout_s:g} s",
                    remedy=f"look at its log: journalctl -u fairsched{changed}",
                ) from None
            except OSError as error:
                raise ControlError(f"{self._path}: {error.strerror}", remedy="try again") from None
        return self._result(raw)

    def _connect(self, sock: socket.socket) -> None:
        try:
            sock.connect(str(self._path))
        except (FileNotFoundError, ConnectionRefusedError):
            raise ControlError(
                f"the fairsched daemon is not running (nobody listens on {self._path})",
                remedy="start it: systemctl start fairsched, or: fairsched run",
            ) from None
        except PermissionError:
            raise ControlError(
                f"no permission to use {self._path}", remedy="use sudo, or join the fairsched group"
            ) from None

    def _receive(self, sock: socket.socket, deadline_s: float) -> bytes:
        data = bytearray()
        while b"\n" not in data:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
            try:
                chunk = sock.recv(65536)
            except ConnectionResetError:
                chunk = b""
            if not chunk or len(data) > MAX_ANSWER_BYTES:
                raise ControlError("the daemon broke off in mid-answer", remedy="look at its log")
            data += chunk
        return bytes(data)

    def _result(self, raw: bytes) -> Any:
        try:
            answer = json.loads(raw)
            if answer["ok"]:
                return answer["result"]
            detail = answer["error"]
            error = ControlError(str(detail["message"]), remedy=str(detail["remedy"]))
            error.exit_status = int(detail["exit_status"])
        except (ValueError, TypeError, KeyError):
            raise ControlError(
                "the daemon's answer cannot be understood",
                remedy="use the fairsched command of the same version as the daemon",
            ) from None
        raise error
