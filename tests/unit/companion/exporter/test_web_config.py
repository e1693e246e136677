# SPDX-License-Identifier: Apache-2.0
"""Who may ask the exporter: passwords, TLS, and what becomes of a file that is wrong or changes."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairsched.companion.exporter.pages import MOST_CHECKS, credentials
from fairsched.companion.exporter.webconfig import WebConfig, read_file
from fairsched.companion.keeper import CompanionKeeper
from fairsched.companion.part import Moment
from fairsched.config import from_bytes
from fairsched.errors import ConfigError
from tests.support import wait_until
from tests.unit.companion.exporter.made import HASH, PATIENCE_S, Exported, basic, free_port, web_config
from tests.unit.protocol import fakes


def test_a_password_is_asked_for_where_there_are_users(tmp_path: Path) -> None:
    exported = Exported(tmp_path, web_config(tmp_path, f"basic_auth_users: {{prometheus: {HASH}}}"))
    with exported.running():
        status, headers, body = exported.get()
        assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="fairsched"')
        assert b"fairsched_" not in body
        for user, password in (
            ("prometheus", "wrong"),
            ("nobody", "secret"),
            ("prometheus", "x" * 100),
            ("", ""),
        ):
            assert exported.get(Authorization=basic(user, password))[0] == 401
        assert exported.get(Authorization="Bearer secret")[0] == 401
        for _ in range(2):  # the second time from memory
            assert exported.get(Authorization=basic("prometheus", "secret"))[0] == 200
        assert exported.get(Authorization=basic("prometheus", "wrong"))[0] == 401
    assert exported.daemon.asked == ["status"], "who may not ask costs the daemon nothing"


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !", "Basic " + base64.b64encode(b"no colon").decode()]
)
def test_what_is_no_password_is_none(header: str) -> None:
    assert credentials(header) is None


def make_certificate(where: Path, name: str) -> None:
    """``name``.crt and ``name``.key."""
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
    subprocess.run(
        [*command.split(), "-keyout", f"{name}.key", "-out", f"{name}.crt"],
        cwd=where,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with node.crt and node.key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    where = tmp_path_factory.mktemp("tls")
    make_certificate(where, "node")
    return where


TLS = "tls_server_config: {cert_file: node.crt, key_file: node.key%s}\n"


def tls_config(certificate: Path, tmp_path: Path, more: str = "") -> Path:
    for name in ("node.crt", "node.key"):
        shutil.copy(certificate / name, tmp_path)
    return web_config(tmp_path, TLS % more)


def test_a_page_over_tls(tmp_path: Path, certificate: Path) -> None:
    exported = Exported(tmp_path, tls_config(certificate, tmp_path))
    with exported.running() as exporter:
        assert b"fairsched_up 1\n" in exported.get(scheme="https")[2]
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
            exported.get()
        assert b"fairsched_up 1\n" in exported.get(scheme="https")[2]
        exporter.take(Moment(fakes.status()))
    context = WebConfig(tls_config(certificate, tmp_path, ", min_version: TLS13")).tls
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3


def test_clients_without_a_certificate_are_kept_out(tmp_path: Path, certificate: Path) -> None:
    more = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: node.crt"
    exported = Exported(tmp_path, tls_config(certificate, tmp_path, more))
    with exported.running():
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
            exported.get(scheme="https")
        context = ssl._create_unverified_context()
        context.load_cert_chain(certificate / "node.crt", certificate / "node.key")
        url = f"https://127.0.0.1:{exported.port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
            assert b"fairsched_up 1\n" in answer.read()


def served_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_a_new_certificate_and_new_users_are_taken_without_a_restart(
    tmp_path: Path, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tls_config(certificate, tmp_path)
    exported = Exported(tmp_path, path)
    with exported.running() as exporter:
        before = served_certificate(exported.port)
        make_certificate(tmp_path, "node")
        path.write_text(TLS % "" + f"basic_auth_users: {{prometheus: {HASH}}}\n")
        exporter.take(Moment(fakes.status()))
        assert served_certificate(exported.port) != before
        assert exported.get(scheme="https")[0] == 401
        path.write_text("tls_server_config: {cert_file: node.crt}\n")
        os.utime(path, (1, 1))
        exporter.take(Moment(fakes.status()))
        assert "web_config=refused" in caplog.text
        assert exported.get(scheme="https", Authorization=basic("prometheus", "secret"))[0] == 200


def test_a_key_that_does_not_fit_leaves_in_force_what_was_and_is_taken_when_it_fits(
    tmp_path: Path, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exported = Exported(tmp_path, tls_config(certificate, tmp_path))
    make_certificate(tmp_path, "new")
    with exported.running() as exporter:
        before = served_certificate(exported.port)
        shutil.copy(
            tmp_path / "new.crt", tmp_path / "node.crt"
        )  # certificate first, key later, as tools do it
        exporter.take(Moment(fakes.status()))
        assert "cannot be used" in caplog.text
        assert served_certificate(exported.port) == before
        assert exported.get(scheme="https")[0] == 200
        shutil.copy(tmp_path / "new.key", tmp_path / "node.key")
        exporter.take(Moment(fakes.status()))
        assert served_certificate(exported.port) == (tmp_path / "new.crt").read_text()


def test_a_certificate_that_was_not_there_yet_is_taken_when_it_is(tmp_path: Path, certificate: Path) -> None:
    path = tls_config(certificate, tmp_path)
    exported = Exported(tmp_path, path)
    with exported.running() as exporter:
        path.write_text("tls_server_config: {cert_file: new.crt, key_file: new.key}\n")
        exporter.take(Moment(fakes.status()))
        assert exported.get(scheme="https")[0] == 200, "what was in force"
        make_certificate(tmp_path, "new")
        exporter.take(Moment(fakes.status()))
        assert served_certificate(exported.port) == (tmp_path / "new.crt").read_text()


def test_an_authority_that_was_taken_away_lets_nobody_in_any_more(tmp_path: Path, certificate: Path) -> None:
    make_certificate(tmp_path, "other")
    more = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: %s.crt"
    path = tls_config(certificate, tmp_path, more % "node")
    exported = Exported(tmp_path, path)
    context = ssl._create_unverified_context()
    context.load_cert_chain(certificate / "node.crt", certificate / "node.key")
    with exported.running() as exporter:
        url = f"https://127.0.0.1:{exported.port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
            assert answer.status == 200
        path.write_text(TLS % (more % "other"))
        exporter.take(Moment(fakes.status()))
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
            urllib.request.urlopen(url, timeout=PATIENCE_S, context=context)


def test_a_crowd_that_guesses_passwords_keeps_nobody_from_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = Exported(tmp_path, web_config(tmp_path, f"basic_auth_users: {{prometheus: {HASH}}}"))
    going_on = threading.Event()
    with exported.running() as exporter, ThreadPoolExecutor(MOST_CHECKS) as crowd:
        assert exported.get(Authorization=basic("prometheus", "secret"))[0] == 200
        monkeypatch.setattr(WebConfig, "check", lambda *_: not going_on.wait(PATIENCE_S))
        try:
            guesses = [
                crowd.submit(exported.get, Authorization=basic("prometheus", f"guess {number}"))
                for number in range(MOST_CHECKS)
            ]
            wait_until(lambda: exporter._checks.waiting == MOST_CHECKS, PATIENCE_S, "all of them wait")
            assert exported.get(Authorization=basic("prometheus", "one more"))[0] == 503
            assert exported.get(Authorization=basic("prometheus", "secret"))[0] == 200, "it is known"
        finally:
            going_on.set()
        assert {guess.result()[0] for guess in guesses} == {401}


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("[]", "", "mapping"),
        ("tls_server_confg: {}", "tls_server_confg", "does not know this key"),
        ("http_server_config: {http2: true}", "http_server_config", "does not know this key"),
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file", "required"),
        (
            "tls_server_config: {cert_file: a, key_file: b, cipher_suites: [x]}",
            "tls_server_config.cipher_suites",
            "does not know this key",
        ),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}",
            "tls_server_config.min_version",
            "TLS12",
        ),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "tls_server_config.client_ca_file",
            "authority",
        ),
        ("basic_auth_users: {prometheus: secret}", "basic_auth_users", "no bcrypt hash"),
        pytest.param(
            f"basic_auth_users: {{'a:b': {HASH}}}", "basic_auth_users", "colon", id="a-colon-in-a-name"
        ),
        ("basic_auth_users: [a]", "basic_auth_users", "dict"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, text: str, key: str, says: str) -> None:
    path = web_config(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert key in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.remedy


def test_a_daemon_does_not_start_with_a_bad_file(tmp_path: Path) -> None:
    path = web_config(tmp_path, "basic_auth_users: {prometheus: secret}")
    text = f"metrics: {{listen: ':{free_port()}', web_config: {path}}}"
    with pytest.raises(ConfigError, match="no bcrypt hash"):
        CompanionKeeper(from_bytes(text.encode(), "config.yaml"))


def test_files_that_are_not_there_or_no_certificates_are_named(tmp_path: Path, certificate: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_file(tmp_path / "nothing")
    path = web_config(tmp_path, TLS % "")
    with pytest.raises(ConfigError, match=r"tls_server_config.cert_file: .*node.crt: No such file"):
        WebConfig(path)
    tls_config(certificate, tmp_path)
    (tmp_path / "node.key").write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot be used"):
        WebConfig(path)
    path.write_text(TLS % ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: no.crt")
    tls_config(
        certificate, tmp_path, ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: no.crt"
    )
    with pytest.raises(ConfigError, match=r"client_ca_file: .*no.crt"):
        WebConfig(path)


def test_a_key_that_everybody_can_read_is_said_so(
    tmp_path: Path, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tls_config(certificate, tmp_path)
    (tmp_path / "node.key").chmod(0o600)
    WebConfig(path)
    assert "readable by everybody" not in caplog.text
    (tmp_path / "node.key").chmod(0o644)
    WebConfig(path)
    assert "readable by everybody" in caplog.text
