# SPDX-License-Identifier: Apache-2.0
"""Where the Kubernetes API is and how to prove who we are: a service account in the pod, or a kubeconfig.

Understood of a kubeconfig: server, certificate-authority(-data), insecure-skip-tls-verify, tls-server-name, token,
tokenFile, client-certificate(-data) and client-key(-data). Credential plugins (``exec``) are run for people at a
terminal (execplugin.py); for a service they are refused with a remedy, and so is ``auth-provider`` for both. Tokens in
files are read anew for every request: they are rotated.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import yaml

from fairsched.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KEY = "escalation.kubernetes.kubeconfig"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Access:
    """One API server and our identity there."""

    server: SplitResult
    """https://HOST:PORT/prefix"""
    tls: ssl.SSLContext
    server_name: str | None = None
    """Name in the server's certificate, where it is not the host's."""
    token: str | None = None
    token_file: Path | None = None
    token_of: Callable[[], str | None] | None = None
    """A credential plugin, asked for each request; it knows whether its token has expired."""

    def bearer(self) -> str | None:
        """The token to send now. Raises ConfigError when its file cannot be read, or a plugin fails."""
        if self.token_of is not None:
            return self.token_of()
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token cannot be read: {error}", file=str(self.token_file)) from None


class NoCluster(ConfigError):
    """This is no node of a cluster, as far as we are told."""


def of_person(kubeconfig: Path | None, context: str | None = None) -> Access:
    """As kubectl finds it: `kubeconfig`, else $KUBECONFIG, else ~/.kube/config, else the pod's service account.

    Raises ConfigError, NoCluster among them.
    """
    key = "--kubeconfig"
    if kubeconfig is None and (named := os.environ.get("KUBECONFIG")):
        files = [name for name in named.split(os.pathsep) if name]
        if len(files) > 1:
            raise ConfigError(
                "it names several files, which only kubectl puts together",
                key="KUBECONFIG",
                remedy="kubectl config view --flatten > FILE, and --kubeconfig FILE",
            )
        kubeconfig, key = Path(files[0]), "KUBECONFIG"
    usual = Path(
        os.path.expanduser("~/.kube/config")
    )  # where there is no home, as in some pods, it is not there
    if kubeconfig is None and context is None and not usual.exists():
        return access(None, key=key)
    return from_file(kubeconfig or usual, context=context, key=key, may_run=True)


def access(kubeconfig: Path | None, service_account: Path = SERVICE_ACCOUNT, *, key: str = _KEY) -> Access:
    """By `kubeconfig`, or as the pod's service account when it is None. Raises ConfigError, NoCluster among them."""
    if kubeconfig is not None:
        return from_file(kubeconfig)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = service_account / "token"
    if not host or not token.exists():
        raise NoCluster(
            "there is no service account here, and no kubeconfig is named",
            key=key,
            remedy="name a kubeconfig, or run fairsched in a pod with a service account",
        )
    authority = service_account / "ca.crt"
    try:
        tls = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"not a certificate: {error}", file=str(authority)) from None
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Access(urlsplit(f"https://{where}"), tls, token_file=token)


def from_file(path: Path, *, context: str | None = None, key: str = _KEY, may_run: bool = False) -> Access:
    """The current context of a kubeconfig, or `context`. Raises ConfigError, which names the file and the entry.

    ``key``: what named the file, for remedies. ``may_run``: a credential plugin (exec) may be run, which is for people.
    """
    try:
        with open(path, "rb") as file:
            document = yaml.safe_load(file.read(_MAX_BYTES))
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path), remedy=f"check {key}") from None
    if not isinstance(document, dict):
        raise _wrong(path, "", "is not a kubeconfig")
    chosen = _named(document, "contexts", context or document.get("current-context"), "context", path)
    cluster = _named(document, "clusters", chosen.get("cluster"), "cluster", path)
    user = _named(document, "users", chosen.get("user"), "user", path)
    server = urlsplit(str(cluster.get("server", "")))
    if server.scheme != "https" or not server.hostname:
        raise _wrong(path, "clusters.cluster.server", f"{cluster.get('server')!r} is not an https address")
    for plugin in ("exec", "auth-provider"):
        if plugin in user and not (may_run and plugin == "exec"):
            raise _wrong(
                path,
                f"users.user.{plugin}",
                "runs a plugin, which a service cannot",
                "give fairsched a service account's token or a client certificate",
            )
    if "exec" in user:
        return _by_plugin(path, server, cluster, user["exec"])
    token_file = user.get("tokenFile")
    return Access(
        server,
        _tls(path, cluster, user),
        server_name=cluster.get("tls-server-name"),
        token=user.get("token"),
        token_file=None if token_file is None else _beside(path, token_file),
    )


def _by_plugin(path: Path, server: SplitResult, cluster: Mapping[str, Any], section: Any) -> Access:
    from fairsched.k8s.execplugin import Plugin

    plugin = Plugin(path, section, cluster)
    got = plugin.credential()  # now: a certificate is a matter of the connection
    pair = {}
    if got.certificate is not None and got.key is not None:
        names = {"client-certificate-data": got.certificate, "client-key-data": got.key}
        pair = {name: base64.b64encode(value).decode() for name, value in names.items()}
    return Access(
        server,
        _tls(path, cluster, pair),
        server_name=cluster.get("tls-server-name"),
        token_of=plugin.token,
    )


def _tls(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        authority = _bytes(path, cluster, "certificate-authority")
        tls = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii"))
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate, key = _bytes(path, user, "client-certificate"), _bytes(path, user, "client-key")
        if certificate is not None and key is not None:
            # ssl takes files only; this one is gone again at once, and only ever readable by us
            with tempfile.NamedTemporaryFile(prefix="fairsched-") as pem:
                pem.write(certificate + b"\n" + key + b"\n")
                pem.flush()
                tls.load_cert_chain(pem.name)
        return tls
    except (OSError, ValueError, binascii.Error) as error:  # SSLError is an OSError
        raise _wrong(path, "certificates", f"cannot be used: {error}") from None


def _bytes(path: Path, section: Mapping[str, Any], key: str) -> bytes | None:
    """The value of KEY-data, else the content of the file that KEY names."""
    inline = section.get(f"{key}-data")
    if inline is not None:
        return base64.b64decode(str(inline), validate=True)
    named = section.get(key)
    return None if named is None else _beside(path, named).read_bytes()


def _beside(path: Path, named: Any) -> Path:
    return path.parent / str(named)  # an absolute name stays what it is


def _named(document: Mapping[str, Any], group: str, name: Any, kind: str, path: Path) -> Mapping[str, Any]:
    entries = document.get(group)
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: Mapping[str, Any] = entry[kind]
            return found
    raise _wrong(path, group, f"has no {kind} called {name!r}")


def _wrong(path: Path, key: str, what: str, remedy: str = "") -> ConfigError:
    return ConfigError(what, file=str(path), key=key, remedy=remedy or f"check {_KEY}")
