# SPDX-License-Identifier: Apache-2.0
"""Kueue as its makers ship it: definitions, roles and webhooks of its module's config/, and its real controller.

The controller runs as a program of the cluster and not in a pod: the API server finds its webhooks by the name of its
Service, which leads to the node's address, and the certificate that Kueue makes itself comes where a kubelet would put
it.
"""

from __future__ import annotations

import base64
import contextlib
import re
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.cluster import Cluster, ClusterError
from tests.k8s.places import BIN, CACHE
from tests.k8s.pods import PATIENCE_S, pod
from tests.k8s.settings import ADDRESS
from tests.support import wait_until
from tests.unit.repo.tree import ROOT

EXAMPLE = ROOT / "packaging/kubernetes/kueue"
NAMESPACE = "kueue-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager"
LEFT_OUT = ("Deployment", "APIService", "ConfigMap")
"""The program itself, with its configuration, and a door that needs a proxy of services."""


def why_not() -> str | None:
    """What keeps Kueue from running here."""
    if not (BIN / "kueue").exists() or not module().is_dir():
        return "kueue not built: sudo make setup-k8s"
    return None


def module() -> Path:
    """Its source, as Go has fetched it."""
    pinned = yaml.safe_load((ROOT / "tests/k8s/parts.yaml").read_text())["kueue"]
    return CACHE / "mod" / f"{pinned['module']}@{pinned['version']}"


def documents(cluster: Cluster) -> list[dict[str, Any]]:
    """What is applied before the controller starts."""
    rendered = cluster.kubectl("kustomize", str(module() / "config/default"))
    kept = [one for one in yaml.safe_load_all(rendered) if one["kind"] not in LEFT_OUT]
    for one in kept:
        if one["kind"] == "Service" and one["metadata"]["name"].endswith("webhook-service"):
            one["spec"] = {"type": "ExternalName", "externalName": ADDRESS}
    return kept


def configuration(certificates: Path) -> dict[str, Any]:
    """The example's, and where this one finds its certificate. Port 443 is that of its Service."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLE / "manager.yaml").read_text())
    return {
        **found,
        "webhook": {"port": 443, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 50, "burst": 100},
    }


def mount(cluster: Cluster, certificates: Path) -> bool:
    """As a kubelet mounts a Secret; whether there was anything in it."""
    with contextlib.suppress(ClusterError):
        data = cluster.get("secret", "kueue-webhook-server-cert", "-n", NAMESPACE).get("data") or {}
        for name, value in data.items():
            (certificates / name).write_bytes(base64.b64decode(value))
        return "tls.crt" in data
    return False


def start(cluster: Cluster) -> None:
    """Kueue with its webhooks, ready, until the cluster ends: without it no pod would be admitted any more."""
    certificates = cluster.directory / "kueue-certificates"
    certificates.mkdir()
    shipped = yaml.safe_dump_all(documents(cluster))
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=shipped, timeout_s=120)
    settings = cluster.directory / "kueue.yaml"
    settings.write_text(yaml.safe_dump(configuration(certificates)))
    cluster.run(
        "kueue",
        f"--config={settings}",
        f"--kubeconfig={cluster.authority.kubeconfig('kueue', ACCOUNT)}",
        "--feature-gates=VisibilityOnDemand=false",
        "--zap-log-level=2",
    )
    wait_until(lambda: mount(cluster, certificates), PATIENCE_S, "Kueue has made its certificate")
    try:
        wait_until(lambda: is_ready(cluster), PATIENCE_S, "Kueue's webhooks answer")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.log_tail('kueue', 30)}") from error


def is_ready(cluster: Cluster) -> bool:
    """Whether a queue would be admitted."""
    return cluster.answers("apply", "--dry-run=server", "-f", str(EXAMPLE / "queues.yaml"))


def admitted(cluster: Cluster, namespace: str) -> set[str]:
    """Names of the Jobs whose workloads are admitted now."""
    found = set()
    for one in cluster.get("workloads.kueue.x-k8s.io", "-n", namespace)["items"]:
        conditions = {
            condition["type"]: condition["status"]
            for condition in one.get("status", {}).get("conditions", ())
        }
        if conditions.get("Admitted") == "True" and conditions.get("Finished") != "True":
            found |= {owner["name"] for owner in one["metadata"].get("ownerReferences", ())}
    return found


def job(name: str, namespace: str, queue: str = "gpus", **template: Any) -> dict[str, Any]:
    """A Job of one pod that wants one GPU and runs until it is deleted."""

    spec = pod(name)["spec"]
    spec["containers"][0]["resources"] = {"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": "1"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": queue},
        },
        "spec": {
            "suspend": True,
            "template": {"metadata": template, "spec": {**spec, "restartPolicy": "Never"}},
        },
    }


def told(cluster: Cluster, pattern: str) -> list[str]:
    """Lines of Kueue's log."""
    return [line for line in cluster.log("kueue").splitlines() if re.search(pattern, line)]
