# SPDX-License-Identifier: Apache-2.0
"""TLS and passwords of the exporter, from a file in the format that Prometheus' own exporters have.

The format is that of exporter-toolkit's web configuration, so one file does for all exporters of a node. Understood are
``tls_server_config`` with cert_file, key_file, client_auth_type, client_ca_file, min_version, max_version, and
``basic_auth_users`` (user: bcrypt hash). Any other key is an error that names it: a file that asks for a protection
that is not there must not be taken. Paths are relative to the file. Certificates and users are read again when a file
changes.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import os
import re
import ssl
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from fairsched.config.section import Section
from fairsched.config.yamlfile import MAX_BYTES, dotted, parse, too_large
from fairsched.errors import ConfigError

logger = logging.getLogger(__name__)

_HASH = re.compile(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}")
_MOST_PASSWORD_BYTES = 72
"""bcrypt looks at no more."""
_MOST_KNOWN = 64
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class _Tls(Section):
    cert_file: str
    key_file: str
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = (
        "NoClientCert"
    )
    client_ca_file: str | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"


class _File(Section):
    tls_server_config: _Tls | None = None
    basic_auth_users: dict[str, str] = Field(default_factory=dict)


class WebConfig:
    """What the file says, in force. ``path`` None: no TLS, and whoever reaches the address may ask.

    Raises ConfigError, which names file and key.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[bytes, None] = {}
        """Of user, hash and password that were found to fit: bcrypt takes a tenth of a second."""
        self._secret = os.urandom(32)
        self._file = _File() if path is None else read_file(path)
        self._watched = self._file
        """What the file said last, taken or refused: its certificates are those to look at."""
        self.tls = self._make_tls(self._file)
        """What new connections have; another object when it has changed."""
        self._stamps = self._read_stamps()

    @property
    def has_users(self) -> bool:
        """Whether a password is asked for."""
        return bool(self._file.basic_auth_users)

    def is_known(self, user: str, password: str) -> bool:
        """Whether they were found to fit before; at once."""
        return self._key(user, password) in self._known

    def check(self, user: str, password: str) -> bool:
        """Whether they fit; takes a tenth of a second, and is done for one at a time."""
        import bcrypt

        known = self._file.basic_auth_users.get(user)
        raw = password.encode()
        if len(raw) > _MOST_PASSWORD_BYTES or b"\0" in raw:
            return False
        with self._lock:
            fits = bcrypt.checkpw(raw, known.encode() if known else _nobody()) and known is not None
            if fits:
                while len(self._known) >= _MOST_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[self._key(user, password)] = None
        return fits

    def _key(self, user: str, password: str) -> bytes:
        known = self._file.basic_auth_users.get(user, "")
        message = "\0".join((user, known, password)).encode(errors="replace")
        return hmac.new(self._secret, message, hashlib.sha256).digest()

    def refresh(self) -> None:
        """Read what has changed; a bad file is logged, and what was in force goes on, whole."""
        if self._path is None or (stamps := self._read_stamps()) == self._stamps:
            return
        self._stamps = stamps
        try:
            found = self._watched = read_file(self._path)
            self._stamps = self._read_stamps()
            if (found.tls_server_config is None) != (self.tls is None):
                raise ConfigError(
                    "TLS cannot be turned on or off while the exporter runs",
                    file=str(self._path),
                    key="tls_server_config",
                    remedy="restart the daemon",
                )
            tls = self._make_tls(found)
        except ConfigError as error:
            logger.error("web_config=refused error=%r remedy=%r kept=running", str(error), error.remedy)
            return
        self._file, self.tls = found, tls
        logger.info("web_config=%s users=%d", self._path, len(found.basic_auth_users))

    def _read_stamps(self) -> Mapping[str, tuple[int, int] | None]:
        files = [] if self._path is None else [self._path]
        tls = self._watched.tls_server_config
        if tls is not None and self._path is not None:
            names = (tls.cert_file, tls.key_file, tls.client_ca_file)
            files += [_beside(self._path, name) for name in names if name is not None]
        found: dict[str, tuple[int, int] | None] = {}
        for file in files:
            try:
                said = file.stat()
                found[str(file)] = (said.st_mtime_ns, said.st_ino)
            except OSError:
                found[str(file)] = None
        return found

    def _make_tls(self, file: _File) -> ssl.SSLContext | None:
        """Anew: OpenSSL leaves a context half changed when a key does not fit, and never forgets an authority."""
        wanted = file.tls_server_config
        if wanted is None or self._path is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(context, wanted, self._path)
        return context


def read_file(path: Path) -> _File:
    """The file, checked. Raises ConfigError."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, "", error) from None
    if len(raw) > MAX_BYTES:
        raise too_large(len(raw), file)
    data = parse(raw, file).data
    if data is not None and not isinstance(data, dict):
        raise ConfigError("must be a mapping", file=file, remedy="see docs/metrics.md")
    try:
        found = _File.model_validate(data)
    except ValidationError as error:
        raise _invalid(file, error) from None
    for user, hashed in found.basic_auth_users.items():
        if ":" in user or _HASH.fullmatch(hashed) is None:
            what = "has a colon" if ":" in user else "has no bcrypt hash"
            raise ConfigError(
                f"the user '{user[:40]}' {what}",
                file=file,
                key="basic_auth_users",
                remedy="make the hash with: htpasswd -nBC 10 USER",
            )
    tls = found.tls_server_config
    if tls is not None and tls.client_auth_type != "NoClientCert" and tls.client_ca_file is None:
        raise ConfigError(
            f"client_auth_type {tls.client_auth_type} needs the authority of the clients",
            file=file,
            key="tls_server_config.client_ca_file",
            remedy="name its certificate, or set client_auth_type: NoClientCert",
        )
    return found


def _invalid(file: str, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    key = dotted(tuple(part for part in first["loc"] if part != "[key]"))
    if first["type"] == "extra_forbidden":
        return ConfigError(
            "fairsched does not know this key",
            file=file,
            key=key,
            remedy="remove it; docs/metrics.md lists what is understood",
        )
    return ConfigError(first["msg"], file=file, key=key, remedy="see docs/metrics.md")


def _unreadable(file: str, key: str, error: OSError) -> ConfigError:
    remedy = "the daemon runs as root: check that the path is right, and the permissions"
    return ConfigError(error.strerror or str(error), file=file, key=key, remedy=remedy)


def _beside(path: Path, name: str) -> Path:
    return path.parent / name


def _load(context: ssl.SSLContext, wanted: _Tls, path: Path) -> None:
    """Certificates into ``context``. Raises ConfigError."""
    cert, key = _beside(path, wanted.cert_file), _beside(path, wanted.key_file)
    for name, file in (("cert_file", cert), ("key_file", key)):
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            where = f"tls_server_config.{name}"
            raise ConfigError(
                f"{file}: {error.strerror}",
                file=str(path),
                key=where,
                remedy="check the path and its permissions; paths are relative to the file",
            ) from None
    if key.stat().st_mode & stat.S_IROTH:
        logger.warning("web_config=%s key_file=%s is readable by everybody: chmod 600", path, key)
    try:
        context.minimum_version = _VERSIONS[wanted.min_version]
        context.maximum_version = _VERSIONS[wanted.max_version]
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{cert} and {key} cannot be used: {getattr(error, 'reason', None) or error}",
            file=str(path),
            key="tls_server_config",
            remedy="cert_file is a PEM certificate (chain), key_file its PEM private key without a password",
        ) from None
    _load_authority(context, wanted, path)


def _load_authority(context: ssl.SSLContext, wanted: _Tls, path: Path) -> None:
    if wanted.client_ca_file is not None:
        authority = _beside(path, wanted.client_ca_file)
        try:
            context.load_verify_locations(authority)
        except OSError as error:  # SSLError is one
            raise ConfigError(
                f"{authority}: {getattr(error, 'reason', None) or error.strerror}",
                file=str(path),
                key="tls_server_config.client_ca_file",
                remedy="it is a PEM certificate of the authority that signed those of the clients",
            ) from None
    context.verify_mode = _CLIENT_AUTH[wanted.client_auth_type]


@functools.cache
def _nobody() -> bytes:
    """Compared with when there is no such user, so that the time taken does not tell."""
    import bcrypt

    return bytes(bcrypt.hashpw(os.urandom(16), bcrypt.gensalt(10)))


def _no_password() -> str:
    """Instead of a question on the terminal; OpenSSL then says that the key cannot be read."""
    return ""
