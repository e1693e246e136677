# SPDX-License-Identifier: Apache-2.0
"""A certificate authority for one cluster, and a kubeconfig for each of its users, whose certificate says who it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

DAYS = "2"


class Authority:
    """Keeps everything in ``directory``: NAME.crt, NAME.key, NAME.conf."""

    def __init__(self, directory: Path, server: str) -> None:
        """``server``: the URL that the kubeconfigs name."""
        self.directory, self.server = directory, server
        directory.mkdir()
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._openssl(
            "req", "-x509", *key, "-days", DAYS, "-subj", "/CN=fairsched-test",
            "-keyout", self.key("ca"), "-out", self.certificate("ca"),
        )  # fmt: skip
        # Of service accounts' tokens.
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key("accounts"))

    def certificate(self, name: str) -> str:
        return str(self.directory / f"{name}.crt")

    def key(self, name: str) -> str:
        return str(self.directory / f"{name}.key")

    def issue(self, name: str, user: str, group: str = "", addresses: str = "") -> None:
        """A certificate for ``user`` of ``group``, as a client and, with ``addresses``, as a server."""
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        extensions = self.directory / f"{name}.ext"
        lines = ["extendedKeyUsage=clientAuth,serverAuth"]
        extensions.write_text(
            "\n".join(lines + ([f"subjectAltName={addresses}"] if addresses else [])) + "\n"
        )
        request = str(self.directory / f"{name}.csr")
        self._openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", subject, "-keyout", self.key(name), "-out", request,
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate("ca"), "-CAkey", self.key("ca"),
            "-CAcreateserial", "-days", DAYS, "-extfile", str(extensions), "-out", self.certificate(name),
        )  # fmt: skip

    def kubeconfig(self, name: str, user: str, group: str = "") -> Path:
        """A certificate for ``user`` and the kubeconfig that uses it."""
        self.issue(name, user, group)
        path = self.directory / f"{name}.conf"
        files = {"client-certificate": self.certificate(name), "client-key": self.key(name)}
        cluster = {"server": self.server, "certificate-authority": self.certificate("ca")}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": name, "user": files}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                    "current-context": "test",
                }
            )
        )
        return path

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
