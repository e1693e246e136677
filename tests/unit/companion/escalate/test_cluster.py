# SPDX-License-Identifier: Apache-2.0
"""The step evict against a real kube-apiserver, controllers, scheduler and kubelet.

    FAIRSCHED_FULL=1 FAIRSCHED_KUBECONFIG=/path/to/admin.conf pytest tests/unit/companion/escalate/test_cluster.py

See cluster.py for what it wants. The ordinary tests use api_server.py in place of all that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairsched.companion.escalate.evict import MARK, EvictSettings, EvictStep
from fairsched.companion.escalate.model import Kind, Outcome, Result
from fairsched.companion.escalate.pods import EvictionRules
from fairsched.companion.escalate.steps import carry_out
from fairsched.k8s import grants
from fairsched.k8s.client import KubeClient
from tests.support import wait_until
from tests.unit.companion.escalate.cluster import LABEL, PATHS, PLACE, Cluster, needs_cluster, scratch, uid
from tests.unit.companion.escalate.reports import cgroup, order, report, tenant
from tests.unit.companion.escalate.test_rbac import documents

pytestmark = needs_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with scratch() as found:
        yield found


def take(cluster: Cluster, **more: Any) -> Result:
    settings = EvictSettings(
        cluster.node, EvictionRules(namespaces=(PLACE,)), labels={LABEL: "true"}, wait_s=30.0
    )
    client = KubeClient(cluster.service_account(), grant=grants.ESCALATION)
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
    assert cluster.pods().keys() == before.keys() and not cluster.spec().get("unschedulable")

    done = take(cluster)
    assert done.outcome is Outcome.DONE, done.detail
    assert "its disruption budget forbids it now" in done.detail and "it has gone" in done.detail
    assert cluster.spec()["unschedulable"]
    metadata = cluster.admin.node(cluster.node)["metadata"]
    assert metadata["annotations"][MARK] and metadata["labels"][LABEL] == "true"
    after = cluster.pods()
    assert uid(after["guarded"]) == uid(before["guarded"]), "its budget kept it"
    assert uid(after["high"]) == uid(before["high"]), "its priority kept it"
    wait_until(lambda: "low" in cluster.pods(), 30, "its controller makes a new one")
    assert uid(cluster.pods()["low"]) != uid(before["low"])
    assert not cluster.is_running("low"), "not on this node: it is cordoned"

    back = take(cluster, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK, back.detail
    assert not cluster.spec().get("unschedulable")
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
    assert not cluster.spec().get("unschedulable") and not result.is_in_force
    assert {name: uid(pod) for name, pod in cluster.pods().items()} == {
        name: uid(pod) for name, pod in before.items()
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
