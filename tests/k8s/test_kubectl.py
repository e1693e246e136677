# SPDX-License-Identifier: Apache-2.0
"""`kubectl fairsched` as kubectl runs it, on the live cluster: an agent's answer through the API server, a user with
few rights and one with none, agents that are dead or mute, and a credential plugin.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s import rights
from tests.k8s.cluster import NODE, Cluster
from tests.k8s.commands import Person
from tests.k8s.places import BIN
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, make_spaces, pod, run
from tests.k8s.release import NAMESPACE, Release, need_image, simulated
from tests.node.daemon.site import STEADY
from tests.support import wait_until
from tests.unit.repo.tree import ROOT

MUTE, DEAD = "mute-node", "dead-node"
NOWHERE = "192.0.2.7"
"""Of a network that is for examples: nobody answers, and nobody refuses."""


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[Release]:
    need_image(cluster)
    with simulated() as gpu:
        found = Release(cluster, gpu)
        make_spaces(cluster, "ml")
        try:
            document = pod("a", namespace="ml", annotations={"fairsched.io/weight": "3"})
            place = container_cgroup_of(run(cluster, document))
            found.install({"kubernetes": {"watch_pods": True}})
            gpu.spawn("a", STEADY, place)
            wait_until(
                lambda: any(one["name"] == "ml/a" and one["used_ratio"] for one in found.status()["tenants"]),
                PATIENCE_S,
                "the pod is accounted",
            )
            # What agents hand out may be some seconds older than what their daemon says.
            wait_until(
                lambda: "ml/a " in Kubectl(cluster).ask("top").stdout, PATIENCE_S, "the agent tells it"
            )
            yield found
        finally:
            found.uninstall()
            gpu.kill_group("a")
            drop_spaces(cluster, "ml")


class Kubectl(Person):
    """kubectl with the plugin on its PATH."""

    def __init__(self, cluster: Cluster, kubeconfig: Path | None = None) -> None:
        super().__init__(cluster, kubeconfig)
        self.bin = cluster.directory / "plugin"
        self.bin.mkdir(exist_ok=True)
        program = self.bin / "kubectl-fairsched"
        code = "from fairsched.cli.kubectl import main; main()"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        program.chmod(0o755)

    def ask(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        env = {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.bin}:{BIN}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
        }
        command = self.cluster.inside(str(BIN / "kubectl"), "fairsched", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        if "--json" not in arguments:
            assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
        return done


def test_top_shares_and_explain_of_the_cluster(cluster: Cluster, agent: Release) -> None:
    assert agent
    kubectl = Kubectl(cluster)
    top = kubectl.ask("top").stdout
    assert f"node {NODE}: mode enforce" in top and "ml/a " in top and "GPU 0" in top
    assert "ml/a" not in kubectl.ask("top", "-n", "web").stdout

    def shares() -> dict[str, Any]:
        document: Any = json.loads(kubectl.ask("shares", "-n", "ml", "--json").stdout)
        (share,) = [one for one in document["tenants"] if one["tenant"] == "ml/a"]
        assert share["weights"] == [3] and document["errors"] == {}
        return dict(share)

    wait_until(lambda: (shares()["gpu_time_s"] or 0) > 0, PATIENCE_S, "its GPU time is told")
    assert "ml/a was" in kubectl.ask("explain", "ml/a").stdout
    assert "no node has a tenant 'ml/zzz'" in kubectl.ask("explain", "ml/zzz", status=1).stderr


def test_a_user_without_the_right_is_refused_clearly_and_with_it_is_not(
    cluster: Cluster, agent: Release
) -> None:
    assert agent
    user = Kubectl(cluster, cluster.authority.kubeconfig("kubectl-user", "kubectl-user"))
    said = user.ask("top", status=1).stderr
    assert "403 Forbidden" in said and "kubectl-rbac.yaml" in said
    cluster.kubectl(
        "create", "rolebinding", "pods-only", "-n", NAMESPACE, "--clusterrole=view", "--user=kubectl-user"
    )
    said = user.ask("top", status=1).stderr
    assert "you may not ask the agents" in said and "pods/proxy" in said and "kubectl-rbac.yaml" in said
    cluster.kubectl("delete", "rolebinding", "pods-only", "-n", NAMESPACE)
    asked_before = len(cluster.audited())
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(ROOT / "packaging/kubernetes/kubectl-rbac.yaml"))
    cluster.kubectl(
        "create", "rolebinding", "fs", "-n", NAMESPACE, "--role=fairsched-view", "--user=kubectl-user"
    )
    for command in (("top",), ("shares",), ("explain", "ml/a")):
        assert "ml/a" in user.ask(*command).stdout
    # It asks for agents of all namespaces first.
    rights.check(cluster, "kubectl-user", NAMESPACE, since=asked_before, tried=[("list", "/pods")])
    cluster.kubectl("delete", "rolebinding", "fs", "-n", NAMESPACE)
    cluster.kubectl("delete", "role", "fairsched-view", "-n", NAMESPACE)


def other_agent(cluster: Cluster, name: str, address: str) -> None:
    """An agent's pod on a node that nobody stands behind."""
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    document = pod(name, namespace=NAMESPACE, labels={"app.kubernetes.io/name": "fairsched"})
    document["spec"] |= {"nodeName": name, "hostPID": True}
    document["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 9477}]
    cluster.apply(document)
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": address}
    patch = json.dumps({"status": status})
    cluster.kubectl(
        "patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch
    )


def test_slow_and_dead_nodes_do_not_keep_the_others_waiting(cluster: Cluster, agent: Release) -> None:
    assert agent
    address = cluster.get("pods", "-n", "ml")["items"][0]["status"]["podIP"]
    other_agent(cluster, MUTE, NOWHERE)
    other_agent(cluster, DEAD, address)
    try:
        began = time.monotonic()
        done = Kubectl(cluster).ask("top", "--node-timeout", "3", status=4)
        assert time.monotonic() - began < 12, "three seconds, and what it takes to start"
        assert "ml/a " in done.stdout
        assert f"{MUTE}: " in done.stderr and f"{DEAD}: " in done.stderr and "refused" in done.stderr
        assert "2 of 3 nodes did not answer" in done.stderr
        assert "ml/a" in Kubectl(cluster).ask("top", "--node", NODE).stdout
    finally:
        for name in (MUTE, DEAD):
            cluster.kubectl("delete", "pod", name, "-n", NAMESPACE, "--force", "--grace-period=0")
            cluster.kubectl("delete", "node", name)


def test_a_credential_plugin_of_the_kubeconfig_is_run(
    cluster: Cluster, agent: Release, tmp_path: Path
) -> None:
    assert agent
    admin: Any = yaml.safe_load(cluster.kubeconfig.read_text())
    files = admin["users"][0]["user"]
    pair = {
        "clientCertificateData": Path(files["client-certificate"]).read_text(),
        "clientKeyData": Path(files["client-key"]).read_text(),
    }
    version = "client.authentication.k8s.io/v1"
    (tmp_path / "answer.json").write_text(
        json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": pair})
    )
    (tmp_path / "plugin").write_text('#!/bin/sh\nexec cat "$1"\n')
    (tmp_path / "plugin").chmod(0o755)
    section = {"apiVersion": version, "command": "./plugin", "args": [str(tmp_path / "answer.json")],
               "interactiveMode": "Never"}  # fmt: skip
    admin["users"][0]["user"] = {"exec": section}
    (tmp_path / "config").write_text(yaml.safe_dump(admin))
    assert "ml/a" in Kubectl(cluster, tmp_path / "config").ask("top").stdout


def test_doctor_is_there_as_well(cluster: Cluster, agent: Release) -> None:
    assert agent
    done = Kubectl(cluster).ask("doctor", "-n", "ml", status=1)
    assert f"node {NODE}" in done.stdout and "no device plugin has registered" in " ".join(
        done.stdout.split()
    )
