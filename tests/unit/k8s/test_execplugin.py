# SPDX-License-Identifier: Apache-2.0
"""Credential plugins: what they are told, what they may answer, and that no service runs one."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fairsched.errors import ConfigError
from fairsched.k8s import kubeconfig
from fairsched.k8s.client import KubeClient
from fairsched.k8s.execplugin import EARLY_S, MAX_BYTES, VERSIONS, Plugin
from tests.unit.companion.escalate.api_server import NODE, TOKEN, ApiServer

V1 = VERSIONS[0]


def answer(version: str = V1, **status: Any) -> str:
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def program(directory: Path, body: str) -> Path:
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def plugin(directory: Path, body: str, **more: Any) -> Plugin:
    keys = {"deadline_s", "clock"}
    options = {key: more.pop(key) for key in keys & more.keys()}
    cluster = more.pop("cluster", {"server": "https://x"})
    section = {"apiVersion": V1, "command": str(program(directory, body)), "interactiveMode": "Never", **more}
    return Plugin(directory / "config", section, cluster, **options)


def test_a_token_is_sent_and_got_anew_when_it_has_expired(tmp_path: Path) -> None:
    now_s = [1_000_000.0]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s[0] + 100))
    (tmp_path / "a").write_text(answer(token="one", expirationTimestamp=stamp))
    made = plugin(tmp_path, f"echo run >>{tmp_path}/runs; cat {tmp_path}/a", clock=lambda: now_s[0])
    assert [made.token(), made.token()] == ["one", "one"]
    (tmp_path / "a").write_text(answer(token="two"))
    now_s[0] += 100 - EARLY_S + 1
    assert [made.token(), made.token()] == ["two", "two"]
    assert (tmp_path / "runs").read_text().count("run") == 2


def test_it_is_told_of_itself_and_of_the_cluster_without_a_shell(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("authority")
    cluster = {
        "server": "https://x",
        "certificate-authority": "ca.crt",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "y"}}],
    }
    body = f'echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info; echo "$1|$WHO" >{tmp_path}/said; '
    body += f"echo '{answer(token='t')}'"
    more = {"args": ["$(touch x); *"], "env": [{"name": "WHO", "value": "me"}], "provideClusterInfo": True}
    assert plugin(tmp_path, body, cluster=cluster, **more).token() == "t"
    assert (tmp_path / "said").read_text() == "$(touch x); *|me\n"
    info = json.loads((tmp_path / "info").read_text())
    assert info["spec"]["interactive"] is False and info["apiVersion"] == V1
    assert info["spec"]["cluster"] == {
        "server": "https://x",
        "certificate-authority-data": base64.b64encode(b"authority").decode(),
        "config": {"audience": "y"},
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 3", "ended with status 3"),
        ("echo hello", "no ExecCredential"),
        ("echo '[]'", "no ExecCredential"),
        (f"echo '{answer(VERSIONS[1], token='t')}'", "no ExecCredential"),
        (f"echo '{answer()}'", "neither a token nor"),
        (f"echo '{answer(clientCertificateData='x')}'", "neither a token nor"),
        (f"echo '{answer(token='secret', clientKeyData='x')}'", "neither a token nor"),
        (f"echo '{answer(token='secret', expirationTimestamp='soon')}'", "is no time"),
        (
            f"printf '%s' '{answer(token='secret').replace('secret', 'sec' + chr(92) + 'nret')}'",
            "no header may have",
        ),
        (f"head -c {MAX_BYTES + 1} /dev/zero", "more than"),
    ],
)
def test_a_bad_answer_is_said_without_what_it_printed(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        plugin(tmp_path, body).token()
    assert str(tmp_path / "config") in str(caught.value) and "users.user.exec" in str(caught.value)
    assert caught.value.remedy and "secret" not in str(caught.value) + caught.value.remedy


def test_one_that_hangs_is_ended_also_when_what_it_started_goes_on(tmp_path: Path) -> None:
    began = time.monotonic()
    body = f"sleep 30 & echo $! >{tmp_path}/child; sleep 30"
    with pytest.raises(ConfigError, match="did not end within"):
        plugin(tmp_path, body, deadline_s=1.0).token()
    assert time.monotonic() - began < 15
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (None, "names no command"),
        ({"apiVersion": V1}, "names no command"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}, "is not known"),
        (
            {"apiVersion": V1, "command": "surely-not-installed", "installHint": "brew install it"},
            "No such file",
        ),
        ({"apiVersion": V1, "command": "true", "interactiveMode": "Always"}, "wants a terminal"),
    ],
)
def test_a_section_that_cannot_be_used(
    tmp_path: Path, section: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ConfigError, match=said) as caught:
        Plugin(tmp_path / "config", section, {}).token()
    assert caught.value.remedy
    assert "installHint" not in str(section) or caught.value.remedy == "brew install it"


def test_people_have_plugins_and_services_do_not(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is run for a service, not even looked for."""
    program(tmp_path, f"touch {tmp_path}/ran; echo '{answer(token=TOKEN)}'")
    path = api.kubeconfig(exec={"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never"})
    for refuse in (kubeconfig.from_file, kubeconfig.access):
        with pytest.raises(ConfigError, match="runs a plugin, which a service cannot"):
            refuse(path)
    assert not (tmp_path / "ran").exists()
    assert KubeClient(kubeconfig.of_person(path)).node(NODE)["metadata"]["name"] == NODE
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert KubeClient(kubeconfig.of_person(None)).node(NODE)
    monkeypatch.setenv("KUBECONFIG", f"{path}:{path}")
    with pytest.raises(ConfigError, match="several files"):
        kubeconfig.of_person(None)
    with pytest.raises(ConfigError, match="no context called 'other'"):
        kubeconfig.of_person(path, "other")
    old = api.kubeconfig(**{"auth-provider": {"name": "gcp"}})
    with pytest.raises(ConfigError, match="runs a plugin"):
        kubeconfig.of_person(old)


def test_a_certificate_of_a_plugin_is_shown(api: ApiServer, tmp_path: Path) -> None:
    pair = {
        "clientCertificateData": api.certificate.read_text(),
        "clientKeyData": (tmp_path / "tls.key").read_text(),
    }
    (tmp_path / "a").write_text(answer(token=TOKEN, **pair))
    program(tmp_path, f"cat {tmp_path}/a")
    path = api.kubeconfig(exec={"apiVersion": V1, "command": "./plugin"})
    assert KubeClient(kubeconfig.of_person(path)).node(NODE)
    (tmp_path / "a").write_text(answer(token=TOKEN, clientCertificateData="x", clientKeyData="y"))
    with pytest.raises(ConfigError, match="cannot be used"):
        kubeconfig.of_person(path)
