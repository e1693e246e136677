# SPDX-License-Identifier: Apache-2.0
"""Escalation on current APIs: an eviction by policy/v1 with budgets, a cordon and back, a MIG manager that is asked.

Three pods of a real kubelet, and a second node to move to, which only kwok knows. What acts is the service account of
packaging/kubernetes/escalation-rbac.yaml. The GPUs are a number in the node's status.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from fairsched.companion.escalate.evict import MARK, EvictSettings, EvictStep
from fairsched.companion.escalate.mig import CONFIG_LABEL, STATE_LABEL, LabelMigStep, LabelSettings
from fairsched.companion.escalate.model import Kind, Outcome, Result
from fairsched.companion.escalate.pods import EvictionRules
from fairsched.companion.escalate.steps import carry_out
from fairsched.k8s.client import KubeClient
from tests.k8s import network, rights
from tests.k8s.cluster import NODE, Cluster
from tests.k8s.fake_nodes import fake_node, fake_nodes
from tests.k8s.places import BIN, IMAGE
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, gpus_on_the_node, make_spaces
from tests.k8s.release import NAME, NAMESPACE, Release, need_image, simulated
from tests.node.daemon.site import DECODE, STEADY
from tests.node.daemon.test_escalation import QUICK
from tests.support import wait_until
from tests.unit.companion.escalate.reports import cgroup, order, report, tenant
from tests.unit.companion.escalate.test_mig import FREE, Driver, gpu
from tests.unit.repo.tree import ROOT

PLACE = "escalation"
OTHER = "far-away"
LABEL = "fairsched.io/busy"
GPU = "nvidia.com/gpu"
PRIORITIES = {"guarded": -20, "low": -10, "high": 1000}


def deployment(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"],
        "resources": {"limits": {GPU: "1"}},
    }
    spec = {
        "priorityClassName": f"escalation-{name}",
        "terminationGracePeriodSeconds": 2,
        # Not all of them: a cordon is a taint as well.
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        "containers": [container],
    }
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": PLACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def budget(selector: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded", "namespace": PLACE},
        "spec": {"minAvailable": "100%", "selector": selector},
    }


class Scene:
    """What the tests look at."""

    def __init__(self, cluster: Cluster, client: KubeClient) -> None:
        self.cluster, self.client = cluster, client

    def pods(self) -> dict[str, dict[str, Any]]:
        """By the name of their deployment; those that end are left out."""
        found = self.cluster.get("pods", "-n", PLACE)["items"]
        living = [one for one in found if "deletionTimestamp" not in one["metadata"]]
        return {one["metadata"]["labels"]["app"]: one for one in living}

    def uids(self) -> dict[str, str]:
        return {name: one["metadata"]["uid"] for name, one in self.pods().items()}

    def where(self, name: str) -> str | None:
        """The node on which it runs; None: it does not."""
        pod = self.pods().get(name)
        is_running = pod is not None and pod["status"].get("phase") == "Running"
        return str(pod["spec"]["nodeName"]) if pod is not None and is_running else None

    def node(self) -> dict[str, Any]:
        return self.cluster.get("node", NODE)

    def evict(self, **more: Any) -> Result:
        """The step, for the tenant `high`."""
        settings = EvictSettings(
            NODE, EvictionRules(namespaces=(PLACE,)), labels={LABEL: "true"}, wait_s=30.0
        )
        seen = report([tenant(name, cgroups=(cgroup(pod),)) for name, pod in self.pods().items()])
        wanted = order("evict", tenant="high", **more)
        with network.inside(self.cluster):
            return carry_out(EvictStep(lambda: self.client, settings), wanted, seen, lambda undo: None)

    def budget_covers(self, count: int) -> bool:
        status = self.cluster.get("pdb", "guarded", "-n", PLACE).get("status", {})
        return status.get("currentHealthy") == count and not status.get("disruptionsAllowed")


@pytest.fixture(scope="module")
def gpus(cluster: Cluster) -> Iterator[None]:
    with gpus_on_the_node(cluster, 8):
        yield


@pytest.fixture(scope="module")
def scene(cluster: Cluster, gpus: None) -> Iterator[Scene]:
    if not (BIN / "kwok").exists():
        pytest.skip("no kwok: sudo make setup-k8s")
    manifest = ROOT / "packaging/kubernetes/escalation-rbac.yaml"
    rights = list(yaml.safe_load_all(manifest.read_text()))
    classes: list[dict[str, Any]] = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
         "metadata": {"name": f"escalation-{name}"}}
        for name, value in PRIORITIES.items()
    ]  # fmt: skip
    try:
        make_spaces(cluster, PLACE)
        cluster.apply(*rights, *classes)
        cluster.apply(budget({"matchLabels": {"app": "guarded"}}), *map(deployment, PRIORITIES))
        client = network.as_account(cluster, "kube-system", "fairsched-escalation")
        found = Scene(cluster, client)
        wait_until(
            lambda: all(found.where(name) == NODE for name in PRIORITIES), PATIENCE_S, "the pods run here"
        )
        wait_until(lambda: found.budget_covers(1), PATIENCE_S, "the budget knows its pod")
        with fake_nodes(cluster, [fake_node(OTHER, {GPU: "8"})]):
            try:
                yield found
            finally:
                drop_spaces(cluster, PLACE)
                # Nobody is left to end those there.
                cluster.kubectl(
                    "delete", "pods", "--all", "-n", PLACE, "--force", "--grace-period=0", "--wait=false"
                )
    finally:
        cluster.kubectl("delete", "priorityclass", *(one["metadata"]["name"] for one in classes))
        cluster.kubectl("delete", "-f", str(manifest))


def test_a_pod_is_moved_to_another_node_and_this_one_comes_back(scene: Scene) -> None:
    """The one of the lowest priority is guarded by its budget: the next goes, and runs elsewhere."""
    before = scene.uids()
    dry = scene.evict(is_dry_run=True)
    assert dry.outcome is Outcome.DRY_RUN and "by policy/v1" in dry.detail, dry.detail
    assert "the server would grant" in dry.detail
    assert scene.uids() == before and not scene.node()["spec"].get("unschedulable")

    done = scene.evict()
    assert done.outcome is Outcome.DONE, done.detail
    assert "its disruption budget forbids it now" in done.detail and "it has gone" in done.detail
    node = scene.node()
    assert node["spec"]["unschedulable"]
    assert node["metadata"]["annotations"][MARK] and node["metadata"]["labels"][LABEL] == "true"
    wait_until(lambda: scene.where("low") == OTHER, PATIENCE_S, "it runs on the other node")
    after = scene.uids()
    assert {name for name in before if after[name] != before[name]} == {"low"}
    assert scene.where("high") == scene.where("guarded") == NODE

    back = scene.evict(kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK, back.detail
    node = scene.node()
    assert not node["spec"].get("unschedulable")
    assert MARK not in node["metadata"].get("annotations", {}) and LABEL not in node["metadata"]["labels"]
    assert scene.uids() == after, "who has moved stays where it is"


def test_where_nobody_may_go_the_node_is_as_before(scene: Scene) -> None:
    """`low` is back, and a budget covers everybody."""
    scene.cluster.kubectl("cordon", OTHER)
    try:
        scene.cluster.kubectl("delete", "pod", "-n", PLACE, "-l", "app=low", "--wait")
        wait_until(lambda: scene.where("low") == NODE, PATIENCE_S, "it runs here")
        scene.cluster.apply(budget({"matchExpressions": [{"key": "app", "operator": "Exists"}]}))
        wait_until(lambda: scene.budget_covers(3), PATIENCE_S, "the budget covers all")
        before, node = scene.uids(), scene.node()
        result = scene.evict()
        assert result.outcome is Outcome.FAILED and "no eviction was granted" in result.detail, result.detail
        assert not result.is_in_force
        assert scene.uids() == before
        assert scene.node()["metadata"]["labels"] == node["metadata"]["labels"]
        # The taint of a cordon is taken away by the server's controllers, a moment later.
        wait_until(lambda: scene.node()["spec"] == node["spec"], PATIENCE_S, "the node is as before")
    finally:
        scene.cluster.kubectl("uncordon", OTHER)


def test_a_cordon_of_somebody_else_stays(scene: Scene) -> None:
    scene.cluster.apply(budget({"matchLabels": {"app": "guarded"}}))
    wait_until(lambda: scene.budget_covers(1), PATIENCE_S, "the budget has its one pod again")
    scene.cluster.kubectl("cordon", NODE)
    try:
        done = scene.evict()
        assert done.outcome is Outcome.DONE, done.detail
        back = scene.evict(kind=Kind.ROLLBACK, undo=done.undo)
        assert back.outcome is Outcome.ROLLED_BACK, back.detail
        assert scene.node()["spec"]["unschedulable"]
    finally:
        scene.cluster.kubectl("uncordon", NODE)


class MigManager:
    """What NVIDIA's does with its labels: sees another configuration wanted, is busy with it, and says how it went."""

    def __init__(self, cluster: Cluster, verdict: Callable[[str], str]) -> None:
        self.cluster, self.verdict = cluster, verdict
        self.states: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MigManager:
        label(self.cluster, **{CONFIG_LABEL: "all-1g.10gb", STATE_LABEL: "success"})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        label(self.cluster, **{CONFIG_LABEL: None, STATE_LABEL: None})

    def _run(self) -> None:
        done = "all-1g.10gb"
        while not self._over.wait(0.2):
            wanted = self.cluster.get("node", NODE)["metadata"]["labels"].get(CONFIG_LABEL)
            if wanted in (None, done):
                continue
            label(self.cluster, **{STATE_LABEL: "rebooting"})
            self.states.append(self.verdict(wanted))
            label(self.cluster, **{STATE_LABEL: self.states[-1]})
            done = wanted


def label(cluster: Cluster, **values: str | None) -> None:
    words = [f"{key}-" if value is None else f"{key}={value}" for key, value in values.items()]
    cluster.kubectl("label", "node", NODE, "--overwrite", *words)


def split(scene: Scene, **more: Any) -> Result:
    step = LabelMigStep(
        lambda: scene.client, LabelSettings(NODE, "all-3g.40gb", wait_s=30.0), driver=Driver(gpu(), gpu(1))
    )
    with network.inside(scene.cluster):
        return carry_out(step, order("mig", **more), FREE, lambda undo: None)


def mig_label(scene: Scene) -> str:
    return str(scene.node()["metadata"]["labels"][CONFIG_LABEL])


def test_the_mig_manager_splits_the_gpus_and_puts_them_back(scene: Scene) -> None:
    with MigManager(scene.cluster, lambda wanted: "success") as manager:
        done = split(scene)
        assert done.outcome is Outcome.DONE, done.detail
        assert mig_label(scene) == "all-3g.40gb"
        back = split(scene, kind=Kind.ROLLBACK, undo=done.undo)
        assert back.outcome is Outcome.ROLLED_BACK, back.detail
        assert mig_label(scene) == "all-1g.10gb"
        assert manager.states == ["success", "success"]


def test_a_mig_manager_that_fails_gets_its_old_order_back(scene: Scene) -> None:
    verdicts = {"all-3g.40gb": "failed", "all-1g.10gb": "success"}
    with MigManager(scene.cluster, verdicts.__getitem__) as manager:
        result = split(scene)
        assert result.outcome is Outcome.FAILED and not result.is_in_force, result.detail
        assert mig_label(scene) == "all-1g.10gb"
        assert manager.states == ["failed", "success"]


def test_it_has_used_all_that_it_may_and_may_do_nothing_else(scene: Scene) -> None:
    """By the API server's own record and rules."""
    rights.check(scene.cluster, rights.account("kube-system", "fairsched-escalation"), PLACE)


# ---- the agent of the chart ----


class Climbing(Release):
    """A release whose own ladder acts."""

    asked_before = 0
    """Lines of the API server's record that are older than it."""

    def outcomes(self) -> list[tuple[str, str]]:
        """What its steps came to, in their order."""
        told: list[dict[str, Any]] = json.loads(
            self.fairsched("escalation", "history", "--json", "-n", "1000")
        )
        return [(one["kind"], one["outcome"]) for one in told if one["event"] == "result"]


@pytest.fixture
def climbing(cluster: Cluster, scene: Scene) -> Iterator[Climbing]:
    """Pods that keep the GPU busy, one of which waits for the others."""
    need_image(cluster)
    with simulated() as gpu:
        found = Climbing(cluster, gpu)
        found.asked_before = len(cluster.audited())
        cluster.kubectl("cordon", OTHER)
        cluster.kubectl("delete", "pod", "-n", PLACE, "-l", "app=low", "--wait")
        wait_until(lambda: scene.where("low") == NODE, PATIENCE_S, "it runs here")
        cluster.kubectl("uncordon", OTHER)
        try:
            tenants = {
                name: {
                    "class": "latency" if name == "high" else "batch",
                    "match": {"pod": f"{PLACE}/{name}-*"},
                }
                for name in PRIORITIES
            }
            evict = {"namespaces": [PLACE], "labels": {LABEL: "true"}, "wait_s": 30, "cool_down_s": 1}
            found.install({"tenants": tenants, "escalation": {**QUICK, "ladder": ["evict"], "evict": evict}})
            places = {name: container_cgroup_of(one) for name, one in scene.pods().items()}
            gpu.spawn("high", DECODE, places["high"])
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            for name in ("guarded", "low", "low", "low"):
                gpu.spawn(name, STEADY, places[name])
            yield found
        finally:
            for name in PRIORITIES:
                gpu.kill_group(name)
            found.uninstall()


def test_the_agent_of_the_chart_moves_a_pod_away_and_takes_it_back_when_nobody_waits(
    scene: Scene, climbing: Climbing
) -> None:
    before = scene.uids()
    wait_until(lambda: bool(climbing.outcomes()), PATIENCE_S, "the ladder has acted")
    assert climbing.outcomes()[0] == ("apply", "done"), climbing.log()
    assert scene.node()["spec"]["unschedulable"] and scene.node()["metadata"]["labels"][LABEL] == "true"
    wait_until(lambda: scene.where("low") == OTHER, PATIENCE_S, "it runs on the other node")
    after = scene.uids()
    assert {name for name in before if after[name] != before[name]} == {"low"}

    for name in PRIORITIES:
        climbing.gpu.kill_group(name)
    wait_until(
        lambda: climbing.outcomes()[-1] == ("rollback", "rolled_back"), PATIENCE_S, "nobody waits any more"
    )
    assert not scene.node()["spec"].get("unschedulable")
    user = rights.account(NAMESPACE, NAME)
    rights.check(scene.cluster, user, NAMESPACE, PLACE, since=climbing.asked_before)
