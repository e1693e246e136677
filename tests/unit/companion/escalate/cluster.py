# SPDX-License-Identifier: Apache-2.0
"""A scratch cluster: a real kube-apiserver with controllers, scheduler and one kubelet, and three pods there.

FAIRSCHED_KUBECONFIG names an administrator's kubeconfig of a cluster with one node that nobody else needs: it is
cordoned. Pods run FAIRSCHED_TEST_IMAGE (local.test/busybox:1), which must be on the node. What is tested acts as the
service account of packaging/kubernetes/escalation-rbac.yaml.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.k8s.client import KubeClient, Refused
from fairsched.k8s.kubeconfig import Access, from_file
from tests.support import wait_until
from tests.unit.companion.escalate.test_rbac import documents

KUBECONFIG = os.environ.get("FAIRSCHED_KUBECONFIG", "")
IMAGE = os.environ.get("FAIRSCHED_TEST_IMAGE", "local.test/busybox:1")
PLACE = "fairsched-test"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Deployment": f"/apis/apps/v1/namespaces/{PLACE}/deployments",
    "PodDisruptionBudget": f"/apis/policy/{{policy}}/namespaces/{PLACE}/poddisruptionbudgets",
}
LABEL = "fairsched.io/busy"

needs_cluster = pytest.mark.skipif(
    os.environ.get("FAIRSCHED_FULL", "0") in ("", "0") or not KUBECONFIG,
    reason="host: no scratch cluster beside it (FAIRSCHED_FULL=1 and FAIRSCHED_KUBECONFIG=FILE name one)",
)


class Cluster:
    """An administrator's view."""

    def __init__(self, path: Path) -> None:
        self.access = from_file(path)
        self.admin = KubeClient(self.access)
        self.policy = self.admin.eviction_version().removeprefix("policy/")
        (self.node,) = (one["metadata"]["name"] for one in self.call("GET", "/api/v1/nodes")["items"])

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        return self.admin._call(method, path, body, kind)

    def make(self, document: dict[str, Any]) -> None:
        path = PATHS[document["kind"]].format(policy=self.policy)
        with contextlib.suppress(Refused):
            self.call("DELETE", f"{path}/{document['metadata']['name']}", {"propagationPolicy": "Foreground"})

        def is_made() -> bool:
            try:
                self.call("POST", path, document)
            except Refused as error:
                assert error.status == 409, error
                return False
            return True

        wait_until(is_made, 60, f"{document['kind']} can be made")

    def pods(self) -> dict[str, dict[str, Any]]:
        """By the name of their deployment; those that end are left out."""
        found = self.call("GET", f"/api/v1/namespaces/{PLACE}/pods")["items"]
        return {
            p["metadata"]["labels"]["app"]: p for p in found if not p["metadata"].get("deletionTimestamp")
        }

    def is_running(self, *names: str) -> bool:
        pods = self.pods()
        return all(name in pods and pods[name]["status"].get("phase") == "Running" for name in names)

    def spec(self) -> dict[str, Any]:
        """Of the node."""
        spec: dict[str, Any] = self.admin.node(self.node)["spec"]
        return spec

    def service_account(self) -> Access:
        path = f"{PATHS['ServiceAccount']}/fairsched-escalation/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        token = self.call("POST", path, body)["status"]["token"]
        return replace(self.access, token=token, token_file=None)


def uid(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def deployment(name: str, priority: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {"priorityClassName": priority, "terminationGracePeriodSeconds": 1, "containers": [container]}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**pod, "automountServiceAccountToken": False},
            },
        },
    }


@contextlib.contextmanager
def scratch() -> Iterator[Cluster]:
    """With three pods on its node: ``guarded`` by a budget, ``low`` and ``high``. It is left as it was."""
    found = Cluster(Path(KUBECONFIG))
    found.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}})
    for document in documents().values():
        found.make(document)
    for name, value in (("fairsched-lowest", -20), ("fairsched-low", -10), ("fairsched-high", 1000)):
        found.make(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )
    capacity = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
    found.call("PATCH", f"/api/v1/nodes/{found.node}/status", capacity, "application/merge-patch+json")
    found.make(
        {
            "apiVersion": f"policy/{found.policy}",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guarded"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        }
    )
    found.make(deployment("guarded", "fairsched-lowest"))
    found.make(deployment("low", "fairsched-low"))
    found.make(deployment("high", "fairsched-high"))
    wait_until(lambda: found.is_running("guarded", "low", "high"), 120, "the pods run")
    budget = f"{PATHS['PodDisruptionBudget'].format(policy=found.policy)}/guarded"

    def is_counted() -> bool:
        return bool(found.call("GET", budget).get("status", {}).get("currentHealthy"))

    wait_until(is_counted, 60, "the budget knows its pod")
    try:
        yield found
    finally:
        found.admin.patch_node(
            found.node, {"spec": {"unschedulable": None}, "metadata": {"labels": {LABEL: None}}}
        )
        found.call("DELETE", f"{PATHS['Namespace']}/{PLACE}")
