# SPDX-License-Identifier: Apache-2.0
"""Credential plugins of a kubeconfig (``users.user.exec``), for people at a terminal; never for a service.

Problem. Clusters of clouds have no lasting tokens: kubectl runs a program that gets one. It may ask questions, hang, or
print anything.

Approach. As client-go's ExecCredential: the program is run without a shell, is told of the cluster and whether it may
ask in ``KUBERNETES_EXEC_INFO``, and prints one JSON document. It has a deadline; its answer has a largest size, goes
to a file (what it has started may hold a pipe open for ever), and is written to no log. A token is got anew when it
has expired.

Source: kubernetes.io, reference of client.authentication.k8s.io/v1. Errors: ConfigError with file, key and remedy.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairsched.errors import ConfigError

DEADLINE_S = 60.0
"""For one run: a person may have to type a code of their phone."""
MAX_BYTES = 1 << 20
EARLY_S = 10.0
"""A token is not used that would expire on its way."""
VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_KEY = "users.user.exec"


@dataclass(frozen=True)
class Credential:
    """What a plugin gave."""

    token: str | None
    certificate: bytes | None
    key: bytes | None
    expires_s: float | None
    """Unix time; None: it does not."""


class Plugin:
    """One plugin. :meth:`token` runs it when there is no token yet, or it has expired."""

    def __init__(
        self,
        path: Path,
        section: Any,
        cluster: Mapping[str, Any],
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``section``: users.user.exec of the kubeconfig at ``path``."""
        if (
            not isinstance(section, dict)
            or not isinstance(section.get("command"), str)
            or not section["command"]
        ):
            raise _wrong(path, "it names no command", "see: kubectl config view")
        self._path, self._section, self._cluster = path, section, cluster
        self._deadline_s, self._clock = deadline_s, clock
        self._got: Credential | None = None
        if section.get("apiVersion") not in VERSIONS:
            raise _wrong(path, f"{section.get('apiVersion')!r} is not known", f"known: {', '.join(VERSIONS)}")

    def credential(self) -> Credential:
        """The one in force. Raises ConfigError."""
        got = self._got
        if got is None or (got.expires_s is not None and got.expires_s - EARLY_S < self._clock()):
            got = self._got = self._read(self._run())
        return got

    def token(self) -> str | None:
        """To send now; None: it gave a certificate only."""
        return self.credential().token

    # ---- the program ----

    def _run(self) -> bytes:
        arguments = self._section.get("args") or []
        command = [self._command(), *map(str, arguments)]
        is_interactive = self._is_interactive()
        with tempfile.TemporaryFile() as out:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=None if is_interactive else subprocess.DEVNULL,
                    stdout=out,
                    env=self._environment(is_interactive),
                )
            except OSError as error:
                hint = str(self._section.get("installHint") or "install it, or name another user")
                raise _wrong(self._path, f"{command[0]}: {error.strerror}", hint) from None
            try:
                status = process.wait(self._deadline_s)
            except subprocess.TimeoutExpired:
                raise _wrong(
                    self._path,
                    f"{command[0]} did not end within {self._deadline_s:g} s",
                    "run it by hand: does it wait for you?",
                ) from None
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            if status:
                raise _wrong(self._path, f"{command[0]} ended with status {status}", "run it by hand")
            out.seek(0)
            return out.read(MAX_BYTES + 1)

    def _command(self) -> str:
        """A bare name is looked for on PATH; a path is from where the kubeconfig lies."""
        command = str(self._section["command"])
        return str(self._path.parent / command) if "/" in command else command

    def _is_interactive(self) -> bool:
        mode = self._section.get("interactiveMode") or "IfAvailable"
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not is_terminal:
            raise _wrong(self._path, "it wants a terminal, and there is none", "run it at a terminal")
        return mode != "Never" and is_terminal

    def _environment(self, is_interactive: bool) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self._section.get("provideClusterInfo"):
            spec["cluster"] = self._told_cluster()
        more = self._section.get("env") or []
        told = {
            str(one["name"]): str(one.get("value", ""))
            for one in more
            if isinstance(one, dict) and "name" in one
        }
        info = {"apiVersion": self._section["apiVersion"], "kind": "ExecCredential", "spec": spec}
        return {**os.environ, **told, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def _told_cluster(self) -> dict[str, Any]:
        keys = (
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority-data",
            "proxy-url",
        )
        told = {key: self._cluster[key] for key in keys if key in self._cluster}
        named = self._cluster.get("certificate-authority")
        if named is not None and "certificate-authority-data" not in told:
            try:
                raw = (self._path.parent / str(named)).read_bytes()
            except OSError as error:
                raise _wrong(
                    self._path, f"{named}: {error.strerror}", "check certificate-authority"
                ) from None
            told["certificate-authority-data"] = base64.b64encode(raw).decode()
        for one in self._cluster.get("extensions") or ():
            if isinstance(one, dict) and one.get("name") == "client.authentication.k8s.io/exec":
                told["config"] = one.get("extension")
        return told

    def _read(self, raw: bytes) -> Credential:
        """What it printed. The text is in no error: it may hold a token."""
        remedy = "run it by hand, and look at what it prints"
        if len(raw) > MAX_BYTES:
            raise _wrong(self._path, f"it printed more than {MAX_BYTES} bytes", remedy)
        try:
            document = json.loads(raw)
            status = document["status"]
            if (
                document.get("kind") != "ExecCredential"
                or document.get("apiVersion") != self._section["apiVersion"]
            ):
                raise ValueError
            token = status.get("token")
            pair = status.get("clientCertificateData"), status.get("clientKeyData")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise _wrong(
                self._path, f"it printed no ExecCredential of {self._section['apiVersion']}", remedy
            ) from None
        if (pair[0] is None) is not (pair[1] is None) or (token is None and pair[0] is None):
            raise _wrong(self._path, "it gave neither a token nor a certificate with its key", remedy)
        text = None if token is None else str(token)
        if text is not None and (not text.isascii() or not text.isprintable() or not text):
            raise _wrong(self._path, "its token has characters that no header may have", remedy)
        return Credential(
            text,
            None if pair[0] is None else str(pair[0]).encode(),
            None if pair[1] is None else str(pair[1]).encode(),
            self._expiry(status.get("expirationTimestamp")),
        )

    def _expiry(self, text: Any) -> float | None:
        if text is None:
            return None
        try:
            moment = datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        except ValueError:
            raise _wrong(self._path, "its expirationTimestamp is no time", "run it by hand") from None
        return moment.replace(tzinfo=moment.tzinfo or datetime.timezone.utc).timestamp()


def _wrong(path: Path, what: str, remedy: str) -> ConfigError:
    return ConfigError(what, file=str(path), key=_KEY, remedy=remedy)
