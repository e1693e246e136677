# SPDX-License-Identifier: Apache-2.0
"""``kubectl fairsched`` over HTTPS, with agents that answer, refuse, babble and say nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairsched.cli import kubectl
from fairsched.cli.kubectl_text import failures
from fairsched.errors import FairschedError
from fairsched.protocol.status import to_plain
from tests.unit.companion.escalate.api_server import ApiServer, babble, refuse, say_nothing
from tests.unit.protocol import fakes

Handler = Callable[[BaseHTTPRequestHandler], None]
ALL = "/api/v1/pods?"
NOBODY: dict[str, Any] = {"kind": "PodList", "metadata": {}, "items": []}


def saying(document: Any, status: int = 200) -> Handler:
    return lambda handler: handler.say(status, document)  # type: ignore[attr-defined]


def agent(node: str, port: int | None = 9477, phase: str = "Running") -> dict[str, Any]:
    ports = [] if port is None else [{"name": "metrics", "containerPort": port}]
    return {
        "metadata": {
            "name": f"fs-{node}", "namespace": "fairsched", "labels": {"app.kubernetes.io/name": "fairsched"},
        },
        "spec": {"nodeName": node, "hostPID": True, "containers": [{"ports": ports}]},
        "status": {"phase": phase},
    }  # fmt: skip


class Cluster:
    """Agents by node, and what each answers."""

    def __init__(self, api: ApiServer, path: Path) -> None:
        self.api, self.path = api, path

    def has(self, **agents: Handler) -> None:
        """Each is used once."""
        items = [agent(name) for name in agents]
        self.api.fail("GET", ALL, saying({**NOBODY, "items": items}))
        for name, answer in agents.items():
            self.api.fail("GET", f"/pods/http:fs-{name}:9477/proxy", answer)

    def ask(self, *arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(kubectl.group, ["--kubeconfig", str(self.path), *arguments])
        assert result.exit_code == status, (result.output, result.exception)
        if not result.stdout.startswith("{"):
            assert all(len(line) <= 80 for line in result.output.splitlines()), result.output
        return result

    def fail(self, *arguments: str) -> FairschedError:
        error = CliRunner().invoke(kubectl.group, ["--kubeconfig", str(self.path), *arguments]).exception
        assert isinstance(error, FairschedError), error
        return error


@pytest.fixture
def cluster(api: ApiServer) -> Cluster:
    return Cluster(api, api.kubeconfig())


def report(**more: Any) -> dict[str, Any]:
    return {**to_plain(fakes.status()), **more}


def renamed(*names: str) -> dict[str, Any]:
    """A status whose tenants are pods."""
    document = report()
    document["tenants"] = [
        {**one, "name": name} for one, name in zip(document["tenants"], names, strict=False)
    ]
    return document


def test_top_has_every_node_and_a_namespace_its_own(cluster: Cluster) -> None:
    documents = {"n1": saying(renamed("ml/a", "web/b")), "n2": saying(renamed("ml", "ml/c"))}
    cluster.has(**documents)
    told = cluster.ask("top").stdout
    assert told.index("node n1:") < told.index("ml/a ") < told.index("node n2:") < told.index("ml/c ")
    cluster.has(**documents)
    told = cluster.ask("top", "-n", "ml").stdout
    assert "web/b" not in told and "ml/a" in told and "ml " in told
    cluster.has(**documents)
    document: Any = json.loads(cluster.ask("top", "-n", "web", "--json").stdout)
    assert [one["name"] for one in document["nodes"]["n1"]["tenants"]] == ["web/b"]
    assert document["nodes"]["n2"]["tenants"] == [] and document["errors"] == {}


def test_shares_are_of_all_nodes_together_and_what_is_not_known_is_not_zero(cluster: Cluster) -> None:
    one, two = renamed("ml/a"), renamed("ml/a")
    tenant = one["tenants"][0]
    gpu = {"uuid": "GPU-1", "used_ratio": 0.5, "entitled_ratio": 0.25, "confidence": "high"}
    tenant.update(
        gpus=[gpu, {**gpu, "uuid": "GPU-2"}], gpu_time_s=10.0, weight=3, vram_by_gpu_bytes={"GPU-1": 1 << 30}
    )
    two["tenants"][0].update(
        gpus=[{**gpu, "used_ratio": None}], gpu_time_s=None, weight=1, vram_by_gpu_bytes={}
    )
    two["tenants"].append({**two["tenants"][0], "name": "ml/b"})
    cluster.has(n1=saying(one), n2=saying(two))
    document: Any = json.loads(cluster.ask("shares", "--json").stdout)
    assert document["tenants"] == [
        {"tenant": "ml/a", "nodes": 2, "weights": [1, 3], "used_gpus": 1.0, "entitled_gpus": 0.75,
         "gpu_time_s": 10.0, "vram_bytes": 1 << 30},
        {"tenant": "ml/b", "nodes": 1, "weights": [1], "used_gpus": None, "entitled_gpus": 0.25,
         "gpu_time_s": None, "vram_bytes": None},
    ]  # fmt: skip
    cluster.has(n1=saying(one), n2=saying(two))
    line = cluster.ask("shares").stdout.splitlines()[-1]
    assert line.split() == ["ml/b", "1", "1", "n/a", "0.25", "n/a", "n/a"]


def test_slow_and_bad_nodes_do_not_keep_the_others_and_are_said(cluster: Cluster) -> None:
    down = refuse(503, "ServiceUnavailable", "error trying to reach service: dial tcp: connection refused")
    wants = lambda handler: (handler.send_response(401), handler.end_headers())  # noqa: E731
    cluster.has(good=saying(renamed("ml/a")), mute=say_nothing, odd=babble, down=down, locked=wants)
    began = time.monotonic()
    result = cluster.ask("top", "--node-timeout", "1", status=4)
    assert time.monotonic() - began < 10, "the mute one has a second, not fifteen"
    assert "ml/a" in result.stdout
    for said in ("mute: it took too long", "odd: the answer is not a JSON object", "down: ServiceUnavailable",
                 "locked: its exporter wants a password", "4 of 5 nodes did not answer"):  # fmt: skip
        assert said in " ".join(result.stderr.split()), result.stderr


def test_nobody_answers(cluster: Cluster) -> None:
    cluster.has(n1=babble)
    assert "1 of 1 node" in cluster.ask("shares", status=1).stderr


def test_who_may_not_is_told_what_to_ask_for(cluster: Cluster) -> None:
    forbidden = refuse(403, "Forbidden", 'User "u" cannot get resource "pods/proxy"')
    cluster.has(n1=forbidden, n2=forbidden)
    error = cluster.fail("top")
    assert "you may not ask the agents" in str(error) and "kubectl-rbac.yaml" in error.remedy
    cluster.api.fail("GET", ALL, refuse(403, "Forbidden", "cannot list pods"), times=1)
    cluster.api.fail("GET", "/namespaces/fairsched/pods?", saying({**NOBODY, "items": [agent("n1")]}))
    cluster.api.fail("GET", "/proxy", saying(renamed("ml/a")))
    assert "ml/a" in cluster.ask("top").stdout, "the right to the usual namespace is enough"
    cluster.api.fail("GET", "/pods?", refuse(403, "Forbidden", "cannot list pods"), times=2)
    error = cluster.fail("top")
    assert "403 Forbidden" in str(error) and "kubectl-rbac.yaml" in error.remedy


def test_agents_that_are_none(cluster: Cluster) -> None:
    cluster.has()
    assert "no agent" in str(cluster.fail("top"))
    items = [agent("n1", port=None), agent("n2", phase="Pending")]
    cluster.api.fail("GET", ALL, saying({**NOBODY, "items": items}))
    assert "metrics.listen is not set" in cluster.ask("top", status=1).stderr
    cluster.has(n1=saying(report()))
    assert "no agent runs on n9" in str(cluster.fail("top", "--node", "n9"))


def test_explain_asks_who_has_it(cluster: Cluster) -> None:
    unknown = saying({"error": "no such tenant"}, 404)
    story = {"status": renamed("ml/a"), "decisions": []}
    cluster.has(n1=unknown, n2=saying(story))
    told = cluster.ask("explain", "ml/a").stdout
    assert told.startswith("node n2:\nml/a was not held in the last minute.") and "n1" not in told
    assert cluster.api.calls[-1][1].endswith("/proxy/explain/ml/a")
    cluster.has(n1=unknown, n2=unknown)
    assert "no node has a tenant 'ml/a'" in str(cluster.fail("explain", "ml/a"))


def test_a_status_of_another_version_is_said(cluster: Cluster) -> None:
    """By its node alone: agents are replaced one after the other."""
    for document in report(schema_version=99), {"tenants": {}}, {}:
        for how in [], ["--json"]:
            cluster.has(n1=saying(document), n2=saying(renamed("ml/a")))
            done = cluster.ask("top", *how, status=4)
            assert "ml/a" in done.stdout and "n1" in done.output and "cannot be understood" in done.output


def test_a_pod_that_is_only_called_an_agent_is_not_asked(cluster: Cluster) -> None:
    """A tenant's pod may have any label, and would be believed."""
    false = agent("n1")
    false["spec"]["hostPID"] = False
    cluster.api.fail("GET", ALL, saying({**NOBODY, "items": [false]}))
    assert "no agent" in str(cluster.fail("top"))


def test_a_name_steers_no_terminal_and_no_column(cluster: Cluster) -> None:
    cluster.has(n1=saying(renamed("\x1b[31m" + "x" * 300, "b\nc")))
    told = cluster.ask("top").stdout
    assert "\x1b" not in told


def test_many_that_fail_alike_are_one_line() -> None:
    lines = failures({f"n{number}": "refused" for number in range(100)}, 100)
    assert len(lines) < 5 and "and 96 more" in " ".join(lines)
