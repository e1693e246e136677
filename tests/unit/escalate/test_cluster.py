# SPDX-License-Identifier: Apache-2.0
"""The step evict against a real kube-apiserver, controllers, scheduler and kubelet.

    FAIRSCHED_FULL=1 FAIRSCHED_KUBECONFIG=/path/to/admin.conf pytest tests/unit/escalate/test_cluster.py

The kubeconfig is an administrator's on a scratch cluster with one node that nobody else needs: it is cordoned. Pods
run FAIRSCHED_TEST_IMAGE (local.test/busybox:1), which must be on the node. The step itself acts as the service account
of packaging/kubernetes/escalation-rbac.yaml. The ordinary tests use api_server.py in place of all that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.escalate.evict import MARK, EvictSettings, EvictStep
from fairsched.escalate.kube import KubeClient, Refused
from fairsched.escalate.kubeconfig import Access, from_file
from fairsched.escalate.model import Kind, Outcome, Result
from fairsched.escalate.pods import Rules
from fairsched.escalate.steps import carry_out
from tests.support import wait_until
from tests.unit.escalate.reports import cgroup, order, report, tenant
from tests.unit.escalate.test_rbac import documents

IS_FULL = os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")
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

pytestmark = pytest.mark.skipif(
    not (IS_FULL and KUBECONFIG),
    reason="wants a scratch cluster: set FAIRSCHED_FULL=1 and FAIRSCHED_KUBECONFIG=FILE of one",
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

    def service_account(self) -> Access:
        path = f"{PATHS['ServiceAccount']}/fairsched-escalation/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        token = self.call("POST", path, body)["status"]["token"]
        return replace(self.access, token=token, token_file=None)


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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
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
    yield found
    found.admin.patch_node(
        found.node, {"spec": {"unschedulable": None}, "metadata": {"labels": {LABEL: None}}}
    )
    found.call("DELETE", f"{PATHS['Namespace']}/{PLACE}")


def take(cluster: Cluster, **more: Any) -> Result:
    settings = EvictSettings(cluster.node, Rules(namespaces=(PLACE,)), labels={LABEL: "true"}, wait_s=30.0)
    client = KubeClient(cluster.service_account())
    seen = report([tenant(name, cgroups=(cgroup(pod),)) for name, pod in cluster.pods().items()])
    wanted = order("evict", tenant="high", **more)
    return carry_out(EvictStep(lambda: client, settings), wanted, seen, lambda undo: None)


def test_one_pod_is_moved_away_and_the_node_comes_back(cluster: Cluster) -> None:
    before = cluster.pods()
    dry = take(cluster, is_dry_run=True)
    assert dry.outcome is Outcome.DRY_RUN and "the server would grant" in dry.detail, dry.detail
    assert "guarded" in dry.detail.partition("the server would grant")[0], (
        "the lowest priority is asked first"
    )
    assert cluster.pods().keys() == before.keys() and not _spec(cluster).get("unschedulable")

    done = take(cluster)
    assert done.outcome is Outcome.DONE, done.detail
    assert "its disruption budget forbids it now" in done.detail and "it has gone" in done.detail
    assert _spec(cluster)["unschedulable"]
    metadata = cluster.admin.node(cluster.node)["metadata"]
    assert metadata["annotations"][MARK] and metadata["labels"][LABEL] == "true"
    after = cluster.pods()
    assert _uid(after["guarded"]) == _uid(before["guarded"]), "its budget kept it"
    assert _uid(after["high"]) == _uid(before["high"]), "its priority kept it"
    wait_until(lambda: "low" in cluster.pods(), 30, "its controller makes a new one")
    assert _uid(cluster.pods()["low"]) != _uid(before["low"])
    assert not cluster.is_running("low"), "not on this node: it is cordoned"

    back = take(cluster, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK, back.detail
    assert not _spec(cluster).get("unschedulable")
    metadata = cluster.admin.node(cluster.node)["metadata"]
    assert MARK not in metadata.get("annotations", {}) and LABEL not in metadata["labels"]
    wait_until(lambda: cluster.is_running("low"), 60, "the scheduler gives it its place again")


def test_when_every_budget_forbids_it_the_node_is_as_before(cluster: Cluster) -> None:
    patch = {
        "spec": {
            "selector": {"matchLabels": None, "matchExpressions": [{"key": "app", "operator": "Exists"}]}
        }
    }
    patch["spec"]["minAvailable"] = "100%"  # type: ignore[assignment]
    path = f"{PATHS['PodDisruptionBudget'].format(policy=cluster.policy)}/guarded"
    cluster.call("PATCH", path, patch, "application/merge-patch+json")

    def is_seen() -> bool:
        status = cluster.call("GET", path)["status"]
        return status.get("currentHealthy") == 3 and not status.get("disruptionsAllowed")

    wait_until(is_seen, 60, "the budget covers all")
    before = cluster.pods()
    result = take(cluster)
    assert result.outcome is Outcome.FAILED and "no eviction was granted" in result.detail, result.detail
    assert not _spec(cluster).get("unschedulable") and not result.is_in_force
    assert {name: _uid(pod) for name, pod in cluster.pods().items()} == {
        name: _uid(pod) for name, pod in before.items()
    }


def test_without_the_role_the_remedy_is_named(cluster: Cluster) -> None:
    binding = f"{PATHS['ClusterRoleBinding']}/fairsched-escalation"
    cluster.call("DELETE", binding)
    try:
        wait_until(lambda: take(cluster).outcome is Outcome.FAILED, 10, "it is taken away")
        result = take(cluster)
        assert "403" in result.detail and "escalation-rbac.yaml" in result.detail
    finally:
        cluster.make(documents()["ClusterRoleBinding"])


def _spec(cluster: Cluster) -> Any:
    return cluster.admin.node(cluster.node)["spec"]


def _uid(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["uid"])
