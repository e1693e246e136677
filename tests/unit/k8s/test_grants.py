# SPDX-License-Identifier: Apache-2.0
"""Whoever is forbidden something is told what grants it, and not what grants something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairsched.cli import cli, kubectl
from fairsched.companion.dra import part as dra_part
from fairsched.companion.escalate import ladder
from fairsched.companion.pods import part as pods_part
from fairsched.config import Config, from_bytes
from fairsched.errors import FairschedError
from fairsched.k8s import grants
from fairsched.k8s.client import KubeClient, Refused
from fairsched.k8s.lease import Election
from fairsched.k8s.policies import controller
from fairsched.k8s.watch import Watch
from tests.unit.companion.escalate.api_server import ApiServer, refuse
from tests.unit.repo.tree import ROOT

GRANTS = {name: text for name, text in vars(grants).items() if name.isupper() and not name.startswith("_")}


@pytest.fixture
def forbidding(api: ApiServer) -> Path:
    """A kubeconfig for a server that lets nobody do anything."""
    for method in ("GET", "POST", "PATCH"):
        api.fail(method, "/", refuse(403, "Forbidden", "cannot"), times=20)
    return api.kubeconfig()


@pytest.mark.parametrize("name", GRANTS)
def test_what_it_names_is_there_and_the_values_are_the_charts(name: str) -> None:
    (path,) = re.findall(r"[\w./-]+\.(?:yaml|md)", GRANTS[name])
    text = (ROOT / path).read_text(encoding="utf-8")
    assert path.endswith(".md") or "kind: ClusterRole" in text or "kind: Role" in text
    for value in re.findall(r"\((.*?)\)", GRANTS[name]):
        section, _, key = value.rpartition(".")
        assert f".Values.{value}" in text or f'"{section.rpartition(".")[2]}" "{key}"' in text, value


def remedy_of(done: Any) -> str:
    assert isinstance(done.exception, FairschedError), (done.output, done.exception)
    assert "403 Forbidden" in str(done.exception)
    return done.exception.remedy


@pytest.mark.parametrize(
    ("command", "grant"),
    [
        (("doctor",), grants.DOCTOR),
        (("backup",), grants.POOLS),
        (("label", "--dry-run"), grants.POOLS),
        (("teams", "--dry-run"), grants.TEAMS),
    ],
)
def test_commands_name_their_own(forbidding: Path, command: tuple[str, ...], grant: str) -> None:
    done = CliRunner().invoke(cli, ["k8s", *command, "--kubeconfig", str(forbidding)])
    assert remedy_of(done) == grant


@pytest.mark.parametrize(("command", "grant"), [("doctor", grants.DOCTOR), ("shares", grants.KUBECTL)])
def test_commands_of_kubectl_do(forbidding: Path, command: str, grant: str) -> None:
    done = CliRunner().invoke(kubectl.group, ["--kubeconfig", str(forbidding), command])
    assert remedy_of(done) == grant


@pytest.mark.parametrize("which", [0, 1])
def test_the_controller_of_policies_does(
    forbidding: Path, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stub:
        def __init__(self, *clients: KubeClient) -> None:
            self.client = clients[which]

        def run(self) -> None:
            self.client.listed("/api/v1/pods", {})

    monkeypatch.setattr(controller, "Controller", Stub)
    where = ["--kubeconfig", str(forbidding), "--namespace", "fairsched"]
    assert remedy_of(CliRunner().invoke(cli, ["k8s", "controller", *where])) == grants.POLICIES


def configured(file: Path) -> Config:
    said = (
        f"kubernetes: {{kubeconfig: {file}, node: n1}}\nescalation: {{kubernetes: {{kubeconfig: {file}}}}}\n"
    )
    return from_bytes(said.encode(), "f")


def of_pods(config: Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    return client_of(pods_part, "PodPart", 1, lambda: pods_part.part_of(config, None), monkeypatch)  # type: ignore[arg-type]


def of_dra(config: Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    return client_of(dra_part, "DraPart", 1, lambda: dra_part.part_of(config), monkeypatch)


def of_escalation(config: Config, _: pytest.MonkeyPatch) -> Any:
    return ladder._connector(config.escalation)()


def client_of(
    module: Any, name: str, place: int, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    class Stub:
        def __init__(self, *arguments: Any, **_: Any) -> None:
            self.client = arguments[place]

        def start(self) -> None:
            """Nothing is watched."""

    monkeypatch.setattr(module, name, Stub)
    return make().client


@pytest.mark.parametrize(
    ("make", "grant"),
    [(of_pods, grants.AGENT), (of_dra, grants.DRA), (of_escalation, grants.ESCALATION)],
)
def test_the_agents_parts_do(
    forbidding: Path,
    make: Callable[[Config, pytest.MonkeyPatch], Any],
    grant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Refused) as caught:
        make(configured(forbidding), monkeypatch).node("n1")
    assert caught.value.remedy == grant


def test_what_runs_for_long_says_it_where_it_says_what_is_in_the_way(
    forbidding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = of_pods(configured(forbidding), monkeypatch)
    watch, election = Watch(client, "/api/v1/pods"), Election(client, "fairsched", "lease", "me")
    watch._over.wait = lambda _: watch.close() or True  # type: ignore[method-assign,func-returns-value,assignment]
    watch.run()
    election.step()
    for trouble in (watch.trouble(), election.trouble()):
        assert trouble is not None and trouble[1].endswith(f"({grants.AGENT})")
